# SPDX-License-Identifier: MIT
"""Which of several forms of a program is the fastest at which size."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libshunt import _arguments, _tables

from .errors import ProgramError, fail
from .program import CollectiveProgram


@dataclass(frozen=True)
class Choice:
    """What is the fastest from min_message_size to max_message_size, and its program, which is for these sizes."""

    point: dict[str, Any]
    min_message_size: int
    max_message_size: int
    microseconds: dict[int, float]  # by size
    program: CollectiveProgram

    def write(self, folder: str) -> str:
        """Writes the plan to NAME.json in the folder, which is made if need be. Returns its path."""
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{self.program.name}.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.program.to_json() + "\n")
        return path


class Choices(list[Choice]):
    def _repr_html_(self) -> str:
        rows = (
            (
                choice.min_message_size,
                choice.max_message_size,
                ", ".join(f"{name}={value}" for name, value in choice.point.items()),
                ", ".join(f"{size}: {time:g}" for size, time in choice.microseconds.items()),
            )
            for choice in self
        )
        return _tables.table(rows, ("from bytes", "to", "fastest", "us by bytes"))


def tune(
    build: Callable[..., CollectiveProgram],
    space: Mapping[str, Sequence[Any]],
    sizes: Sequence[int],
    dtype: str = "float32",
    device: str = "auto",
    graph: bool = True,
) -> Choices:
    """
    Builds the program with every combination of the keywords in `space`, verifies each, runs them all at each size and
    keeps what is the fastest. Returns the choices in the order of their sizes. A combination of which the program says
    that it is wrong does not take part; if all are, that is the error.
    """
    if not callable(build):
        _arguments.wrong("build", build, "a function that makes a program")
    if not isinstance(space, Mapping):
        _arguments.wrong("space", space, "a dict with the values of each keyword")
    for name, values in space.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            _arguments.wrong(f"space[{_arguments.shown(name)}]", values, "the values of a keyword, such as a list")
    sizes = sorted(set(_arguments.integers("sizes", sizes, 0, _arguments.MOST_BYTES)))
    if not sizes:
        fail("tune() without sizes")
    points = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    times: list[tuple[dict[str, Any], dict[int, float]]] = []
    refused: ProgramError | None = None
    for point in points:
        try:
            program = build(**point)
            program.verify()
        except ProgramError as error:
            refused = error
            continue
        taken = [size for size in sizes if program.min_message_size <= size <= program.max_message_size]
        # The slower of in and out of place.
        found = {size: max(run.microseconds for run in program.run(size, dtype, device, graph)) for size in taken}
        times.append((point, found))
    if not times:
        raise refused if refused is not None else ProgramError("tune(): there is no combination to try")
    return _choices(build, sizes, times)


def _choices(
    build: Callable[..., CollectiveProgram],
    sizes: Sequence[int],
    times: Sequence[tuple[dict[str, Any], dict[int, float]]],
) -> Choices:
    best = []
    for size in sizes:
        able = [(found[size], i) for i, (_, found) in enumerate(times) if size in found]
        if able:
            best.append((size, min(able)[1]))
    choices = Choices()
    runs = [(winner, [size for size, _ in group]) for winner, group in itertools.groupby(best, lambda row: row[1])]
    for number, (winner, group) in enumerate(runs):
        point, found = times[winner]
        last = runs[number + 1][1][0] - 1 if number + 1 < len(runs) else group[-1]
        program = build(**point)
        program.name = f"{program.name}-{number}"
        program.min_message_size, program.max_message_size = group[0], min(last, program.max_message_size)
        choices.append(Choice(point, group[0], program.max_message_size, {s: found[s] for s in group}, program))
    return choices
