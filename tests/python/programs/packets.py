# SPDX-License-Identifier: MIT
"""Programs of protocol LL: every operation on packets, by one block and by groups."""

from __future__ import annotations

from functools import partial

from libshunt.language import (
    AllGather,
    AllReduce,
    Buffer,
    CollectiveProgram,
    MemoryChannel,
    PortChannel,
    Rank,
    ReduceScatter,
    ThreadBlockGroup,
)

from .common import Builder, mesh, peers


def _slot(n: int, rank: int, peer: int) -> int:
    """Where rank keeps what comes from peer."""
    return (rank - peer) % n - 1


def allreduce_oneshot(n: int) -> CollectiveProgram:
    """Everyone's whole input to all; each adds everything."""
    with CollectiveProgram(
        "allreduce_oneshot", AllReduce(n, 1, True), n, protocol="LL", use_double_scratch_buffer=True
    ) as program:
        scratch = [Buffer(rank, n * (n - 1)) for rank in range(n)]
        channels = mesh(n, MemoryChannel)
        for rank in range(n):
            this = Rank(rank)
            whole = this.get_input_buffer()[:]
            for peer in peers(n, rank):
                at = _slot(n, peer, rank) * n
                channels[rank, peer].put_packets(scratch[peer][at : at + n], whole, tb=0)
            others = [scratch[rank][i * n : i * n + n] for i in range(n - 1)]
            this.reduce(whole, others, tb=0, packet=True)
    return program


def allreduce_twoshot(n: int) -> CollectiveProgram:
    """Each rank adds its part and sends it on: fused to one operation with the sends, and by a group of blocks."""
    with CollectiveProgram(
        "allreduce_twoshot", AllReduce(n, 1), n, instances=2, protocol="LL", use_double_scratch_buffer=True
    ) as program:
        group = ThreadBlockGroup([0, 1])
        parts = [Buffer(rank, n - 1) for rank in range(n)]
        results = [Buffer(rank, n - 1) for rank in range(n)]
        channels = mesh(n, MemoryChannel)
        for rank in range(n):
            this = Rank(rank)
            for peer in peers(n, rank):
                at = _slot(n, peer, rank)
                chunk = this.get_input_buffer()[peer : peer + 1]
                channels[rank, peer].put_packets(parts[peer][at : at + 1], chunk, tb_group=group)
            own = this.get_input_buffer()[rank : rank + 1]
            out = this.get_output_buffer()[rank : rank + 1]
            this.reduce(own, [parts[rank][i : i + 1] for i in range(n - 1)], tb_group=group, dst_chunk=out, packet=True)
            for peer in peers(n, rank):
                at = _slot(n, peer, rank)
                channels[rank, peer].put_packets(results[peer][at : at + 1], out, tb_group=group)
            for peer in peers(n, rank):
                at = _slot(n, rank, peer)
                result = this.get_output_buffer()[peer : peer + 1]
                this.unpack_packets(result, results[rank][at : at + 1], tb_group=group)
    return program


def allreduce_copies(n: int, ports: bool = False) -> CollectiveProgram:
    """The result is kept as packets too, which are passed on: by one operation in two instances, or by ports."""
    name, instances = ("allreduce_over_ports", 1) if ports else ("allreduce_copies", 2)
    with CollectiveProgram(
        name, AllReduce(n, 1, True), n, instances=instances, protocol="LL", use_double_scratch_buffer=True
    ) as program:
        parts = [Buffer(rank, n - 1) for rank in range(n)]
        results = [Buffer(rank, n) for rank in range(n)]
        near = mesh(n, MemoryChannel)
        far = mesh(n, PortChannel) if ports else near
        for rank in range(n):
            this = Rank(rank)
            buffer = this.get_input_buffer()
            for peer in peers(n, rank):
                at = _slot(n, peer, rank)
                near[rank, peer].put_packets(parts[peer][at : at + 1], buffer[peer : peer + 1], tb=0)
            own, packets = buffer[rank : rank + 1], results[rank][rank : rank + 1]
            this.reduce(own, [parts[rank][i : i + 1] for i in range(n - 1)], tb=0, packet=True)
            this.copy_packets(packets, own, tb=0)
            for peer in peers(n, rank):
                far[rank, peer].read_put_packets(results[peer][rank : rank + 1], packets, tb=0)
            for peer in peers(n, rank):
                this.unpack_packets(buffer[peer : peer + 1], results[rank][peer : peer + 1], tb=0)
    return program


def allgather_forward(n: int) -> CollectiveProgram:
    """Around a ring: packets that came are passed on, and unpacked."""
    with CollectiveProgram(
        "allgather_forward", AllGather(n, 1), n, protocol="LL", reuse_resources=True, use_double_scratch_buffer=True
    ) as program:
        group = ThreadBlockGroup([0, 1])
        scratch = [Buffer(rank, n) for rank in range(n)]
        channels = mesh(n, MemoryChannel)
        for rank in range(n):
            this = Rank(rank)
            after = (rank + 1) % n
            this.copy(this.get_output_buffer()[rank : rank + 1], this.get_input_buffer()[0:1], tb_group=group)
            this.copy_packets(scratch[rank][rank : rank + 1], this.get_input_buffer()[0:1], tb_group=group)
            for step in range(n - 1):
                part = (rank - step) % n
                packets = scratch[rank][part : part + 1]
                channels[rank, after].read_put_packets(scratch[after][part : part + 1], packets, tb_group=group)
                came = (rank - step - 1) % n
                this.unpack_packets(
                    this.get_output_buffer()[came : came + 1], scratch[rank][came : came + 1], tb_group=group
                )
    return program


def _port_packets(forwards: bool, shared: bool) -> Builder:
    """Packets over port channels: passed on as soon as they are there, or sent as they lie."""
    name = f"port_{'forwarded' if forwards else 'put'}{'_shared' if shared else ''}"

    def build(n: int) -> CollectiveProgram:
        with CollectiveProgram(name, ReduceScatter(n, 1), n, protocol="LL", use_double_scratch_buffer=True) as program:
            group = ThreadBlockGroup([0, 1]) if shared else None
            tb = None if shared else 0
            own = [Buffer(rank, n) for rank in range(n)]
            parts = [Buffer(rank, n - 1) for rank in range(n)]
            channels = mesh(n, PortChannel)
            for rank in range(n):
                this = Rank(rank)
                for peer in peers(n, rank):
                    packets = own[rank][peer : peer + 1]
                    at = _slot(n, peer, rank)
                    this.copy_packets(packets, this.get_input_buffer()[peer : peer + 1], tb=tb, tb_group=group)
                    if forwards:
                        channels[rank, peer].read_put_packets(parts[peer][at : at + 1], packets, tb=tb, tb_group=group)
                    else:
                        this.barrier([0])
                        channels[rank, peer].put_packets(parts[peer][at : at + 1], packets, tb=0)
                this.reduce(
                    this.get_input_buffer()[rank : rank + 1],
                    [parts[rank][i : i + 1] for i in range(n - 1)],
                    tb=tb,
                    tb_group=group,
                    dst_chunk=this.get_output_buffer()[0:1],
                    packet=True,
                )
        return program

    return build


PROGRAMS: list[Builder] = [
    allreduce_oneshot,
    allreduce_twoshot,
    allreduce_copies,
    partial(allreduce_copies, ports=True),
    allgather_forward,
    _port_packets(forwards=True, shared=False),
    _port_packets(forwards=True, shared=True),
    _port_packets(forwards=False, shared=False),
]
