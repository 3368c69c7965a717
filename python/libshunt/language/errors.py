# SPDX-License-Identifier: MIT
"""The error of a program, with the line that made it."""

from __future__ import annotations

import functools
import os
import sys
from typing import NoReturn

from libshunt._lib import Error

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SKIPPED = tuple(os.path.join(_PACKAGE, name) + os.sep for name in ("language", "compat"))


class ProgramError(Error, ValueError):
    """A program is wrong. The text begins with FILE:LINE of the call in the program, if there is one."""

    def __init__(self, message: str, file: str | None = None, line: int = 0) -> None:
        self.message = message
        self.file = file
        self.line = line
        super().__init__(f"{file}:{line}: {message}" if file else message)


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
    return f"{os.path.basename(file)}:{line}"


def fail(message: str) -> NoReturn:
    file, line = caller()
    raise ProgramError(message, file, line)
