# SPDX-License-Identifier: MIT
"""Programs and plans as algorithms that run on a group, and collections of them for NCCL's calls."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import libshunt
from libshunt import Error, _fork, _lib
from libshunt.language import AlgoSpec, CollectiveProgram

from . import _selector
from ._comm import Communicator
from ._types import NO_NATIVE, CollectiveBufferMode, DataType, PacketType, ReduceOp, accumulator

ANY_SIZE = 2**64 - 1
_lock = _fork.Lock()


@dataclass(frozen=True)
class Where:
    """Where an algorithm runs; 0: anywhere."""

    world_size: int = 0
    n_ranks_per_node: int = 0


class ExecutionPlan:
    """A plan in a file."""

    def __init__(self, planPath: str | os.PathLike[str], rank: int = 0) -> None:
        try:
            with open(planPath, encoding="utf-8") as file:
                plan = json.load(file)
        except OSError as error:
            raise Error(f"cannot read the plan {os.fspath(planPath)}: {error.strerror}") from None
        except ValueError as error:
            raise Error(f"the plan {os.fspath(planPath)} is no JSON: {error}") from None
        self._init(plan, rank)

    @classmethod
    def _of(cls, plan: dict[str, Any], rank: int) -> ExecutionPlan:
        self = cls.__new__(cls)
        self._init(plan, rank)
        return self

    def _init(self, plan: dict[str, Any], rank: int) -> None:
        report = libshunt.verify(plan)
        if not report:
            raise Error(f"the plan is wrong: {report.error}")
        self.plan, self.rank = plan, rank
        self.name = str(plan["name"])
        self.collective = str(plan["collective"])
        self.min_message_size = int(plan.get("min_message_size", 0))
        self.max_message_size = int(plan.get("max_message_size", ANY_SIZE))
        self.hash = str(report.values["hash"])
        self.redop = _redop(plan)
        self._registered: str | None = None

    def register(self, automatic: bool) -> str:
        """The name under which the process has the plan: its own, or one that no other plan has."""
        with _lock:
            if self._registered is not None:
                return self._registered
            there = {row.name: row.hash for row in libshunt.plans()}
            plan = dict(self.plan)
            if not automatic:
                plan["tags"] = {**plan.get("tags", {}), "auto": 0}
            digest = str(libshunt.verify(plan).values["hash"])
            if there.get(self.name, digest) not in (digest, self.hash):
                plan["name"] = f"{self.name}-{self.hash[:8]}"
                digest = str(libshunt.verify(plan).values["hash"])
            name = str(plan["name"])
            if there.get(name) is None:
                text = json.dumps(plan).encode()
                why = ctypes.create_string_buffer(1024)
                result = _lib.library(private=True).shunt_plan_register(name.encode(), text, len(text), why, len(why))
                if result not in (0, -17):  # EEXIST: another rank of the process was faster
                    raise Error(f"the plan was not registered: {_lib.text(why.value)}")
            self._registered = name
            return name

    def unregister(self) -> None:
        with _lock:
            name, self._registered = self._registered, None
            if name is not None:
                _lib.library(private=True).shunt_plan_unregister(name.encode())


def _redop(plan: Mapping[str, Any]) -> str:
    """The operator of the plan's reductions, which all have the same."""

    def words(ops: list[dict[str, Any]]) -> Iterator[str]:
        for op in ops:
            yield from words(op.get("ops", []))
            if "reduce_op" in op:
                yield op["reduce_op"]

    return next((word for gpu in plan["gpus"] for block in gpu["threadblocks"] for word in words(block["ops"])), "sum")


