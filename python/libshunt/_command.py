# SPDX-License-Identifier: MIT
"""Where the command `shunt` is."""

from __future__ import annotations

import os
import shutil

from libshunt._lib import Error

_HERE = os.path.dirname(os.path.abspath(__file__))


def command_path() -> str:
    """The command of this package, that beside the library that SHUNT_LIB names, or that of PATH."""
    library = os.environ.get("SHUNT_LIB")
    places = [os.path.join(_HERE, "bin", "shunt")]
    if library:
        folder = os.path.dirname(os.path.dirname(os.path.realpath(library)))
        places += [os.path.join(folder, name, "shunt") for name in ("tools", "bin")]
    for place in places:
        if os.access(place, os.X_OK) and os.path.isfile(place):
            return place
    found = shutil.which("shunt")
    if found is None:
        raise Error("the command shunt is not found: install the wheel, or have it in PATH")
    return found
