# SPDX-License-Identifier: MIT
"""Functions of the program that the library calls."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Callback:
    """
    What errors of such a function become: one line on stderr. Into C no exception gets. Who makes one keeps it for
    ever, because communicators keep its address.
    """

    what = ""  # "selector"
    outcome = ""  # "such calls go on without its answer"

    def __init__(self, function: Any, name: str = "") -> None:
        self.function = function
        self.name = name or getattr(function, "__name__", repr(function))
        self.complained = False

    def complain(self, text: str) -> None:
        if not self.complained:
            self.complained = True
            print(f"libshunt: the {self.what} {self.name} {text}; {self.outcome}", file=sys.stderr)

    def raised(self, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        place = ([frame for frame in frames if not frame.filename.startswith(_HERE)] or frames)[-1]
        said = " ".join(str(error).split())
        self.complain(f"raised {type(error).__name__}: {said} ({place.filename}:{place.lineno})")
        if isinstance(error, KeyboardInterrupt):
            import _thread

            _thread.interrupt_main()
