# SPDX-License-Identifier: MIT
"""The error of a program, with the line that made it."""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import NoReturn

from libshunt._lib import Error

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SKIPPED = tuple(os.path.join(_PACKAGE, name) + os.sep for name in ("language", "compat"))


class ProgramError(Error, ValueError):
    """A program is wrong. The text begins with the place of the call in the program, if there is one: FILE:LINE, or the
    cell of a notebook and the line in it."""

    def __init__(self, message: str, file: str | None = None, line: int = 0) -> None:
        if _files:  # a proof names operations by their files
            names = "|".join(map(re.escape, _files))
            message = re.sub(rf"({names}):(\d+)", lambda at: _place(at[1], int(at[2])), message)
        self.message = message
        self.file = file
        self.line = line
        super().__init__(f"{_place(file, line)}: {message}" if file else message)


# The files of operations, by the names that operations have for them.
_files: dict[str, str] = {}


def _place(file: str, line: int) -> str:
    """IPython compiles each cell under a file's name that says nothing, and knows the cell's number."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)(_files.get(file, file))
    if not named:
        return f"{file}:{line}"
    number = re.fullmatch(r"In *\[(\d+)\]", named[1])
    return f"cell {number[1] if number else named[1]}, line {line}"


@functools.cache
def _is_own(file: str) -> bool:
    return os.path.abspath(file).startswith(_SKIPPED)


def caller() -> tuple[str, int]:
    """File and line of the innermost frame that is not the package's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def source() -> str:
    """The caller as operations name it: without directories, so that a plan does not depend on where its file lies."""
    file, line = caller()
    name = os.path.basename(file)
    _files[name] = file
    return f"{name}:{line}"


def fail(message: str) -> NoReturn:
    file, line = caller()
    raise ProgramError(message, file, line)
