# SPDX-License-Identifier: MIT
"""Stands for torchcomms: communicators that call a backend in Python as torchcomms does at 59426ba4b.

Like it, a backend gets no hints and no timeout of a call, is found by an entry point, and an operator does not tell its
factor. A communicator has the device and the options that were passed to init() by C++, and those of a backend that
Python made by itself are defaults. Below torch.distributed a backend's Work is destroyed without Python's lock.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import entry_points
from typing import Any

import torch

RedOpType = enum.Enum("RedOpType", "SUM PRODUCT MIN MAX BAND BOR BXOR PREMUL_SUM AVG")


class ReduceOp:
    SUM: ReduceOp
    PRODUCT: ReduceOp
    MIN: ReduceOp
    MAX: ReduceOp
    BAND: ReduceOp
    BOR: ReduceOp
    BXOR: ReduceOp
    AVG: ReduceOp

    def __init__(self, kind: RedOpType) -> None:
        self._kind = kind

    @property
    def type(self) -> RedOpType:
        return self._kind

    @staticmethod
    def PREMUL_SUM(factor: Any) -> ReduceOp:
        return ReduceOp(RedOpType.PREMUL_SUM)


for _kind in RedOpType:
    if _kind is not RedOpType.PREMUL_SUM:
        setattr(ReduceOp, _kind.name, ReduceOp(_kind))


class CommOptions:
    def __init__(self) -> None:
        self.abort_process_on_timeout_or_error = True
        self.timeout = timedelta(seconds=600)
        self.store: Any = None
        self.enable_reconfigure = False
        self.hints: dict[str, str] = {}


class TorchCommBackend:
    def __init__(self) -> None:
        self.cxx_device, self.cxx_options = torch.device("cpu"), CommOptions()

    def cxx_init(self, device: torch.device, name: str, options: CommOptions) -> None:
        self.cxx_device, self.cxx_options = device, options
        self.init(device, name, options)  # type: ignore[attr-defined]


class TorchWork:
    """Holds the backend's Work as C++ does: by its address, with a count of its own."""

    without_lock = False

    def __init__(self, work: Any) -> None:
        self._work, self._done = None, work is None
        if work is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(work))
            self._work = id(work)

    def __del__(self) -> None:
        if self._work is not None:
            # A function of a CDLL runs without the lock, one of a PyDLL with it.
            (ctypes.CDLL(None) if self.without_lock else ctypes.pythonapi).Py_DecRef(ctypes.c_void_p(self._work))

    def is_completed(self) -> bool:
        return self._done

    def wait(self) -> None:
        if self._work is not None:
            ctypes.cast(self._work, ctypes.py_object).value.wait()
        self._done = True


class WorkWrapper:
    """c10d's Work around one of torchcomms. Its future is complete when the current stream gets there."""

    def __init__(self, work: TorchWork, tensors: Sequence[Any] = ()) -> None:
        work.without_lock = True
        self._work = work
        self.future = torch.cuda.Event()
        if tensors:
            self.future.record()

    def wait(self) -> None:
        self._work.wait()


class _BackendWrapper:
    """What init_process_group() makes of a communicator, with some of the operations."""

    def __init__(self, comm: TorchComm) -> None:
        self._comm = comm

    def get_comm(self) -> TorchComm:
        return self._comm

    def allreduce(self, tensors: list[Any], op: ReduceOp, async_op: bool = False) -> WorkWrapper:
        return WorkWrapper(self._comm.all_reduce(tensors[0], op, async_op), tensors)

    def send(self, tensors: list[Any], rank: int) -> WorkWrapper:
        return WorkWrapper(self._comm.send(tensors[0], rank, True), tensors)

    def recv(self, tensors: list[Any], rank: int) -> WorkWrapper:
        return WorkWrapper(self._comm.recv(tensors[0], rank, True), tensors)

    def barrier(self) -> WorkWrapper:
        return WorkWrapper(self._comm.barrier(False))

    def split(self, ranks: list[int], name: str) -> _BackendWrapper | None:
        comm = self._comm.split(ranks, name)
        return _BackendWrapper(comm) if comm else None

    def shutdown(self) -> None:
        self._comm.finalize()


