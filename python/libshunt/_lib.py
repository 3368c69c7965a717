# SPDX-License-Identifier: MIT
"""Where libshunt.so is, and its functions with their types."""

from __future__ import annotations

import os

# That of the project; a test compares them.
__version__ = "0.2.0"

_HERE = os.path.dirname(os.path.abspath(__file__))


class Error(RuntimeError):
    """What Shunt cannot do, in one line that says what to do about it."""


def library_path() -> str:
    """The libshunt.so of this package, or the file that SHUNT_LIB names."""
    given = os.environ.get("SHUNT_LIB")
    if given:
        if not os.path.isfile(given):
            raise Error(f'SHUNT_LIB is "{given}", which is not a file: unset it, or name a libshunt.so')
        return os.path.realpath(given)
    path = os.path.join(_HERE, "lib", "libshunt.so")
    if not os.path.isfile(path):
        raise Error(
            f"{path} is not there: this is a source tree, or a broken installation; "
            "set SHUNT_LIB to a libshunt.so, or install the wheel again"
        )
    return path
