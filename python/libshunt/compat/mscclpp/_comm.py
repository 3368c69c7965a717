# SPDX-License-Identifier: MIT
"""Groups of ranks, and running plans and Shunt's algorithms on them."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import libshunt
from libshunt import Error, _comms, _names, _nccl

from ._bootstrap import TcpBootstrap
from ._selector import ensure as ensure_selector
from ._selector import forced
from ._types import DataType, element_bytes, nccl_name


class _Lane:
    """One communicator of NCCL's. It knows the plans that were registered before it was made."""

    def __init__(self, bootstrap: TcpBootstrap, plans: frozenset[str]) -> None:
        self.plans = plans
        self.nccl = _nccl.Nccl()
        unique_id = bootstrap.broadcast(self.nccl.unique_id() if bootstrap.get_rank() == 0 else b"")
        self.handle = self.nccl.init_rank(bootstrap.get_n_ranks(), unique_id, bootstrap.get_rank())
        self.answers: dict[tuple[object, ...], str] = {}
        self._operators: dict[tuple[object, ...], int] = {}

    def operator(self, redop: str, dtype: DataType, accumulate: str) -> int:
        """NCCL's number of the operator, or of one that Shunt makes; it ends with the communicator."""
        bias15 = dtype is DataType.float8_e4m3b15
        if not bias15 and accumulate == "default":
            return _names.redop_number(redop)
        key = (redop, dtype, accumulate)
        if key not in self._operators:
            self._operators[key] = libshunt.redop(
                redop, nccl_name(dtype), self.handle, e4m3b15=bias15, accumulate=accumulate
            )
        return self._operators[key]


class Communicator:
    """The ranks of a bootstrap as NCCL's communicators. These are made when they are needed: by a call of all ranks."""

    def __init__(self, bootstrap: TcpBootstrap) -> None:
        self._bootstrap = bootstrap
        self._lanes: list[_Lane] = []
        if _nccl.device_kind() == "sim":
            # On GPUs the program says which is its own; the sim has no such call in other libraries.
            _nccl.device_set(bootstrap.rank_on_host() % _device_count())

    def bootstrap(self) -> TcpBootstrap:
        return self._bootstrap

    def run(
        self,
        path: str,
        is_plan: bool,
        collective: str,
        buffers: tuple[int, int, int, int],
        dtype: DataType,
        redop: str,
        stream: int,
        accumulate: str = "default",
    ) -> None:
        """A call of NCCL's that takes this path. buffers: input, output, and their bytes. accumulate: Shunt's word."""
        lane = self._lane(path if is_plan else None)
        count = self._count(collective, buffers, dtype)
        reduces = collective in ("allreduce", "reducescatter")
        number, operator = (
            _names.dtype_number(nccl_name(dtype)),
            lane.operator(redop, dtype, accumulate) if reduces else 0,
        )
        question = (collective, count, number, operator)
        if lane.answers.setdefault(question, path) != path:
            libshunt.forget()
            lane.answers = {question: path}
        with forced(path):
            if is_plan:
                taken = _comms.path_of(lane.handle, collective, count, number, operator)
                if taken != path:
                    raise Error(
                        f"plan {path} does not run for {buffers[2]} bytes of {dtype.value} with {redop} among "
                        f"{self._bootstrap.get_n_ranks()} ranks: {taken} would"
                    )
            call = getattr(lane.nccl, _CALLS[collective])
            call(buffers[0], buffers[1], count, number, *([operator] if reduces else []), lane.handle, stream)

    def _count(self, collective: str, buffers: tuple[int, int, int, int], dtype: DataType) -> int:
        """NCCL's count."""
        if collective not in _CALLS:
            raise Error(f"there is no call of NCCL for {collective}: it is one of {', '.join(_CALLS)}")
        _, _, input_bytes, output_bytes = buffers
        size = element_bytes(dtype)
        n = self._bootstrap.get_n_ranks()
        nbytes = {
            "allreduce": input_bytes,
            # In place the whole output may stand for the input.
            "allgather": output_bytes // n,
            "reducescatter": output_bytes if output_bytes * n <= input_bytes else output_bytes // n,
            "alltoall": input_bytes // n,
        }[collective]
        if nbytes % size:
            raise Error(f"{nbytes} bytes are no whole number of {dtype.value}")
        return nbytes // size

    def _lane(self, plan: str | None) -> _Lane:
        for lane in reversed(self._lanes):
            if plan is None or plan in lane.plans:
                return lane
        # A peer that is ahead sets a communicator up, which then takes plans and selector as they are.
        ensure_selector()
        self._lanes.append(_Lane(self._bootstrap, frozenset(row.name for row in libshunt.plans())))
        return self._lanes[-1]

    def close(self) -> None:
        for lane in self._lanes:
            with contextlib.suppress(Error):
                lane.nccl.CommDestroy(lane.handle)
        self._lanes.clear()

    def __del__(self) -> None:
        # Ending a communicator waits for no other rank.
        if getattr(self, "_lanes", None):
            self.close()


