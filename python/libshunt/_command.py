# SPDX-License-Identifier: MIT
"""Where the command `shunt` is."""

from __future__ import annotations

import os
import shutil

from libshunt._lib import Error, loaded

_HERE = os.path.dirname(os.path.abspath(__file__))
# From prefix/lib/TRIPLET to prefix, and one further; as in src/base/place.c.
_UP = 3


def _is_program(path: str) -> bool:
    """A compiled one: the script of that name, which pip makes, asks this package."""
    try:
        with open(path, "rb") as file:
            return os.access(path, os.X_OK) and file.read(4) == b"\x7fELF"
    except OSError:
        return False


def command_path(search: bool = True) -> str:
    """The command of this package, that of the installation or build of the library that SHUNT_LIB names or that is
    loaded, or that of PATH.

    search: look in PATH, too. Not for the script `shunt` of this package, which may be what PATH has.
    """
    library = os.environ.get("SHUNT_LIB") or loaded()
    places = [os.path.join(_HERE, "bin", "shunt")]
    folder = os.path.realpath(library) if library else ""
    for _ in range(_UP + 1 if library else 0):
        folder = os.path.dirname(folder)
        places += [os.path.join(folder, name, "shunt") for name in ("tools", "bin")]
    for place in places:
        if _is_program(place):
            return place
    found = shutil.which("shunt") if search else None
    if found is None:
        raise Error(
            f"{places[0]} is not there: this is a source tree, or a broken installation; "
            "install the wheel again, or set SHUNT_LIB to the libshunt.so of another installation"
        )
    return found
