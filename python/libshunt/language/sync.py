# SPDX-License-Identifier: MIT
"""Puts in where the threads of a block synchronize."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .ops import NOP, Op, Slice
from .types import Instruction, SyncType


def data_sync(ops: Iterable[Op]) -> list[Op]:
    """What `data_sync` of signals, waits, flushes and semaphores asks for."""
    out: list[Op] = []
    for op in ops:
        if op.body:
            op = replace(op, body=tuple(data_sync(op.body)))
        if op.sync in (SyncType.before, SyncType.both):
            out.append(replace(NOP, sources=op.sources))
        out.append(op)
        if op.sync in (SyncType.after, SyncType.both):
            out.append(replace(NOP, sources=op.sources))
    return out


def auto_sync(ops: Iterable[Op]) -> list[Op]:
    """
    Between operations of a block of which one writes what the other reads or writes, unless something between them
    synchronizes. It knows nothing of other blocks and ranks.
    """
    out: list[Op] = []
    since: list[tuple[Slice, bool]] = []
    for op in ops:
        if op.name in (Instruction.nop, Instruction.barrier):
            since.clear()
        else:
            if op.body:
                op = replace(op, body=tuple(auto_sync(op.body)))
            own = list(op.accesses())
            if any((writes or wrote) and piece.overlaps(earlier) for piece, writes in own for earlier, wrote in since):
                out.append(replace(NOP, sources=op.sources))
                since.clear()
            since += own
        out.append(op)
    return out