_CALLS = {"allreduce": "AllReduce", "allgather": "AllGather", "reducescatter": "ReduceScatter", "alltoall": "AlltoAll"}


def _device_count() -> int:
    from libshunt import _lib

    count = ctypes.c_int()
    _lib.check(_lib.library(private=True).shunt_device_count(ctypes.byref(count)), "counting devices")
    return max(1, count.value)


class CommGroup:
    """Ranks that know each other: over MPI, over a process group of torch, or by rank 0's INTERFACE:ADDRESS:PORT."""

    def __init__(
        self,
        mpi_comm: Any = None,
        torch_group: Any = None,
        interfaceIpPortTrio: str = "",
        rank: int | None = None,
        size: int | None = None,
    ) -> None:
        if interfaceIpPortTrio:
            if rank is None or size is None:
                raise Error("CommGroup(interfaceIpPortTrio=...) needs rank and size")
            self.bootstrap = TcpBootstrap(rank, size)
            self.bootstrap.initialize(interfaceIpPortTrio)
        elif mpi_comm is not None:
            self.bootstrap = TcpBootstrap(mpi_comm.Get_rank(), mpi_comm.Get_size())
            unique_id = self.bootstrap.create_unique_id() if mpi_comm.Get_rank() == 0 else None
            self.bootstrap.initialize(mpi_comm.bcast(unique_id, 0))
        elif torch_group is not None:
            self.bootstrap = TcpBootstrap(torch_group.rank(), torch_group.size())
            self.bootstrap.initialize(_from_torch(torch_group, self.bootstrap))
        else:
            raise Error("CommGroup() needs interfaceIpPortTrio, mpi_comm or torch_group")
        self.communicator = Communicator(self.bootstrap)
        self.my_rank = self.bootstrap.get_rank()
        self.nranks = self.bootstrap.get_n_ranks()
        self.nranks_per_node = self.bootstrap.get_n_ranks_per_node()
        self.nranks_per_ipc_domain = self.bootstrap.get_n_ranks_per_ipc_domain()
        self.ipc_domain_n_ranks = self.nranks_per_ipc_domain

    def barrier(self) -> None:
        self.bootstrap.barrier()

    def send(self, tensor: Any, peer: int, tag: int) -> None:
        """A numpy array."""
        self.bootstrap.send(tensor.tobytes(), peer, tag)

    def recv(self, tensor: Any, peer: int, tag: int) -> None:
        data = self.bootstrap.recv(peer, tag)
        if len(data) != tensor.nbytes:
            raise Error(f"rank {peer} sent {len(data)} bytes, and the array has {tensor.nbytes}")
        ctypes.memmove(tensor.ctypes.data, data, len(data))


def _from_torch(group: Any, bootstrap: TcpBootstrap) -> bytes:
    import torch.distributed as dist

    box = [bootstrap.create_unique_id() if bootstrap.get_rank() == 0 else None]
    dist.broadcast_object_list(box, group=group, group_src=0)
    return bytes(box[0] or b"")
