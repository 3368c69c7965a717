# SPDX-License-Identifier: MIT
"""Communicators of this process: which there are, which paths their calls take, and how to steer that."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import os
from collections.abc import Iterator, Sequence
from typing import SupportsInt, TypeAlias

from libshunt import _arguments, _fork, _lib, _names, _tables


@dataclasses.dataclass(frozen=True)
class Count:
    """Calls of one operation that took one path. reason: why they went to NCCL, else empty."""

    op: str
    path: str
    reason: str
    calls: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Communicator:
    """A communicator at the moment when it was asked for; its handle is the program's ncclComm_t."""

    handle: int
    id: str  # the same on all ranks, as in logs and dumps
    rank: int
    nranks: int
    device: int
    state: str  # untouched, ready or forwarding
    reason: str  # of forwarding
    error: int  # 0, or the negative errno that broke it
    memory: int
    plans: int  # of a ready one: how many it took at its first use
    has_selector: bool
    counts: tuple[Count, ...]

    def __str__(self) -> str:
        rows = [f"communicator {self.id} rank {self.rank} of {self.nranks}: {self.state}"]
        rows[0] += f", {self.reason}" if self.reason else ""
        rows[0] += f", broken: {os.strerror(-self.error)}" if self.error else ""
        for count in self.counts:
            why = f" ({count.reason})" if count.reason else ""
            rows.append(f"  {count.op:<14} {count.path:<14} {count.calls:>10} calls {count.bytes:>16} bytes{why}")
        return "\n".join(rows)


Comm: TypeAlias = "Communicator | SupportsInt | ctypes.c_void_p"


@dataclasses.dataclass(frozen=True)
class Algorithm:
    collective: str
    name: str
    description: str


class Algorithms(list[Algorithm]):
    def _repr_html_(self) -> str:
        rows = ((row.collective, row.name, row.description) for row in self)
        return _tables.table(rows, ("collective", "name", "description"))


def handle_of(comm: Comm | None) -> int:
    """The handle of a communicator; of the only one there is for None."""
    if isinstance(comm, Communicator):
        return comm.handle
    if isinstance(comm, ctypes.c_void_p):
        return comm.value or 0
    if comm is not None:
        if not hasattr(comm, "__index__") and hasattr(comm, "__int__") and not isinstance(comm, float):
            comm = int(comm)
        return _arguments.integer("comm, a Communicator or the address of an ncclComm_t,", comm, 0, 2**64 - 1)
    handles = _handles()
    if len(handles) == 1:
        return handles[0]
    if not handles:
        raise _lib.Error("there is no communicator yet: NCCL makes it with the process group, or at its first call")
    raise _lib.Error(
        f"there are {len(handles)} communicators: name one of libshunt.communicators(), "
        "or for a process group use libshunt.torch"
    )


def _handles() -> list[int]:
    shunt = _lib.library()
    count = ctypes.c_size_t()
    capacity = 0
    while True:
        handles = (ctypes.c_void_p * capacity)()
        _lib.check(shunt.shunt_comm_list(handles, capacity, ctypes.byref(count)), "listing communicators")
        if count.value <= capacity:
            return [handle or 0 for handle in handles[: count.value]]
        capacity = count.value + 8


def _counts(handle: int) -> tuple[Count, ...]:
    shunt = _lib.library()
    count = ctypes.c_size_t()
    capacity = 32
    while True:
        rows = (_lib.CounterRow * capacity)()
        if shunt.shunt_counters(handle, rows, capacity, ctypes.byref(count)):
            return ()  # it has ended meanwhile
        if count.value <= capacity:
            return tuple(
                Count(_lib.text(row.op), _lib.text(row.path), _lib.text(row.reason), row.calls, row.bytes)
                for row in rows[: count.value]
            )
        capacity = count.value + 8


def _known(result: int, handle: int) -> None:
    if _lib.not_found(result):
        raise _lib.Error(f"Shunt knows no communicator {handle:#x}: it has ended, or NCCL made it without Shunt")


def describe(comm: Comm | None = None) -> Communicator:
    """One communicator, with its counters."""
    handle = handle_of(comm)
    info = _lib.CommInfo(size=ctypes.sizeof(_lib.CommInfo))
    result = _lib.library().shunt_comm_describe(handle, ctypes.byref(info))
    _known(result, handle)
    _lib.check(result, f"communicator {handle:#x}")
    return Communicator(
        handle,
        _lib.text(info.id),
        info.rank,
        info.nranks,
        info.device,
        _lib.text(info.state),
        _lib.text(info.reason),
        info.error,
        info.memory,
        info.plans,
        bool(info.selector),
        _counts(handle),
    )


def communicators() -> list[Communicator]:
    """All of this process, in the order of their ranks and handles."""
    found = []
    for handle in _handles():
        with contextlib.suppress(_lib.Error):  # it has ended meanwhile
            found.append(describe(handle))
    return sorted(found, key=lambda comm: (comm.rank, comm.handle))


