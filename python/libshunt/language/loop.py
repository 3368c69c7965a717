# SPDX-License-Identifier: MIT
from __future__ import annotations

from types import TracebackType

from .current import get_program, own_program, whole
from .errors import fail, source
from .ops import Op
from .types import Instruction

MAX_WINDOWED_CHUNKS = 65536


class LoopIterationContext:
    """
    Operations that a block repeats for each window of `unit` bytes of `num_chunks` chunks. Blocks that hand windows on
    to each other by semaphores work at the same time, each on another window.
    """

    def __init__(self, unit: int, num_chunks: int) -> None:
        self.program = get_program()
        self.unit = whole("unit", unit, 1)
        self.num_chunks = whole("num_chunks", num_chunks, 1, MAX_WINDOWED_CHUNKS)
        if self.unit % self.program.buffer_alignment:
            fail(f"unit is {self.unit} bytes, expected a multiple of buffer_alignment, {self.program.buffer_alignment}")
        self._source = source()
        self._ops: dict[tuple[int, int], list[Op]] = {}

    def __enter__(self) -> LoopIterationContext:
        program = own_program("a loop", self.program)
        if program.loop_context is not None:
            fail("a loop in a loop")
        program.loop_context = self
        self._ops = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.program.loop_context = None
        if kind is not None:
            return
        for (rank, tb), ops in self._ops.items():
            loop = Op(
                Instruction.pipeline,
                unit=self.unit,
                num_chunks=self.num_chunks,
                body=tuple(ops),
                sources=(self._source,),
            )
            self.program.add_operation(rank, tb, loop)

    def add_operation(self, rank: int, tb: int, operation: Op) -> None:
        self._ops.setdefault((rank, tb), []).append(operation)
