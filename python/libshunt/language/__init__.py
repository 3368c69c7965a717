# SPDX-License-Identifier: MIT
"""
Programs that say step by step how a collective is done, and the plans that come of them.

The names and their meaning are those of MSCCL++'s language, so its programs run. docs/dsl.md begins at the beginning.
"""

from .buffers import BaseBuffer, Buffer
from .channels import MemoryChannel, PortChannel, SwitchChannel, SwitchChannelRankView
from .collectives import AllGather, AllReduce, AllToAll, Collective, ReduceScatter, SendRecv, TestCollective
from .current import get_program, set_program
from .errors import ProgramError
from .general import JSON
from .groups import ThreadBlockGroup
from .loop import LoopIterationContext
from .program import CollectiveProgram
from .rank import Rank, Semaphore
from .spec import AlgoSpec
from .tool import Timing
from .tuning import Choice, tune
from .types import BufferType, ChannelType, Chunk, Instruction, ReduceOperationType, ReplicationPolicy, SyncType

MSCCLPPProgram = CollectiveProgram  # the former name

__all__ = [
    "JSON",
    "AlgoSpec",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "BaseBuffer",
    "Buffer",
    "BufferType",
    "ChannelType",
    "Choice",
    "Chunk",
    "Collective",
    "CollectiveProgram",
    "Instruction",
    "LoopIterationContext",
    "MSCCLPPProgram",
    "MemoryChannel",
    "PortChannel",
    "ProgramError",
    "Rank",
    "ReduceOperationType",
    "ReduceScatter",
    "ReplicationPolicy",
    "Semaphore",
    "SendRecv",
    "SwitchChannel",
    "SwitchChannelRankView",
    "SyncType",
    "TestCollective",
    "ThreadBlockGroup",
    "Timing",
    "get_program",
    "set_program",
    "tune",
]
