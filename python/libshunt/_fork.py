# SPDX-License-Identifier: MIT
"""
What a forked child has anew. Of its parent's threads it has the one that forked: a lock that another one held would
never be released there.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType

_locks: list[Lock] = []
_generation = 0


class Lock:
    """A lock of the process, which is free in a forked child. What it guards changes by single assignments, so that a
    child has it whole whenever the fork comes."""

    def __init__(self) -> None:
        self._renew()
        _locks.append(self)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock.locked():  # not in a child that was forked inside the block
            self._lock.release()


class Awaited:
    """A lock that a fork waits for, where a child could not do without the thread that holds it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def generation() -> int:
    """How many forks lie between the process that imported the package and this one: what an object of another
    generation stands for is that process's."""
    return _generation


def _renew_all() -> None:
    global _generation
    _generation += 1
    for lock in _locks:
        lock._renew()


os.register_at_fork(after_in_child=_renew_all)
