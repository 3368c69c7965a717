# SPDX-License-Identifier: MIT
"""What most programs do: channels between all ranks, and all ranks synchronize."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from libshunt.language import CollectiveProgram, MemoryChannel, PortChannel, SyncType

Builder = Callable[[int], CollectiveProgram]
Channel = TypeVar("Channel", MemoryChannel, PortChannel)
Mesh = dict[tuple[int, int], Channel]  # (from, to)


def mesh(n: int, kind: type[Channel]) -> Mesh[Channel]:
    return {(src, dst): kind(dst, src) for src in range(n) for dst in range(n) if src != dst}


def peers(n: int, rank: int) -> list[int]:
    """The others, each rank another one first."""
    return [(rank + i) % n for i in range(1, n)]


def synchronize(
    n: int,
    channels: Mesh[MemoryChannel],
    tb: int = 0,
    relaxed: bool = False,
    before: SyncType = SyncType.before,
    after: SyncType = SyncType.after,
) -> None:
    """No rank goes on before all others have come here, and what they wrote is there."""
    for rank in range(n):
        for peer in peers(n, rank):
            channels[rank, peer].signal(tb, before, relaxed)
        for peer in peers(n, rank):
            channels[rank, peer].wait(tb, after, relaxed)
