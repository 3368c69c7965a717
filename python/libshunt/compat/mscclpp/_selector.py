# SPDX-License-Identifier: MIT
"""
The process's one selector: an execute() that runs on the calling thread forces its path, else the program's selector
chooses among the algorithms of the collection.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import libshunt
from libshunt import Error, _fork

from ._types import DataType

if TYPE_CHECKING:
    from ._algorithms import Algorithm

Algorithms = Mapping[str, Mapping[str, "Algorithm"]]
UserSelector = Callable[[Algorithms, "CollectiveRequest"], Any]


class CollectiveRequest:
    """What a selector is asked. Only what is the same on all ranks: these must not choose differently."""

    def __init__(self, call: libshunt.Call) -> None:
        self.collective = call.collective
        self.message_size = call.bytes
        self.world_size = call.nranks
        self.n_ranks_per_node = call.ranks_per_node or call.nranks
        self.dtype = next((one for one in DataType if one.value == call.dtype), call.dtype)
        self.reduce_op = call.redop
        self.hints: dict[str, list[str]] = {}

    def __getattr__(self, name: str) -> Any:
        if name in ("rank", "input_buffer", "output_buffer", "stream", "buffer_mode"):
            raise AttributeError(f"a selector has no {name}: it differs from rank to rank, and all must choose alike")
        raise AttributeError(name)


class _State(threading.local):
    path: str | None = None


_state = _State()
_lock = _fork.Lock()
_is_set = False
selectors: list[UserSelector | None] = [None, None]  # the program's, and the one for what that leaves open
offered: dict[str, dict[str, Algorithm]] = {}  # by collective and name


@contextlib.contextmanager
def forced(path: str) -> Iterator[None]:
    """Calls of this thread take the path."""
    ensure()
    before, _state.path = _state.path, path
    try:
        yield
    finally:
        _state.path = before


def ensure() -> None:
    global _is_set
    with _lock:
        if not _is_set:
            libshunt.select(_choose)
            _is_set = True


def _choose(call: libshunt.Call) -> str | None:
    if _state.path is not None:
        return _state.path
    for selector in selectors:
        if selector is None:
            continue
        answer = selector(offered, CollectiveRequest(call))
        if answer is not None:
            path = getattr(answer, "path", None)
            if not isinstance(path, str):
                raise Error(f"a selector returns an algorithm or None, not {answer!r}")
            return path
    return None
