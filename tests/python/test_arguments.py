# SPDX-License-Identifier: MIT
"""
Every public function with wrong arguments: each is one Error of the package, in one line, or the value is listed here
as a right one. A function or a parameter that has no row here is a failure.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
import tempfile
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from helper import Case, Rank, on_ranks

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "stand_ins"))
import libshunt
import libshunt.language as language
import libshunt.torch as shunt_torch
import torch.distributed as dist
from libshunt import _arguments


class Odd:
    """What nothing can be told of."""

    def __repr__(self) -> str:
        raise ValueError("no repr")


class Number:
    def __index__(self) -> int:
        raise ValueError("no number")


class Many:
    def __repr__(self) -> str:
        return "many\n" * 1000


class Array:
    """As one of NumPy, or a tensor: it has the methods of a number and of a list, whatever its shape is."""

    def __init__(self, values: list[int], shape: tuple[int, ...]) -> None:
        self.values, self.shape = values, shape

    def __index__(self) -> int:
        if len(self.values) != 1:
            raise TypeError("several")
        return self.values[0]

    def __iter__(self) -> Iterator[int]:
        if not self.shape:
            raise TypeError("no dimensions")
        return iter(self.values)


class Path:
    def __fspath__(self) -> str:
        raise ValueError("no path")


WRONG: list[Any] = [
    b"x", "", "x", "x\0y", "\ud800", "a\nb", "x" * 5000, -1, 1 << 31, 1 << 32, 1 << 57, (1 << 64) + 5, -(1 << 70), 1.5,
    float("nan"), True, [], ["x"], {}, {"x": Odd}, (), object(), Odd(), Number(), Many(), Path(), Odd, len,
    ctypes.c_void_p(0),
]  # fmt: skip
FLAG = object()  # whatever is true or false
SIZES = [1 << 31, 1 << 32, 1 << 57]


def force(rules: Any) -> None:
    with libshunt.force(rules):
        pass


def program() -> language.CollectiveProgram:
    with language.CollectiveProgram("arguments", language.AllReduce(2, 1, inplace=True), 2) as made:
        pass
    return made


RIGHT_OF_OWN: dict[str, list[Any]] = {
    "function": [len],
    "name": ["x"],
    "doc": ["", "x", "a\nb", "x" * 5000],
    "identity": [value for value in WRONG if not isinstance(value, Odd)],  # whatever has a text
}


def own(v: Any, name: str) -> None:
    """An algorithm with one value of the test's."""

    def enqueues(call: Any, stream: int) -> None:
        pass

    values: dict[str, Any] = {"collective": "allgather", "name": "arguments", "function": enqueues, name: v}
    if name in ("blocks", "threads", "shared", "cluster", "kernel", "params", "options", "arch", "source", "cubin"):
        del values["function"]
        values = {"source": "no C", "kernel": "arguments"} | values
        if name == "cubin":
            del values["source"]
    libshunt.algorithm(**values)


def groups(function: Callable[..., Any]) -> dict[str, Any]:
    return {"group": (lambda v: function(group=v), []), "device": (lambda v: function(device=v), [])}


