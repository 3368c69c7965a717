# SPDX-License-Identifier: MIT
"""
A package `mscclpp` with the names of MSCCL++'s, for programs that are written for it.

It lies in this folder, which no program sees but by `shunt run --mscclpp` or enable(). A real mscclpp that is installed
stays as it is.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def enable() -> None:
    """From now on `import mscclpp` is this one, here and in children. To be called before the first import of it."""
    other = sys.modules.get("mscclpp")
    if other is not None and not (getattr(other, "__file__", None) or "").startswith(_HERE):
        raise ImportError("mscclpp is imported already: call libshunt.compat.enable() before that")
    if _HERE not in sys.path:
        sys.path.insert(0, _HERE)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if _HERE not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([_HERE, *paths])
