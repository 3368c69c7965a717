# SPDX-License-Identifier: MIT
"""
Operations as they are recorded and as a plan has them.

Operations never change: fusion and instances make new ones. Numbers of channels and remote buffers are those of the
block, numbers of semaphores and barriers those of the rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from .types import BufferType, ChannelType, Instruction, ReduceOperationType, SyncType


class Place(Enum):
    LOCAL = auto()
    REMOTE = auto()
    SWITCH = auto()


@dataclass(frozen=True)
class Slice:
    """Chunks of a buffer. target: the block's number of a remote buffer or switch channel. packet: of packets."""

    place: Place
    buffer: BufferType
    index: int
    size: int
    target: int = 0
    packet: bool = False

    def json(self) -> dict[str, Any]:
        table: dict[Place, dict[str, Any]] = {
            Place.LOCAL: {"type": self.buffer.value},
            Place.REMOTE: {"buffer_id": self.target},
            Place.SWITCH: {"switch_channel_id": self.target},
        }
        return {**table[self.place], "index": self.index, "size": self.size}

    def covers_same(self, other: Slice) -> bool:
        """The same chunks, be they read as plain data or as packets."""
        return (self.place, self.buffer, self.index, self.size, self.target) == (
            other.place,
            other.buffer,
            other.index,
            other.size,
            other.target,
        )

    def overlaps(self, other: Slice) -> bool:
        """In this rank's memory. Every rank of a switch channel is a member of it, so its slices lie there too."""
        return (
            Place.REMOTE not in (self.place, other.place)
            and self.buffer is other.buffer
            and self.index < other.index + other.size
            and other.index < self.index + self.size
        )


@dataclass(frozen=True)
class Op:
    name: Instruction
    src: tuple[Slice, ...] = ()
    dst: tuple[Slice, ...] = ()
    channel_type: ChannelType = ChannelType.none
    ids: tuple[int, ...] = ()  # channels or semaphores
    reduce_op: ReduceOperationType | None = None
    group: tuple[int, int] | None = None  # the operation does part group[0] of group[1] of each slice
    sync: SyncType = SyncType.none
    barrier: int = 0
    nblocks: int = 0
    unit: int = 0
    num_chunks: int = 0
    body: tuple[Op, ...] = ()
    sources: tuple[str, ...] = ()  # lines of the program

    def accesses(self) -> Iterator[tuple[Slice, bool]]:
        """Plain data in this rank's memory: the slice, and whether it is written. Packets order themselves."""
        for op in self.body or (self,):
            for slices, writes in ((op.src, False), (op.dst, True)):
                for piece in slices:
                    if piece.place is not Place.REMOTE and not piece.packet:
                        yield piece, writes

    def json(self, sources: bool) -> dict[str, Any]:
        out: dict[str, Any] = {"name": self.name.value}
        if self.name is Instruction.pipeline:
            out["iter_context"] = {"unit_size": self.unit, "num_chunks": self.num_chunks}
            out["ops"] = [op.json(sources) for op in self.body]
        elif self.name is Instruction.group_load_reduce:
            (src,), (dst,) = self.src, self.dst
            out |= {"buffer_type": src.buffer.value, "buffer_offset": src.index, "size": src.size}
            out |= {"dst_chunk": dst.json(), "channel_ids": [src.target]}
        elif self.name is Instruction.barrier:
            out |= {"barrier_id": self.barrier, "num_threadblocks": self.nblocks}
        elif self.name in (Instruction.sem_acquire, Instruction.sem_release):
            out["semaphore_ids"] = list(self.ids)
        else:
            if self.src:
                out["src_buff"] = [piece.json() for piece in self.src]
                out["dst_buff"] = [piece.json() for piece in self.dst]
            if self.ids:
                out["channel_ids"] = list(self.ids)
        if self.channel_type is not ChannelType.none:
            out["channel_type"] = self.channel_type.value
        if self.reduce_op is not None:
            out["reduce_op"] = self.reduce_op.value
        if self.group is not None:
            out["tbg_info"] = {"tb_id": self.group[0], "tbg_size": self.group[1]}
        if sources and self.sources:
            out["src"] = lines(self.sources)
        return out


def lines(sources: tuple[str, ...]) -> str:
    """FILE:LINE,LINE,... of all lines that are in an operation, each file once."""
    numbers: dict[str, list[int]] = {}
    for text in sources:
        file, _, line = text.rpartition(":")
        numbers.setdefault(file, []).append(int(line))
    return " ".join(f"{file}:{','.join(map(str, sorted(set(found))))}" for file, found in numbers.items())


NOP = Op(Instruction.nop)
