# SPDX-License-Identifier: MIT
from __future__ import annotations

from .current import find_program, get_program, rank_of, whole
from .errors import fail
from .types import BufferType, Chunk


class BaseBuffer:
    """A rank's buffer. buffer[a:b] are its chunks a up to b."""

    def __init__(self, rank: int, buffer_type: BufferType, offset: int, size: int) -> None:
        self.rank = rank
        self.buffer_type = buffer_type
        self.offset = offset
        self.size = offset + size

    def __len__(self) -> int:
        return self.size - self.offset

    def __getitem__(self, key: slice) -> Chunk:
        if not isinstance(key, slice):
            fail(f"buffer[{key!r}]: chunks are taken by slices, such as buffer[{key!r}:{key!r}+1]")
        if key.step not in (None, 1):
            fail(f"a slice of a buffer has step {key.step}, expected none")
        has = len(self)
        start = whole("the slice's start", key.start if key.start is not None else 0)
        stop = whole("the slice's end", key.stop if key.stop is not None else has)
        if start > stop:
            fail(f"a slice of a buffer goes from {start} to {stop}, expected an end that is not before the start")
        if stop > has:
            fail(
                f"a slice goes from {start} to {stop}: "
                f"the {self.buffer_type.name} buffer of rank {self.rank} has {has} chunks"
            )
        return Chunk(self.rank, self.buffer_type, self.offset + start, stop - start, find_program())


class Buffer(BaseBuffer):
    """Scratch of a rank: `size` more chunks of it."""

    def __init__(self, rank: int, size: int) -> None:
        program = get_program()
        rank = rank_of("rank", rank)
        size = whole("size", size)
        super().__init__(rank, BufferType.scratch, program.take_scratch(rank, size), size)
