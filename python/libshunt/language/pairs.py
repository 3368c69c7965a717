# SPDX-License-Identifier: MIT
"""Counts signals and waits: each signal of a rank to another needs a wait of the other for it."""

from __future__ import annotations

from collections import defaultdict

from .errors import ProgramError, caller
from .types import ChannelType

_Way = tuple[int, int, ChannelType]  # from, to, by


class Pairs:
    def __init__(self) -> None:
        self._signals: defaultdict[_Way, list[tuple[str, int]]] = defaultdict(list)
        self._waits: defaultdict[_Way, list[tuple[str, int]]] = defaultdict(list)

    def signal(self, src_rank: int, dst_rank: int, kind: ChannelType) -> None:
        self._signals[src_rank, dst_rank, kind].append(caller())

    def wait(self, src_rank: int, dst_rank: int, kind: ChannelType) -> None:
        self._waits[dst_rank, src_rank, kind].append(caller())

    def check(self) -> None:
        for way in (*self._signals, *self._waits):
            signals, waits = self._signals.get(way, []), self._waits.get(way, [])
            if len(signals) == len(waits):
                continue
            sender, receiver, kind = way
            file, line = (signals if len(signals) > len(waits) else waits)[-1]
            raise ProgramError(
                f"rank {sender} gives {_times(len(signals), 'signal')} to rank {receiver} on {kind} channels, and rank "
                f"{receiver} waits for {len(waits)} of rank {sender}: each signal needs one wait",
                file,
                line,
            )


def _times(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
