# SPDX-License-Identifier: MIT
from __future__ import annotations

from collections.abc import Iterable, Sequence

from .buffers import BaseBuffer
from .current import block_of, blocks_of, chunk_of, chunks_of, get_program, own_program, rank_of, whole, word
from .errors import fail, source
from .groups import ThreadBlockGroup
from .ops import NOP, Op, Place, Slice
from .types import BufferType, Chunk, Instruction, ReduceOperationType, SyncType


def local(chunk: Chunk, packet: bool = False) -> Slice:
    return Slice(Place.LOCAL, chunk.buffer, chunk.index, chunk.size, packet=packet)


class Rank:
    """What a rank does with its own memory."""

    def __init__(self, rank: int) -> None:
        self.rank = rank_of("rank", rank)
        self.program = get_program()

    def get_input_buffer(self) -> BaseBuffer:
        return self.program.buffers[self.rank][BufferType.input]

    def get_output_buffer(self) -> BaseBuffer:
        return self.program.buffers[self.rank][BufferType.output]

    def copy(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        self._copy(Instruction.copy, dst_chunk, src_chunk, tb, tb_group)

    def copy_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Writes packets into scratch."""
        self._copy(Instruction.copy_packet, dst_chunk, src_chunk, tb, tb_group)

    def unpack_packets(
        self, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None = None, tb_group: ThreadBlockGroup | None = None
    ) -> None:
        """Waits for packets in scratch and takes their data."""
        self._copy(Instruction.unpack_packet, dst_chunk, src_chunk, tb, tb_group)

    # Former names.
    copy_packet = copy_packets
    unpack_packet = unpack_packets

    def _copy(
        self, name: Instruction, dst_chunk: Chunk, src_chunk: Chunk, tb: int | None, tb_group: ThreadBlockGroup | None
    ) -> None:
        program = own_program(f"Rank({self.rank})", self.program)
        unpacks, packs = name is Instruction.unpack_packet, name is Instruction.copy_packet
        src = chunk_of("src_chunk", src_chunk, self.rank, packets=unpacks)
        dst = chunk_of("dst_chunk", dst_chunk, self.rank, src.size, packets=packs)
        for block, group in blocks_of(tb, tb_group):
            op = Op(name, (local(src, unpacks),), (local(dst, packs),), group=group, sources=(source(),))
            program.add_operation(self.rank, block, op)

    def reduce(
        self,
        src_chunk: Chunk,
        other_chunks: Chunk | Sequence[Chunk],
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
        dst_chunk: Chunk | None = None,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
        packet: bool = False,
        op: ReduceOperationType | None = None,
    ) -> None:
        """
        dst_chunk (or src_chunk) becomes src_chunk and all of other_chunks together; with packet these are packets in
        scratch. A reduction of a block that follows another with the same src_chunk and dst_chunk adds to it. op is
        another name of reduce_op.
        """
        program = own_program(f"Rank({self.rank})", self.program)
        reduce_op = word("reduce_op", op if op is not None else reduce_op, ReduceOperationType)
        src = chunk_of("src_chunk", src_chunk, self.rank)
        dst = chunk_of("dst_chunk", src_chunk if dst_chunk is None else dst_chunk, self.rank, src.size)
        others = chunks_of("other_chunks", other_chunks, self.rank, src.size, packets=packet)
        sources = (local(src), *(local(chunk, packet) for chunk in others))
        name = Instruction.reduce_packet if packet else Instruction.reduce
        for block, group in blocks_of(tb, tb_group):
            program.add_operation(
                self.rank,
                block,
                Op(name, sources, (local(dst),), reduce_op=reduce_op, group=group, sources=(source(),)),
            )

    def barrier(self, tb_list: Iterable[int]) -> None:
        """These blocks wait for each other; a single one only synchronizes its threads."""
        program = own_program(f"Rank({self.rank})", self.program)
        blocks = tuple(block_of(tb) for tb in tb_list)
        if not blocks:
            fail("a barrier without thread blocks")
        if len(set(blocks)) != len(blocks):
            fail(f"a barrier has a thread block twice: {list(blocks)}")
        if len(blocks) == 1:
            program.add_operation(self.rank, blocks[0], Op(NOP.name, sources=(source(),)))
            return
        number = program.devices[self.rank].barrier(blocks)
        for block in blocks:
            program.add_operation(
                self.rank, block, Op(Instruction.barrier, barrier=number, nblocks=len(blocks), sources=(source(),))
            )


class Semaphore:
    """A counter of a rank, for its blocks: release adds one, acquire waits until it can take one away."""

    def __init__(self, rank: int, initial_value: int) -> None:
        self.program = get_program()
        self.rank = rank_of("rank", rank)
        self.initial_value = whole("initial_value", initial_value, 0, 2**31 - 1)
        semaphores = self.program.devices[self.rank].semaphores
        self.id = len(semaphores)
        semaphores.append(self.initial_value)

    def acquire(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        self._add(Instruction.sem_acquire, tb, data_sync)

    def release(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        self._add(Instruction.sem_release, tb, data_sync)

    def _add(self, name: Instruction, tb: int, data_sync: SyncType) -> None:
        program = own_program("a semaphore", self.program)
        op = Op(name, ids=(self.id,), sync=word("data_sync", data_sync, SyncType), sources=(source(),))
        program.add_operation(self.rank, block_of(tb), op)