# By function and parameter: the call, those of WRONG that are right, and False if these are not to be tried.
ROWS: dict[str, dict[str, Any]] = {
    "algorithm": {
        name: (lambda v, name=name: own(v, name), RIGHT_OF_OWN.get(name, []), False)
        for name in inspect.signature(libshunt.algorithm).parameters
    },
    "algorithms": {"collective": (libshunt.algorithms, [])},
    "asked": {},
    "command_path": {"search": FLAG},
    "communicators": {},
    "describe": {"comm": (libshunt.describe, [])},
    "dump": {"folder": (libshunt.dump, ["", "x", "a\nb"])},
    # A name without a folder is the loader's.
    "enable": {"nccl": (lambda v: libshunt.enable(nccl=v), ["", "x", "a\nb", "x" * 5000]), "strict": FLAG},
    "force": {"rules": (force, [""])},
    "forget": {},
    "library_path": {},
    "numerics": {
        "comm": (libshunt.numerics, []),
        "e4m3b15": FLAG,
        "accumulate": (lambda v: libshunt.numerics(accumulate=v), []),
    },
    "redop": {
        "op": (lambda v: libshunt.redop(v, "uint8"), []),
        "dtype": (lambda v: libshunt.redop("sum", v), []),
        "comm": (lambda v: libshunt.redop("sum", "uint8", v), []),
        "e4m3b15": FLAG,
        "accumulate": (lambda v: libshunt.redop("sum", "float16", accumulate=v), []),
    },
    "path": {
        "op": (lambda v: libshunt.path(v, 8), []),
        "numel": (lambda v: libshunt.path("allreduce", v), [1 << 31, 1 << 32]),
        "dtype": (lambda v: libshunt.path("allreduce", 8, v), []),
        "redop": (lambda v: libshunt.path("allreduce", 8, redop=v), []),
        "comm": (lambda v: libshunt.path("allreduce", 8, comm=v), []),
    },
    "plan": {"source": (libshunt.plan, [])},
    "plans": {},
    "select": {"function": (libshunt.select, [Odd, len])},
    "stats": {"comm": (libshunt.stats, [])},
    "status": {},
    "unregister": {"name": (libshunt.unregister, [])},
    # A text that is no plan has a report.
    "verify": {"source": (libshunt.verify, [b"x", {}])},
    "torch.backend_of": groups(shunt_torch.backend_of),
    "torch.comm": groups(shunt_torch.comm),
    "torch.stats": groups(shunt_torch.stats),
    "torch.path": {
        "op": (lambda v: shunt_torch.path(v, 8), []),
        "tensor": (lambda v: shunt_torch.path("all_reduce", v), [1 << 31, 1 << 32]),
        "dtype": (lambda v: shunt_torch.path("all_reduce", 8, v), []),
        "redop": (lambda v: shunt_torch.path("all_reduce", 8, redop=v), []),
        "group": (lambda v: shunt_torch.path("all_reduce", 8, group=v), []),
    },
    "torch.pool": {**groups(shunt_torch.pool), "symm": FLAG},
    # Those that run the command; the language itself is test_mistakes'.
    "language.CollectiveProgram.run": {
        "sizes": (lambda v: program().run(v), [*SIZES, [], ()], False),
        "dtype": (lambda v: program().run(8, v), []),
        "device": (lambda v: program().run(8, device=v), []),
        "graph": FLAG,
    },
    "language.CollectiveProgram.explain": {
        "sizes": (lambda v: program().explain(v), [*SIZES, [], ()], False),
        "dtype": (lambda v: program().explain(8, v), []),
    },
    "language.CollectiveProgram.show": {
        "rank": (lambda v: program().show(v), []),
        "block": (lambda v: program().show(block=v), []),
    },
    "language.CollectiveProgram.svg": {"rank": (lambda v: program().svg(v), []), "all_blocks": FLAG},
    "language.tune": {
        "build": (lambda v: language.tune(v, {}, [8]), [Odd, len], False),
        "space": (lambda v: language.tune(program, v, [8]), [{}], False),
        "sizes": (lambda v: language.tune(program, {}, v), SIZES, False),
        "dtype": FLAG,  # run()'s
        "device": FLAG,
        "graph": FLAG,
    },
}


def public_functions() -> dict[str, Callable[..., Any]]:
    found = {name: getattr(libshunt, name) for name in libshunt.__all__}
    for name, value in vars(shunt_torch).items():
        if inspect.isfunction(value) and value.__module__ == "libshunt.torch" and not name.startswith("_"):
            found[f"torch.{name}"] = value
    for name in "run", "explain", "show", "svg":
        found[f"language.CollectiveProgram.{name}"] = getattr(language.CollectiveProgram, name)
    found["language.tune"] = language.tune
    return {name: value for name, value in found.items() if inspect.isfunction(value)}


