# SPDX-License-Identifier: MIT
"""Programs over memory channels: puts, gets, reductions that read and that write, all options of signals."""

from __future__ import annotations

from libshunt.language import (
    AllGather,
    AllReduce,
    AllToAll,
    Buffer,
    CollectiveProgram,
    MemoryChannel,
    Rank,
    ReduceOperationType,
    ReduceScatter,
    ReplicationPolicy,
    SyncType,
    ThreadBlockGroup,
)

from .common import Builder, mesh, peers, synchronize


def allgather_put(n: int) -> CollectiveProgram:
    with CollectiveProgram("allgather_put", AllGather(n, 1, True), n) as program:
        channels = mesh(n, MemoryChannel)
        synchronize(n, channels, relaxed=True)
        for rank in range(n):
            own = Rank(rank).get_output_buffer()[rank : rank + 1]
            for peer in peers(n, rank):
                channels[rank, peer].put(Rank(peer).get_output_buffer()[rank : rank + 1], own, tb=0)
        synchronize(n, channels)
    return program


def allgather_get(n: int) -> CollectiveProgram:
    """Out of place, by gets, without fusion and without automatic synchronization."""
    with CollectiveProgram(
        "allgather_get", AllGather(n, 2), n, instances=2, instr_fusion=False, auto_sync=False, num_threads_per_block=256
    ) as program:
        channels = mesh(n, MemoryChannel)
        synchronize(n, channels, before=SyncType.both, after=SyncType.both)
        for rank in range(n):
            this = Rank(rank)
            out = this.get_output_buffer()
            this.copy(out[2 * rank : 2 * rank + 2], this.get_input_buffer()[0:2], tb=0)
            for peer in peers(n, rank):
                channels[rank, peer].get(out[2 * peer : 2 * peer + 2], Rank(peer).get_input_buffer()[:], tb=0)
        synchronize(n, channels)
    return program


def allgather_shared(n: int) -> CollectiveProgram:
    """Instances that share each chunk, and blocks that do."""
    with CollectiveProgram(
        "allgather_shared", AllGather(n, 1), n, instances=2, replication_policy=ReplicationPolicy.none
    ) as program:
        group = ThreadBlockGroup([0, 1])
        channels = [mesh(n, MemoryChannel) for _ in range(2)]
        for tb in range(2):
            synchronize(n, channels[tb], tb, relaxed=True)
        for rank in range(n):
            this = Rank(rank)
            part = slice(rank, rank + 1)
            this.copy(this.get_output_buffer()[part], this.get_input_buffer()[0:1], tb_group=group)
            for peer in peers(n, rank):
                channels[0][rank, peer].put(
                    Rank(peer).get_output_buffer()[part], this.get_input_buffer()[:], tb_group=group
                )
        for tb in range(2):
            synchronize(n, channels[tb], tb)
    return program


def _read_reduce(name: str, op: ReduceOperationType) -> Builder:
    """Each rank reads its part of all, and writes the result to all: fused, a single operation."""

    def build(n: int) -> CollectiveProgram:
        with CollectiveProgram(f"read_reduce_{name}", AllReduce(n, 1, True), n, instances=2) as program:
            channels = mesh(n, MemoryChannel)
            synchronize(n, channels, relaxed=True)
            for rank in range(n):
                part = slice(rank, rank + 1)
                own = Rank(rank).get_input_buffer()[part]
                for peer in peers(n, rank):
                    channels[rank, peer].reduce(own, [Rank(peer).get_input_buffer()[part]], tb=0, reduce_op=op)
                for peer in peers(n, rank):
                    channels[rank, peer].put(Rank(peer).get_input_buffer()[part], own, tb=0)
            synchronize(n, channels)
        return program

    return build


