# SPDX-License-Identifier: MIT
"""Stands for PyTorch, as far as libshunt.torch and libshunt.torchcomms use it; memory and streams are the sim's."""

import contextlib
from collections.abc import Iterator

from libshunt import _names, _nccl

__version__ = "0.0.stand_in"


class dtype:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"torch.{self._name}"


NAMES = {"float8e4m3": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}
DTYPES = {name: dtype(NAMES.get(name, name)) for name in _names.DTYPES}
globals().update({repr(made).split(".")[1]: made for made in DTYPES.values()})


class device:
    def __init__(self, kind: "str | device", index: "int | None" = None) -> None:
        text = str(kind)
        self.type, _, number = text.partition(":")
        self.index = int(number) if number else index

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


class Tensor:
    """Contiguous elements of one dimension."""

    def __init__(self, count: int, kind: dtype) -> None:
        self.dtype, self.count = kind, count
        number = _names.dtype_number(kind)
        self.buffer = _nccl.Buffer(max(1, count * _names.DTYPE_BYTES[number]))

    def numel(self) -> int:
        return self.count

    def element_size(self) -> int:
        return _names.DTYPE_BYTES[_names.dtype_number(self.dtype)]

    def data_ptr(self) -> int:
        return self.buffer.address

    def is_contiguous(self) -> bool:
        return True


class _MemPool:
    def __init__(self, allocator: object) -> None:
        self.allocator = allocator


class _Cuda:
    MemPool = _MemPool

    def __init__(self) -> None:
        self.using: list[_MemPool] = []

    @contextlib.contextmanager
    def use_mem_pool(self, pool: _MemPool) -> Iterator[None]:
        self.using.append(pool)
        yield
        self.using.remove(pool)


cuda = _Cuda()
