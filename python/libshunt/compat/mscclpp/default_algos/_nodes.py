# SPDX-License-Identifier: MIT
"""
All-gather, all-reduce and reduce-scatter among the ranks of several hosts, of protocol LL: within a host over memory
channels, from host to host over port channels between ranks of the same place on their hosts.
"""

from __future__ import annotations

from collections.abc import Iterator

from libshunt.language import (
    AlgoSpec,
    AllGather,
    AllReduce,
    Buffer,
    Collective,
    CollectiveProgram,
    MemoryChannel,
    PortChannel,
    Rank,
    ReduceScatter,
    ThreadBlockGroup,
)


class _Nodes:
    """The ranks of a spec, and channels of which each is made when it is first asked for."""

    def __init__(self, spec: AlgoSpec) -> None:
        self.ranks, self.local = spec.world_size, spec.nranks_per_node
        self.count = self.ranks // self.local
        self._channels: dict[tuple[int, int], MemoryChannel | PortChannel] = {}

    def neighbours(self, rank: int) -> Iterator[int]:
        """Others of the host, each rank another one first."""
        first = rank - rank % self.local
        for step in range(1, self.local):
            yield first + (rank + step - first) % self.local

    def counterparts(self, rank: int) -> Iterator[int]:
        """Those of the same place on other hosts."""
        for step in range(1, self.count):
            yield (rank + step * self.local) % self.ranks

    def channel(self, src: int, dst: int) -> MemoryChannel | PortChannel:
        if (src, dst) not in self._channels:
            kind = MemoryChannel if src // self.local == dst // self.local else PortChannel
            self._channels[src, dst] = kind(dst, src)
        return self._channels[src, dst]

    def near(self, src: int, dst: int) -> MemoryChannel:
        channel = self.channel(src, dst)
        assert isinstance(channel, MemoryChannel)
        return channel


def _check(spec: AlgoSpec, kind: type[Collective]) -> None:
    if not isinstance(spec.collective, kind):
        raise ValueError(f"collective is {type(spec.collective).__name__}, expected {kind.__name__}")
    if spec.protocol != "LL":
        raise ValueError(f"protocol is {spec.protocol!r}, expected 'LL'")
    if spec.world_size % spec.nranks_per_node:
        raise ValueError(f"{spec.world_size} ranks do not divide into hosts with {spec.nranks_per_node}")
    if spec.collective.chunk_factor != 1:
        raise ValueError(f"chunk_factor is {spec.collective.chunk_factor}, expected 1")


def allgather_multi_nodes(spec: AlgoSpec, thread_block_group_size: int = 1) -> CollectiveProgram:
    """A slot of scratch for each source, on every rank. What comes from another host is passed on to the neighbours."""
    _check(spec, AllGather)
    with CollectiveProgram.from_spec(spec) as program:
        nodes = _Nodes(spec)
        group = ThreadBlockGroup(range(thread_block_group_size))
        scratch = [Buffer(rank, nodes.ranks) for rank in range(nodes.ranks)]
        for rank in range(nodes.ranks):
            this = Rank(rank)
            out = this.get_output_buffer()
            own = out[rank : rank + 1] if spec.collective.inplace else this.get_input_buffer()[0:1]
            this.copy_packets(scratch[rank][rank : rank + 1], own, tb_group=group)
            for peer in (*nodes.neighbours(rank), *nodes.counterparts(rank)):
                slot = slice(rank, rank + 1)
                nodes.channel(rank, peer).read_put_packets(scratch[peer][slot], scratch[rank][slot], tb_group=group)
            for source in nodes.counterparts(rank):
                slot = slice(source, source + 1)
                for peer in nodes.neighbours(rank):
                    nodes.near(rank, peer).read_put_packets(scratch[peer][slot], scratch[rank][slot], tb_group=group)
            if not spec.collective.inplace:
                this.copy(out[rank : rank + 1], own, tb_group=group)
            for source in range(nodes.ranks):
                if source != rank:
                    slot = slice(source, source + 1)
                    this.unpack_packets(out[slot], scratch[rank][slot], tb_group=group)
    return program


def _synchronize(rank: Rank, group: ThreadBlockGroup) -> None:
    """Also without auto_sync."""
    for tb in group.tb_list:
        rank.barrier([tb])


