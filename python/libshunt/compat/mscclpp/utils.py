# SPDX-License-Identifier: MIT
from __future__ import annotations

import ctypes
import struct
import sys
from typing import Any, NoReturn

from libshunt import Error

from ._types import NO_NATIVE, DataType


def is_torch_tensor(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def torch_dtype_to_mscclpp_dtype(dtype: Any) -> DataType:
    """torch.float16 and so on, also as a string."""
    try:
        return DataType[str(dtype).removeprefix("torch.")]
    except KeyError:
        raise ValueError(f"MSCCL++ has no data type {dtype}") from None


def pack(*args: Any) -> bytes:
    """The arguments of a kernel, one behind the other."""
    out = b""
    for arg in args:
        if isinstance(arg, (int, bool)):
            out += struct.pack("i", arg)
        elif isinstance(arg, ctypes.c_size_t):
            out += struct.pack("N", arg.value)
        elif isinstance(arg, bytes):
            out += arg
        elif hasattr(arg, "data_ptr"):
            out += struct.pack("P", arg.data_ptr())
        elif hasattr(arg, "ctypes"):
            out += struct.pack("P", arg.ctypes.data)
        elif hasattr(arg, "data") and hasattr(arg.data, "ptr"):
            out += struct.pack("P", arg.data.ptr)
        else:
            raise RuntimeError(f"pack() does not know {type(arg).__name__}")
    return out


def get_device_arch() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


class _Kernels:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise Error(NO_NATIVE)


class Kernel(_Kernels):
    pass


class KernelBuilder(_Kernels):
    pass
