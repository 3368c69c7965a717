# SPDX-License-Identifier: MIT
"""Execution plans and selectors of this program."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import json
import os
import warnings
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from libshunt import _arguments, _callbacks, _comms, _fork, _lib, _names, _tables


class Program(Protocol):
    """What writes itself as a plan, such as a program of libshunt.language."""

    def to_json(self) -> str: ...


Source: TypeAlias = "str | bytes | os.PathLike[str] | dict[str, Any] | Program"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan that this process has."""

    name: str
    source: str
    collective: str
    nranks: int
    ranks_per_node: int
    min_bytes: int
    max_bytes: int
    hash: str  # equal for equal plans, on all machines
    dtypes: tuple[str, ...]
    priority: int
    automatic: bool  # else it runs only when a selector names it
    in_place: bool


@dataclasses.dataclass(frozen=True)
class Report:
    """What checking a plan says. values: of `shunt plan check --json`."""

    ok: bool
    error: str
    values: dict[str, Any]

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.error or f"{self.values.get('file')}: ok"

    def _repr_html_(self) -> str:
        return _tables.table(self.values.items())


def _read(source: Source) -> tuple[str, bytes]:
    """A label and the text of a plan. A text begins with a brace; another string is a file's name."""
    if isinstance(source, bytes):
        return "plan", source
    if isinstance(source, dict):
        return _label(source.get("name", "plan")), _json_of(source)
    if isinstance(source, (str, os.PathLike)):
        if isinstance(source, str) and source.lstrip().startswith("{"):
            return "plan", _arguments.text("the text of the plan", source).encode()
        name = _arguments.path("the file of the plan", source)
        try:
            with open(name, "rb") as file:
                return _label(name), file.read()
        except OSError as error:
            raise _lib.Error(f"cannot read the plan {_arguments.line(name)}: {error.strerror}") from None
    to_json = getattr(source, "to_json", None)
    if not callable(to_json) or isinstance(source, type):
        wanted = "a file's name, a JSON text, a dict or a program with to_json()"
        _arguments.wrong("the plan", source, f"{wanted}, not {type(source).__name__}")
    written = to_json()
    if isinstance(written, bytes):
        return _label(getattr(source, "name", "program")), written
    text = _arguments.text(f"what to_json() of {type(source).__name__} returned", written)
    return _label(getattr(source, "name", "program")), text.encode()


def _label(name: object) -> str:
    """What messages call a plan: one line, whatever a file is called."""
    return _arguments.line(str(name))


