# SPDX-License-Identifier: MIT
"""The command `shunt`, as `shunt` or `python -m libshunt`."""

from __future__ import annotations

import os
import sys

from libshunt._command import command_path
from libshunt._lib import Error


def main() -> int:
    try:
        command = command_path(search=False)
        os.execv(command, ["shunt", *sys.argv[1:]])
    except Error as error:
        print(f"shunt: {error}", file=sys.stderr)
    except OSError as error:
        print(f"shunt: cannot run {command}: {error.strerror}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
