# SPDX-License-Identifier: MIT
"""Stands for PyTorch, as far as libshunt's modules and docs/python.md use it; memory, streams and graphs are the sim's.
Current devices and streams are a thread's, as ranks are threads."""

from __future__ import annotations

import contextlib
import ctypes
import math
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
globals().update({repr(made).split(".")[1]: made for made in [*DTYPES.values(), dtype("bool")]})
float = float32 = DTYPES["float32"]


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
        return bytes(words[value] for value in values)
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


def _steps(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of contiguous elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class Tensor:
    """Elements of one dimension, or of as many as `shape` says; strides and the first element are those of a view."""

    def __init__(self, count: int, kind: dtype = float32, where: object = None, shape: tuple[int, ...] = ()) -> None:
        self.dtype, self.count = kind, count
        self.shape = shape or (count,)
        self.strides, self.first = _steps(self.shape), 0
        made = device("cuda" if where is None or isinstance(where, int) else where)  # type: ignore[arg-type]
        self.device = device(made.type, cuda.current_device() if made.type == "cuda" else None)
        self.contiguous = True
        self.used_by: list[Stream] = []
        nbytes = max(1, count * self.element_size())
        self.buffer = cuda.using[-1].buffer(nbytes) if cuda.using else _nccl.Buffer(nbytes)

    def _view(self, shape: tuple[int, ...], strides: tuple[int, ...], first: int, kind: dtype) -> Tensor:
        made = Tensor.__new__(Tensor)
        made.__dict__.update(self.__dict__, shape=shape, strides=strides, first=first, dtype=kind)
        made.count, made.contiguous = math.prod(shape), strides == _steps(shape)
        return made

    def numel(self) -> int:
        return self.count

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def dim(self) -> int:
        return len(self.shape)

    def element_size(self) -> int:
        return _names.DTYPE_BYTES[_names.dtype_number(self.dtype)]

    def data_ptr(self) -> int:
        return self.buffer.address + self.first * self.element_size() if self.count else 0

    def get_device(self) -> int:
        return -1 if self.device.index is None else self.device.index

    def is_contiguous(self) -> bool:
        return self.contiguous

    def record_stream(self, stream: Stream) -> None:
        self.used_by.append(stream)

    def transpose(self, a: int, b: int) -> Tensor:
        shape, strides = list(self.shape), list(self.strides)
        shape[a], shape[b], strides[a], strides[b] = shape[b], shape[a], strides[b], strides[a]
        return self._view(tuple(shape), tuple(strides), self.first, self.dtype)

    def view(self, to: dtype | tuple[int, ...]) -> Tensor:
        """Of contiguous elements: another type, of one dimension, or another shape."""
        if not isinstance(to, dtype):
            return self._view(to, _steps(to), self.first, self.dtype)
        nbytes, size = self.count * self.element_size(), _names.DTYPE_BYTES[_names.dtype_number(to)]
        return self._view((nbytes // size,), (1,), self.first * self.element_size() // size, to)

    def __getitem__(self, rows: slice) -> Tensor:
        first, last, _ = rows.indices(self.shape[0])
        at = self.first + first * self.strides[0]
        return self._view((max(0, last - first), *self.shape[1:]), self.strides, at, self.dtype)

    def to(self, kind: dtype) -> Tensor:
        return Tensor(self.count, kind, self.device, self.shape)._write(self._flat())

    @property
    def nbytes(self) -> int:
        return self.count * self.element_size()

    def fill_(self, value: float) -> Tensor:
        return self._write([value], self.count)

    def zero_(self) -> Tensor:
        return self.fill_(0)

    def is_filled(self, value: float) -> bool:
        """Not of PyTorch: for more elements than a list is to have."""
        return self.buffer.read() == _pack(self.dtype, [value]) * self.count

    def copy_(self, other: Tensor) -> Tensor:
        return self._write(other._flat())

    def _write(self, values: Sequence[float], times: int = 1) -> Tensor:
        cuda.current_stream().synchronize()
        assert self.contiguous
        if self.count:
            self.buffer.write(_pack(self.dtype, values) * times, self.first * self.element_size())
        return self

    def _flat(self) -> list[float]:
        """All elements, row by row."""
        if not self.count:
            return []
        cuda.current_stream().synchronize()
        last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        size = self.element_size()
        held = _unpack(self.dtype, self.buffer.read((last + 1) * size, self.first * size))
        at = [0]
        for n, step in zip(self.shape, self.strides, strict=True):
            at = [first + i * step for first in at for i in range(n)]
        return [held[i] for i in at]

    def tolist(self) -> Any:
        found: list[Any] = self._flat()
        for n in reversed(self.shape[1:]):
            found = [found[i : i + n] for i in range(0, len(found), n)] if n else [[]] * math.prod(self.shape[:-1])
        return found

    def item(self) -> float:
        (value,) = self._flat()
        return value


def _shape_of(values: Any) -> tuple[int, ...]:
    return (len(values), *(_shape_of(values[0]) if values else ())) if isinstance(values, (list, tuple)) else ()


def _elements(values: Any) -> list[float]:
    return [one for row in values for one in _elements(row)] if isinstance(values, (list, tuple)) else [values]


def tensor(values: Sequence[Any], dtype: dtype = float32, device: object = None) -> Tensor:
    shape = _shape_of(values)
    return Tensor(math.prod(shape), dtype, device, shape)._write(_elements(values))


def empty(size: int | tuple[int, ...], dtype: dtype = float32, device: object = None) -> Tensor:
    shape = (size,) if isinstance(size, int) else tuple(size)
    return Tensor(math.prod(shape), dtype, device, shape)


def full(size: int | tuple[int, ...], value: float, dtype: dtype = float32, device: object = None) -> Tensor:
    return empty(size, dtype, device).fill_(value)


def zeros(size: int | tuple[int, ...], dtype: dtype = float32, device: object = None) -> Tensor:
    return full(size, 0, dtype, device)


def ones(size: int | tuple[int, ...], dtype: dtype = float32, device: object = None) -> Tensor:
    return full(size, 1, dtype, device)


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


class CUDAGraph:
    """What was enqueued on the stream of graph(); replay() enqueues it on the current one."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()

    def replay(self) -> None:
        stream = ctypes.c_void_p(cuda.current_stream().cuda_stream)
        _lib.check(_lib.library(private=True).shunt_graph_launch(self.handle, stream), "launching a graph")


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
    CUDAGraph = CUDAGraph

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
        try:
            yield
        finally:
            self._mine.stream = before

    @contextlib.contextmanager
    def graph(self, graph: CUDAGraph, stream: Stream) -> Iterator[None]:
        library, handle = _lib.library(private=True), ctypes.c_void_p(stream.cuda_stream)
        with self.stream(stream):
            _lib.check(library.shunt_capture_begin(handle), "beginning a capture")
            try:
                yield
            finally:
                result = library.shunt_capture_end(handle, ctypes.byref(graph.handle))
            _lib.check(result, "ending a capture")

    def synchronize(self) -> None:
        self.current_stream().synchronize()

    def is_current_stream_capturing(self) -> bool:
        return False

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 8


cuda = _Cuda()


def _from_dlpack(capsule: object) -> Tensor:
    """Of one dimension; its memory goes with the capsule's structure."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    managed = ctypes.string_at(get(capsule, b"dltensor"), 48)
    address, _, _, ndim, code, bits, _, shape, _, _ = struct.unpack("PiiiBBHPPQ", managed)
    assert ndim == 1
    kind = DTYPES[{(2, 16): "float16", (2, 32): "float32", (4, 16): "bfloat16"}[code, bits]]
    made = Tensor(0, kind)._view((ctypes.c_int64.from_address(shape).value,), (1,), 0, kind)
    made.buffer.free()
    made.buffer.address, made.buffer.nbytes, made.capsule = address, made.nbytes, capsule
    return made


utils = SimpleNamespace(dlpack=SimpleNamespace(from_dlpack=_from_dlpack))
# Programs use it without importing it.
from torch import distributed as distributed  # noqa: E402
