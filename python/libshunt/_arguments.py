# SPDX-License-Identifier: MIT
"""What functions of the package take: a wrong argument is one Error, which names the argument and its value.

ctypes would wrap a number that does not fit, and cut a text at a NUL; what else is wrong would be an error of whichever
line meets it first.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import NoReturn

from libshunt._lib import Error

# An address has 57 bits at most (five levels of page tables), so no buffer has more bytes.
MOST_BYTES = 1 << 57
_SHOWN = 80


class ArgumentError(Error, ValueError):
    """A wrong argument: its name, its value, and what it should be."""


def line(name: str) -> str:
    """A name in one line, whatever characters it has."""
    return repr(name)[1:-1]


def shown(value: object) -> str:
    """A value in one short line."""
    try:
        text = f'"{line(value)}"' if isinstance(value, str) else " ".join(repr(value).split())
    except Exception:  # it is the value that is wrong, whatever its repr() does
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def wrong(what: str, value: object, wanted: str) -> NoReturn:
    raise ArgumentError(f"{what} is {shown(value)}: it is {wanted}")


def text(what: str, value: object, wanted: str = "a str") -> str:
    """A text that C gets; without NULs and in UTF-8."""
    if not isinstance(value, str):
        wrong(what, value, f"{wanted}, not {type(value).__name__}")
    try:
        if b"\0" not in value.encode():
            return value
    except UnicodeEncodeError:
        wrong(what, value, f"{wanted}, and this one has characters that are none")
    wrong(what, value, f"{wanted} without NULs")


def path(what: str, value: object) -> str:
    """A path of the file system, which need not be UTF-8."""
    if not isinstance(value, (str, os.PathLike)):
        wrong(what, value, f"a path, a str or an os.PathLike, not {type(value).__name__}")
    try:
        name = os.fspath(value)
    except Exception:
        wrong(what, value, "a path")
    if not isinstance(name, str) or "\0" in name:
        wrong(what, value, "a path, a str without NULs")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        wrong(what, value, "a path, and this one has characters that are none")
    return name


def integer(what: str, value: object, low: int, high: int) -> int:
    """An int, or what stands for one, such as NumPy's."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        wrong(what, value, f"an int, not {type(value).__name__}")
    try:
        number = operator.index(value)
    except Exception:
        wrong(what, value, "an int")
    if not low <= number <= high:
        wrong(what, value, f"from {low} to {high}")
    return number


def integers(what: str, value: object, low: int, high: int) -> list[int]:
    """One, or several. An array or a tensor has the methods of both: it is one if it has no dimensions."""
    is_one = not isinstance(value, Iterable) or getattr(value, "shape", None) == ()
    if is_one and hasattr(value, "__index__"):
        return [integer(what, value, low, high)]
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
        wrong(what, value, f"an int or several, not {type(value).__name__}")
    return [integer(f"one of {what}", one, low, high) for one in value]


def word(what: str, value: object, words: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in words:
        wrong(what, value, f"one of {', '.join(words)}")
    return value
