# SPDX-License-Identifier: MIT
"""
Makes one operation of neighbours of a block, and drops synchronization that a neighbour does anyway.

JOINS has a row for each pair of neighbours: the names, and a function that returns the operation for both, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from .ops import Op, Place
from .types import ChannelType, Instruction, SyncType

Ins = Instruction
SIGNALING = frozenset(
    {Ins.signal, Ins.wait, Ins.relaxed_signal, Ins.relaxed_wait, Ins.flush, Ins.sem_acquire, Ins.sem_release}
)
_HARD = (Ins.nop, Ins.barrier)


def fuse(ops: Iterable[Op]) -> list[Op]:
    """A pass from the left: each operation joins the one before it, or begins anew."""
    out: list[Op] = []
    for op in ops:
        if op.body:
            op = replace(op, body=tuple(fuse(op.body)))
        if not out:
            out.append(op)
            continue
        joined = _join(out[-1], op)
        if joined is not None:
            out[-1] = replace(joined, sources=out[-1].sources + op.sources)
        else:
            out[-1], op = _trim(out[-1], op)
            out.append(op)
    return out


def starts_synchronized(op: Op) -> bool:
    if op.body:
        return starts_synchronized(op.body[0])
    return op.name in _HARD or op.sync in (SyncType.before, SyncType.both)


def ends_synchronized(op: Op) -> bool:
    if op.body:
        return ends_synchronized(op.body[-1])
    return op.name in _HARD or op.sync in (SyncType.after, SyncType.both)


def _trim(a: Op, b: Op) -> tuple[Op, Op]:
    if a.name in SIGNALING and starts_synchronized(b):
        a = replace(a, sync=a.sync & SyncType.before)
    elif b.name in SIGNALING and (a.name in _HARD or (a.body and ends_synchronized(a))):
        b = replace(b, sync=b.sync & SyncType.after)
    return a, b


def _join(a: Op, b: Op) -> Op | None:
    join = JOINS.get((a.name, b.name))
    return join(a, b) if join is not None else None


def _first(a: Op, b: Op) -> Op | None:
    return a


def _second(a: Op, b: Op) -> Op | None:
    return b


def _pipeline_first(a: Op, b: Op) -> Op | None:
    return a if ends_synchronized(a) else None


def _pipeline_second(a: Op, b: Op) -> Op | None:
    return b if starts_synchronized(b) else None


def _signals(a: Op, b: Op) -> Op | None:
    if a.channel_type is not b.channel_type or (a.name is not Ins.flush and set(a.ids) & set(b.ids)):
        return None
    return replace(a, ids=tuple(sorted(set(a.ids) | set(b.ids))), sync=a.sync | b.sync)


def _semaphores(a: Op, b: Op) -> Op | None:
    return replace(a, ids=a.ids + b.ids, sync=a.sync | b.sync)


def _alike(a: Op, b: Op) -> bool:
    return a.channel_type is b.channel_type and a.group == b.group


def _pairwise(a: Op, b: Op) -> Op | None:
    if not _alike(a, b) or a.src[0].size != b.src[0].size:
        return None
    # MSCCL++ takes all sources of an operation from the buffer of the first.
    if a.src[0].place is Place.LOCAL and a.src[0].buffer is not b.src[0].buffer:
        return None
    return replace(a, src=a.src + b.src, dst=a.dst + b.dst, ids=a.ids + b.ids)


def _forwards(a: Op, b: Op) -> Op | None:
    return replace(a, dst=a.dst + b.dst, ids=a.ids + b.ids) if _alike(a, b) and a.src == b.src else None


def _reductions(a: Op, b: Op) -> Op | None:
    """D = S0 op S1, D = S0 op S2 are D = S0 op S1 op S2, if S2 is none of what the first one wrote."""
    if not _alike(a, b) or a.reduce_op is not b.reduce_op or a.src[0] != b.src[0] or a.dst != b.dst:
        return None
    if any(not new.packet and new.overlaps(a.dst[0]) for new in b.src[1:]):
        return None
    return replace(a, src=a.src + b.src[1:])


def _send(name: Instruction, packet: bool = False) -> Callable[[Op, Op], Op | None]:
    """The result goes to a peer too: a put whose source is the result, or with packet its copy as packets."""

    def join(a: Op, b: Op) -> Op | None:
        if b.channel_type is not ChannelType.memory or a.group != b.group:
            return None
        if not a.dst[1 if packet else 0].covers_same(b.src[0]):
            return None
        return replace(a, name=name, dst=a.dst + b.dst, channel_type=ChannelType.memory)

    return join


def _copy_packets(a: Op, b: Op) -> Op | None:
    return (
        replace(a, name=Ins.reduce_copy_packet, dst=a.dst + b.dst)
        if a.group == b.group and a.dst[0] == b.src[0]
        else None
    )


def _reduce_store(a: Op, b: Op) -> Op | None:
    """
    A reduction over a switch channel whose result is then stored on the same channel. The result is not kept in its own
    chunk, so that chunk must be what the store writes on this rank anyway.
    """
    kept, stored = a.dst[0], b.dst[0]
    if a.src[0].target != stored.target or not kept.covers_same(b.src[0]):
        return None
    if (kept.buffer, kept.index) != (stored.buffer, stored.index):
        return None
    return replace(a, name=Ins.group_load_reduce_store, dst=b.dst)


JOINS: dict[tuple[Instruction, Instruction], Callable[[Op, Op], Op | None]] = {
    (Ins.nop, Ins.nop): _first,
    (Ins.nop, Ins.barrier): _second,
    (Ins.barrier, Ins.nop): _first,
    (Ins.nop, Ins.pipeline): _pipeline_second,
    (Ins.pipeline, Ins.nop): _pipeline_first,
    **{(name, name): _signals for name in SIGNALING - {Ins.sem_acquire, Ins.sem_release}},
    **{(name, name): _semaphores for name in (Ins.sem_acquire, Ins.sem_release)},
    **{
        (name, name): _pairwise
        for name in (Ins.get, Ins.put, Ins.put_packet, Ins.put_with_signal, Ins.put_with_signal_and_flush)
    },
    (Ins.read_put_packet, Ins.read_put_packet): _forwards,
    **{(name, name): _reductions for name in (Ins.reduce, Ins.read_reduce, Ins.reduce_packet)},
    (Ins.reduce, Ins.put): _send(Ins.reduce_send),
    (Ins.reduce_send, Ins.put): _send(Ins.reduce_send),
    (Ins.read_reduce, Ins.put): _send(Ins.read_reduce_send),
    (Ins.read_reduce_send, Ins.put): _send(Ins.read_reduce_send),
    (Ins.reduce_packet, Ins.put_packet): _send(Ins.reduce_send_packet),
    (Ins.reduce_send_packet, Ins.put_packet): _send(Ins.reduce_send_packet),
    (Ins.reduce_packet, Ins.copy_packet): _copy_packets,
    (Ins.reduce_copy_packet, Ins.put_packet): _send(Ins.reduce_copy_send_packet),
    (Ins.reduce_copy_packet, Ins.read_put_packet): _send(Ins.reduce_copy_send_packet, packet=True),
    (Ins.reduce_copy_send_packet, Ins.put_packet): _send(Ins.reduce_copy_send_packet),
    (Ins.reduce_copy_send_packet, Ins.read_put_packet): _send(Ins.reduce_copy_send_packet, packet=True),
    (Ins.group_load_reduce, Ins.group_store): _reduce_store,
}
