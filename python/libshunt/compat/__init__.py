# SPDX-License-Identifier: MIT
"""
A package `mscclpp` with the names of MSCCL++'s, for programs that are written for it.

It lies in this folder, which no program sees but by `shunt run --mscclpp` or enable(). A real mscclpp that is installed
stays as it is.
"""

from __future__ import annotations

import os

from libshunt import _alias

_HERE = os.path.dirname(os.path.abspath(__file__))


def enable() -> None:
    """From now on `import mscclpp` is this one, here and in children. To be called before the first import of it."""
    _alias.enable(_HERE, "mscclpp", "libshunt.compat.enable()")