def _json_of(plan: dict[str, Any]) -> bytes:
    try:
        return json.dumps(plan, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _lib.Error(f"the plan {_arguments.shown(plan)} is no JSON: {error}") from None


def warn_of_used(nranks: int, what: str, depth: int = 1) -> None:
    """A communicator keeps the plans, the algorithms and the selector of its first use."""
    used = [comm for comm in _comms.communicators() if comm.state == "ready" and nranks in (0, comm.nranks)]
    if used:
        warnings.warn(
            f"{what} comes after the first use of communicator {used[0].id} of {used[0].nranks} ranks, which goes on "
            "without it: register plans and algorithms, and set the selector, before the first collective, or make a "
            "new communicator",
            stacklevel=2 + depth,
        )


def plan(source: Source) -> str:
    """Registers a plan, from a file, a text, a dict or a program, and returns its name.

    To be called alike on all ranks, best before there are communicators: a communicator takes its plans when the first
    of its ranks uses it. Registering the same plan again changes nothing. A plan that is wrong is
    an Error that says where.
    """
    label, text = _read(source)
    why = ctypes.create_string_buffer(1024)
    report = verify(text)
    if not report:
        raise _lib.Error(f"the plan is wrong: {report.error.replace('plan: ', label + ': ', 1)}")
    name = str(report.values["name"])
    result = _lib.library().shunt_plan_register(label.encode(errors="replace"), text, len(text), why, len(why))
    if result == -17:  # EEXIST
        return name
    if result:
        raise _lib.Error(f"the plan was not registered: {_lib.text(why.value)}")
    warn_of_used(int(report.values["ranks"]), f"plan {name}")
    return name


def unregister(name: str) -> None:
    """Removes all plans of this name, and the program's algorithm. Communicators that have taken them keep them."""
    shunt, text = _lib.library(private=True), _arguments.text("name", name).encode()
    results = [shunt.shunt_plan_unregister(text), shunt.shunt_plugin_unregister(text)]
    if all(_lib.not_found(result) for result in results):
        raise _lib.Error(
            f"there is no plan {_arguments.shown(name)}, and no such algorithm of the program's: libshunt.plans() and "
            "libshunt.algorithms() list those that there are"
        )
    for result in results:
        _lib.check(0 if _lib.not_found(result) else result, _arguments.shown(name))


def plans() -> list[Plan]:
    """The plans that a communicator would choose from now, in the order of preference but for their priority."""
    shunt = _lib.library(private=True)
    found: list[Plan] = []
    info = _lib.PlanInfo(size=ctypes.sizeof(_lib.PlanInfo))
    while not shunt.shunt_plan_at(len(found), ctypes.byref(info)):
        found.append(
            Plan(
                _lib.text(info.name),
                _lib.text(info.source),
                _lib.text(info.collective),
                info.nranks,
                info.ranks_per_node,
                info.min_bytes,
                info.max_bytes,
                f"{info.hash:016x}",
                tuple(name for i, name in enumerate(_names.DTYPES) if info.dtypes >> i & 1),
                info.priority,
                bool(info.automatic),
                bool(info.in_place),
            )
        )
    return found


def verify(source: Source) -> Report:
    """Checks a plan as `shunt plan check` does, without registering it."""
    label, text = _read(source)
    shunt = _lib.library(private=True)
    needed = ctypes.c_size_t(4096)
    while True:
        report = ctypes.create_string_buffer(needed.value)
        size = len(report)
        result = shunt.shunt_plan_verify(
            label.encode(errors="replace"), text, len(text), report, size, ctypes.byref(needed)
        )
        if needed.value <= size:
            break
    if not report.value:
        raise _lib.Error(f"checking {label}: {os.strerror(-result)}")
    values = json.loads(report.value)
    return Report(bool(values["ok"]), str(values.get("error", "")), values)


@dataclasses.dataclass(frozen=True)
class Call:
    """A selector's question. Everything in it is the same on all ranks."""

    collective: str
    nranks: int
    ranks_per_node: int  # 0: different, or not known
    bytes: int  # of the message: what a rank sends, or for an all-gather receives
    dtype: str
    redop: str
    plans: tuple[str, ...]  # those that fit, in the order of preference


Choose: TypeAlias = Callable[[Call], "str | Plan | None"]

# Addresses of answers and of selectors stay valid for ever: communicators keep them.
_answers: dict[str, ctypes.Array[ctypes.c_char]] = {}
_selections: list[_Selection] = []
_current: _Selection | None = None
_lock = _fork.Lock()


class _Selection(_callbacks.Callback):
    """A function of the program as a selector of the library."""

    what = "selector"
    outcome = "such calls go on without its answer"

    def __init__(self, function: Choose) -> None:
        super().__init__(function)
        self.asked = 0
        self.callback = _lib.Selector(self._answer)
        self.address = ctypes.cast(self.callback, ctypes.c_void_p).value
        _selections.append(self)

    def _answer(self, arg: object, request: Any) -> int | None:
        try:
            self.asked += 1
            return self._address(self.function(_call_of(request.contents)))
        except BaseException as error:
            self.raised(error)
            return None

    def _address(self, said: object) -> int | None:
        if said is None:
            return None
        name = said.name if isinstance(said, Plan) else said
        if not isinstance(name, str):
            self.complain(f"returned {name!r}, which is no name of a path and not None")
            return None
        buffer = _answers.get(name)
        if buffer is None:
            buffer = _answers.setdefault(name, ctypes.create_string_buffer(name.encode()))
        return ctypes.addressof(buffer)

    def start(self) -> None:
        _lib.library().shunt_plan_set_selector(self.address, None)

    def end(self) -> None:
        _lib.library(private=True).shunt_plan_end_selector(self.address, None)


def _call_of(request: Any) -> Call:
    return Call(
        _lib.text(request.collective),
        request.nranks,
        request.ranks_per_node,
        request.bytes,
        _names.dtype_name(request.dtype),
        _names.redop_name(request.redop),
        tuple(_lib.text(request.plans[i]) for i in range(request.nplans)),
    )


def select(function: Choose | None) -> Choose | None:
    """Lets a function choose the path of each call; None: nobody. As a decorator, or called.

    It gets a Call and returns the name of a plan, an algorithm as in SHUNT_ALGO ("oneshot", "twoshot@8x256"), "native",
    "nccl", or None for no opinion. Its answer must follow from the Call alone, so that all ranks choose alike. A
    communicator asks once for each distinct call and remembers the answer. To be set before a communicator's first
    collective, and alike on all ranks. An exception or a wrong answer costs one line on stderr, and the call goes on as
    if there were no selector.
    """
    global _current
    if function is not None and not callable(function):
        raise _lib.Error(f"a selector is a function that gets a libshunt.Call, not {_arguments.shown(function)}")
    with _lock:
        if function is None:
            if _lib.loaded():
                _lib.library(private=True).shunt_plan_set_selector(None, None)
            _current = None
            return None
        selection = _Selection(function)
        selection.start()
        _current = selection
    warn_of_used(0, f"the selector {getattr(function, '__name__', repr(function))}")
    return function


def asked() -> int:
    """How many questions the current selector has got."""
    return _current.asked if _current else 0


def forget() -> None:
    """Makes communicators ask their selector again, because what its answers follow from has changed.

    All ranks must do this at the same place among their calls.
    """
    _lib.library().shunt_plan_forget_answers()


@atexit.register
def _end_all() -> None:
    """Before the interpreter goes: communicators that live longer ask no more."""
    if _selections:
        _lib.library(private=True).shunt_plan_set_selector(None, None)
    for selection in _selections:
        selection.end()
