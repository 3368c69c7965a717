# SPDX-License-Identifier: MIT
"""Stands for torchcomms: communicators that call a backend in Python as torchcomms does at 59426ba4b.

Like it, a backend gets no hints and no timeout of a call, is found by an entry point, and an operator does not tell its
factor.
"""

from __future__ import annotations

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
        pass


class TorchWork:
    def __init__(self, work: Any) -> None:
        self._work, self._done = work, work is None

    def is_completed(self) -> bool:
        return self._done

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
        self._done = True


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

    def set_timeout(self, timeout: timedelta) -> None:
        self._impl.set_timeout(timeout)

    def split(self, ranks: list[int], name: str, hints: Any = None, timeout: Any = None) -> TorchComm | None:
        impl = self._impl.split(ranks, name, CommOptions())
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
    impl.init(device, name, options)
    return TorchComm(backend, impl)
