# SPDX-License-Identifier: MIT
"""As much of PyTorch as MSCCL++'s examples use, on the sim. Tensors are flat, and all their elements have one value."""

import ctypes
import os
import struct
import sys
import types

from libshunt import _lib, _nccl


class dtype:
    def __init__(self, name, size, number):
        self.name, self.itemsize, self.number = name, size, number

    def __str__(self):
        return f"torch.{self.name}"


float16, float32, bfloat16 = dtype("float16", 2, 6), dtype("float32", 4, 7), dtype("bfloat16", 2, 9)
int32 = dtype("int32", 4, 2)
float = float32


def device(kind, index=0):
    return (kind, index)


def _word(kind, value):
    """The bytes of an element."""
    if kind.name == "bfloat16":
        return struct.pack("<f", value)[2:]
    return struct.pack({"float16": "<e", "float32": "<f", "int32": "<i"}[kind.name], value)


class Tensor:
    def __init__(self, address, nbytes, kind, owner=None):
        self.dtype, self.nbytes = kind, nbytes
        self._address, self._owner = address, owner

    def data_ptr(self):
        return self._address

    def _fill(self, value):
        ctypes.memmove(self._address, _word(self.dtype, value) * (self.nbytes // self.dtype.itemsize), self.nbytes)
        return self

    def normal_(self):
        return self._fill(int(os.environ["RANK"]) + 1)

    def is_sum(self):
        total = sum(range(1, int(os.environ["WORLD_SIZE"]) + 1))
        return ctypes.string_at(self._address, self.nbytes) == _word(self.dtype, total) * (
            self.nbytes // self.dtype.itemsize
        )


tensor = Tensor


def _new(count, kind):
    memory = _nccl.Buffer(count * kind.itemsize)
    return Tensor(memory.address, memory.nbytes, kind, memory)


def empty(count, dtype=float32, device=None):
    return _new(count, dtype)._fill(0)


def randn(count, dtype=float32, device=None):
    return _new(count, dtype).normal_()


class _Stream:
    cuda_stream = 0


cuda = types.SimpleNamespace(
    set_device=_nccl.device_set,
    current_device=lambda: 0,
    device_count=lambda: int(os.environ["WORLD_SIZE"]),
    synchronize=lambda: _lib.library(private=True).shunt_stream_synchronize(None),
    current_stream=_Stream,
    Stream=_Stream,
)


class _ReduceOp:
    SUM, MIN = 0, 3


class _Group:
    """What torch.distributed has: NCCL's calls, of whatever library answers them."""

    comm = 0
    nccl = None


def _init_process_group(backend, device_id):
    path = os.environ["UNIQUE_ID"]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    _Group.nccl = _nccl.Nccl()
    _nccl.device_set(device_id[1])
    if rank == 0:
        with open(path + ".new", "wb") as file:
            file.write(_Group.nccl.unique_id())
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        pass
    with open(path, "rb") as file:
        _Group.comm = _Group.nccl.init_rank(size, file.read(), rank)


def _all_reduce(tensor, op):
    count = tensor.nbytes // tensor.dtype.itemsize
    _Group.nccl.AllReduce(tensor.data_ptr(), tensor.data_ptr(), count, tensor.dtype.number, op, _Group.comm, None)


def _destroy_process_group():
    from libshunt import _comms

    for row in _comms.describe(_Group.comm).counts:
        print(f"{row.op} by {row.path}")
    _Group.nccl.CommDestroy(_Group.comm)


distributed = types.ModuleType("torch.distributed")
distributed.ReduceOp = _ReduceOp
distributed.init_process_group = _init_process_group
distributed.all_reduce = _all_reduce
distributed.barrier = cuda.synchronize
distributed.destroy_process_group = _destroy_process_group
sys.modules["torch.distributed"] = distributed


def _from_dlpack(capsule):
    """The tensor of a capsule, whose memory goes with the capsule's structure."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    managed = get(capsule, b"dltensor")
    address, _, _, ndim, code, bits, _, shape, _, _ = struct.unpack("PiiiBBHPPQ", ctypes.string_at(managed, 48))
    assert ndim == 1
    (count,) = struct.unpack("q", ctypes.string_at(shape, 8))
    kind = next(k for k in (float16, float32, bfloat16) if (k.itemsize * 8, k.name == "bfloat16") == (bits, code == 4))
    return Tensor(address, count * kind.itemsize, kind, capsule)


utils = types.SimpleNamespace(dlpack=types.SimpleNamespace(from_dlpack=_from_dlpack))
