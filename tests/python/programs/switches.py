# SPDX-License-Identifier: MIT
"""Programs over switch channels."""

from __future__ import annotations

from libshunt.language import (
    AllGather,
    AllReduce,
    Buffer,
    BufferType,
    CollectiveProgram,
    MemoryChannel,
    Rank,
    ReduceOperationType,
    ReduceScatter,
    SwitchChannel,
)

from .common import Builder, mesh, peers, synchronize


def _allreduce(name: str, op: ReduceOperationType) -> Builder:
    """Reduce and store, which become one operation."""

    def build(n: int) -> CollectiveProgram:
        with CollectiveProgram(f"switch_{name}", AllReduce(n, 1, True), n, instances=2) as program:
            switch = SwitchChannel(range(n), BufferType.input)
            channels = mesh(n, MemoryChannel)
            synchronize(n, channels, relaxed=True)
            for rank in range(n):
                own = Rank(rank).get_input_buffer()[rank : rank + 1]
                switch.at_rank(rank).reduce(buffer_offset=rank, size=1, dst_chunk=own, tb=0, reduce_op=op)
                switch.at_rank(rank).broadcast(src_chunk=own, buffer_offset=rank, size=1, tb=0)
            synchronize(n, channels)
        return program

    return build


def switch_reducescatter(n: int) -> CollectiveProgram:
    """The result stays, and the rank is the first argument."""
    with CollectiveProgram("switch_reducescatter", ReduceScatter(n, 2), n) as program:
        switch = SwitchChannel(list(range(n)), BufferType.input)
        channels = mesh(n, MemoryChannel)
        synchronize(n, channels, relaxed=True)
        for rank in range(n):
            switch.reduce(rank, 2 * rank, 2, Rank(rank).get_output_buffer()[0:2], 0)
        synchronize(n, channels)
    return program


def switch_allgather(n: int) -> CollectiveProgram:
    with CollectiveProgram("switch_allgather", AllGather(n, 1), n) as program:
        switch = SwitchChannel(list(range(n)), BufferType.output)
        channels = mesh(n, MemoryChannel)
        synchronize(n, channels, relaxed=True)
        for rank in range(n):
            switch.broadcast(rank, Rank(rank).get_input_buffer()[0:1], rank, 1, 0)
        synchronize(n, channels)
    return program


def switch_offsets(n: int) -> CollectiveProgram:
    """Reduces at one place of scratch and stores at another: both offsets count."""
    with CollectiveProgram("switch_offsets", AllReduce(n, 1), n) as program:
        scratch = [Buffer(rank, 2 * n) for rank in range(n)]
        switch = SwitchChannel(range(n), BufferType.scratch)
        channels = mesh(n, MemoryChannel)
        for rank in range(n):
            this = Rank(rank)
            this.copy(scratch[rank][0:n], this.get_input_buffer()[:], tb=0)
        synchronize(n, channels)
        for rank in range(n):
            result = scratch[rank][n + rank : n + rank + 1]
            view = switch.at_rank(rank)
            view.reduce(rank, 1, result, 0)
            view.broadcast(result, n + rank, 1, 0)
        synchronize(n, channels)
        for rank in range(n):
            this = Rank(rank)
            this.copy(this.get_output_buffer()[:], scratch[rank][n : 2 * n], tb=0)
        synchronize(n, channels)
    return program


def switch_packets(n: int) -> CollectiveProgram:
    """Packets to all at once."""
    with CollectiveProgram(
        "switch_packets", AllGather(n, 1), n, protocol="LL", auto_sync=False, use_double_scratch_buffer=True
    ) as program:
        scratch = [Buffer(rank, n + 1) for rank in range(n)]
        switch = SwitchChannel(range(n), BufferType.scratch)
        for rank in range(n):
            this = Rank(rank)
            packets = scratch[rank][n : n + 1]
            this.copy_packets(packets, this.get_input_buffer()[0:1], tb=0)
            switch.at_rank(rank).broadcast_packets(packets, rank, 1, 0)
            this.copy(this.get_output_buffer()[rank : rank + 1], this.get_input_buffer()[0:1], tb=0)
            for peer in peers(n, rank):
                this.unpack_packets(this.get_output_buffer()[peer : peer + 1], scratch[rank][peer : peer + 1], tb=0)
    return program


PROGRAMS: list[Builder] = [
    *(_allreduce(op.name, op) for op in (ReduceOperationType.sum, ReduceOperationType.min, ReduceOperationType.max)),
    switch_reducescatter,
    switch_allgather,
    switch_offsets,
    switch_packets,
]