class Arguments(Case):
    def test_every_function_has_its_rows(self) -> None:
        found = {
            name: set(inspect.signature(function).parameters) - {"self"}
            for name, function in public_functions().items()
        }
        self.assertEqual(found, {name: set(rows) for name, rows in ROWS.items()})

    def try_one(self, call: Callable[[Any], Any], value: Any, right: bool) -> str:
        """What is wrong with the answer."""
        try:
            call(value)
        except libshunt.Error as error:
            text = str(error)
            if right or "\n" in text or len(text) > (6000 if isinstance(value, str) else 1000):
                return f"said {text[:500]!r}"
            return ""
        except Exception as error:
            return f"raised {type(error).__name__}: {error}"
        return "" if right else "took it"

    def try_all(self) -> list[str]:
        bad = []
        for name, rows in ROWS.items():
            for parameter, row in rows.items():
                if row is FLAG:
                    continue
                call, right, *tried = row
                for number, value in enumerate(WRONG):
                    is_right = any(value is one or (type(value) is type(one) and value == one) for one in right)
                    if is_right and tried:
                        continue
                    said = self.try_one(call, value, is_right)
                    if said:
                        bad.append(f"{name}({parameter}=WRONG[{number}], a {type(value).__name__}) {said}")
        return bad

    def test_wrong_values(self) -> None:
        def body(me: Rank) -> None:
            world = dist.Group(me.rank, me.nranks, dist.Backend(me.comm))
            with (
                tempfile.TemporaryDirectory() as folder,
                warnings.catch_warnings(),
                mock.patch.dict(os.environ, SHUNT_DUMP_DIR=folder),
                mock.patch.object(dist.group, "WORLD", world),
            ):
                before = os.getcwd()
                os.chdir(folder)  # dump() makes the folder that it gets
                warnings.simplefilter("ignore")
                bad.extend(self.try_all())
                os.chdir(before)
            libshunt.select(None)

        bad: list[str] = []
        on_ranks(1, body)
        self.assertEqual(bad, [], "\n".join(bad))

    def test_numbers_that_ctypes_would_wrap(self) -> None:
        def body(me: Rank) -> None:
            for count in (1 << 64) + 5, 1 << 64, -1, 1 << 63, (1 << 57) + 1:
                for call in (
                    lambda count=count: libshunt.path("allreduce", count, "int8"),
                    lambda count=count: libshunt.describe((1 << 64) + me.comm if count > 0 else count),
                ):
                    with self.assertRaisesRegex(libshunt.Error, r"is -?\d+: it is from 0 to \d+$"):
                        call()
            self.assertEqual(libshunt.describe(ctypes.c_void_p(me.comm)).handle, me.comm)
            self.assertTrue(libshunt.path("allreduce", 1 << 57, "int8"))

        on_ranks(1, body)

    def test_arrays_are_numbers_or_several(self) -> None:
        for given, wanted in (
            (Array([7], ()), [7]),
            (Array([7], (1,)), [7]),
            (Array([], (0,)), []),
            (Array([7, 8], (2,)), [7, 8]),
        ):
            self.assertEqual(_arguments.integers("sizes", given, 0, 9), wanted)

    def test_what_is_said(self) -> None:
        for call, text in (
            (lambda: libshunt.unregister(7), "name is 7: it is a str, not int"),
            (lambda: force(b"x"), "rules is b'x': it is a str, not bytes"),
            (lambda: libshunt.unregister("a\0b"), 'name is "a\\x00b": it is a str without NULs'),
            (lambda: libshunt.algorithms("allredcue"), 'collective is "allredcue": it is one of allreduce, '),
            (lambda: libshunt.dump(b"/tmp"), "folder is b'/tmp': it is a path, a str or an os.PathLike, not bytes"),
            (lambda: libshunt.plan({"name": Odd}), "is no JSON: Object of type type is not JSON serializable"),
            (
                lambda: libshunt.enable(nccl="/no/such.so"),
                'nccl is "/no/such.so": it is the file of an NCCL, or "none"',
            ),
            (lambda: program().run("8"), 'sizes is "8": it is an int or several, not str'),
            (lambda: program().run([8, 1.5]), "one of sizes is 1.5: it is an int, not float"),
            (lambda: program().show(2), "rank is 2: it is from 0 to 1"),
            (lambda: language.tune(program, [8], [8]), "space is [8]: it is a dict with the values of each keyword"),
            (lambda: language.tune(8, {}, [8]), "build is 8: it is a function that makes a program"),  # type: ignore[arg-type]
        ):
            with self.subTest(text), self.assertRaises(libshunt.Error) as caught:
                call()
            self.assertIn(text, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
