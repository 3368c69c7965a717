# SPDX-License-Identifier: MIT
"""Shunt and PyTorch's process groups: their paths and counters, and memory for zero copy.

    libshunt.enable()                                  # before `import torch`
    ...
    print(libshunt.torch.stats())                      # of the default group
    print(libshunt.torch.path("allreduce", x))         # which path all_reduce(x) takes

    pool = libshunt.torch.pool()                       # zero copy: memory that the ranks map of each other ...
    with pool:
        out = torch.empty(n, device="cuda")            # ... is allocated here

PyTorch is imported when a function is called. What a version of it lacks is an Error that names the version.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from libshunt import _arguments, _comms, _lib


def _torch() -> Any:
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise _lib.Error(f"PyTorch cannot be imported: {error}") from None
    return torch


def _device(torch: Any, device: object) -> Any:
    try:
        return torch.device("cuda" if device is None else device)
    except (RuntimeError, TypeError, ValueError):
        _arguments.wrong("device", device, 'what torch.device() takes, such as "cuda"')


def _group(torch: Any, group: Any) -> Any:
    if group is None:
        return torch.distributed.group.WORLD
    if not hasattr(group, "_get_backend"):
        _arguments.wrong("group", group, "a process group of which this rank is a member, or None for the default one")
    return group


def backend_of(group: Any = None, device: object = None) -> Any:
    """The backend of a process group for a device ("cuda"), such as ProcessGroupNCCL."""
    torch = _torch()
    if not torch.distributed.is_initialized():
        raise _lib.Error("there is no process group: call torch.distributed.init_process_group() first")
    group, where = _group(torch, group), _device(torch, device)
    try:
        return group._get_backend(where)
    except RuntimeError as error:
        raise _lib.Error(f"the process group has no backend for {where}: {_arguments.line(str(error))}") from None


def _only_match(torch: Any, group: Any) -> int:
    """The communicator by what the group says of itself, for backends that do not tell its address."""
    group = _group(torch, group)
    rank, size = group.rank(), group.size()
    found = [comm for comm in _comms.communicators() if (comm.rank, comm.nranks) == (rank, size)]
    if len(found) == 1:
        return found[0].handle
    what = f"rank {rank} of {size}"
    if not found:
        raise _lib.Error(
            f"no communicator of {what} exists yet: NCCL makes it at the group's first collective, "
            "or at once if init_process_group() gets device_id"
        )
    raise _lib.Error(
        f"{len(found)} communicators are of {what}, and torch {torch.__version__} does not tell which one is the "
        "group's: choose among libshunt.communicators()"
    )


def comm(group: Any = None, device: object = None) -> _comms.Communicator:
    """The communicator of a process group (None: the default one)."""
    torch = _torch()
    tell = getattr(backend_of(group, device), "_comm_ptr", None)
    handle = int(tell()) if tell is not None else 0
    return _comms.describe(handle or _only_match(torch, group))


def stats(group: Any = None, device: object = None) -> _comms.Stats:
    """Which paths the calls of a process group took."""
    return _comms.Stats([comm(group, device)])


def path(op: str, tensor: Any, dtype: object = None, redop: object = "sum", group: Any = None) -> str:
    """The path that a call would take now. tensor: what is passed to it, or a number of elements with a dtype.

    op: NCCL's name ("allreduce", "allgather") or PyTorch's ("all_reduce"). Elements count as for NCCL: of an all-gather
    those that one rank gives, of a reduce-scatter those that one rank gets.
    """
    if callable(getattr(tensor, "numel", None)):
        numel, dtype = int(tensor.numel()), tensor.dtype if dtype is None else dtype
    elif hasattr(tensor, "__index__"):
        numel, dtype = tensor, "float32" if dtype is None else dtype
    else:
        _arguments.wrong("tensor", tensor, "a tensor, or a number of elements")
    name = (
        _arguments.text("op", op).lower().removesuffix("_into_tensor").removesuffix("_tensor").removesuffix("_single")
    )
    return _comms.path(name, numel, dtype, getattr(redop, "name", redop), comm(group))


class MemPool:
    """Memory of Shunt that ranks can map of each other. `with` it, PyTorch allocates tensors there.

    At the end of the first `with` in which the process group exists the pool is registered with it; before, register()
    may do so. All ranks of the group must come there. Later tensors of the pool are registered as PyTorch allocates
    their memory. close() ends the registration; so does the end of the process group.
    """

    def __init__(self, group: Any, symm: bool, device: object) -> None:
        torch = _torch()
        self._group, self._symm, self._device = group, symm, _device(torch, device)
        if group is not None:
            _group(torch, group)
        self._torch = torch
        self._use: Any = None
        self._backend: Any = None
        self.pool = self._of_torch(torch.cuda, "MemPool")(_allocator(torch))

    def _of_torch(self, owner: Any, name: str) -> Any:
        found = getattr(owner, name, None)
        if found is None:
            raise _lib.Error(
                f"torch {self._torch.__version__} has no {name}: "
                "zero copy takes another version, or ncclMemAlloc and ncclCommWindowRegister"
            )
        return found

    def __enter__(self) -> MemPool:
        self._use = self._torch.cuda.use_mem_pool(self.pool)
        self._use.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._use.__exit__(kind, error, trace)
        if kind is None and self._torch.distributed.is_initialized():
            self.register()

    def register(self) -> None:
        """With the process group, unless the pool is registered already."""
        if self._backend is not None:
            return
        backend = backend_of(self._group, self._device)
        register = self._of_torch(backend, "register_mem_pool")
        try:
            register(self.pool, symm=self._symm)
        except TypeError:
            if self._symm:
                raise _lib.Error(
                    f"torch {self._torch.__version__} registers no symmetric memory (register_mem_pool has no symm): "
                    "zero copy takes a later version; pool(symm=False) registers it for NCCL alone"
                ) from None
            register(self.pool)
        self._backend = backend

    def close(self) -> None:
        """Collective, if the memory is symmetric."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.deregister_mem_pool(self.pool)


_allocators: list[Any] = []  # the process's one: pools hold its address, not a reference


def _allocator(torch: Any) -> Any:
    if not _allocators:
        make = getattr(getattr(torch.cuda, "memory", None), "CUDAPluggableAllocator", None)
        if make is None:
            raise _lib.Error(
                f"torch {torch.__version__} has no CUDAPluggableAllocator: zero copy takes another version"
            )
        # Loaded already, or by now: PyTorch opens the file by this path, and gets the same library.
        _allocators.append(make(_lib.library(private=True)._name, "shunt_torch_alloc", "shunt_torch_free"))
    return _allocators[0].allocator()


def pool(group: Any = None, symm: bool = True, device: object = None) -> MemPool:
    """A memory pool for a process group; symm: as symmetric windows, which zero copy needs.

    It may come before the process group, for memory that is allocated before.
    """
    return MemPool(group, symm, device)
