# SPDX-License-Identifier: MIT
from __future__ import annotations

from collections.abc import Iterable

from .current import block_of
from .errors import fail


class ThreadBlockGroup:
    """Thread blocks that share operations: each does an equal part of the bytes."""

    def __init__(self, tb_list: Iterable[int]) -> None:
        self.tb_list: list[int] = [block_of(tb) for tb in tb_list]
        if not self.tb_list:
            fail("a thread-block group without thread blocks")
        if len(set(self.tb_list)) != len(self.tb_list):
            fail(f"a thread-block group has a block twice: {self.tb_list}")

    def get_internal_id(self, tb: int) -> int:
        """The block's place in the group."""
        if tb not in self.tb_list:
            fail(f"tb is {tb}, expected one of the group's: {self.tb_list}")
        return self.tb_list.index(tb)

    def numtb(self) -> int:
        return len(self.tb_list)
