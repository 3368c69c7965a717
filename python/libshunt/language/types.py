# SPDX-License-Identifier: MIT
"""The words of programs, and chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .program import CollectiveProgram


class _Word(Enum):
    def __str__(self) -> str:
        return str(self.value)


class SyncType(_Word):
    """Where the threads of a block synchronize around a signal, wait, flush, acquire or release."""

    none = "none"
    before = "before"
    after = "after"
    both = "both"

    def __or__(self, other: SyncType) -> SyncType:
        return _SYNCS[_SYNCS.index(self) | _SYNCS.index(other)]

    def __and__(self, other: SyncType) -> SyncType:
        return _SYNCS[_SYNCS.index(self) & _SYNCS.index(other)]

    def __xor__(self, other: SyncType) -> SyncType:
        return _SYNCS[_SYNCS.index(self) ^ _SYNCS.index(other)]


_SYNCS = (SyncType.none, SyncType.before, SyncType.after, SyncType.both)


class BufferType(_Word):
    input = "i"
    output = "o"
    scratch = "s"

    def __lt__(self, other: BufferType) -> bool:
        return str(self.value) < str(other.value)

    def __gt__(self, other: BufferType) -> bool:
        return str(self.value) > str(other.value)


class ChannelType(_Word):
    memory = "memory"
    port = "port"
    switch = "switch"
    none = "none"


class ReduceOperationType(_Word):
    """MSCCL++ has sum, min and max."""

    sum = "sum"
    prod = "prod"
    max = "max"
    min = "min"
    avg = "avg"


class ReplicationPolicy(_Word):
    """
    What instances divide. interleaved: each chunk becomes as many chunks as there are instances, and each instance does
    one of them. none: chunks stay, and the instances share each operation as a thread-block group does.
    """

    interleaved = "interleaved"
    none = "none"


class Instruction(_Word):
    """The operations as plans name them."""

    nop = "nop"
    barrier = "barrier"
    signal = "signal"
    wait = "wait"
    relaxed_signal = "rlxsignal"
    relaxed_wait = "rlxwait"
    flush = "flush"
    sem_acquire = "sem_acquire"
    sem_release = "sem_release"
    copy = "copy"
    get = "get"
    put = "put"
    put_with_signal = "pws"
    put_with_signal_and_flush = "pwsf"
    copy_packet = "cpkt"
    unpack_packet = "upkt"
    put_packet = "ppkt"
    read_put_packet = "rppkt"
    reduce = "re"
    reduce_send = "res"
    read_reduce = "rre"
    read_reduce_send = "rres"
    reduce_packet = "repkt"
    reduce_send_packet = "respkt"
    reduce_copy_packet = "recpkt"
    reduce_copy_send_packet = "recspkt"
    group_load_reduce = "glre"
    group_load_reduce_store = "glres"
    group_store = "gstore"
    group_store_packet = "gstorepkt"
    pipeline = "pipeline"


@dataclass(frozen=True)
class Chunk:
    """Chunks [index, index + size) of a rank's buffer: what slicing a buffer gives."""

    rank: int
    buffer: BufferType
    index: int
    size: int
    program: CollectiveProgram | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.buffer.name}[{self.index}:{self.index + self.size}] of rank {self.rank}"