def reduce_group(n: int) -> CollectiveProgram:
    """A reduce-scatter out of place whose reads two blocks share; op and a chunk alone instead of a list."""
    with CollectiveProgram("reduce_group", ReduceScatter(n, 1), n, buffer_alignment=32) as program:
        group = ThreadBlockGroup([0, 1])
        channels = [mesh(n, MemoryChannel) for _ in range(2)]
        for tb in range(2):
            synchronize(n, channels[tb], tb)
        for rank in range(n):
            this = Rank(rank)
            part = slice(rank, rank + 1)
            out = this.get_output_buffer()[0:1]
            for step, peer in enumerate(peers(n, rank)):
                channels[0][rank, peer].reduce(
                    this.get_input_buffer()[part] if step == 0 else out,
                    Rank(peer).get_input_buffer()[part],
                    tb_group=group,
                    local_dst_chunk=out,
                    op=ReduceOperationType.sum,
                )
        for tb in range(2):
            synchronize(n, channels[tb], tb)
    return program


def _scratch_reduce(name: str, op: ReduceOperationType) -> Builder:
    """All send to scratch; the owner reduces there and sends the result: a reduction that also writes to peers."""

    def build(n: int) -> CollectiveProgram:
        with CollectiveProgram(
            f"scratch_reduce_{name}", AllReduce(n, 1), n, use_double_scratch_buffer=False
        ) as program:
            scratch = [Buffer(rank, n - 1) for rank in range(n)]
            channels = mesh(n, MemoryChannel)
            synchronize(n, channels, relaxed=True)
            for rank in range(n):
                for step, peer in enumerate(peers(n, rank)):
                    chunk = Rank(rank).get_input_buffer()[peer : peer + 1]
                    slot = n - 2 - step
                    channels[rank, peer].put(scratch[peer][slot : slot + 1], chunk, tb=0)
            synchronize(n, channels, before=SyncType.both, after=SyncType.both)
            for rank in range(n):
                this = Rank(rank)
                part = slice(rank, rank + 1)
                out = this.get_output_buffer()[part]
                others = [scratch[rank][i : i + 1] for i in range(n - 1)]
                this.reduce(this.get_input_buffer()[part], others, tb=0, dst_chunk=out, reduce_op=op)
                for peer in peers(n, rank):
                    channels[rank, peer].put(Rank(peer).get_output_buffer()[part], out, tb=0)
            synchronize(n, channels)
        return program

    return build


def reduce_blocks(n: int) -> CollectiveProgram:
    """A group reduces locally, with a barrier of the blocks before and after."""
    with CollectiveProgram("reduce_blocks", ReduceScatter(n, 1, True), n, num_threads_per_block=128) as program:
        group = ThreadBlockGroup([1, 2])
        scratch = [Buffer(rank, n) for rank in range(n)]
        channels = mesh(n, MemoryChannel)
        synchronize(n, channels, relaxed=True)
        for rank in range(n):
            for peer in peers(n, rank):
                chunk = Rank(rank).get_input_buffer()[peer : peer + 1]
                channels[rank, peer].put(scratch[peer][rank : rank + 1], chunk, tb=0)
        synchronize(n, channels)
        for rank in range(n):
            this = Rank(rank)
            this.barrier([0])
            this.barrier([0, 1, 2])
            own = this.get_input_buffer()[rank : rank + 1]
            this.reduce(own, [scratch[rank][peer : peer + 1] for peer in peers(n, rank)], tb_group=group)
            this.barrier([0, 1, 2])
    return program


def alltoall(n: int) -> CollectiveProgram:
    with CollectiveProgram(
        "alltoall", AllToAll(n, 1), n, instances=2, min_message_size=64, max_message_size=1 << 20, tags={"priority": 2}
    ) as program:
        channels = mesh(n, MemoryChannel)
        synchronize(n, channels, relaxed=True)
        for rank in range(n):
            this = Rank(rank)
            this.copy(this.get_output_buffer()[rank : rank + 1], this.get_input_buffer()[rank : rank + 1], tb=0)
            for peer in peers(n, rank):
                put = Rank(peer).get_output_buffer()[rank : rank + 1]
                channels[rank, peer].put(put, this.get_input_buffer()[peer : peer + 1], tb=0)
        synchronize(n, channels)
    return program


PROGRAMS: list[Builder] = [
    allgather_put,
    allgather_get,
    allgather_shared,
    reduce_group,
    reduce_blocks,
    alltoall,
    *(_read_reduce(op.name, op) for op in ReduceOperationType),
    *(_scratch_reduce(op.name, op) for op in ReduceOperationType),
]
