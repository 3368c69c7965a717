# SPDX-License-Identifier: MIT
"""
Expert parallel for programs that are written for DeepEP: the names of its module `deep_ep`, over shunt/ep.h by ctypes.
Needs PyTorch, and nothing that is compiled. docs/ep.md says what is there.

`import deep_ep` finds this only by `shunt run --deep-ep`, install(), or the wheel of the alias.
"""

from __future__ import annotations

import os

import torch

from libshunt import _alias
from libshunt.deep_ep.buffer import Buffer
from libshunt.deep_ep.config import Config
from libshunt.deep_ep.events import EventHandle, EventOverlap

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "__version__", "shunt", "topk_idx_t"]

__version__ = "1.2.1"  # of DeepEP, whose names these are
shunt = True
topk_idx_t = torch.int64


def install() -> None:
    """From now on `import deep_ep` is this one, here and in children. To be called before the first import of it."""
    _alias.enable(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "alias"), "deep_ep",
                  "libshunt.deep_ep.install()")  # fmt: skip
