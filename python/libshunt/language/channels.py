# SPDX-License-Identifier: MIT
"""The ways from a rank to others' memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .current import block_of, blocks_of, chunk_of, chunks_of, get_program, own_program, rank_of, whole, word
from .errors import fail, source
from .groups import ThreadBlockGroup
from .ops import Op, Place, Slice
from .program import CollectiveProgram
from .rank import local
from .types import BufferType, ChannelType, Chunk, Instruction, ReduceOperationType, SyncType

Ins = Instruction


class _Channel:
    """Signals of src_rank to dst_rank, and what src_rank does with dst_rank's memory. Each is another channel."""

    channel_type: ChannelType

    def __init__(self, dst_rank: int, src_rank: int) -> None:
        self.program = get_program()
        self.src_rank = rank_of("src_rank", src_rank)
        self.dst_rank = rank_of("dst_rank", dst_rank)
        self.channel_id = self.program.devices[self.src_rank].channel(self.channel_type, self.dst_rank)

    def _open(self) -> CollectiveProgram:
        name = f"{type(self).__name__}({self.dst_rank}, {self.src_rank})"
        return own_program(name, self.program)

    def _number(self, block: int) -> int:
        return self.program.devices[self.src_rank].block(block).channel(self.channel_type, self.channel_id)

    def _sync(self, name: Instruction, tb: int, data_sync: SyncType) -> None:
        program, block = self._open(), block_of(tb)
        sync = word("data_sync", data_sync, SyncType)
        op = Op(name, (), (), self.channel_type, (self._number(block),), sync=sync, sources=(source(),))
        program.add_operation(self.src_rank, block, op)
        if name in (Ins.signal, Ins.relaxed_signal):
            program.pairs.signal(self.src_rank, self.dst_rank, self.channel_type)
        elif name in (Ins.wait, Ins.relaxed_wait):
            program.pairs.wait(self.src_rank, self.dst_rank, self.channel_type)

    def _remote(self, block: int, chunk: Chunk, packet: bool = False) -> Slice:
        device = self.program.devices[self.src_rank]
        number = device.remote(chunk.rank, chunk.buffer, self.channel_type)
        target = device.block(block).remote(self.channel_type, number)
        return Slice(Place.REMOTE, chunk.buffer, chunk.index, chunk.size, target, packet)

    def _put(
        self,
        name: Instruction,
        dst_chunk: Chunk,
        src_chunk: Chunk,
        tb: int | None,
        tb_group: ThreadBlockGroup | None = None,
        packs: bool = False,
        forwards: bool = False,
    ) -> None:
        """packs: what arrives is packets. forwards: what is sent is packets already."""
        program = self._open()
        src = chunk_of("src_chunk", src_chunk, self.src_rank, packets=forwards)
        dst = chunk_of("dst_chunk", dst_chunk, self.dst_rank, src.size, packets=packs)
        port = self.channel_type is ChannelType.port
        for block, group in blocks_of(tb, tb_group):
            remote = self._remote(block, dst, packs)
            number = self._number(block)
            op = Op(
                name,
                (local(src, forwards),),
                (remote,),
                self.channel_type,
                (number,) if port else (),
                group=group,
                sources=(source(),),
            )
            program.add_operation(self.src_rank, block, op)


