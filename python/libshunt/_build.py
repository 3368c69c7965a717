# SPDX-License-Identifier: MIT
"""
Runs a program in the language of plans and writes its plans: what `shunt plan build` becomes.

    python3 _build.py DIRECTORY PROGRAM.py [ARGUMENT...]
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
import traceback
from collections.abc import Sequence

_PACKAGE = os.path.dirname(os.path.abspath(__file__))


def main(folder: str, program: str, arguments: Sequence[str]) -> int:
    from libshunt import compat
    from libshunt.language import CollectiveProgram, ProgramError
    from libshunt.language.program import observers

    written: dict[str, tuple[CollectiveProgram, str]] = {}

    def keep(made: CollectiveProgram, text: str) -> None:
        if any(text == other for _, other in written.values()):
            return
        stem = re.sub(r"[^\w.+-]", "_", made.name)
        name, number = stem, 1
        while name in written:
            number += 1
            name = f"{stem}-{number}"
        written[name] = (made, text)

    compat.enable()
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    observers.append(keep)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(program, run_name="__main__")
    except ProgramError as error:
        return _failed(str(error))
    except SystemExit as end:
        if end.code:
            return _failed(f"{program} ended with {end.code}")
    except OSError as error:
        return _failed(f"{program}: {error.strerror}" if error.filename == program else f"{program}: {error}")
    except Exception:
        traceback.print_exc()
        return _failed(f"{program} failed")
    finally:
        observers.remove(keep)
    if not written:
        return _failed(f"{program} wrote no plan: it calls neither JSON() nor to_json()")
    os.makedirs(folder, exist_ok=True)
    return max(_write(os.path.join(folder, f"{name}.json"), *made) for name, made in written.items())


def _write(path: str, program: object, text: str) -> int:
    from libshunt.language import CollectiveProgram, ProgramError

    assert isinstance(program, CollectiveProgram)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    try:
        report = program.verify()
    except ProgramError as error:
        print(f"wrong  {path}: {error}")
        return 1
    print(f"ok     {path}: {report['collective']} of {report['ranks']} ranks, hash {report['hash']}")
    return 0


def _failed(message: str) -> int:
    print(f"shunt plan build: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    # Not the package's own folder, whose modules are no top-level ones. The package is found without being installed.
    sys.path[0:1] = []
    sys.path.append(os.path.dirname(_PACKAGE))
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
