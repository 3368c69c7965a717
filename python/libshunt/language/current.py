# SPDX-License-Identifier: MIT
"""The program that is open, one in each thread; and what every argument of its operations must be."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import fail
from .types import BufferType, Chunk, ReduceOperationType, SyncType

if TYPE_CHECKING:
    from .groups import ThreadBlockGroup
    from .program import CollectiveProgram

MAX_BLOCKS = 1024
W = TypeVar("W", SyncType, ReduceOperationType, BufferType)


class _Open(threading.local):
    program: CollectiveProgram | None = None


_open = _Open()


def set_program(program: CollectiveProgram | None) -> None:
    _open.program = program


def find_program() -> CollectiveProgram | None:
    return _open.program


def get_program() -> CollectiveProgram:
    if _open.program is None:
        fail("no program is open: this belongs into a block `with CollectiveProgram(...):`")
    return _open.program


def own_program(thing: str, made_in: CollectiveProgram) -> CollectiveProgram:
    """The open program, which must be that in which the thing was made."""
    program = get_program()
    if program is not made_in:
        fail(f"{thing} was made in program {made_in.name!r}, and {program.name!r} is open")
    return program


def whole(thing: str, value: Any, low: int = 0, high: int | None = None) -> int:
    """A whole number, also numpy's, from low up to and including high."""
    try:
        number = operator.index(value)
    except TypeError:
        fail(f"{thing} is {value!r}, expected a whole number")
    if isinstance(value, bool):
        fail(f"{thing} is {value!r}, expected a whole number")
    if number < low or (high is not None and number > high):
        limits = f"{low} to {high}" if high is not None else f"{low} or more"
        fail(f"{thing} is {number}, expected {limits}")
    return number


def rank_of(thing: str, value: Any) -> int:
    program = get_program()
    number = whole(thing, value, low=-(1 << 62))
    if not 0 <= number < program.num_ranks:
        fail(f"{thing} is {number}, expected 0 to {program.num_ranks - 1}: the program has {program.num_ranks} ranks")
    return number


def block_of(value: Any) -> int:
    return whole("tb", value, 0, MAX_BLOCKS - 1)


def word(thing: str, value: Any, kind: type[W]) -> W:
    if not isinstance(value, kind):
        fail(f"{thing} is {value!r}, expected one of {', '.join(f'{kind.__name__}.{w.name}' for w in kind)}")
    return value


def chunk_of(thing: str, value: Any, rank: int | None = None, size: int | None = None, packets: bool = False) -> Chunk:
    """A chunk that lies in its buffer, on this rank, of this size, in scratch if it holds packets."""
    program = get_program()
    if not isinstance(value, Chunk):
        fail(f"{thing} is {value!r}, expected chunks: a slice of a buffer, such as buffer[0:1]")
    if value.program is not None and value.program is not program:
        fail(f"{thing}, {value}, is of program {value.program.name!r}, and {program.name!r} is open")
    rank_of(f"the rank of {thing}", value.rank)
    if rank is not None and value.rank != rank:
        fail(f"{thing} is {value}, expected chunks of rank {rank}")
    if value.size < 1:
        fail(f"{thing} is {value}, expected one chunk or more")
    has = program.buffer_chunks(value.rank, value.buffer)
    if value.index < 0 or value.index + value.size > has:
        fail(f"{thing} is {value}, which has {has} chunks")
    if size is not None and value.size != size:
        fail(f"{thing} is {value}: {value.size} chunks, expected {size} as in the others")
    if packets:
        if value.buffer is not BufferType.scratch:
            fail(f"{thing} is {value}, expected chunks of scratch, where packets are")
        if program.protocol != "LL":
            fail(f"packets are for protocol 'LL', and program {program.name!r} has {program.protocol!r}")
    return value


def chunks_of(thing: str, value: Any, rank: int, size: int, packets: bool = False) -> list[Chunk]:
    """One chunk, or some."""
    if isinstance(value, Chunk):
        value = [value]
    if not isinstance(value, Iterable):
        fail(f"{thing} is {value!r}, expected a list of chunks")
    found = [chunk_of(f"{thing}[{i}]", item, rank, size, packets) for i, item in enumerate(value)]
    if not found:
        fail(f"{thing} is empty, expected one chunk or more")
    return found


def blocks_of(tb: Any, tb_group: ThreadBlockGroup | None) -> list[tuple[int, tuple[int, int] | None]]:
    """The blocks that do an operation, and which part of how many each does."""
    if tb is not None:
        block = block_of(tb)
        return [(block, (tb_group.get_internal_id(block), tb_group.numtb()) if tb_group is not None else None)]
    if tb_group is None:
        fail("neither tb nor tb_group is given: which thread block does it?")
    return [(block_of(block), (part, tb_group.numtb())) for part, block in enumerate(tb_group.tb_list)]
