# SPDX-License-Identifier: MIT
"""What the command `shunt plan` says and does with a program's plan."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from libshunt import _arguments, _tables
from libshunt._command import command_path

from .errors import ProgramError

if TYPE_CHECKING:
    from .program import CollectiveProgram

# "rank 0, block 1, operation 3" with a second number for an operation in a loop.
_PLACE = re.compile(r"rank (\d+), block (\d+), operation (\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Timing:
    """A size that was run: all values were right."""

    bytes: int
    in_place: bool
    microseconds: float


class Timings(list[Timing]):
    def _repr_html_(self) -> str:
        rows = ((row.bytes, "in" if row.in_place else "out of", f"{row.microseconds:g}") for row in self)
        return _tables.table(rows, ("bytes", "place", "us"))


@contextmanager
def plan_file(program: CollectiveProgram) -> Iterator[tuple[str, dict[str, Any]]]:
    """A file with the plan, for as long as the block, and the plan."""
    plan = program.plan()
    with tempfile.TemporaryDirectory(prefix="shunt-") as folder:
        path = os.path.join(folder, "plan.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(plan, file)
        yield path, plan


def option(name: str, value: int | None) -> list[str]:
    return [] if value is None else [name, str(_arguments.integer(name[2:], value, 0, 2**31 - 1))]


def shunt(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([command_path(), *args], capture_output=True, text=True, check=False)


def verify(program: CollectiveProgram) -> dict[str, Any]:
    with plan_file(program) as (path, plan):
        done = shunt("plan", "check", "--json", path)
        try:
            (report,) = json.loads(done.stdout)
        except ValueError:
            raise ProgramError(f"{program.name}: {done.stderr.strip() or done.stdout.strip()}") from None
        report.pop("file", None)
        if not report.get("ok"):
            raise _error(program, plan, path, str(report.get("error")))
        return _tables.Values(report)


def run(
    program: CollectiveProgram,
    sizes: Sequence[int],
    dtype: str,
    device: str,
    options: Sequence[str] = (),
) -> Timings:
    found = Timings()
    with plan_file(program) as (path, plan):
        for size in sizes:
            done = shunt(
                *("plan", "run", "--device", device, "-b", str(size), "-e", str(size), "-d", dtype, *options, path)
            )
            rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
            if done.returncode:
                said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
                raise _error(program, plan, path, f"{size} bytes on {device}: {_last(said)}")
            found += [Timing(int(row[0]), row[2] == "in", float(row[4])) for row in rows]
    return found


def explain(program: CollectiveProgram, sizes: Sequence[int], dtype: str) -> str:
    with plan_file(program) as (path, plan):
        options = ["-n", str(program.num_ranks), "--op", program.collective.name, "--dtype", dtype]
        env = dict(os.environ, SHUNT_PLAN_DIR=path, SHUNT_CACHE_DIR=os.path.dirname(path))
        done = subprocess.run(
            [command_path(), "info", "select", *options, *map(str, sizes)],
            capture_output=True,
            text=True,
            check=False,
            env=env,
        )
        return _output(program, plan, path, done).replace(path, f"{program.name}'s plan")


def show(program: CollectiveProgram, options: Sequence[str]) -> str:
    with plan_file(program) as (path, plan):
        return _output(program, plan, path, shunt("plan", "show", *options, path))


def svg(program: CollectiveProgram, options: Sequence[str]) -> str:
    with plan_file(program) as (path, plan):
        picture = os.path.join(os.path.dirname(path), "plan.svg")
        _output(program, plan, path, shunt("plan", "show", "--svg", picture, *options, path))
        with open(picture, encoding="utf-8") as file:
            return file.read()


def _output(program: CollectiveProgram, plan: dict[str, Any], path: str, done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        raise _error(program, plan, path, done.stderr.strip() or done.stdout.strip())
    return done.stdout


def _last(lines: Sequence[str]) -> str:
    """The line that tells most: the command's own, or one about values, or the last."""
    for mark in ("shunt plan run:", "wrong"):
        for line in lines:
            if line.startswith((mark, f"# {mark}")) or (mark == "wrong" and mark in line and not line.startswith("#")):
                return line.strip()
    return lines[-1].strip() if lines else "it ended without a word"


def _error(program: CollectiveProgram, plan: dict[str, Any], path: str, said: str) -> ProgramError:
    """What was said of a file of ours, with the program's name in its place and the line of the operation in front."""
    said = said.strip().split("\n")[0]
    said = re.sub(rf"(shunt \w+ \w+: )?({re.escape(path)}: )?", "", said, count=1).replace(path, program.name)
    place = _PLACE.search(said)
    file, line = None, 0
    if place is not None:
        rank, block, at, inner = (int(number or 0) for number in place.groups())
        try:
            op = plan["gpus"][rank]["threadblocks"][block]["ops"][at]
            op = op["ops"][inner] if place[4] is not None else op
            file, _, numbers = op.get("src", "").split(" ")[0].rpartition(":")
            line = int(numbers.split(",")[0])
        except (LookupError, ValueError):
            file = None
    return ProgramError(f"{program.name}: {said}", file or None, line)
