# SPDX-License-Identifier: MIT
"""DeepEP's name for libshunt.deep_ep."""

import os as _os
import sys as _sys

try:
    import libshunt as _libshunt  # noqa: F401
except ImportError:
    # The command is in another environment than the program's interpreter.
    _sys.path.append(_os.path.dirname(_os.path.dirname(_os.path.dirname(_os.path.dirname(_os.path.abspath(__file__))))))

from libshunt import _alias
from libshunt.deep_ep import *  # noqa: F403

if _other := _alias.hidden("deep_ep", __file__):
    print(f"libshunt: deep_ep is Shunt's, and hides {_other}", file=_sys.stderr)
