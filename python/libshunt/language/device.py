# SPDX-License-Identifier: MIT
"""What a program records of a rank: its blocks and their operations, channels, remote buffers, semaphores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from .fusion import fuse
from .ops import Op, Slice
from .sync import auto_sync, data_sync
from .types import BufferType, ChannelType, ReplicationPolicy

T = TypeVar("T")
_ACCESS = (ChannelType.memory, ChannelType.port)


@dataclass
class Block:
    """Tables give the rank's number for each number of the block, which is given on first use."""

    ops: list[Op] = field(default_factory=list)
    channels: dict[ChannelType, list[int]] = field(default_factory=dict)
    remotes: dict[ChannelType, list[int]] = field(default_factory=dict)

    def channel(self, kind: ChannelType, number: int) -> int:
        return _number(self.channels.setdefault(kind, []), number)

    def remote(self, kind: ChannelType, number: int) -> int:
        return _number(self.remotes.setdefault(kind, []), number)

    def json(self, number: int, sources: bool) -> dict[str, Any]:
        return {
            "id": number,
            "ops": [op.json(sources) for op in self.ops],
            "channels": [{"channel_type": kind.value, "channel_ids": ids} for kind, ids in self.channels.items()],
            "remote_buffer_refs": [
                {"access_channel_type": kind.value, "remote_buffer_ids": ids} for kind, ids in self.remotes.items()
            ],
        }


def _number(table: list[int], entry: int) -> int:
    if entry not in table:
        table.append(entry)
    return table.index(entry)


@dataclass
class Device:
    rank: int
    chunks: dict[BufferType, int]
    blocks: list[Block] = field(default_factory=list)
    channels: dict[ChannelType, list[int]] = field(default_factory=dict)  # the peer of each
    switches: list[tuple[BufferType, tuple[int, ...]]] = field(default_factory=list)
    remotes: dict[tuple[int, BufferType], set[ChannelType]] = field(default_factory=dict)
    semaphores: list[int] = field(default_factory=list)
    barriers: dict[tuple[int, ...], int] = field(default_factory=dict)

    def block(self, number: int) -> Block:
        while len(self.blocks) <= number:
            self.blocks.append(Block())
        return self.blocks[number]

    def channel(self, kind: ChannelType, peer: int) -> int:
        self.channels.setdefault(kind, []).append(peer)
        return len(self.channels[kind]) - 1

    def switch(self, buffer: BufferType, ranks: tuple[int, ...]) -> int:
        self.switches.append((buffer, ranks))
        return len(self.switches) - 1

    def remote(self, peer: int, buffer: BufferType, kind: ChannelType) -> int:
        self.remotes.setdefault((peer, buffer), set()).add(kind)
        return list(self.remotes).index((peer, buffer))

    def barrier(self, blocks: tuple[int, ...]) -> int:
        return self.barriers.setdefault(blocks, len(self.barriers))

    def compiled(self, passes: Passes) -> Device:
        """Its operations fused and synchronized, and everything repeated for each instance."""
        return _replicated(self, passes, [passes.apply(block.ops) for block in self.blocks])

    def json(self, sources: bool) -> dict[str, Any]:
        return {
            "id": self.rank,
            "input_chunks": self.chunks[BufferType.input],
            "output_chunks": self.chunks[BufferType.output],
            "scratch_chunks": self.chunks[BufferType.scratch],
            "threadblocks": [block.json(number, sources) for number, block in enumerate(self.blocks)],
            "channels": [
                *({"channel_type": kind.value, "connected_to": peers} for kind, peers in self.channels.items()),
                *(
                    {
                        "channel_type": ChannelType.switch.value,
                        "buffer_type": buffer.value,
                        "rank_groups": [{"size": len(ranks), "ranks": list(ranks)}],
                    }
                    for buffer, ranks in self.switches
                ),
            ],
            "remote_buffers": [
                {
                    "rank": peer,
                    "type": buffer.value,
                    "access_channel_types": [kind.value for kind in _ACCESS if kind in kinds],
                }
                for (peer, buffer), kinds in self.remotes.items()
            ],
            "semaphores": [{"init_value": value} for value in self.semaphores],
        }


@dataclass(frozen=True)
class Passes:
    fusion: bool
    auto_sync: bool
    instances: int
    policy: ReplicationPolicy

    def apply(self, ops: Iterable[Op]) -> list[Op]:
        ops = data_sync(fuse(ops) if self.fusion else ops)
        return auto_sync(ops) if self.auto_sync else list(ops)


def _replicated(device: Device, passes: Passes, programs: list[list[Op]]) -> Device:
    n = passes.instances
    whole = passes.policy is ReplicationPolicy.none
    out = Device(device.rank, {kind: size * (1 if whole else n) for kind, size in device.chunks.items()})
    out.channels = {kind: _repeated(peers, n) for kind, peers in device.channels.items()}
    out.switches = _repeated(device.switches, n)
    out.semaphores = _repeated(device.semaphores, n)
    out.remotes = device.remotes
    for block, ops in zip(device.blocks, programs, strict=True):
        for instance in range(n):
            copy = _Instance(instance, n, whole)
            out.blocks.append(
                Block(
                    [copy.op(op) for op in ops],
                    {kind: [copy.number(id) for id in ids] for kind, ids in block.channels.items()},
                    block.remotes,
                )
            )
    return out


def _repeated(items: list[T], times: int) -> list[T]:
    return [item for item in items for _ in range(times)]


@dataclass(frozen=True)
class _Instance:
    instance: int
    instances: int
    whole: bool

    def number(self, number: int) -> int:
        return number * self.instances + self.instance

    def slice(self, piece: Slice) -> Slice:
        if self.whole:
            return piece
        return replace(piece, index=piece.index * self.instances + self.instance * piece.size)

    def op(self, op: Op) -> Op:
        if self.instances == 1:
            return op
        part, parts = op.group or (0, 1)
        semaphores = op.name.value.startswith("sem_")
        return replace(
            op,
            src=tuple(map(self.slice, op.src)),
            dst=tuple(map(self.slice, op.dst)),
            ids=tuple(map(self.number, op.ids)) if semaphores else op.ids,
            barrier=self.number(op.barrier),
            group=(self.number(part), parts * self.instances) if self.whole and op.src else op.group,
            body=tuple(map(self.op, op.body)),
        )