class Stats(Sequence[Communicator]):
    """Communicators with their counters; as text, a table."""

    def __init__(self, rows: list[Communicator]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._rows[index]

    def __str__(self) -> str:
        return "\n".join(str(row) for row in self._rows) or "no communicators"

    __repr__ = __str__


def stats(comm: Comm | None = None) -> Stats:
    """Which paths the calls took: of one communicator, or of all."""
    return Stats(communicators() if comm is None else [describe(comm)])


def path(op: str, numel: int, dtype: object = "float32", redop: object = "sum", comm: Comm | None = None) -> str:
    """The path that a call would take now, without running it: an algorithm, a plan's name, or "nccl".

    numel: elements, as NCCL's function counts them. Before the first call of a communicator the answer assumes that its
    set-up succeeds.
    """
    name = _arguments.text("op", op)
    number, operator = _names.dtype_number(dtype), _names.redop_number(redop)
    most = _arguments.MOST_BYTES // _names.DTYPE_BYTES[number]
    numel = _arguments.integer(f"numel, of elements of {_names.DTYPES[number]},", numel, 0, most)
    return path_of(handle_of(comm), name, numel, number, operator)


def path_of(handle: int, op: str, numel: int, number: int, operator: int) -> str:
    """The same, of what is checked, in NCCL's numbers, those of redop() included."""
    answer = ctypes.c_char_p()
    result = _lib.library().shunt_path_of(handle, op.encode(), numel, number, operator, ctypes.byref(answer))
    _known(result, handle)
    if result:
        raise _lib.Error(
            f"there is no operation {_arguments.shown(op)}: it is one of allreduce, allgather, reducescatter, ..."
        )
    return _lib.text(answer.value)


def _numerics(e4m3b15: bool, accumulate: str) -> _lib.Numerics:
    number = _names.accumulator_number(accumulate)
    return _lib.Numerics(ctypes.sizeof(_lib.Numerics), bool(e4m3b15), number)


def numerics(comm: Comm | None = None, *, e4m3b15: bool = False, accumulate: str = "default") -> None:
    """What the elements of a communicator's reductions are, and what they are accumulated in (docs/numbers.md).

    e4m3b15: uint8 stands for float8 with bias 15. accumulate: "fp32", "fp16" or "own", of 8- and 16-bit floats.
    All ranks call it, at the same place among their calls, and it waits for them.
    """
    given = _numerics(e4m3b15, accumulate)
    handle = handle_of(comm)
    result = _lib.library().shunt_comm_numerics(handle, ctypes.byref(given))
    if result == -errno.EOPNOTSUPP:
        raise _lib.Error(f"communicator {handle:#x} is NCCL's, which has no such numbers: describe() says why it is")
    if result == -errno.EINVAL:
        raise _lib.Error(f"the ranks of communicator {handle:#x} want different numbers; the log names one that does")
    _known(result, handle)
    _lib.check(result, f"the numbers of communicator {handle:#x}")


def redop(
    op: object, dtype: object, comm: Comm | None = None, *, e4m3b15: bool = False, accumulate: str = "default"
) -> int:
    """An operator of a communicator for such elements, as NCCL's functions take it; ncclRedOpDestroy ends it."""
    given, base, number = _numerics(e4m3b15, accumulate), _names.redop_number(op), _names.dtype_number(dtype)
    handle, made = handle_of(comm), ctypes.c_int()
    result = _lib.library().shunt_redop_create(handle, base, number, ctypes.byref(given), ctypes.byref(made))
    _known(result, handle)
    if result:
        raise _lib.Error(
            f"{_names.DTYPES[number]} has no such numbers (e4m3b15={bool(e4m3b15)}, accumulate={accumulate}): "
            "e4m3b15 stands for uint8, fp16 is for float16 and float8, and other types have no choice"
        )
    return made.value


def algorithms(collective: str | None = None) -> Algorithms:
    """Shunt's own algorithms, as `shunt info -a` lists them; of all collectives, or of one."""
    if collective is not None:
        _arguments.text("collective", collective)
    shunt = _lib.library(private=True)
    found = Algorithms()
    info = _lib.AlgoInfo(size=ctypes.sizeof(_lib.AlgoInfo))
    while not shunt.shunt_algo_at(len(found), ctypes.byref(info)):
        found.append(Algorithm(_lib.text(info.collective), _lib.text(info.name), _lib.text(info.description)))
    names = dict.fromkeys(row.collective for row in found)
    if collective is not None and collective not in names:
        _arguments.wrong("collective", collective, f"one of {', '.join(names)}")
    return Algorithms(row for row in found if collective in (None, row.collective))


_forced: list[str] = []
_forced_lock = _fork.Lock()


def _force_now(rules: str | None) -> int:
    result: int = _lib.library().shunt_algo_force(None if rules is None else rules.encode())
    return result


@contextlib.contextmanager
def force(rules: str) -> Iterator[None]:
    """While it lasts, calls choose as if SHUNT_ALGO had this value; for comparing algorithms.

    For all communicators and threads of the process. All ranks must enter and leave it at the same place among their
    calls.
    """
    _arguments.text("rules", rules)
    with _forced_lock:
        if _force_now(rules):
            raise _lib.Error(
                f"{_arguments.shown(rules)} cannot be used, the log says which part and why; "
                "rules are kind:from-to:name[@blocks[xthreads]], e.g. allreduce:0-64k:oneshot"
            )
        _forced.append(rules)
    try:
        yield
    finally:
        with _forced_lock:
            del _forced[len(_forced) - 1 - _forced[::-1].index(rules)]  # the newest such
            _force_now(_forced[-1] if _forced else None)


def dump(folder: str | os.PathLike[str] | None = None) -> str:
    """Writes the state of all communicators of this process, for `shunt doctor dumps`; returns the file's name."""
    where = "" if folder is None else _arguments.path("folder", folder)
    where = where or os.environ.get("SHUNT_DUMP_DIR") or os.environ.get("TMPDIR") or "/tmp"
    name = ctypes.create_string_buffer(4096)
    result = _lib.library().shunt_dump(os.fsencode(where), name, len(name))
    _lib.check(result, f"cannot write a dump into {_arguments.line(where)}")
    return os.fsdecode(name.value)
