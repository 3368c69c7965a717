# SPDX-License-Identifier: MIT
"""A backend for torchcomms, by the name "shunt".

    comm = torchcomms.new_comm("shunt", torch.device("cuda"), name="main")

torchcomms finds it by the entry point `torchcomms.backends` and imports this module, which registers it. It opens
libshunt.so for itself alone: other backends of the program keep their NCCL, and nothing has to be preloaded. What
torchcomms does not hand on to a backend in Python is not here: hints and timeouts of single calls, batches of sends,
abort, reconfiguration and windows.

Asynchronous operations go to the current stream, too, and return None, which torchcomms takes for a work that is
complete. A Work of Python would not do where torchcomms is below torch.distributed: the future of that work is complete
on the current stream at once, and C++ destroys the Work without Python's lock, which ends the process. A program that
calls torchcomms itself, and waits for its works, may give the communicator a stream by the hint "own_stream".
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from libshunt import _lib, _names, _nccl

NAME = "shunt"

try:
    import torch
    import torch.distributed
    import torchcomms
except ImportError as error:
    raise _lib.Error(
        f"torchcomms cannot be imported: {error}; its wheels are at https://download.pytorch.org/whl, for each "
        "version of PyTorch"
    ) from None

_OPERATORS = {"SUM": "sum", "PRODUCT": "prod", "MIN": "min", "MAX": "max", "AVG": "avg"}
_PREMUL_SUM = "PREMUL_SUM"
# Where the factor of a pre-multiplied sum is: ncclScalarDevice and ncclScalarHostImmediate.
_ON_DEVICE, _ON_HOST = 0, 1
_NO_COLOR = -1

# torchcomms does not tell the factor of an operator that Python gave it, so what makes one is asked.
_factors: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _remember_factors(reduce_op: Any) -> None:
    made = reduce_op.PREMUL_SUM

    def premul_sum(factor: Any) -> Any:
        operator = made(factor)
        _factors[operator] = factor
        return operator

    reduce_op.PREMUL_SUM = staticmethod(premul_sum)


def _factor_of(operator: Any) -> Any:
    factor = getattr(operator, "factor", None)
    factor = _factors.get(operator) if factor is None else factor
    if factor is None:
        raise _lib.Error(
            "the factor of this PREMUL_SUM is not known to Python: make it by torchcomms.ReduceOp.PREMUL_SUM(), "
            "after `import libshunt.torchcomms`"
        )
    return factor


_OWN_STREAM = "own_stream"
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}


def _wants_own_stream(name: str, options: Any) -> bool:
    value = options.hints.get(_OWN_STREAM, "0")
    if value.lower() not in _SWITCHES:
        raise _lib.Error(
            f'communicator {name}: the hint {_OWN_STREAM} is "{value}": it is one of {", ".join(_SWITCHES)}'
        )
    return _SWITCHES[value.lower()]


def _index_of(name: str, device: Any, rank: int) -> int:
    """Which GPU a device means; without an index, one for each rank of a host in turn."""
    if device.type != "cuda":
        raise _lib.Error(
            f'communicator {name}: its device is "{device}", and the backend {NAME} is for GPUs: '
            'pass torch.device("cuda"), or take another backend'
        )
    count = torch.cuda.device_count()
    if not count:
        raise _lib.Error(
            f"communicator {name}: PyTorch sees no GPU (torch.cuda.device_count() is 0), and the backend {NAME} is for "
            "GPUs: look at CUDA_VISIBLE_DEVICES and the driver, or take another backend"
        )
    index = rank % count if device.index is None else device.index
    if not 0 <= index < count:
        raise _lib.Error(f'communicator {name}: there is no device "{device}": PyTorch sees {count} GPUs')
    return int(index)


class Work:
    """An operation on the communicator's own stream. Keeps what it reads and writes until it is waited for."""

    def __init__(self, event: Any, device: Any, tensors: tuple[Any, ...]) -> None:
        self._event, self._device, self._tensors = event, device, tensors

    def wait(self) -> None:
        """What comes later on the current stream comes after it; the host goes on."""
        torch.cuda.current_stream(self._device).wait_event(self._event)
        self._tensors = ()


