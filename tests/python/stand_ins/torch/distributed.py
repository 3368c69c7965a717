# SPDX-License-Identifier: MIT
"""Process groups whose backend makes its communicator by NCCL's functions, which Shunt answers."""

from __future__ import annotations

import ctypes
import itertools
import os
import pickle
import time
from types import SimpleNamespace
from typing import Any

from libshunt import _names, _nccl

import torch

group = SimpleNamespace(WORLD=None)
_inits = itertools.count()


class Backend:
    """As ProcessGroupNCCL."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.calls: list[tuple[object, ...]] = []
        self.windows: list[ctypes.c_void_p] = []

    def _comm_ptr(self) -> int:
        return self.handle

    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        self.calls.append(("register", pool, symm))
        for made in pool.segments:
            window = ctypes.c_void_p()
            where = ctypes.c_void_p(self.handle), ctypes.c_void_p(made.address), ctypes.c_size_t(made.nbytes)
            assert made._library.ncclCommWindowRegister(*where, ctypes.byref(window), 1) == 0
            self.windows.append(window)

    def deregister_mem_pool(self, pool: Any) -> None:
        self.calls.append(("deregister", pool))
        for window in self.windows:
            assert pool.segments[0]._library.ncclCommWindowDeregister(ctypes.c_void_p(self.handle), window) == 0
        self.windows.clear()


class OldBackend(Backend):
    """Does not tell its communicator, and registers no symmetric memory."""

    _comm_ptr = None  # type: ignore[assignment]

    def register_mem_pool(self, pool: Any) -> None:  # type: ignore[override]
        self.calls.append(("register", pool))


class Group:
    def __init__(self, rank: int, size: int, backend: Any, store: Any = None) -> None:
        self._rank, self._size, self.backend, self.store = rank, size, backend, store
        self._gathers = itertools.count()

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def gather(self, mine: Any) -> list[Any]:
        key = f"gather-{next(self._gathers)}"
        self.store.set(f"{key}-{self._rank}", pickle.dumps(mine))
        return [pickle.loads(self.store.get(f"{key}-{rank}")) for rank in range(self._size)]

    def _get_backend(self, device: Any) -> Any:
        if device.type != "cuda":
            raise RuntimeError(f"No backend type associated with device type {device}")
        return self.backend


class FileStore:
    """Keys are files of a folder."""

    def __init__(self, folder: str, world_size: int = -1) -> None:
        self.folder = folder

    def set(self, key: str, value: bytes | str) -> None:
        value = value.encode() if isinstance(value, str) else value
        path = os.path.join(self.folder, key)
        with open(path + ".new", "wb") as file:
            file.write(value)
        os.rename(path + ".new", path)

    def get(self, key: str) -> bytes:
        path = os.path.join(self.folder, key)
        end = time.monotonic() + 60
        while not os.path.exists(path):
            if time.monotonic() > end:
                raise RuntimeError(f"wait timeout after 60s, keys: {key}")
            time.sleep(0.01)  # pause: another process writes the file
        with open(path, "rb") as file:
            return file.read()

    def delete_key(self, key: str) -> bool:
        os.remove(os.path.join(self.folder, key))
        return True


class TCPStore(FileStore):
    """The folder STAND_IN_STORE, whatever the address."""

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: object = None,
        wait_for_workers: bool = True,
    ) -> None:
        super().__init__(os.environ["STAND_IN_STORE"])
        self.is_master = is_master


def init_process_group(backend: str = "nccl", device_id: Any = None, **given: Any) -> None:
    """As torchrun's processes call it, unless rank and world_size are given; the folder STAND_IN_STORE is its store."""
    rank, size = int(given.get("rank", os.environ.get("RANK"))), int(given.get("world_size", os.environ["WORLD_SIZE"]))
    store, nccl = FileStore(os.environ["STAND_IN_STORE"]), _nccl.Nccl()
    if backend == "gloo":
        group.WORLD = Group(rank, size, None, store)
        return
    key = f"id-{next(_inits)}"
    if rank == 0:
        store.set(key, nccl.unique_id())
    torch.cuda.set_device(device_id)
    group.WORLD = Group(rank, size, Backend(nccl.init_rank(size, store.get(key), rank)))


def destroy_process_group() -> None:
    if group.WORLD.backend is None:
        group.WORLD = None
        return
    _nccl.Nccl().CommDestroy(group.WORLD.backend.handle)
    group.WORLD = None


def all_gather_object(found: list[Any], mine: Any, members: Group | None = None) -> None:
    found[:] = (members or group.WORLD).gather(mine)


def get_rank() -> int:
    rank: int = group.WORLD.rank()
    return rank


ReduceOp = SimpleNamespace(SUM=0, MIN=3)


def all_reduce(tensor: torch.Tensor, op: int = ReduceOp.SUM) -> None:
    stream, nccl = torch.cuda.current_stream(), _nccl.Nccl()
    number = _names.dtype_number(tensor.dtype)
    at, handle = tensor.data_ptr(), group.WORLD.backend.handle
    nccl.AllReduce(at, at, tensor.numel(), number, op, handle, stream.cuda_stream)
    stream.synchronize()


def all_gather_into_tensor(output: torch.Tensor, tensor: torch.Tensor) -> None:
    stream, handle = torch.cuda.current_stream(), group.WORLD.backend.handle
    number = _names.dtype_number(tensor.dtype)
    nccl = _nccl.Nccl()
    nccl.AllGather(tensor.data_ptr(), output.data_ptr(), tensor.numel(), number, handle, stream.cuda_stream)
    stream.synchronize()


def barrier() -> None:
    torch.cuda.synchronize()


def is_initialized() -> bool:
    return group.WORLD is not None