class MemoryChannel(_Channel):
    """Loads and stores in the peer's memory."""

    channel_type = ChannelType.memory

    def signal(self, tb: int, data_sync: SyncType = SyncType.both, relaxed: bool = False) -> None:
        """Tells the peer. relaxed: MSCCL++ then promises nothing about data; Shunt makes no difference."""
        self._sync(Ins.relaxed_signal if relaxed else Ins.signal, tb, data_sync)

    def wait(self, tb: int, data_sync: SyncType = SyncType.both, relaxed: bool = False) -> None:
        """Waits until the peer has told."""
        self._sync(Ins.relaxed_wait if relaxed else Ins.wait, tb, data_sync)

    def get(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Reads the peer's src_chunk."""
        program = self._open()
        src = chunk_of("src_chunk", src_chunk, self.dst_rank)
        dst = chunk_of("dst_chunk", dst_chunk, self.src_rank, src.size)
        for block, group in blocks_of(tb, tb_group):
            remote = self._remote(block, src)
            self._number(block)
            op = Op(Ins.get, (remote,), (local(dst),), self.channel_type, group=group, sources=(source(),))
            program.add_operation(self.src_rank, block, op)

    def put(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Writes the peer's dst_chunk."""
        self._put(Ins.put, dst_chunk, src_chunk, tb, tb_group)

    def put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Writes the peer's dst_chunk, in scratch, as packets."""
        self._put(Ins.put_packet, dst_chunk, src_chunk, tb, tb_group, packs=True)

    def read_put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Waits for packets in its own scratch and passes them on to the peer's."""
        self._put(Ins.read_put_packet, dst_chunk, src_chunk, tb, tb_group, packs=True, forwards=True)

    # Former names.
    put_packet = put_packets
    read_put_packet = read_put_packets

    def reduce(
        self,
        local_src_chunk: Chunk,
        remote_src_chunks: Chunk | Sequence[Chunk],
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
        local_dst_chunk: Chunk | None = None,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
        op: ReduceOperationType | None = None,
    ) -> None:
        """local_dst_chunk (or local_src_chunk) becomes local_src_chunk and the peer's chunks together."""
        program = self._open()
        reduce_op = word("reduce_op", op if op is not None else reduce_op, ReduceOperationType)
        src = chunk_of("local_src_chunk", local_src_chunk, self.src_rank)
        dst = src if local_dst_chunk is None else chunk_of("local_dst_chunk", local_dst_chunk, self.src_rank, src.size)
        others = chunks_of("remote_src_chunks", remote_src_chunks, self.dst_rank, src.size)
        for block, group in blocks_of(tb, tb_group):
            remotes = tuple(self._remote(block, chunk) for chunk in others)
            self._number(block)
            done = Op(
                Ins.read_reduce,
                (local(src), *remotes),
                (local(dst),),
                self.channel_type,
                reduce_op=reduce_op,
                group=group,
                sources=(source(),),
            )
            program.add_operation(self.src_rank, block, done)


class PortChannel(_Channel):
    """Copies that the rank asks for and that are done beside its blocks, in the order in which it asks."""

    channel_type = ChannelType.port

    def signal(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Tells the peer, after what was put before on this channel."""
        self._sync(Ins.signal, tb, data_sync)

    def wait(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Waits until the peer has told."""
        self._sync(Ins.wait, tb, data_sync)

    def flush(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Waits until what was put on this channel is through, so that its sources may be written again."""
        self._sync(Ins.flush, tb, data_sync)

    def put(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        self._put(Ins.put, dst_chunk, src_chunk, tb)

    def put_with_signal(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        self._put(Ins.put_with_signal, dst_chunk, src_chunk, tb)
        self.program.pairs.signal(self.src_rank, self.dst_rank, self.channel_type)

    def put_with_signal_and_flush(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        self._put(Ins.put_with_signal_and_flush, dst_chunk, src_chunk, tb)
        self.program.pairs.signal(self.src_rank, self.dst_rank, self.channel_type)

    def put_packets(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Sends packets that lie in scratch, without waiting for them."""
        self._put(Ins.put_packet, dst_chunk, src_chunk, tb, packs=True, forwards=True)

    def read_put_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Waits for packets in its own scratch and passes them on to the peer's."""
        self._put(Ins.read_put_packet, dst_chunk, src_chunk, tb, tb_group, packs=True, forwards=True)

    put_packet = put_packets
    read_put_packet = read_put_packets


class SwitchChannel:
    """One buffer of several ranks at once, through the switch between them."""

    channel_type = ChannelType.switch

    def __init__(self, rank_list: Iterable[int], buffer_type: BufferType) -> None:
        self.program = get_program()
        self.ranks = tuple(rank_of(f"rank_list[{i}]", rank) for i, rank in enumerate(rank_list))
        if not self.ranks:
            fail("rank_list is empty, expected one rank or more")
        if len(set(self.ranks)) != len(self.ranks):
            fail(f"rank_list has a rank twice: {list(self.ranks)}")
        self.buffer_type = word("buffer_type", buffer_type, BufferType)
        self.channel_ids = {
            rank: self.program.devices[rank].switch(self.buffer_type, self.ranks) for rank in self.ranks
        }

    def at_rank(self, rank: int) -> SwitchChannelRankView:
        """The channel as this rank uses it."""
        return SwitchChannelRankView(self, self._member(rank))

    def reduce(
        self,
        rank: int,
        buffer_offset: int,
        size: int,
        dst_chunk: Chunk,
        tb: int,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """dst_chunk of the rank becomes all ranks' chunks together."""
        rank = self._member(rank)
        dst = chunk_of("dst_chunk", dst_chunk, rank, whole("size", size, 1))
        self._add(
            Ins.group_load_reduce,
            rank,
            local(dst),
            buffer_offset,
            tb,
            word("reduce_op", reduce_op, ReduceOperationType),
        )

    def broadcast(self, rank: int, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """All ranks' chunks become src_chunk of the rank."""
        rank = self._member(rank)
        src = chunk_of("src_chunk", src_chunk, rank, whole("size", size, 1))
        self._add(Ins.group_store, rank, local(src), buffer_offset, tb)

    def broadcast_packets(self, rank: int, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Waits for packets in its own scratch and passes them on to all ranks' scratch."""
        rank = self._member(rank)
        src = chunk_of("src_chunk", src_chunk, rank, whole("size", size, 1), packets=True)
        if self.buffer_type is not BufferType.scratch:
            fail(f"packets are in scratch, and this channel is of the {self.buffer_type.name} buffers")
        self._add(Ins.group_store_packet, rank, local(src, packet=True), buffer_offset, tb)

    def _member(self, rank: int) -> int:
        own_program("a switch channel", self.program)
        number = rank_of("rank", rank)
        if number not in self.ranks:
            fail(f"rank is {number}, expected one of the channel's: {list(self.ranks)}")
        return number

    def _add(
        self,
        name: Instruction,
        rank: int,
        own: Slice,
        buffer_offset: int,
        tb: int,
        reduce_op: ReduceOperationType | None = None,
    ) -> None:
        program, block = self.program, block_of(tb)
        offset = whole("buffer_offset", buffer_offset)
        for member in self.ranks:
            has = program.buffer_chunks(member, self.buffer_type)
            if offset + own.size > has:
                fail(
                    f"buffer_offset {offset} and size {own.size} end at chunk {offset + own.size}: "
                    f"the {self.buffer_type.name} buffer of rank {member} has {has} chunks"
                )
        number = program.devices[rank].block(block).channel(self.channel_type, self.channel_ids[rank])
        group = Slice(Place.SWITCH, self.buffer_type, offset, own.size, number, own.packet)
        src, dst = (group, own) if reduce_op is not None else (own, group)
        op = Op(name, (src,), (dst,), self.channel_type, reduce_op=reduce_op, sources=(source(),))
        program.add_operation(rank, block, op)


class SwitchChannelRankView:
    """A switch channel as one rank uses it."""

    def __init__(self, channel: SwitchChannel, rank: int) -> None:
        self._channel = channel
        self._rank = rank

    def reduce(
        self,
        buffer_offset: int,
        size: int,
        dst_chunk: Chunk,
        tb: int,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        self._channel.reduce(self._rank, buffer_offset, size, dst_chunk, tb, reduce_op)

    def broadcast(self, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        self._channel.broadcast(self._rank, src_chunk, buffer_offset, size, tb)

    def broadcast_packets(self, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        self._channel.broadcast_packets(self._rank, src_chunk, buffer_offset, size, tb)
