# SPDX-License-Identifier: MIT
"""
Shunt under MSCCL++'s name; see libshunt.compat. What is not here is what no program in the language of plans needs:
channels, connections and proxies of the host.
"""

from __future__ import annotations

import os as _os
import subprocess as _subprocess
import sys as _sys
from typing import Any as _Any

try:
    import libshunt as _libshunt  # noqa: F401
except ImportError:
    # The command is in another environment than the program's interpreter.
    _sys.path.append(_os.path.dirname(_os.path.dirname(_os.path.dirname(_os.path.dirname(_os.path.abspath(__file__))))))

from libshunt import Error as _Error
from libshunt import __version__ as __version__
from libshunt import library_path as _library_path
from libshunt._command import command_path as _command_path
from libshunt.language import AlgoSpec as AlgoSpec

from . import language as language
from . import npkit as npkit
from ._algorithms import (
    Algorithm,
    AlgorithmBuilder,
    AlgorithmCollection,
    AlgorithmCollectionBuilder,
    ExecutionPlan,
    ExecutionPlanRegistry,
    Executor,
    compile,
    compile_native,
)
from ._bootstrap import TcpBootstrap
from ._buffers import GpuBuffer, RawGpuBuffer
from ._comm import CommGroup, Communicator
from ._types import CollectiveBufferMode, DataType, ErrorCode, GpuBufferGranularity, PacketType, ReduceOp

__all__ = [
    "AlgoSpec",
    "Algorithm",
    "AlgorithmBuilder",
    "AlgorithmCollection",
    "AlgorithmCollectionBuilder",
    "CollectiveBufferMode",
    "CommGroup",
    "Communicator",
    "DataType",
    "ErrorCode",
    "ExecutionPlan",
    "ExecutionPlanRegistry",
    "Executor",
    "GpuBuffer",
    "GpuBufferGranularity",
    "PacketType",
    "RawGpuBuffer",
    "ReduceOp",
    "TcpBootstrap",
    "compile",
    "compile_native",
    "env",
    "get_include",
    "get_lib",
    "is_bulk_supported",
    "is_nvls_supported",
    "npkit",
    "version",
]

version = {"version": __version__, "git_commit": ""}


class _Env:
    """Variables that programs look at."""

    @property
    def cache_dir(self) -> str:
        home = _os.path.join(_os.path.expanduser("~"), ".cache", "shunt")
        return _os.environ.get("SHUNT_CACHE_DIR") or _os.environ.get("MSCCLPP_CACHE_DIR") or home

    npkit_dump_dir = ""


def env() -> _Env:
    return _Env()


def is_nvls_supported() -> bool:
    """Whether plans may use switch channels: on the sim, and on GPUs of compute capability 9.0 and later."""
    from libshunt import _nccl

    if _nccl.device_kind() == "sim":
        return True
    import torch

    return bool(torch.cuda.get_device_capability()[0] >= 9)


def is_bulk_supported() -> bool:
    """False: there are no device functions for a program's own kernels to copy in bulk with."""
    return False


def get_include() -> str:
    """The folder of the headers: shunt/shunt.h and its neighbours. There are none of MSCCL++ here."""
    found = _subprocess.run([_command_path(), "path", "include"], capture_output=True, text=True)
    if found.returncode:
        raise _Error(found.stderr.strip())
    return found.stdout.strip()


def get_lib() -> str:
    """The folder of the library: libshunt.so and libshunt_api.so.0."""
    return _os.path.dirname(_library_path())


def __getattr__(name: str) -> _Any:
    raise AttributeError(f"Shunt's mscclpp has no {name}: it has what plans and NCCL's calls need (docs/dsl.md)")