def allreduce_multi_nodes(spec: AlgoSpec, thread_block_group_size: int = 1) -> CollectiveProgram:
    """
    The neighbours of a host divide the message: each adds up its part of the host, then of all hosts, and hands it to
    the neighbours.
    """
    _check(spec, AllReduce)
    with CollectiveProgram.from_spec(spec) as program:
        nodes = _Nodes(spec)
        group = ThreadBlockGroup(range(thread_block_group_size))
        size = nodes.count  # chunks of a part
        parts = [Buffer(rank, size * nodes.local) for rank in range(nodes.ranks)]
        sums = [Buffer(rank, size * nodes.count) for rank in range(nodes.ranks)]
        results = [Buffer(rank, size * nodes.local) for rank in range(nodes.ranks)]

        def part(rank: int) -> slice:
            place = rank % nodes.local
            return slice(place * size, (place + 1) * size)

        def host(rank: int) -> slice:
            number = rank // nodes.local
            return slice(number * size, (number + 1) * size)

        for rank in range(nodes.ranks):
            this = Rank(rank)
            source = this.get_input_buffer()
            result = source if spec.collective.inplace else this.get_output_buffer()
            own = result[part(rank)]
            for peer in nodes.neighbours(rank):
                nodes.near(rank, peer).put_packets(parts[peer][part(rank)], source[part(peer)], tb_group=group)
            others = [parts[rank][part(peer)] for peer in nodes.neighbours(rank)]
            if others:
                this.reduce(source[part(rank)], others, tb_group=group, dst_chunk=own, packet=True)
            elif not spec.collective.inplace:
                this.copy(own, source[part(rank)], tb_group=group)
            if nodes.count > 1:
                _synchronize(this, group)
                this.copy_packets(sums[rank][host(rank)], own, tb_group=group)
                for peer in nodes.counterparts(rank):
                    channel = nodes.channel(rank, peer)
                    channel.read_put_packets(sums[peer][host(rank)], sums[rank][host(rank)], tb_group=group)
                _synchronize(this, group)
                others = [sums[rank][host(peer)] for peer in nodes.counterparts(rank)]
                this.reduce(own, others, tb_group=group, packet=True)
            for peer in nodes.neighbours(rank):
                nodes.near(rank, peer).put_packets(results[peer][part(rank)], own, tb_group=group)
            for peer in nodes.neighbours(rank):
                this.unpack_packets(result[part(peer)], results[rank][part(peer)], tb_group=group)
    return program


def reducescatter_multi_nodes(spec: AlgoSpec, thread_block_group_size: int = 1) -> CollectiveProgram:
    """
    The neighbour of the same place as an owner adds up what its host has for the owner, and sends the sum there. Sums
    are kept in the input.
    """
    _check(spec, ReduceScatter)
    with CollectiveProgram.from_spec(spec) as program:
        nodes = _Nodes(spec)
        group = ThreadBlockGroup(range(thread_block_group_size))
        parts = [Buffer(rank, nodes.count * nodes.local) for rank in range(nodes.ranks)]
        sent = [Buffer(rank, nodes.count) for rank in range(nodes.ranks)]
        sums = [Buffer(rank, nodes.count) for rank in range(nodes.ranks)]

        def slot(owner: int, source: int) -> slice:
            """What a neighbour has for an owner, where the one of the owner's place keeps it."""
            at = owner // nodes.local * nodes.local + source % nodes.local
            return slice(at, at + 1)

        for rank in range(nodes.ranks):
            this = Rank(rank)
            source = this.get_input_buffer()
            chunks = [source[owner : owner + 1] for owner in range(nodes.ranks)]
            own = chunks[rank] if spec.collective.inplace else this.get_output_buffer()[0:1]
            for peer in nodes.neighbours(rank):
                for owner in (peer, *nodes.counterparts(peer)):
                    packets = parts[peer][slot(owner, rank)]
                    nodes.near(rank, peer).put_packets(packets, chunks[owner], tb_group=group)
            for owner in nodes.counterparts(rank):
                others = [parts[rank][slot(owner, peer)] for peer in nodes.neighbours(rank)]
                if others:
                    this.reduce(chunks[owner], others, tb_group=group, packet=True)
                    _synchronize(this, group)
                number, mine = owner // nodes.local, rank // nodes.local
                packets = sent[rank][number : number + 1]
                this.copy_packets(packets, chunks[owner], tb_group=group)
                nodes.channel(rank, owner).read_put_packets(sums[owner][mine : mine + 1], packets, tb_group=group)
            others = [parts[rank][slot(rank, peer)] for peer in nodes.neighbours(rank)]
            for peer in nodes.counterparts(rank):
                number = peer // nodes.local
                others.append(sums[rank][number : number + 1])
            this.reduce(chunks[rank], others, tb_group=group, dst_chunk=own, packet=True)
    return program