class Executor:
    """Runs plans on a communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def execute(
        self,
        rank: int,
        send_buff: int,
        recv_buff: int,
        send_buff_size: int,
        recv_buff_size: int,
        data_type: DataType,
        plan: ExecutionPlan,
        stream: int,
        packet_type: PacketType = PacketType.LL16,
    ) -> None:
        name = plan.register(automatic=False)
        buffers = (int(send_buff), int(recv_buff), int(send_buff_size), int(recv_buff_size))
        self._comm.run(name, True, plan.collective, buffers, data_type, plan.redop, int(stream))

    def reset(self) -> None:
        """Keeps nothing that could be given back."""


class Algorithm:
    """A plan, or one of Shunt's own algorithms under the name of MSCCL++'s that does the same."""

    Constraint = Where

    def __init__(
        self,
        id: str | None = None,
        execution_plan: ExecutionPlan | None = None,
        native_handle: tuple[str, str, str] | None = None,
        tags: Mapping[str, int] | None = None,
        constraint: Where | None = None,
    ) -> None:
        if (execution_plan is None) == (native_handle is None):
            raise Error("an algorithm is made by compile(), or of an ExecutionPlan")
        self.plan = execution_plan
        self.tags = dict(tags or {})
        self.constraint = constraint or Where()
        if execution_plan is not None:
            self.id = id or execution_plan.hash
            self.name, self.collective = execution_plan.name, execution_plan.collective
            self._range = (execution_plan.min_message_size, execution_plan.max_message_size)
            inplace = bool(execution_plan.plan.get("inplace"))
            self.buffer_mode = CollectiveBufferMode.IN_PLACE if inplace else CollectiveBufferMode.OUT_OF_PLACE
        elif native_handle is not None:
            self.collective, self.name, self._native = native_handle
            self.id = id or self.name
            self._range = (0, ANY_SIZE)
            self.buffer_mode = CollectiveBufferMode.ANY

    @classmethod
    def create_from_native_capsule(cls, obj: object) -> Algorithm:
        raise Error(NO_NATIVE)

    @property
    def message_size_range(self) -> tuple[int, int]:
        return self._range

    def set_message_size_range(self, min_message_size: int, max_message_size: int) -> None:
        if self.is_dsl_algorithm():
            raise TypeError("the sizes of a plan are those of its AlgoSpec")
        self._range = (min_message_size, max_message_size)

    def is_dsl_algorithm(self) -> bool:
        return self.plan is not None

    def is_native_algorithm(self) -> bool:
        return self.plan is None

    @property
    def path(self) -> str:
        """What a selector of Shunt's answers for it."""
        return self.plan.register(automatic=False) if self.plan is not None else self._native

    def execute(
        self,
        comm: Communicator,
        input_buffer: int,
        output_buffer: int,
        input_size: int,
        output_size: int,
        dtype: DataType,
        op: ReduceOp = ReduceOp.NOP,
        stream: int = 0,
        executor: Executor | None = None,
        nblocks: int = 0,
        nthreads_per_block: int = 0,
        symmetric_memory: bool = False,
        extras: Mapping[str, int] | None = None,
        accum_dtype: DataType | None = None,
    ) -> int:
        """
        Enqueues the collective on the stream; 0. All ranks of the communicator call it alike. executor,
        symmetric_memory and extras are of no effect; nblocks and nthreads_per_block of none for plans. accum_dtype:
        what sums are kept in, fp32 unless it is said (docs/numbers.md).
        """
        accumulate = accumulator(dtype, accum_dtype)
        if not self._range[0] <= max(input_size, output_size) <= self._range[1]:
            raise Error(f"{self.name} is for {self._range[0]} to {self._range[1]} bytes, not for {input_size}")
        redop = self.plan.redop if self.plan is not None else "sum"
        if op is not ReduceOp.NOP:
            if self.plan is not None and op.value != redop:
                raise Error(f"{self.name} computes {redop}, not {op.value}")
            redop = op.value
        path = self.path
        if self.plan is None and nblocks and nthreads_per_block:
            path = f"{path}@{nblocks}x{nthreads_per_block}"
        buffers = (int(input_buffer), int(output_buffer), int(input_size), int(output_size))
        comm.run(path, self.plan is not None, self.collective, buffers, dtype, redop, int(stream), accumulate)
        return 0

    def reset(self) -> None:
        """Keeps nothing that could be given back."""