def _first(names: Sequence[str]) -> int | None:
    for name in names:
        with contextlib.suppress(ValueError):
            value = int(os.environ.get(name, ""))
            if value >= 0:
                return value
    return None


def _rank_and_size() -> tuple[int, int]:
    """Of this process, where torchcomms' other backends look for them."""
    for rank_name, size_name in (
        ("TORCHCOMM_RANK", "TORCHCOMM_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("RANK", "WORLD_SIZE"),
    ):
        rank, size = _first([rank_name]), _first([size_name])
        if rank is not None and size:
            if rank >= size:
                raise _lib.Error(f"{rank_name} is {rank} and {size_name} is {size}: ranks count from 0 to {size - 1}")
            return rank, size
    raise _lib.Error(
        "neither TORCHCOMM_RANK and TORCHCOMM_SIZE nor RANK and WORLD_SIZE are set: start the program by torchrun"
    )


def _own_store(rank: int, timeout: Any) -> tuple[Any, bool]:
    """The store at MASTER_ADDR, and whether it is ours alone, so that it must end before the next one begins."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not host or not port:
        raise _lib.Error("new_comm() got no store, and MASTER_ADDR and MASTER_PORT are not set: start it by torchrun")
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's, which stays
    options = {} if timeout is None else {"timeout": timeout}
    is_master = rank == 0 and not agents
    store = torch.distributed.TCPStore(host, int(port), is_master=is_master, wait_for_workers=False, **options)
    return store, not agents


# What split() hands to init() of the new backend, on the same thread: its communicator, rank, size and parent.
_split = threading.local()


class Backend(torchcomms.TorchCommBackend):  # type: ignore[misc]
    """One communicator. Methods and their arguments are torchcomms'; they return None, or a Work for async_op."""

    def __init__(self) -> None:
        super().__init__()
        self._comm = 0
        self._name = ""
        self._rank, self._size = -1, 0
        self._timeout: Any = None

    # ---- life

    def init(self, device: Any, name: str, options: Any) -> None:
        self._timeout = getattr(options, "timeout", None)
        self._has_own_stream = _wants_own_stream(name, options)
        self._given_device = device
        part, _split.part = getattr(_split, "part", None), None
        if part is not None:
            comm, rank, size, parent = part
            self._begin(parent._nccl, comm, rank, size, parent._device, name)
            return
        rank, size = _rank_and_size()
        index = _index_of(name, device, rank)
        store, is_ours = options.store, False
        if store is None:
            store, is_ours = _own_store(rank, self._timeout)
        nccl = _nccl.Nccl()
        key = f"libshunt_torchcomms_{name}"
        if rank == 0:
            store.set(key, nccl.unique_id().hex())
        text = store.get(key)
        unique_id = bytes.fromhex(text.decode() if isinstance(text, bytes) else text)
        torch.cuda.set_device(index)
        self._begin(nccl, nccl.init_rank(size, unique_id, rank), rank, size, torch.device("cuda", index), name)
        if rank == 0:
            # All have read it. The next communicator of this name begins anew.
            with contextlib.suppress(NotImplementedError, RuntimeError, AttributeError):
                store.delete_key(key)
        if is_ours:
            del store
            self.barrier(False)

    def _begin(self, nccl: _nccl.Nccl, comm: int, rank: int, size: int, device: Any, name: str) -> None:
        self._nccl, self._comm, self._name, self._device = nccl, comm, name, device
        self._rank, self._size = rank, size
        self._stream: Any = None
        self._word: Any = None

    def finalize(self) -> None:
        """Waits for what was enqueued on the communicator's own stream, and ends it."""
        comm = self._live()
        if self._stream is not None:
            self._stream.synchronize()
        torch.cuda.current_stream(self._device).synchronize()
        self._comm = 0
        self._nccl.CommDestroy(comm)

    def split(self, ranks: Sequence[int], name: str, options: Any) -> Backend | None:
        """All ranks call it. ranks: those of the new communicator, in their order; none: this rank is in none."""
        comm = self._live()
        if len(set(ranks)) != len(ranks) or any(not 0 <= rank < self._size for rank in ranks):
            raise _lib.Error(
                f"split of {self._name}: {list(ranks)} is no list of different ranks from 0 to {self._size - 1}"
            )
        if ranks and self._rank not in ranks:
            raise _lib.Error(
                f"split of {self._name}: rank {self._rank} is not in {list(ranks)}; "
                "a rank that stays out passes an empty list"
            )
        color, key = (min(ranks), list(ranks).index(self._rank)) if ranks else (_NO_COLOR, 0)
        child = self._nccl.split(comm, color, key)
        if child is None:
            return None
        # Only what new_comm() makes has a device and options in torchcomms' own eyes.
        hints = {**self._hints_of_own(), **options.hints}
        _split.part = child, key, len(ranks), self
        try:
            part = torchcomms.new_comm(NAME, self._given_device, name=name, timeout=options.timeout, hints=hints)
        except BaseException:
            self._nccl.CommAbort(child)
            raise
        finally:
            _split.part = None
        backend: Backend = part.get_backend_impl()
        return backend

    def _hints_of_own(self) -> dict[str, str]:
        return {_OWN_STREAM: "1"} if self._has_own_stream else {}

    def get_rank(self) -> int:
        return self._rank

    def get_size(self) -> int:
        return self._size

    def get_backend_name(self) -> str:
        return NAME

    def get_comm_name(self) -> str:
        return self._name

    def set_timeout(self, timeout: Any) -> None:
        """Of torchcomms' own waits. Those for peers are SHUNT_TIMEOUT's."""
        self._timeout = timeout

    def handle(self) -> int:
        """The ncclComm_t, as libshunt.describe() takes it."""
        return self._live()

    # ---- what all operations need

    def _live(self) -> int:
        if not self._comm:
            raise _lib.Error(f"communicator {self._name or NAME} is not initialized, or finalized already")
        return self._comm

    def _check(self, what: str, *tensors: Any) -> None:
        self._live()
        for tensor in tensors:
            if (tensor.device.type, tensor.device.index) != (self._device.type, self._device.index):
                raise _lib.Error(
                    f"{what}: a tensor is on {tensor.device}, and communicator {self._name} on {self._device}"
                )
            if not tensor.is_contiguous():
                raise _lib.Error(f"{what}: a tensor is not contiguous; pass tensor.contiguous()")
            if tensor.dtype != tensors[0].dtype:
                raise _lib.Error(f"{what}: tensors of {tensors[0].dtype} and {tensor.dtype}; all must be of one type")

    def _check_count(self, what: str, tensors: Sequence[Any], numel: int | None = None) -> None:
        """A tensor for each rank; numel: each of so many elements."""
        if len(tensors) != self._size:
            raise _lib.Error(f"{what}: {len(tensors)} tensors for {self._size} ranks")
        for tensor in tensors:
            if numel is not None and tensor.numel() != numel:
                raise _lib.Error(f"{what}: a tensor has {tensor.numel()} elements, expected {numel}")

    def _check_whole(self, what: str, whole: Any, part: Any) -> None:
        if whole.numel() != part.numel() * self._size:
            raise _lib.Error(
                f"{what}: {whole.numel()} elements are not {self._size} times {part.numel()}, one part for each rank"
            )

    def _check_peer(self, what: str, rank: int) -> None:
        if not 0 <= rank < self._size:
            raise _lib.Error(f"{what}: there is no rank {rank} in {self._name}, which has {self._size}")

    def _issue(self, async_op: bool, call: Callable[[int], None], *tensors: Any) -> Work | None:
        current = torch.cuda.current_stream(self._device)
        if not async_op or not self._has_own_stream:
            call(current.cuda_stream)
            return None
        if self._stream is None:
            self._stream = torch.cuda.Stream(device=self._device)
        self._stream.wait_stream(current)
        call(self._stream.cuda_stream)
        for tensor in tensors:
            tensor.record_stream(self._stream)
        event = torch.cuda.Event()
        event.record(self._stream)
        return Work(event, self._device, tensors)

    def _call(self, name: str, async_op: bool, arguments: tuple[object, ...], *tensors: Any) -> Work | None:
        """One of NCCL's functions, which takes the communicator and the stream behind these arguments."""
        return self._issue(async_op, lambda stream: getattr(self._nccl, name)(*arguments, self._comm, stream), *tensors)

    @contextlib.contextmanager
    def _group(self) -> Iterator[None]:
        self._nccl.GroupStart()
        try:
            yield
        finally:
            self._nccl.GroupEnd()

    @contextlib.contextmanager
    def _operator(self, op: Any, dtype: Any) -> Iterator[int]:
        """NCCL's number of an operator, for as long as the block."""
        kind = op.type.name
        if kind in _OPERATORS:
            yield _names.redop_number(_OPERATORS[kind])
            return
        if kind != _PREMUL_SUM:
            raise _lib.Error(f"NCCL has no operator {kind}: use one of {', '.join([*_OPERATORS, _PREMUL_SUM])}")
        factor = _factor_of(op)
        is_tensor = hasattr(factor, "data_ptr")
        if is_tensor:
            self._check("PREMUL_SUM", factor)
            if factor.dtype != dtype or factor.numel() != 1:
                raise _lib.Error(f"PREMUL_SUM: the factor must be one element of {dtype}, or a number")
        else:
            factor = torch.tensor([factor], dtype=dtype)
        number = ctypes.c_int()
        place = _ON_DEVICE if is_tensor and factor.device.type != "cpu" else _ON_HOST
        self._nccl.RedOpCreatePreMulSum(
            ctypes.byref(number), factor.data_ptr(), _names.dtype_number(dtype), place, self._live()
        )
        try:
            yield number.value
        finally:
            self._nccl.RedOpDestroy(number.value, self._comm)

    # ---- collectives

    def all_reduce(self, tensor: Any, op: Any, async_op: bool) -> Work | None:
        self._check("all_reduce", tensor)
        number, at = _names.dtype_number(tensor.dtype), tensor.data_ptr()
        with self._operator(op, tensor.dtype) as operator:
            return self._call("AllReduce", async_op, (at, at, tensor.numel(), number, operator), tensor)

    def reduce(self, tensor: Any, root: int, op: Any, async_op: bool) -> Work | None:
        """Into the root's tensor."""
        self._check("reduce", tensor)
        self._check_peer("reduce", root)
        number, at = _names.dtype_number(tensor.dtype), tensor.data_ptr()
        to = at if root == self._rank else None
        with self._operator(op, tensor.dtype) as operator:
            return self._call("Reduce", async_op, (at, to, tensor.numel(), number, operator, root), tensor)

    def broadcast(self, tensor: Any, root: int, async_op: bool) -> Work | None:
        self._check("broadcast", tensor)
        self._check_peer("broadcast", root)
        number, at = _names.dtype_number(tensor.dtype), tensor.data_ptr()
        return self._call("Broadcast", async_op, (at, at, tensor.numel(), number, root), tensor)

    def barrier(self, async_op: bool) -> Work | None:
        """Orders streams: what comes later on this one comes after what came before on all ranks'.

        The host waits, too, unless async_op: programs for torch.distributed count on that.
        """
        self._live()
        if self._word is None:
            with torch.cuda.device(self._device):
                self._word = torch.tensor([0.0], dtype=torch.float32, device=self._device)
        work = self.all_reduce(self._word, torchcomms.ReduceOp.SUM, async_op)
        if not async_op and not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(self._device).synchronize()
        return work

    def all_gather_single(self, output: Any, input: Any, async_op: bool) -> Work | None:
        self._check("all_gather_single", output, input)
        self._check_whole("all_gather_single", output, input)
        number = _names.dtype_number(input.dtype)
        return self._call(
            "AllGather", async_op, (input.data_ptr(), output.data_ptr(), input.numel(), number), output, input
        )

    def all_gather(self, tensor_list: Sequence[Any], tensor: Any, async_op: bool) -> Work | None:
        self._check_count("all_gather", tensor_list, tensor.numel())
        return self.all_gather_v(tensor_list, tensor, async_op)

    def all_gather_v(self, tensor_list: Sequence[Any], tensor: Any, async_op: bool) -> Work | None:
        """As many broadcasts as ranks."""
        self._check("all_gather_v", tensor, *tensor_list)
        self._check_count("all_gather_v", tensor_list)
        if tensor_list[self._rank].numel() != tensor.numel():
            raise _lib.Error(
                f"all_gather_v: rank {self._rank} gives {tensor.numel()} elements, "
                f"and its place has {tensor_list[self._rank].numel()}"
            )
        number = _names.dtype_number(tensor.dtype)

        def call(stream: int) -> None:
            with self._group():
                for root, output in enumerate(tensor_list):
                    source = tensor if root == self._rank else output
                    self._nccl.Broadcast(
                        source.data_ptr(), output.data_ptr(), output.numel(), number, root, self._comm, stream
                    )

        return self._issue(async_op, call, tensor, *tensor_list)

    def reduce_scatter_single(self, output: Any, input: Any, op: Any, async_op: bool) -> Work | None:
        self._check("reduce_scatter_single", output, input)
        self._check_whole("reduce_scatter_single", input, output)
        number = _names.dtype_number(input.dtype)
        with self._operator(op, input.dtype) as operator:
            return self._call(
                "ReduceScatter",
                async_op,
                (input.data_ptr(), output.data_ptr(), output.numel(), number, operator),
                output,
                input,
            )

    def reduce_scatter(self, output: Any, input_list: Sequence[Any], op: Any, async_op: bool) -> Work | None:
        self._check_count("reduce_scatter", input_list, output.numel())
        return self.reduce_scatter_v(output, input_list, op, async_op)

    def reduce_scatter_v(self, output: Any, input_list: Sequence[Any], op: Any, async_op: bool) -> Work | None:
        """As many reductions as ranks."""
        self._check("reduce_scatter_v", output, *input_list)
        self._check_count("reduce_scatter_v", input_list)
        if input_list[self._rank].numel() != output.numel():
            raise _lib.Error(
                f"reduce_scatter_v: rank {self._rank} gets {input_list[self._rank].numel()} elements, "
                f"and its output has {output.numel()}"
            )
        number = _names.dtype_number(output.dtype)

        with self._operator(op, output.dtype) as operator:

            def call(stream: int) -> None:
                with self._group():
                    for root, part in enumerate(input_list):
                        to = output.data_ptr() if root == self._rank else None
                        self._nccl.Reduce(part.data_ptr(), to, part.numel(), number, operator, root, self._comm, stream)

            return self._issue(async_op, call, output, *input_list)

    def all_to_all_single(self, output: Any, input: Any, async_op: bool) -> Work | None:
        self._check("all_to_all_single", output, input)
        if output.numel() != input.numel() or input.numel() % self._size:
            raise _lib.Error(
                f"all_to_all_single: {input.numel()} elements to {output.numel()}; both must be the same multiple of "
                f"the {self._size} ranks"
            )
        number, count = _names.dtype_number(input.dtype), input.numel() // self._size
        return self._call("AlltoAll", async_op, (input.data_ptr(), output.data_ptr(), count, number), output, input)

    def all_to_all_v_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        async_op: bool,
    ) -> Work | None:
        """Sizes are those of the first dimension."""
        self._check("all_to_all_v_single", output, input)
        places = []
        for tensor, sizes, side in ((output, output_split_sizes, "output"), (input, input_split_sizes, "input")):
            if len(sizes) != self._size or sum(sizes) > tensor.size(0):
                raise _lib.Error(
                    f"all_to_all_v_single: {side}_split_sizes {list(sizes)} for {self._size} ranks and a tensor of "
                    f"{tensor.size(0)} rows"
                )
            row = tensor.numel() // tensor.size(0) if tensor.numel() else 0
            at, parts = tensor.data_ptr(), []
            for size in sizes:
                parts.append((at, size * row))
                at += size * row * tensor.element_size()
            places.append(parts)
        return self._exchange(places[1], places[0], input.dtype, async_op, output, input)

    def all_to_all(
        self, output_tensor_list: Sequence[Any], input_tensor_list: Sequence[Any], async_op: bool
    ) -> Work | None:
        self._check("all_to_all", *input_tensor_list, *output_tensor_list)
        self._check_count("all_to_all", output_tensor_list)
        self._check_count("all_to_all", input_tensor_list)
        sends = [(tensor.data_ptr(), tensor.numel()) for tensor in input_tensor_list]
        receives = [(tensor.data_ptr(), tensor.numel()) for tensor in output_tensor_list]
        tensors = (*output_tensor_list, *input_tensor_list)
        return self._exchange(sends, receives, input_tensor_list[0].dtype, async_op, *tensors)

    def scatter(self, output_tensor: Any, input_tensor_list: Sequence[Any], root: int, async_op: bool) -> Work | None:
        self._check("scatter", output_tensor, *input_tensor_list)
        self._check_peer("scatter", root)
        sends: list[tuple[int, int] | None] = [None] * self._size
        if root == self._rank:
            self._check_count("scatter", input_tensor_list, output_tensor.numel())
            sends = [(tensor.data_ptr(), tensor.numel()) for tensor in input_tensor_list]
        receives: list[tuple[int, int] | None] = [None] * self._size
        receives[root] = (output_tensor.data_ptr(), output_tensor.numel())
        return self._exchange(sends, receives, output_tensor.dtype, async_op, output_tensor, *input_tensor_list)

    def gather(self, output_tensor_list: Sequence[Any], input_tensor: Any, root: int, async_op: bool) -> Work | None:
        self._check("gather", input_tensor, *output_tensor_list)
        self._check_peer("gather", root)
        receives: list[tuple[int, int] | None] = [None] * self._size
        if root == self._rank:
            self._check_count("gather", output_tensor_list, input_tensor.numel())
            receives = [(tensor.data_ptr(), tensor.numel()) for tensor in output_tensor_list]
        sends: list[tuple[int, int] | None] = [None] * self._size
        sends[root] = (input_tensor.data_ptr(), input_tensor.numel())
        return self._exchange(sends, receives, input_tensor.dtype, async_op, input_tensor, *output_tensor_list)

    def send(self, tensor: Any, dst: int, async_op: bool) -> Work | None:
        self._check("send", tensor)
        self._check_peer("send", dst)
        number = _names.dtype_number(tensor.dtype)
        return self._call("Send", async_op, (tensor.data_ptr(), tensor.numel(), number, dst), tensor)

    def recv(self, tensor: Any, src: int, async_op: bool) -> Work | None:
        self._check("recv", tensor)
        self._check_peer("recv", src)
        number = _names.dtype_number(tensor.dtype)
        return self._call("Recv", async_op, (tensor.data_ptr(), tensor.numel(), number, src), tensor)

    def _exchange(
        self,
        sends: Sequence[tuple[int, int] | None],
        receives: Sequence[tuple[int, int] | None],
        dtype: Any,
        async_op: bool,
        *tensors: Any,
    ) -> Work | None:
        """Address and elements for each rank; None: nothing to or from it."""
        number = _names.dtype_number(dtype)

        def call(stream: int) -> None:
            with self._group():
                for rank, (out, into) in enumerate(zip(sends, receives, strict=True)):
                    if out is not None:
                        self._nccl.Send(*out, number, rank, self._comm, stream)
                    if into is not None:
                        self._nccl.Recv(*into, number, rank, self._comm, stream)

        return self._issue(async_op, call, *tensors)


_remember_factors(torchcomms.ReduceOp)
torchcomms.register_backend(NAME, Backend)
