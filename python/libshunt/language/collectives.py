# SPDX-License-Identifier: MIT
"""What a program does: the collective gives each rank its input and output, counted in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .buffers import BaseBuffer
from .current import whole
from .errors import fail
from .types import BufferType

if TYPE_CHECKING:
    from .program import CollectiveProgram

RankBuffers = dict[BufferType, BaseBuffer]


class Collective:
    """
    A collective that Shunt does not know: derive from it and say in init_buffers() which chunks each rank has. Its plan
    is run by name only.
    """

    name = "custom"

    def __init__(self, num_ranks: int, chunk_factor: int = 1, inplace: bool = False) -> None:
        self.num_ranks = whole("num_ranks", num_ranks, 1, 1024)
        self.chunk_factor = whole("chunk_factor", chunk_factor, 1)
        self.inplace = bool(inplace)

    def init_buffers(self) -> list[RankBuffers]:
        fail(f"{type(self).__name__} does not say which chunks a rank has: write its init_buffers()")

    def check(self, prog: CollectiveProgram) -> None:
        """Called with the program before its plan is written; for collectives of one's own."""

    def _buffers(self, input_size: int, output_size: int) -> list[RankBuffers]:
        return [
            {
                kind: BaseBuffer(rank, kind, 0, size)
                for kind, size in zip(_SIDES, (input_size, output_size), strict=True)
            }
            for rank in range(self.num_ranks)
        ]


_SIDES = (BufferType.input, BufferType.output)


class TestCollective(Collective):
    """Any numbers of chunks, without a meaning."""

    __test__ = False  # no test of pytest's
    name = "test"

    def __init__(self, num_ranks: int, input_size: int, output_size: int) -> None:
        super().__init__(num_ranks)
        self.input_size = whole("input_size", input_size)
        self.output_size = whole("output_size", output_size)

    def init_buffers(self) -> list[RankBuffers]:
        return self._buffers(self.input_size, self.output_size)


class AllGather(Collective):
    """Input: chunk_factor chunks. Output: as many from each rank."""

    name = "allgather"

    def init_buffers(self) -> list[RankBuffers]:
        return self._buffers(self.chunk_factor, self.num_ranks * self.chunk_factor)


class AllReduce(Collective):
    """Input and output: chunk_factor chunks for each rank."""

    name = "allreduce"

    def init_buffers(self) -> list[RankBuffers]:
        return self._buffers(self.num_ranks * self.chunk_factor, self.num_ranks * self.chunk_factor)


class ReduceScatter(Collective):
    """Input: chunk_factor chunks for each rank. Output: the own ones."""

    name = "reducescatter"

    def init_buffers(self) -> list[RankBuffers]:
        return self._buffers(self.num_ranks * self.chunk_factor, self.chunk_factor)


class AllToAll(Collective):
    """Input: chunk_factor chunks for each rank. Output: as many from each."""

    name = "alltoall"

    def init_buffers(self) -> list[RankBuffers]:
        return self._buffers(self.num_ranks * self.chunk_factor, self.num_ranks * self.chunk_factor)


class SendRecv(Collective):
    """Each rank sends its input to another rank's output: chunk_factor chunks."""

    name = "sendrecv"

    def init_buffers(self) -> list[RankBuffers]:
        return self._buffers(self.chunk_factor, self.chunk_factor)
