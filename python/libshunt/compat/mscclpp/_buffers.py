# SPDX-License-Identifier: MIT
"""Memory that peers can map."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any

from libshunt import Error, _fork, _lib, _nccl

from ._types import GpuBufferGranularity


class _Device(Structure):
    _fields_ = (("device_type", c_int32), ("device_id", c_int32))


class _DataType(Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class _Tensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Managed(Structure):
    """DLManagedTensor of DLPack."""


_Deleter = ctypes.CFUNCTYPE(None, POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter)]

# Codes of DLPack: type of the number, and its bits.
_CODES = {
    "int32": (0, 32),
    "uint32": (1, 32),
    "uint8": (1, 8),
    "float32": (2, 32),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
    "fp8_e4m3b15": (1, 8),
}
_ON_CPU, _ON_CUDA = 1, 2
# What a capsule's consumer frees, by the address of the structure; kept from Python's collector until then.
_given: dict[int, tuple[object, ...]] = {}
_lock = _fork.Lock()


def _free(managed: Any) -> None:
    with _lock:
        _given.pop(ctypes.addressof(managed.contents), None)


_free_callback = _Deleter(_free)


_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = (c_void_p, ctypes.c_char_p, c_void_p)
_capsule_name = b"dltensor"


class RawGpuBuffer:
    """So many bytes of the current device. They live as long as the object and all that to_dlpack() gave."""

    def __init__(self, nelems: int, granularity: GpuBufferGranularity = GpuBufferGranularity.MultiCastMinimum) -> None:
        if nelems < 1:
            raise Error(f"a buffer of {nelems} bytes")
        self._library = _lib.library(private=True)
        self._library.ncclMemAlloc.argtypes = (POINTER(c_void_p), c_size_t)
        self._library.ncclMemFree.argtypes = (c_void_p,)
        address = c_void_p()
        result = self._library.ncclMemAlloc(byref(address), nelems)
        if result or not address.value:
            raise Error(f"no {nelems} bytes of device memory: ncclMemAlloc returned {result}")
        self._address, self._bytes = address.value, nelems
        self._generation = _fork.generation()
        self._is_sim = _nccl.device_kind() == "sim"

    def nelems(self) -> int:
        return self._bytes

    def bytes(self) -> int:
        return self._bytes

    def data(self) -> int:
        return self._address

    def data_ptr(self) -> int:
        return self._address

    def device_id(self) -> int:
        if self._is_sim:
            return 0
        import torch

        return int(torch.cuda.current_device())

    def read(self) -> Any:
        """The bytes, copied."""
        data = ctypes.create_string_buffer(self._bytes)
        _lib.check(self._library.shunt_memcpy(data, self._address, self._bytes), "copying from the device")
        return data.raw

    def write(self, data: Any) -> None:
        if len(data) > self._bytes:
            raise Error(f"{len(data)} bytes into a buffer of {self._bytes}")
        _lib.check(self._library.shunt_memcpy(self._address, data, len(data)), "copying to the device")

    def to_dlpack(self, data_type: str, shape: Sequence[int] = (), strides: Sequence[int] = ()) -> Any:
        """A capsule for torch.utils.dlpack.from_dlpack() and its like. data_type: "torch.float16" and so on."""
        word = str(data_type).removeprefix("torch.")
        if word not in _CODES:
            raise Error(f"there is no data type {data_type}; it is one of {', '.join(_CODES)}")
        code, bits = _CODES[word]
        sizes = list(shape) or [self._bytes * 8 // bits]
        if math.prod(sizes) * bits // 8 > self._bytes:
            raise Error(f"shape {tuple(sizes)} of {word} needs more than the buffer's {self._bytes} bytes")
        shape_array = (c_int64 * len(sizes))(*sizes)
        strides_array = (c_int64 * len(strides))(*strides) if strides else None
        managed = _Managed()
        tensor = managed.tensor
        tensor.data = self._address
        tensor.device = _Device(_ON_CPU if self._is_sim else _ON_CUDA, self.device_id())
        tensor.ndim = len(sizes)
        tensor.dtype = _DataType(code, bits, 1)
        tensor.shape = ctypes.cast(shape_array, POINTER(c_int64))
        if strides_array is not None:
            tensor.strides = ctypes.cast(strides_array, POINTER(c_int64))
        managed.deleter = _free_callback
        address = ctypes.addressof(managed)
        with _lock:
            _given[address] = (managed, shape_array, strides_array, self)
        return _capsule_new(address, _capsule_name, None)

    def __del__(self) -> None:
        # The memory, and the thread of a stream in the sim, are those of a forked child's parent.
        if getattr(self, "_address", 0) and self._generation == _fork.generation():
            # A kernel may still use it. On GPUs the default stream waits for those of most programs.
            self._library.shunt_stream_synchronize(None)
            self._library.ncclMemFree(self._address)


class _Pointer:
    """As cupy's arrays have it: array.data.ptr."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class GpuBuffer:
    """
    An array in memory that peers can map. What takes arrays of other libraries takes it: numpy on the sim, cupy and
    torch on GPUs.
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        dtype: Any = "float64",
        strides: Sequence[int] | None = None,
        order: str = "C",
        granularity: GpuBufferGranularity = GpuBufferGranularity.MultiCastMinimum,
    ) -> None:
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        if not sizes or any(size <= 0 for size in sizes):
            raise ValueError(f"shape is {sizes}, expected positive numbers")
        self.shape = sizes
        self.typestr, self.itemsize = _typestr(dtype)
        self.dtype = dtype
        self.size = math.prod(sizes)
        self.nbytes = self.size * self.itemsize
        self._memory = RawGpuBuffer(self.nbytes, granularity)
        self.data = _Pointer(self._memory.data())
        view = {
            "shape": sizes,
            "typestr": self.typestr,
            "data": (self.data.ptr, False),
            "strides": strides,
            "version": 3,
        }
        if self._memory._is_sim:
            self.__array_interface__ = view
        else:
            self.__cuda_array_interface__ = view

    def data_ptr(self) -> int:
        return self.data.ptr

    def read(self) -> Any:
        return self._memory.read()

    def write(self, data: Any) -> None:
        self._memory.write(data)


def _typestr(dtype: Any) -> tuple[str, int]:
    """numpy's word for a type that is given as numpy, cupy or Python has it."""
    name = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
    table = {"float64": "<f8", "float": "<f8", "float32": "<f4", "float16": "<f2", "int": "<i8"}
    table |= {
        f"{sign}int{bits}": f"{'<' if bits > 8 else '|'}{sign or 'i'}{bits // 8}"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    }
    if name not in table:
        raise Error(f"there is no data type {dtype!r}; it is one of {', '.join(table)}")
    return table[name], int(table[name][-1])
