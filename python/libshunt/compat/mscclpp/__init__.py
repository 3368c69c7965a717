# SPDX-License-Identifier: MIT
"""Shunt under MSCCL++'s name; see libshunt.compat."""

import os as _os
import sys as _sys

try:
    import libshunt as _libshunt  # noqa: F401
except ImportError:
    # The command is in another environment than the program's interpreter.
    _sys.path.append(_os.path.dirname(_os.path.dirname(_os.path.dirname(_os.path.dirname(_os.path.abspath(__file__))))))

from libshunt.language import AlgoSpec as AlgoSpec
