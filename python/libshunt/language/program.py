# SPDX-License-Identifier: MIT
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from libshunt import _arguments, _names

from . import tool
from .collectives import Collective, RankBuffers
from .current import find_program, set_program, whole
from .device import Device, Passes
from .errors import fail
from .ops import Op
from .pairs import Pairs
from .spec import ANY_SIZE, AlgoSpec
from .types import BufferType, ReplicationPolicy

if TYPE_CHECKING:
    from .loop import LoopIterationContext

PROTOCOLS = ("Simple", "LL")
# Called with each program whose plan is written as text, and the text.
observers: list[Callable[[CollectiveProgram, str], None]] = []


class CollectiveProgram:
    """
    A collective of num_ranks ranks, step by step. Inside `with CollectiveProgram(...) as program:` the methods of
    ranks, channels and semaphores add operations to it; afterwards it can be checked, run, looked at and written.
    """

    def __init__(
        self,
        name: str,
        collective: Collective,
        num_ranks: int,
        instances: int = 1,
        protocol: str = "Simple",
        instr_fusion: bool = True,
        auto_sync: bool = True,
        replication_policy: ReplicationPolicy = ReplicationPolicy.interleaved,
        reuse_resources: bool = False,
        num_threads_per_block: int = 1024,
        use_double_scratch_buffer: bool = False,
        buffer_alignment: int = 16,
        min_message_size: int = 0,
        max_message_size: int = ANY_SIZE,
        *,
        nranks_per_node: int | None = None,
        dtypes: Iterable[str] | None = None,
        tags: Mapping[str, int] | None = None,
    ) -> None:
        if not isinstance(collective, Collective):
            fail(f"collective is {collective!r}, expected one such as AllReduce(num_ranks)")
        if not isinstance(name, str) or not name:
            fail(f"name is {name!r}, expected the plan's name")
        self.name = name
        self.collective = collective
        self.num_ranks = whole("num_ranks", num_ranks, 1, 1024)
        if collective.num_ranks != self.num_ranks:
            fail(
                f"{type(collective).__name__} is for {collective.num_ranks} ranks, and the program for {self.num_ranks}"
            )
        if protocol not in PROTOCOLS:
            fail(f"protocol is {protocol!r}, expected 'Simple' or 'LL'")
        self.instances = whole("instances", instances, 1)
        self.protocol = protocol
        self.instr_fusion = instr_fusion
        self.auto_sync = auto_sync
        # MSCCL++ has the class twice; its words are the same.
        self.replication_policy = ReplicationPolicy(str(replication_policy))
        self.reuse_resources = bool(reuse_resources)
        self.num_threads_per_block = whole("num_threads_per_block", num_threads_per_block, 1, 1024)
        self.use_double_scratch_buffer = bool(use_double_scratch_buffer)
        self.buffer_alignment = whole("buffer_alignment", buffer_alignment, 16)
        if self.buffer_alignment % 16:
            fail(f"buffer_alignment is {self.buffer_alignment}, expected a multiple of 16")
        self.min_message_size = whole("min_message_size", min_message_size, 0, ANY_SIZE)
        self.max_message_size = whole("max_message_size", max_message_size, 0, ANY_SIZE)
        if self.min_message_size > self.max_message_size:
            fail(f"min_message_size is {self.min_message_size}, more than max_message_size, {self.max_message_size}")
        self._extras: dict[str, Any] = {}
        if nranks_per_node is not None:
            self._extras["nranks_per_node"] = whole("nranks_per_node", nranks_per_node, 1)
        if dtypes is not None:
            self._extras["dtypes"] = sorted(dtypes)
        if tags is not None:
            self._extras["tags"] = dict(sorted(tags.items()))
        self.buffers: list[RankBuffers] = collective.init_buffers()
        self.devices = [
            Device(
                rank,
                {
                    BufferType.input: len(buffers[BufferType.input]),
                    BufferType.output: len(buffers[BufferType.output]),
                    BufferType.scratch: 0,
                },
            )
            for rank, buffers in enumerate(self.buffers)
        ]
        self.pairs = Pairs()
        self.loop_context: LoopIterationContext | None = None

    @classmethod
    def from_spec(cls, spec: AlgoSpec) -> CollectiveProgram:
        return cls(
            spec.name,
            spec.collective,
            spec.world_size,
            instances=spec.instances,
            protocol=spec.protocol,
            instr_fusion=spec.instr_fusion,
            auto_sync=spec.auto_sync,
            replication_policy=spec.replication_policy,
            reuse_resources=spec.reuse_resources,
            num_threads_per_block=spec.num_threads_per_block,
            use_double_scratch_buffer=spec.use_double_scratch_buffer,
            buffer_alignment=spec.buffer_alignment,
            min_message_size=spec.min_message_size,
            max_message_size=spec.max_message_size,
        )

    def __enter__(self) -> CollectiveProgram:
        other = find_program()
        if other is not None:
            fail(f"program {self.name!r} begins while {other.name!r} is open")
        set_program(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_program(None)

    def buffer_chunks(self, rank: int, kind: BufferType) -> int:
        return self.devices[rank].chunks[kind]

    def take_scratch(self, rank: int, size: int) -> int:
        """The first of `size` more chunks."""
        chunks = self.devices[rank].chunks
        chunks[BufferType.scratch] += size
        return chunks[BufferType.scratch] - size

    def add_operation(self, rank: int, tb: int, operation: Op) -> None:
        if self.loop_context is not None:
            self.loop_context.add_operation(rank, tb, operation)
        else:
            self.devices[rank].block(tb).ops.append(operation)

    def post_process_operations(self) -> None:
        """What plan() checks first."""
        if self.loop_context is not None:
            fail("a loop is open: the plan is complete only after it")
        self.collective.check(self)
        self.pairs.check()

    def plan(self, sources: bool = True) -> dict[str, Any]:
        """The plan as MSCCL++'s JSON has it. sources: operations say which lines of the program they come from."""
        self.post_process_operations()
        passes = Passes(self.instr_fusion, self.auto_sync, self.instances, self.replication_policy)
        return {
            "name": self.name,
            "collective": self.collective.name,
            "protocol": self.protocol,
            "inplace": self.collective.inplace,
            "reuse_resources": self.reuse_resources,
            "gpus": [device.compiled(passes).json(sources) for device in self.devices],
            "num_threads_per_block": self.num_threads_per_block,
            "use_double_scratch_buffer": self.use_double_scratch_buffer,
            "buffer_alignment": self.buffer_alignment,
            "min_message_size": self.min_message_size,
            "max_message_size": self.max_message_size,
            **self._extras,
        }

    def to_json(self, indent: int | None = 2, **kwargs: Any) -> str:
        """The plan as text. The same program gives the same bytes. Further arguments are json.dumps()'s."""
        text = json.dumps(self.plan(), indent=indent, **kwargs)
        for observer in observers:
            observer(self, text)
        return text

    def verify(self) -> dict[str, Any]:
        """
        What `shunt plan check` knows of the plan, such as its hash. If the plan is wrong, ProgramError tells the line.
        """
        return tool.verify(self)

    def run(
        self, sizes: int | Sequence[int] = 1 << 16, dtype: str = "float32", device: str = "sim", graph: bool = False
    ) -> tool.Timings:
        """
        Runs the plan with one process for each rank, in and out of place, and compares every element of every result.
        sizes: bytes of the message. device: sim, cuda or auto. Wrong values are a ProgramError. Times of the sim mean
        nothing.
        """
        several = _arguments.integers("sizes", sizes, 0, _arguments.MOST_BYTES)
        _arguments.word("device", device, ("sim", "cuda", "auto"))
        return tool.run(self, several, _names.dtype_word(dtype), device, ["--graph"] if graph else [])

    def explain(self, sizes: int | Sequence[int] = (), dtype: str = "float32") -> str:
        """
        Which path a call of this collective takes where this plan is the only one: what `shunt info select` says. sizes
        are those of NCCL's count (of one rank's part, if ranks have parts); without any it says so of all sizes.
        """
        several = _arguments.integers("sizes", sizes, 0, _arguments.MOST_BYTES)
        return tool.explain(self, several, _names.dtype_word(dtype))

    def show(self, rank: int | None = None, block: int | None = None) -> str:
        """What each block does, in words."""
        return tool.show(self, [*self._rank_option(rank), *tool.option("--block", block)])

    def _rank_option(self, rank: int | None) -> list[str]:
        known = None if rank is None else _arguments.integer("rank", rank, 0, self.num_ranks - 1)
        return tool.option("--rank", known)

    def svg(self, rank: int | None = None, all_blocks: bool = False) -> str:
        """A picture of who waits for what."""
        return tool.svg(self, [*self._rank_option(rank), *(["--all"] if all_blocks else [])])

    def _repr_svg_(self) -> str:
        """The picture, in a notebook."""
        return self.svg()
