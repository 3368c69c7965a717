# SPDX-License-Identifier: MIT
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .collectives import Collective
from .types import ReplicationPolicy

ANY_SIZE = 2**64 - 1


@dataclass(frozen=True)
class AlgoSpec:
    """What a function that builds a program gets: what the program is for, and its options."""

    name: str
    collective: Collective
    nranks_per_node: int
    world_size: int
    in_place: bool
    instances: int
    protocol: str
    instr_fusion: bool = True
    auto_sync: bool = True
    replication_policy: ReplicationPolicy = ReplicationPolicy.interleaved
    reuse_resources: bool = False
    num_threads_per_block: int = 1024
    use_double_scratch_buffer: bool = False
    buffer_alignment: int = 16
    min_message_size: int = 0
    max_message_size: int = ANY_SIZE
    tags: Mapping[str, int] = field(default_factory=dict)
