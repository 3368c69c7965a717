# SPDX-License-Identifier: MIT
"""Shunt for Python programs: what stands behind NCCL's ABI, and what it does with each call.

    import libshunt
    libshunt.enable()          # before `import torch`: Shunt answers its NCCL calls from now on
    import torch
    ...
    print(libshunt.status())   # does it? The loader says so
    print(libshunt.stats())    # which path the calls took

The package has no dependency and opens libshunt.so by ctypes. Importing it loads and changes nothing.
"""

import importlib
from typing import Any

from libshunt._command import command_path
from libshunt._comms import (
    Algorithm,
    Communicator,
    Count,
    Stats,
    algorithms,
    communicators,
    describe,
    dump,
    force,
    numerics,
    path,
    redop,
    stats,
)
from libshunt._lib import Error, __version__, library_path
from libshunt._loader import User
from libshunt._plans import Call, Plan, Report, asked, forget, plan, plans, select, unregister, verify
from libshunt._plugins import AlgorithmCall, Array, algorithm
from libshunt._process import Status, enable, status

__all__ = [
    "Algorithm",
    "AlgorithmCall",
    "Array",
    "Call",
    "Communicator",
    "Count",
    "Error",
    "Plan",
    "Report",
    "Stats",
    "Status",
    "User",
    "__version__",
    "algorithm",
    "algorithms",
    "asked",
    "command_path",
    "communicators",
    "describe",
    "dump",
    "enable",
    "force",
    "forget",
    "library_path",
    "numerics",
    "path",
    "plan",
    "plans",
    "redop",
    "select",
    "stats",
    "status",
    "unregister",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Submodules that a program may not need are imported when they are named."""
    if name in ("compat", "deep_ep", "language", "torch", "torchcomms"):
        return importlib.import_module(f"libshunt.{name}")
    raise AttributeError(f"module 'libshunt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "compat", "deep_ep", "language", "torch", "torchcomms"])