class TorchComm:
    def __init__(self, name: str, impl: Any) -> None:
        self._backend, self._impl = name, impl

    def finalize(self) -> None:
        self._impl.finalize()

    def get_rank(self) -> int:
        rank: int = self._impl.get_rank()
        return rank

    def get_size(self) -> int:
        size: int = self._impl.get_size()
        return size

    def get_name(self) -> str:
        name: str = self._impl.get_comm_name()
        return name

    def get_backend(self) -> str:
        return self._backend

    def get_backend_impl(self) -> Any:
        return self._impl

    def get_device(self) -> torch.device:
        device: torch.device = self._impl.cxx_device
        return device

    def get_options(self) -> CommOptions:
        options: CommOptions = self._impl.cxx_options
        return options

    def set_timeout(self, timeout: timedelta) -> None:
        self._impl.set_timeout(timeout)

    def split(self, ranks: list[int], name: str, hints: Any = None, timeout: Any = None) -> TorchComm | None:
        options = CommOptions()
        options.hints, options.timeout = dict(hints or {}), timeout or options.timeout
        impl = self._impl.split(ranks, name, options)
        if impl is None:
            return None
        if not isinstance(impl, TorchCommBackend):
            raise TypeError("Unable to cast Python instance to C++ type")
        return TorchComm(self._backend, impl)

    def gather_single(self, output: Any, input: Any, root: int, async_op: bool) -> TorchWork:
        raise NotImplementedError("tensors here have no views")

    def __getattr__(self, name: str) -> Any:
        """The collectives. All that is passed gets to the backend by position."""
        if name not in COLLECTIVES:
            raise AttributeError(name)

        def call(*arguments: Any, hints: Any = None, timeout: Any = None, **async_op: bool) -> TorchWork:
            arguments += tuple(async_op.values())
            if len(arguments) != COLLECTIVES[name]:
                raise TypeError(f"{name}(): incompatible function arguments")
            copied = [list(value) if isinstance(value, Sequence) else value for value in arguments]
            return TorchWork(getattr(self._impl, name)(*copied))

        return call


# With the number of their arguments.
COLLECTIVES = {
    "send": 3,
    "recv": 3,
    "broadcast": 3,
    "all_reduce": 3,
    "reduce": 4,
    "all_gather": 3,
    "all_gather_v": 3,
    "all_gather_single": 3,
    "reduce_scatter": 4,
    "reduce_scatter_v": 4,
    "reduce_scatter_single": 4,
    "all_to_all_single": 3,
    "all_to_all_v_single": 5,
    "all_to_all": 3,
    "barrier": 1,
    "scatter": 4,
    "gather": 4,
}

_backends: dict[str, type[TorchCommBackend]] = {}


def register_backend(name: str, backend_class: type[TorchCommBackend]) -> None:
    if not issubclass(backend_class, TorchCommBackend):
        raise TypeError(f"{backend_class} is no TorchCommBackend")
    _backends[name] = backend_class


def new_comm(
    backend: str,
    device: torch.device,
    timeout: timedelta | None = None,
    store: Any = None,
    name: str = "",
    hints: dict[str, str] | None = None,
) -> TorchComm:
    if backend not in _backends:
        found = entry_points(group="torchcomms.backends", name=backend)
        if not found:
            raise ModuleNotFoundError(f"failed to find backend {backend}, is it registered via entry_points.txt?")
        next(iter(found)).load()
    impl: Any = _backends[backend]()
    options = CommOptions()
    options.store, options.timeout = store, timeout or options.timeout
    options.hints = dict(hints or {})
    impl.cxx_init(device, name, options)
    return TorchComm(backend, impl)
