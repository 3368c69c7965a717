# SPDX-License-Identifier: MIT
"""Process groups whose backend makes its communicator by NCCL's functions, which Shunt answers."""

from types import SimpleNamespace
from typing import Any

group = SimpleNamespace(WORLD=None)


class Backend:
    """As ProcessGroupNCCL."""

    mem_allocator = "allocator"

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.calls: list[tuple[object, ...]] = []

    def _comm_ptr(self) -> int:
        return self.handle

    def register_mem_pool(self, pool: object, symm: bool = False) -> None:
        self.calls.append(("register", pool, symm))

    def deregister_mem_pool(self, pool: object) -> None:
        self.calls.append(("deregister", pool))


class OldBackend(Backend):
    """Does not tell its communicator, and registers no symmetric memory."""

    _comm_ptr = None  # type: ignore[assignment]

    def register_mem_pool(self, pool: object) -> None:  # type: ignore[override]
        self.calls.append(("register", pool))


class Group:
    def __init__(self, rank: int, size: int, backend: Any) -> None:
        self._rank, self._size, self.backend = rank, size, backend

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def _get_backend(self, device: Any) -> Any:
        if device.type != "cuda":
            raise RuntimeError(f"No backend type associated with device type {device}")
        return self.backend


def is_initialized() -> bool:
    return group.WORLD is not None
