# SPDX-License-Identifier: MIT
"""Programs with pipelines and semaphores."""

from __future__ import annotations

from libshunt.language import (
    AllGather,
    AllReduce,
    Buffer,
    CollectiveProgram,
    LoopIterationContext,
    MemoryChannel,
    Rank,
    Semaphore,
    SyncType,
)

from .common import Builder, mesh, peers, synchronize


def _handed_on(name: str, acquire: SyncType, release: SyncType) -> Builder:
    """One block copies windows into scratch, another one sends them from there."""

    def build(n: int) -> CollectiveProgram:
        with CollectiveProgram(f"windows_{name}", AllGather(n, 1), n, instances=2) as program:
            scratch = [Buffer(rank, 1) for rank in range(n)]
            channels = mesh(n, MemoryChannel)
            filled = [Semaphore(rank, 0) for rank in range(n)]
            synchronize(n, channels, tb=1, relaxed=True)
            for rank in range(n):
                this = Rank(rank)
                with LoopIterationContext(unit=256, num_chunks=1):
                    this.copy(scratch[rank][0:1], this.get_input_buffer()[0:1], tb=0)
                    filled[rank].release(tb=0, data_sync=release)
                    filled[rank].acquire(tb=1, data_sync=acquire)
                    for peer in peers(n, rank):
                        out = Rank(peer).get_output_buffer()[rank : rank + 1]
                        channels[rank, peer].put(out, scratch[rank][0:1], tb=1)
                this.copy(this.get_output_buffer()[rank : rank + 1], this.get_input_buffer()[0:1], tb=0)
            synchronize(n, channels, tb=1)
        return program

    return build


def windows_reduced(n: int) -> CollectiveProgram:
    """Ranks synchronize in each window; the parts are read, reduced and written."""
    with CollectiveProgram("windows_reduced", AllReduce(n, 1, True), n) as program:
        channels = mesh(n, MemoryChannel)
        with LoopIterationContext(unit=1024, num_chunks=1):
            synchronize(n, channels)
            for rank in range(n):
                part = slice(rank, rank + 1)
                own = Rank(rank).get_input_buffer()[part]
                for peer in peers(n, rank):
                    channels[rank, peer].reduce(own, [Rank(peer).get_input_buffer()[part]], tb=0)
                for peer in peers(n, rank):
                    channels[rank, peer].put(Rank(peer).get_input_buffer()[part], own, tb=0)
        synchronize(n, channels)
    return program


def two_semaphores(n: int) -> CollectiveProgram:
    """Block 0 lets blocks 1 and 2 go, which take turns, and waits for both."""
    with CollectiveProgram("two_semaphores", AllGather(n, 2), n) as program:
        channels = mesh(n, MemoryChannel)
        synchronize(n, channels, relaxed=True)
        for rank in range(n):
            this = Rank(rank)
            go = [Semaphore(rank, 0) for _ in range(2)]
            done = [Semaphore(rank, 0) for _ in range(2)]
            turn = Semaphore(rank=rank, initial_value=1)
            for semaphore in go:
                semaphore.release(0)
            for half in range(2):
                go[half].acquire(tb=1 + half)
                turn.acquire(tb=1 + half)
                chunk = this.get_input_buffer()[half : half + 1]
                at = 2 * rank + half
                this.copy(this.get_output_buffer()[at : at + 1], chunk, tb=1 + half)
                for peer in peers(n, rank):
                    channels[rank, peer].put(Rank(peer).get_output_buffer()[at : at + 1], chunk, tb=1 + half)
                turn.release(tb=1 + half)
                done[half].release(tb=1 + half)
            for semaphore in done:
                semaphore.acquire(0)
        synchronize(n, channels)
    return program


PROGRAMS: list[Builder] = [
    _handed_on("both", SyncType.both, SyncType.both),
    _handed_on("needed", SyncType.after, SyncType.before),
    windows_reduced,
    two_semaphores,
]
