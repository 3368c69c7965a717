# SPDX-License-Identifier: MIT
"""Where the command `shunt` is."""

from __future__ import annotations

import os
import shutil

from libshunt._lib import Error, loaded

_HERE = os.path.dirname(os.path.abspath(__file__))


def command_path(search: bool = True) -> str:
    """The command of this package, that beside the library that SHUNT_LIB names or that is loaded, or that of PATH.

    search: look in PATH, too. Not for the script `shunt` of this package, which may be what PATH has.
    """
    library = os.environ.get("SHUNT_LIB") or loaded()
    places = [os.path.join(_HERE, "bin", "shunt")]
    if library:
        folder = os.path.dirname(os.path.dirname(os.path.realpath(library)))
        places += [os.path.join(folder, name, "shunt") for name in ("tools", "bin")]
    for place in places:
        if os.access(place, os.X_OK) and os.path.isfile(place):
            return place
    found = shutil.which("shunt") if search else None
    if found is None:
        raise Error(
            f"{places[0]} is not there: this is a source tree, or a broken installation; "
            "install the wheel again, or set SHUNT_LIB to the libshunt.so beside another command"
        )
    return found