class AlgorithmBuilder:
    """What makes an algorithm."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm

    def build(self) -> Algorithm:
        return self._algorithm


class AlgorithmCollection:
    def __init__(self, algorithms: list[Algorithm]) -> None:
        self._algorithms = list(algorithms)

    def __iter__(self) -> Iterator[Algorithm]:
        return iter(self._algorithms)

    def __len__(self) -> int:
        return len(self._algorithms)

    def __getitem__(self, index: int) -> Algorithm:
        return self._algorithms[index]

    def get_by_collective(self, collective: str) -> list[Algorithm]:
        return [algorithm for algorithm in self._algorithms if algorithm.collective == collective]

    def register_algorithm(self, collective: str, algo_name: str, algorithm: Algorithm) -> None:
        if algorithm.collective != collective:
            raise Error(f"{algo_name} is for {algorithm.collective}, not for {collective}")
        _selector.offered.setdefault(collective, {})[algo_name] = algorithm
        self._algorithms.append(algorithm)


# MSCCL++'s own algorithms, and those of Shunt that do the same.
_DEFAULTS = {
    "allreduce": {
        "nvls_packet": "oneshot",
        "allpair_packet": "oneshot",
        "packet": "twoshot",
        "fullmesh": "simple",
        "rsag": "simple",
        "rsag_pipeline": "simple",
        "rsag_zero_copy": "simple",
        "nvls_zero_copy": "simple",
        "nvls_warp_pipeline": "simple",
        "nvls_block_pipeline": "simple",
    },
    "allgather": {"fullmesh": "simple", "fullmesh2": "ll128"},
}


class AlgorithmCollectionBuilder:
    """The process's one: what it is given before a communicator's first call counts for NCCL's calls."""

    _instance: AlgorithmCollectionBuilder | None = None
    _added: list[Algorithm]

    def __new__(cls) -> AlgorithmCollectionBuilder:
        with _lock:
            if cls._instance is None:
                cls._instance = super().__new__(cls)
                cls._instance._added = []
            return cls._instance

    @classmethod
    def reset(cls) -> None:
        """Forgets the algorithms and selectors. Communicators that have begun keep their plans."""
        with _lock:
            added = cls._instance._added if cls._instance is not None else []
            cls._instance = None
        for algorithm in added:
            _selector.offered.get(algorithm.collective, {}).pop(algorithm.name, None)
            if algorithm.plan is not None:
                algorithm.plan.unregister()
        _selector.selectors[:] = [None, None]

    def add_algorithm_builder(self, algorithm_builder: AlgorithmBuilder | Algorithm) -> None:
        built = algorithm_builder.build() if isinstance(algorithm_builder, AlgorithmBuilder) else algorithm_builder
        if not isinstance(built, Algorithm):
            raise ValueError(f"add_algorithm_builder() takes an algorithm or a builder of one, not {built!r}")
        if built.plan is not None:
            built.plan.register(automatic=True)
        self._added.append(built)
        _selector.offered.setdefault(built.collective, {})[built.name] = built

    def set_algorithm_selector(self, selector: _selector.UserSelector) -> None:
        """selector(algorithms, request) returns one of algorithms[collective][name], or None."""
        _selector.selectors[0] = selector
        _selector.ensure()

    def set_fallback_algorithm_selector(self, selector: _selector.UserSelector) -> None:
        """Asked where the other one returns None."""
        _selector.selectors[1] = selector
        _selector.ensure()

    def build(self) -> AlgorithmCollection:
        return AlgorithmCollection(self._added)

    def build_default_algorithms(
        self, scratch_buffer: int = 0, scratch_buffer_size: int = 0, rank: int = 0
    ) -> AlgorithmCollection:
        """Shunt's algorithms under MSCCL++'s names, and what was added. The buffer is of no use: Shunt has its own."""
        defaults = [
            Algorithm(native_handle=(collective, f"default_{collective}_{name}", ours))
            for collective, names in _DEFAULTS.items()
            for name, ours in names.items()
        ]
        for algorithm in defaults:
            _selector.offered.setdefault(algorithm.collective, {})[algorithm.name] = algorithm
        return AlgorithmCollection(defaults + self._added)


class ExecutionPlanRegistry:
    """The older way to offer plans to NCCL's calls."""

    @staticmethod
    def get_instance() -> ExecutionPlanRegistry:
        return ExecutionPlanRegistry()

    def register_plan(self, plan: ExecutionPlan | Algorithm) -> None:
        algorithm = plan if isinstance(plan, Algorithm) else Algorithm(execution_plan=plan)
        AlgorithmCollectionBuilder().add_algorithm_builder(algorithm)

    def set_selector(self, selector: _selector.UserSelector) -> None:
        AlgorithmCollectionBuilder().set_algorithm_selector(selector)


def compile(algo: Callable[..., CollectiveProgram], algo_spec: AlgoSpec, rank: int = 0, **kwargs: Any) -> Algorithm:
    """
    Builds a program by algo(algo_spec, **kwargs), checks it, and makes an algorithm of it. Nothing is cached: it would
    take as long to find out whether the function's result is still the same.
    """
    if not callable(algo):
        raise ValueError(f"compile() takes a function that builds a program, not {algo!r}")
    program = algo(algo_spec, **kwargs)
    if not isinstance(program, CollectiveProgram):
        raise Error(f"{getattr(algo, '__name__', algo)}() returned {program!r}, expected its CollectiveProgram")
    program.verify()
    plan = json.loads(program.to_json(indent=None))
    if algo_spec.nranks_per_node and algo_spec.nranks_per_node <= algo_spec.world_size:
        plan["nranks_per_node"] = algo_spec.nranks_per_node
    return Algorithm(
        execution_plan=ExecutionPlan._of(plan, rank),
        tags=algo_spec.tags,
        constraint=Where(algo_spec.world_size, algo_spec.nranks_per_node),
    )


def compile_native(name: str, file: str, **kwargs: Any) -> Any:
    raise Error(f"{file}: {NO_NATIVE}")
