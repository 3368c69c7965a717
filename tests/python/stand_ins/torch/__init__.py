# SPDX-License-Identifier: MIT
"""Stands for PyTorch, as far as libshunt.torch, libshunt.torchcomms and docs/python.md use it; memory and streams are
the sim's. Current devices and streams are a thread's, as ranks are threads."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from libshunt import _lib, _names, _nccl

__version__ = "0.0.stand_in"


class dtype:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"torch.{self._name}"


NAMES = {"float8e4m3": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}
DTYPES = {name: dtype(NAMES.get(name, name)) for name in _names.DTYPES}
globals().update({repr(made).split(".")[1]: made for made in DTYPES.values()})
float32 = DTYPES["float32"]


def _float8(exponent_bits: int, bits: int) -> float:
    """The value of an element of 8 bits; numbers only."""
    mantissa_bits, bias = 7 - exponent_bits, (1 << (exponent_bits - 1)) - 1
    exponent, mantissa = bits >> mantissa_bits & ((1 << exponent_bits) - 1), bits & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    size = (1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias)
    return -size if bits >> 7 else size


_FORMS = dict(zip(_names.DTYPES, "bBiIqQefd", strict=False))
_EXPONENT_BITS = {"float8e4m3": 4, "float8e5m2": 5}


def _pack(kind: dtype, values: Sequence[float]) -> bytes:
    name = _names.DTYPES[_names.dtype_number(kind)]
    if name == "bfloat16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    if name in _EXPONENT_BITS:
        words = {_float8(_EXPONENT_BITS[name], bits): bits for bits in range(256)}
        return bytes(words[float(value)] for value in values)
    return struct.pack(f"<{len(values)}{_FORMS[name]}", *values)


def _unpack(kind: dtype, data: bytes) -> list[float]:
    name = _names.DTYPES[_names.dtype_number(kind)]
    if name == "bfloat16":
        return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]
    if name in _EXPONENT_BITS:
        return [_float8(_EXPONENT_BITS[name], bits) for bits in data]
    count = len(data) // struct.calcsize(_FORMS[name])
    return list(struct.unpack(f"<{count}{_FORMS[name]}", data))


class device:
    def __init__(self, kind: str | device, index: int | None = None) -> None:
        if not isinstance(kind, (str, device)):
            raise TypeError(f"device(): argument 'type' must be str, not {type(kind).__name__}")
        self.type, _, number = str(kind).partition(":")
        if self.type not in ("cpu", "cuda", "meta") or (number and not number.isdecimal()):
            raise RuntimeError(f"Expected one of cpu, cuda, meta device type at start of device string: {kind}")
        self.index = int(number) if number else index

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


class Tensor:
    """Contiguous elements, of one dimension or as many as `shape` says."""

    def __init__(self, count: int, kind: dtype = float32, where: object = None, shape: tuple[int, ...] = ()) -> None:
        self.dtype, self.count = kind, count
        self.shape = shape or (count,)
        self.device = device("cuda", cuda.current_device()) if where is None else where
        self.contiguous = True
        self.used_by: list[Stream] = []
        number = _names.dtype_number(kind)
        nbytes = max(1, count * _names.DTYPE_BYTES[number])
        self.buffer = cuda.using[-1].buffer(nbytes) if cuda.using else _nccl.Buffer(nbytes)

    def numel(self) -> int:
        return self.count

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    def element_size(self) -> int:
        return _names.DTYPE_BYTES[_names.dtype_number(self.dtype)]

    def data_ptr(self) -> int:
        return self.buffer.address

    def is_contiguous(self) -> bool:
        return self.contiguous

    def record_stream(self, stream: Stream) -> None:
        self.used_by.append(stream)

    def tolist(self) -> list[float]:
        return _unpack(self.dtype, self.buffer.read(self.count * self.element_size()))

    def item(self) -> float:
        (value,) = self.tolist()
        return value


def tensor(values: Sequence[float], dtype: dtype = float32, device: object = None) -> Tensor:
    made = Tensor(len(values), dtype)
    if values:
        made.buffer.write(_pack(dtype, values))
    return made


def ones(count: int, dtype: dtype = float32, device: object = None) -> Tensor:
    return tensor([1] * count, dtype)


def empty(count: int, dtype: dtype = float32, device: object = None) -> Tensor:
    return Tensor(count, dtype)


class Stream:
    """What was done to it is in `log`, in the order of the calls."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self._stream = _nccl.Stream()
        self.priority = priority
        self.log: list[tuple[str, Any]] = []

    @property
    def cuda_stream(self) -> int:
        return self._stream.handle

    def wait_event(self, event: Event) -> None:
        self.log.append(("wait", event))
        if event.stream is not None:  # the sim has no events here, so the host waits
            event.stream.synchronize()

    def wait_stream(self, stream: Stream) -> None:
        event = Event()
        event.record(stream)
        self.wait_event(event)

    def synchronize(self) -> None:
        self._stream.synchronize()


class Event:
    def __init__(self) -> None:
        self.stream: Stream | None = None

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream or cuda.current_stream()
        self.stream.log.append(("record", self))

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()


class _Allocator:
    """As CUDAPluggableAllocator: functions of a library, by their names."""

    def __init__(self, path: str, alloc: str, free: str) -> None:
        library = ctypes.CDLL(path)
        prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        self.alloc = prototype((alloc, library))
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(
            (free, library)
        )

    def allocator(self) -> _Allocator:
        return self


class _MemPool:
    def __init__(self, allocator: _Allocator) -> None:
        self.allocator = allocator
        self.segments: list[_nccl.Buffer] = []

    def buffer(self, nbytes: int) -> _nccl.Buffer:
        """A segment of its own for each tensor; the pool keeps it."""
        made = object.__new__(_nccl.Buffer)
        made._library, made.nbytes = _lib.library(private=True), nbytes
        made.address = self.allocator.alloc(nbytes, cuda.current_device(), None) or 0
        if not made.address:
            raise RuntimeError("CUDA out of memory")
        self.segments.append(made)
        return made

    def empty_cache(self) -> None:
        for made in self.segments:
            self.allocator.free(made.address, made.nbytes, cuda.current_device(), None)
        self.segments.clear()


class _Cuda:
    MemPool = _MemPool
    Stream = Stream
    Event = Event

    memory = SimpleNamespace(CUDAPluggableAllocator=_Allocator)

    def __init__(self) -> None:
        self._mine = threading.local()

    @property
    def using(self) -> list[_MemPool]:
        pools: list[_MemPool] = self._mine.__dict__.setdefault("using", [])
        return pools

    @contextlib.contextmanager
    def use_mem_pool(self, pool: _MemPool) -> Iterator[None]:
        self.using.append(pool)
        yield
        self.using.remove(pool)

    def set_device(self, where: Any) -> None:
        index = where if isinstance(where, int) else where.index or 0
        self._mine.device = index
        _nccl.device_set(index)

    def current_device(self) -> int:
        return getattr(self._mine, "device", 0)

    @contextlib.contextmanager
    def device(self, where: Any) -> Iterator[None]:
        before = self.current_device()
        self.set_device(where)
        yield
        self.set_device(before)

    def current_stream(self, where: object = None) -> Stream:
        if not hasattr(self._mine, "stream"):
            self._mine.stream = Stream()
        stream: Stream = self._mine.stream
        return stream

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream()
        self._mine.stream = stream
        yield
        self._mine.stream = before

    def synchronize(self) -> None:
        self.current_stream().synchronize()

    def is_current_stream_capturing(self) -> bool:
        return False

    def device_count(self) -> int:
        return 8


cuda = _Cuda()
