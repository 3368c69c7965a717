# SPDX-License-Identifier: MIT
"""
DeepEP's Buffer over a group of shunt/ep.h: checks, tensors, streams.

Streams: without a hook, kernels run on the Buffer's own stream. It waits for previous_event, or for the current stream;
then the current stream waits for it, or with async_finish the event that is returned does. With a hook all runs on the
stream that was current at the call.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from libshunt import _arguments, _fork, _lib, _nccl
from libshunt.deep_ep import _call, config
from libshunt.deep_ep.config import Config
from libshunt.deep_ep.events import EventHandle, EventOverlap

_NUMBERS = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}  # NCCL's
_SWITCHES = ("low_latency_mode", "enable_shrink")


def _gather_of(group: Any, comm: Any) -> tuple[int, int, Callable[[Any], list[Any]]]:
    """This rank, how many there are, and a function that brings an object of each rank to all."""
    if group is not None:
        size = int(group.size())

        def gather(mine: Any) -> list[Any]:
            found: list[Any] = [None] * size
            torch.distributed.all_gather_object(found, mine, group)
            return found

        return int(group.rank()), size, gather
    if comm is None:
        raise _arguments.ArgumentError("group is None, and so is comm: pass a process group, or mpi4py's communicator")
    return int(comm.Get_rank()), int(comm.Get_size()), comm.allgather


def _same_on_all(rows: list[dict[str, Any]]) -> None:
    """Raises the same on all ranks."""
    for rank, row in enumerate(rows):
        if row["wrong"]:
            raise _arguments.ArgumentError(f"{row['wrong']} (on rank {rank})")
    for rank, row in enumerate(rows):
        for name, value in row.items():
            if name not in ("id", "host") and value != rows[0][name]:
                raise _arguments.ArgumentError(
                    f"{name} is {value} on rank {rank}, and {rows[0][name]} on rank 0: it is the same on all ranks"
                )


def _at(tensor: Any) -> int:
    return 0 if tensor is None else int(tensor.data_ptr())


class Handle(tuple[Any, ...]):
    """What low_latency_dispatch() returns for low_latency_combine(): DeepEP's five items, and all tokens' experts."""

    group: int
    routing: Any
    topk: int
    next_x: Any = None  # of get_next_low_latency_combine_buffer()


class Buffer:
    """
    The memory and the calls of an expert parallel group; all ranks make it together, on one device each.

    num_nvl_bytes is for normal mode, num_rdma_bytes, with low_latency_mode, for low latency mode; over hosts, too. More
    than Shunt can use is not allocated. The group ends with destroy(), or with the last reference, which waits for no
    peer.
    """

    num_sms: int = 20

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
    ) -> None:
        self.rank, self.group_size, gather = _gather_of(group, comm)
        self.group = comm if group is None else group
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.explicitly_destroy = low_latency_mode, explicitly_destroy
        self.enable_shrink = enable_shrink
        # A rank whose arguments are wrong comes, too, so that no other waits for it.
        mine: dict[str, Any] = {
            "wrong": "",
            "id": None,
            "host": _call.host(),
            "num_nvl_bytes": num_nvl_bytes,
            "num_rdma_bytes": num_rdma_bytes,
            **{name: bool(getattr(self, name)) for name in _SWITCHES},
        }
        try:
            if _nccl.device_kind() == "sim" and os.environ.get("SHUNT_DEVICE") != "sim":
                raise _lib.Error("Shunt is on the sim here, where a GPU's tensors are of no use: set SHUNT_DEVICE=cuda")
            for name in "num_nvl_bytes", "num_rdma_bytes":
                mine[name] = _arguments.integer(name, mine[name], 0, _arguments.MOST_BYTES)
            _call.normal_bytes(self.group_size)  # which checks the number of ranks
            mine["id"] = None if self.rank else _call.new_id()
        except _lib.Error as error:
            mine["wrong"] = str(error)
        rows = gather(mine)
        _same_on_all(rows)
        one = rows[0]["host"] is not None and all(row["host"] == rows[0]["host"] for row in rows)
        self._one_host = one
        self._normal_bytes = min(num_nvl_bytes, _call.normal_bytes(self.group_size, one_host=one))
        plain = _call.low_latency_bytes(self.group_size, one_host=one)
        most = _call.low_latency_bytes(self.group_size, one_host=one, masks=enable_shrink)
        # The hint knows nothing of enable_shrink, with which the same calls over hosts need more.
        self._ll_bytes = min(num_rdma_bytes * most // plain, most) if low_latency_mode else 0
        self._device = int(torch.cuda.current_device())
        made = _call.Group(rows[0]["id"], self.group_size, self.rank, self._device, bool(enable_shrink),
                           self._normal_bytes, self._ll_bytes)  # fmt: skip
        self._group = made
        # At the interpreter's end, too. Peers may be in the middle of a call, or have no more to do with this rank.
        self._end = weakref.finalize(self, _call.end, made.handle, True, _fork.generation())
        self._stream = torch.cuda.Stream(device=self._device, priority=-1)
        self._local: dict[bool, Any] = {}
        self._fitting: set[tuple[int, int]] = set()

    def destroy(self) -> None:
        """Waits for this rank's calls."""
        if not self.explicitly_destroy:
            raise _arguments.ArgumentError("explicitly_destroy is False: destroy() is for a Buffer made with True")
        asked = self._end.detach()
        if asked:
            _call.end(self._group.handle, False, asked[2][2])

    # ---- what needs no group

    @staticmethod
    def is_sm90_compiled() -> bool:
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Blocks of a call in normal mode, unless its config says another number."""
        if _arguments.integer("new_num_sms", new_num_sms, 0, config.MOST_SMS) % 2:
            _arguments.wrong("new_num_sms", new_num_sms, "an even number")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event of what is on the current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return config.recommended(num_ranks, Buffer.num_sms, 0)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return config.recommended(num_ranks, Buffer.num_sms, 1)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes for num_rdma_bytes. They do not depend on the number of experts."""
        name = "num_max_dispatch_tokens_per_rank"
        tokens = _arguments.integer(name, num_max_dispatch_tokens_per_rank, 1, _call.MOST_TOKENS)
        _arguments.integer("hidden", hidden, 1, _call.MOST_HIDDEN)
        return _call.low_latency_bytes(num_ranks, tokens, hidden)

    # ---- checks

    def _check(self, name: str, tensor: Any, dtype: Any, *shape: int | None, strided: bool = False) -> None:
        """A tensor of this shape, in which None is any number; dtype: one, a tuple, or None, which is any."""
        try:
            got = tuple(tensor.shape)
            right = (
                (dtype is None or (tensor.dtype in dtype if type(dtype) is tuple else tensor.dtype == dtype))
                and len(got) == len(shape)
                and tensor.get_device() == self._device
                and (strided or tensor.is_contiguous())
            )
        except AttributeError:
            _arguments.wrong(name, tensor, f"a tensor, not {type(tensor).__name__}")
        if right:
            for have, wanted in zip(got, shape, strict=True):
                if wanted is not None and have != wanted:
                    break
            else:
                return
        dims = ", ".join("any" if n is None else str(n) for n in shape)
        kinds = " or ".join(str(one) for one in dtype) if type(dtype) is tuple else str(dtype or "any type")
        raise _arguments.ArgumentError(
            f"{name} is {tensor.dtype} [{', '.join(map(str, got))}] with strides {tuple(tensor.stride())} on "
            f"{tensor.device}: it is {kinds} [{dims}], {'' if strided else 'contiguous, '}on cuda:{self._device}"
        )

    def _experts(self, num_experts: int) -> int:
        """How many of them are on each rank."""
        experts = _arguments.integer("num_experts", num_experts, 1, _call.MOST_EXPERTS)
        if experts % self.group_size:
            _arguments.wrong("num_experts", num_experts, f"a multiple of the group's {self.group_size} ranks")
        return experts // self.group_size

    def _topk(self, topk_idx: Any, tokens: int) -> int:
        self._check("topk_idx", topk_idx, torch.int64, tokens, None)
        topk: int = topk_idx.shape[1]
        if not 1 <= topk <= _call.MOST_TOPK:
            _arguments.wrong("topk_idx.shape[1]", topk, f"from 1 to {_call.MOST_TOPK}")
        return topk

    def _room(self, tokens: int, hidden: int) -> None:
        if (tokens, hidden) in self._fitting:
            return
        needed = _call.low_latency_bytes(self.group_size, tokens, hidden, self._one_host)
        if self._ll_bytes < _call.low_latency_bytes(
            self.group_size, tokens, hidden, self._one_host, self.enable_shrink
        ):
            what = "num_rdma_bytes" if self.low_latency_mode else "low_latency_mode is False, and num_rdma_bytes"
            _arguments.wrong(what, self.num_rdma_bytes, f"at least {needed} for {tokens} tokens of {hidden} elements "
                             "(get_low_latency_rdma_size_hint())")  # fmt: skip
        self._fitting.add((tokens, hidden))

    # ---- streams

    def _enter(self, previous_event: Any, async_finish: bool, allocate_on_comm_stream: bool) -> Any:
        """The current stream, which the Buffer's own has waited for, or for the event."""
        event = getattr(previous_event, "event", None)
        if allocate_on_comm_stream and (event is None or not async_finish):
            _arguments.wrong("allocate_on_comm_stream", True, "for calls with a previous_event and async_finish")
        current = torch.cuda.current_stream(self._device)
        if event is not None:
            self._stream.wait_event(event.event)
        elif current.cuda_stream != self._stream.cuda_stream:
            self._stream.wait_stream(current)
        return current

    def _leave(self, current: Any, async_finish: bool) -> EventHandle | None:
        if async_finish:
            return EventHandle(self._stream)
        if current.cuda_stream != self._stream.cuda_stream:
            current.wait_stream(self._stream)
        return None

    def get_comm_stream(self) -> Any:
        return self._stream

    def _current(self) -> int:
        stream: int = torch.cuda.current_stream(self._device).cuda_stream
        return stream

    # ---- normal mode

    def _allocating(self, on_comm_stream: bool) -> Any:
        return torch.cuda.stream(self._stream) if on_comm_stream else contextlib.nullcontext()

    def _leave_with(self, current: Any, async_finish: bool, on_comm_stream: bool, *tensors: Any) -> EventOverlap:
        """The tensors last until both streams have used them."""
        if async_finish:
            for tensor in tensors:
                if tensor is not None:
                    tensor.record_stream(self._stream)
                    if on_comm_stream:
                        tensor.record_stream(current)
        return EventOverlap(self._leave(current, async_finish))

    def _blocks(self, given: Any, kind: int) -> int:
        made = config.recommended(self.group_size, self.num_sms, kind) if given is None else given
        if not isinstance(made, Config):
            _arguments.wrong("config", given, f"a Config, not {type(given).__name__}")
        if not self._normal_bytes:
            _arguments.wrong("num_nvl_bytes", self.num_nvl_bytes, "what Config.get_nvl_buffer_size_hint() says")
        return min(made.num_sms, _call.MOST_BLOCKS)

    def _routed(self, handle: Any) -> tuple[Any, ...]:
        if not isinstance(handle, (tuple, list)) or len(handle) != 6 or not isinstance(handle[5], tuple):
            _arguments.wrong("handle", type(handle).__name__, "the tuple of six that dispatch() returned")
        if handle[5][0] != self._group.handle:
            raise _arguments.ArgumentError(
                "handle is of another Buffer: it is one that this Buffer's dispatch() returned"
            )
        return tuple(handle)

    def get_dispatch_layout(
        self,
        topk_idx: Any,
        num_experts: int,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, Any, EventOverlap]:
        """
        Counts what goes where: tokens to each rank, to each host (None: there is one), to each expert, and whether a
        token goes to a rank.
        """
        self._check("topk_idx", topk_idx, torch.int64, None, None)
        tokens, size, where = topk_idx.shape[0], self.group_size, self._device
        topk = self._topk(topk_idx, tokens)
        self._experts(num_experts)
        current = self._enter(previous_event, async_finish, allocate_on_comm_stream)
        with self._allocating(allocate_on_comm_stream):
            per_rank = torch.empty((size,), dtype=torch.int32, device=where)
            hosts = self._group.hosts
            per_host = torch.empty((hosts,), dtype=torch.int32, device=where) if hosts > 1 else None
            per_expert = torch.empty((num_experts,), dtype=torch.int32, device=where)
            in_rank = torch.empty((tokens, size), dtype=torch.bool, device=where)
        self._group.layout(self._stream.cuda_stream, topk_idx.data_ptr(), tokens, topk, num_experts,
                           per_rank.data_ptr(), _at(per_host), per_expert.data_ptr(), in_rank.data_ptr())  # fmt: skip
        event = self._leave_with(
            current, async_finish, allocate_on_comm_stream, topk_idx, per_rank, per_host, per_expert, in_rank
        )
        return per_rank, per_host, per_expert, in_rank, event

    def dispatch(
        self,
        x: Any,
        handle: Any = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, list[int] | None, Any, EventOverlap]:
        """
        Sends tokens to the ranks that have their experts, by the layout, or again by a handle. x: rows, or rows and
        their scales. Returns what came, by source rank and token: rows, local experts, weights, the number of rows of
        each local expert, the handle, and an event. Waits for the numbers on the host, unless num_worst_tokens says
        how many rows there can be.
        """
        x, scales = x if isinstance(x, (tuple, list)) else (x, None)
        self._check("x", x, None, None, None)
        tokens, hidden = x.shape
        if scales is not None:
            self._check("x[1]", scales, (torch.float32, torch.int32), tokens, None, strided=True)
        blocks, size, where, empty = self._blocks(config, 0), self.group_size, self._device, torch.empty
        topk, local, group, on_own = 0, 0, self._group, allocate_on_comm_stream
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                _arguments.wrong("topk_idx", "a tensor", "None, as topk_weights is, for calls with a handle")
            prefix, send_row, received, source, is_token_in_rank, (_, experts) = self._routed(handle)
            if send_row.shape[0] != tokens:
                _arguments.wrong("x.shape[0]", tokens, f"{send_row.shape[0]}, as at the dispatch of the handle")
            rows = int(source.shape[0])
        else:
            self._check("num_tokens_per_rank", num_tokens_per_rank, torch.int32, size)
            self._check("is_token_in_rank", is_token_in_rank, torch.bool, tokens, size)
            self._check("num_tokens_per_expert", num_tokens_per_expert, torch.int32, None)
            experts = int(num_tokens_per_expert.shape[0])
            local = self._experts(experts)
            rows = _arguments.integer("num_worst_tokens", num_worst_tokens, 0, (1 << 31) - 1)
            alignment = _arguments.integer("expert_alignment", expert_alignment, 1, _call.MOST_ALIGNMENT)
            if topk_idx is not None:
                topk = self._topk(topk_idx, tokens)
                self._check("topk_weights", topk_weights, torch.float32, tokens, topk)
            elif rows or topk_weights is not None:
                _arguments.wrong("topk_idx", None, "a tensor for calls with topk_weights or num_worst_tokens")
        current = self._enter(previous_event, async_finish, on_own)
        stream, counts = self._stream.cuda_stream, None
        if handle is None:
            with self._allocating(on_own):
                prefix = empty((size, size), dtype=torch.int32, device=where)
                send_row = empty((tokens, size), dtype=torch.int32, device=where)
                received = empty((1,), dtype=torch.int32, device=where)
            came, counts = group.notify(
                local, stream, num_tokens_per_rank.data_ptr(), num_tokens_per_expert.data_ptr(),
                is_token_in_rank.data_ptr(), tokens, experts, alignment, prefix.data_ptr(), send_row.data_ptr(),
                received.data_ptr(), int(not rows))  # fmt: skip
            rows = rows or came
        nscales = 0 if scales is None else int(scales.shape[1])
        out_scales = out_idx = out_weights = None
        with self._allocating(on_own):
            out = empty((rows, hidden), dtype=x.dtype, device=where)
            if scales is not None:
                out_scales = empty((rows, nscales), dtype=scales.dtype, device=where)
            if topk:
                out_idx = empty((rows, topk), dtype=torch.int64, device=where)
                out_weights = empty((rows, topk), dtype=torch.float32, device=where)
            if handle is None:
                source = empty((rows,), dtype=torch.int32, device=where)
        steps = (0, 0) if scales is None else scales.stride()
        group.dispatch(
            stream, prefix.data_ptr(), send_row.data_ptr(), received.data_ptr(), x.data_ptr(),
            hidden * x.element_size(), _at(scales), nscales, steps[0], steps[1], _at(topk_idx), _at(topk_weights),
            tokens, topk, experts, blocks, rows, int(num_worst_tokens > 0), out.data_ptr(), _at(out_scales),
            _at(out_idx), _at(out_weights), 0 if handle is not None else source.data_ptr())  # fmt: skip
        event = self._leave_with(current, async_finish, on_own, x, scales, topk_idx, topk_weights, num_tokens_per_rank,
                                 num_tokens_per_expert, is_token_in_rank, prefix, send_row, received, source, out,
                                 out_scales, out_idx, out_weights)  # fmt: skip
        got = out if scales is None else (out, out_scales)
        if handle is not None:
            return got, None, None, None, None, event
        handle = (prefix, send_row, received, source, is_token_in_rank, (group.handle, experts))
        return got, out_idx, out_weights, counts, handle, event

    def combine(
        self,
        x: Any,
        handle: Any,
        topk_weights: Any = None,
        bias: Any = None,
        config: Config | None = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, EventOverlap]:
        """
        Brings rows back, and adds those of a token: biases first, then rank by rank, without weights. Adds
        topk_weights alike. Returns sums, weights or None, and an event.
        """
        prefix, send_row, _, source, _, _ = self._routed(handle)
        rows, tokens, where, on_own = source.shape[0], send_row.shape[0], self._device, allocate_on_comm_stream
        self._check("x", x, tuple(_NUMBERS), rows, None)
        hidden, topk, blocks = int(x.shape[1]), 0, self._blocks(config, 1)
        if topk_weights is not None:
            self._check("topk_weights", topk_weights, torch.float32, rows, None)
            topk = int(topk_weights.shape[1])
        first, second = bias if isinstance(bias, (tuple, list)) else (bias, None)
        for name, one in ("bias", first), ("bias[1]", second):
            if one is not None:
                self._check(name, one, x.dtype, tokens, hidden)
        current = self._enter(previous_event, async_finish, on_own)
        weights = None
        with self._allocating(on_own):
            out = torch.empty((tokens, hidden), dtype=x.dtype, device=where)
            if topk:
                weights = torch.empty((tokens, topk), dtype=torch.float32, device=where)
        self._group.combine(
            self._stream.cuda_stream, prefix.data_ptr(), send_row.data_ptr(), source.data_ptr(), x.data_ptr(),
            _NUMBERS[x.dtype], rows, hidden, tokens, topk, blocks, _at(topk_weights), _at(first), _at(second),
            out.data_ptr(), _at(weights))  # fmt: skip
        kept = (x, topk_weights, first, second, prefix, send_row, source, out, weights)
        event = self._leave_with(current, async_finish, on_own, *kept)
        return out, weights, event

    # ---- low latency mode

    def _launch(
        self, call: Callable[..., None], values: tuple[int, ...], kept: tuple[Any, ...], async_finish: bool, hook: bool
    ) -> tuple[EventOverlap, Callable[[], None] | None]:
        """kept: the tensors whose addresses are in the values."""
        if hook:
            stream = self._current()
            call(stream, _call.SEND, *values)

            def receive(kept: tuple[Any, ...] = kept) -> None:
                call(stream, _call.RECEIVE, *values)

            return EventOverlap(), receive
        current = self._enter(None, async_finish, False)
        call(self._stream.cuda_stream, _call.SEND | _call.RECEIVE, *values)
        return EventOverlap(self._leave(current, async_finish), kept if async_finish else None), None

    def low_latency_dispatch(
        self,
        x: Any,
        topk_idx: Any,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Any = None,
        dispatch_wait_recv_cost_stats: Any = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Any, Any, Handle, EventOverlap, Callable[[], None] | None]:
        """
        Sends tokens to the ranks of their experts. Returns rows by local expert (with fp8 and their scales), how many
        each has, the handle for low_latency_combine(), an event, and a hook, which receives.
        """
        self._check("x", x, torch.bfloat16, None, None)
        tokens, hidden = x.shape
        topk, local, size = self._topk(topk_idx, tokens), self._experts(num_experts), self.group_size
        name = "num_max_dispatch_tokens_per_rank"
        most = _arguments.integer(name, num_max_dispatch_tokens_per_rank, 1, _call.MOST_TOKENS)
        if tokens > most:
            _arguments.wrong(name, most, f"at least x.shape[0], which is {tokens}")
        if use_ue8m0 and not (use_fp8 and round_scale):
            _arguments.wrong("use_ue8m0", use_ue8m0, "for calls with use_fp8 and round_scale")
        if async_finish and return_recv_hook:
            _arguments.wrong("async_finish", async_finish, "False for calls with return_recv_hook")
        group = 512 if use_ue8m0 else 128
        if not 0 < hidden <= _call.MOST_HIDDEN or hidden % (group if use_fp8 else 8):
            _arguments.wrong("x.shape[1]", hidden, f"a multiple of {group if use_fp8 else 8} up to {_call.MOST_HIDDEN}")
        self._room(most, hidden)
        stats, wait = cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
        if stats is not None:
            self._check("cumulative_local_expert_recv_stats", stats, torch.int32, local)
        if wait is not None:
            self._check("dispatch_wait_recv_cost_stats", wait, torch.int64, size)

        empty, where, slots = torch.empty, self._device, size * most
        recv_x = empty((local, slots, hidden), dtype=torch.float8_e4m3fn if use_fp8 else torch.bfloat16, device=where)
        scales = None
        if use_fp8:  # a slot's scales lie a row apart, as kernels that load them by TMA want it
            kind = torch.int32 if use_ue8m0 else torch.float32
            scales = empty((local, hidden // group, slots), dtype=kind, device=where)
        count = empty((local,), dtype=torch.int32, device=where)
        source = empty((local, slots), dtype=torch.int32, device=where)
        ranges = empty((local, size), dtype=torch.int64, device=where)
        routing = empty((size * most * topk * 2,), dtype=torch.uint8, device=where)
        values = (
            use_fp8 + (use_fp8 and round_scale) + use_ue8m0,
            x.data_ptr(),
            topk_idx.data_ptr(),
            tokens,
            most,
            hidden,
            topk,
            num_experts,
            recv_x.data_ptr(),
            _at(scales),
            count.data_ptr(),
            source.data_ptr(),
            ranges.data_ptr(),
            routing.data_ptr(),
            _at(stats),
            _at(wait),
            0,
        )
        kept = (x, topk_idx, recv_x, scales, count, source, ranges, routing, stats, wait)
        event, hook = self._launch(self._group.ll_dispatch, values, kept, async_finish, return_recv_hook)
        handle = Handle((source, ranges, most, hidden, num_experts))
        handle.group, handle.routing, handle.topk = self._group.handle, routing, topk
        rows = recv_x if scales is None else (recv_x, scales.transpose(1, 2))
        return rows, count, handle, event, hook

    def _handle(self, handle: Any) -> Handle:
        if not isinstance(handle, Handle) or handle.group != self._group.handle:
            what = "of another Buffer" if isinstance(handle, Handle) else f"a {type(handle).__name__}"
            raise _arguments.ArgumentError(
                f"handle is {what}: it is the very object that this Buffer's low_latency_dispatch() returned"
            )
        return handle

    def low_latency_combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: Any,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Any = None,
        combine_wait_recv_cost_stats: Any = None,
    ) -> tuple[Any, EventOverlap, Callable[[], None] | None]:
        """
        Brings rows back, and adds those of a token by its weights. use_logfmt: rows go as they are all the same.
        zero_copy: the rows are in the tensor of get_next_low_latency_combine_buffer(), if there is one.
        """
        handle = self._handle(handle)
        source, ranges, most, hidden, experts = handle
        size, wait = self.group_size, combine_wait_recv_cost_stats
        self._check("x", x, torch.bfloat16, source.shape[0], size * most, hidden)
        if zero_copy and handle.next_x is not None:
            x, handle.next_x = handle.next_x, None
        self._check("topk_idx", topk_idx, torch.int64, None, handle.topk)
        tokens = topk_idx.shape[0]
        self._check("topk_weights", topk_weights, torch.float32, tokens, handle.topk)
        if tokens > most:
            _arguments.wrong("topk_idx.shape[0]", tokens, f"at most {most}, as at dispatch")
        if async_finish and return_recv_hook:
            _arguments.wrong("async_finish", async_finish, "False for calls with return_recv_hook")
        if out is not None:
            self._check("out", out, torch.bfloat16, tokens, hidden)
        else:
            out = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=self._device)
        if wait is not None:
            self._check("combine_wait_recv_cost_stats", wait, torch.int64, size)
        values = (
            _NUMBERS[torch.bfloat16],
            tokens,
            most,
            hidden,
            handle.topk,
            experts,
            x.data_ptr(),
            source.data_ptr(),
            ranges.data_ptr(),
            handle.routing.data_ptr(),
            topk_idx.data_ptr(),
            topk_weights.data_ptr(),
            out.data_ptr(),
            _at(wait),
            0,
        )
        kept = (x, topk_idx, topk_weights, source, ranges, handle.routing, out, wait)
        event, hook = self._launch(self._group.ll_combine, values, kept, async_finish, return_recv_hook)
        return out, event, hook

    def get_next_low_latency_combine_buffer(self, handle: Any) -> Any:
        """A tensor for the rows of the combine with zero_copy."""
        handle = self._handle(handle)
        shape = (handle[0].shape[0], handle[0].shape[1], handle[3])
        handle.next_x = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        return handle.next_x

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing has to be cleaned. With enable_shrink, masks the ranks that do not come here."""
        if self.enable_shrink:
            self._group.barrier(self._current())

    def _need_masks(self) -> None:
        if not self.enable_shrink:
            raise _arguments.ArgumentError("enable_shrink is False: masks are for a Buffer made with True")

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """From here on in the current stream, goes on without the rank (mask), or with it."""
        self._need_masks()
        rank = _arguments.integer("rank_to_mask", rank_to_mask, 0, self.group_size - 1)
        self._group.mask(rank, int(bool(mask)), self._current())

    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        """Writes which ranks are masked: int32 [ranks]."""
        self._need_masks()
        self._check("mask_status", mask_status, torch.int32, self.group_size)
        self._group.masks(mask_status.data_ptr(), self._current())

    def low_latency_clean_mask_buffer(self) -> None:
        self._need_masks()
        self._group.masks_clear(self._current())

    def get_local_buffer_tensor(
        self, dtype: Any, size: Any = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> Any:
        """A tensor as large as the Buffer's memory. It is memory of its own, so writing to it harms nothing."""
        kind = bool(use_rdma_buffer)
        if kind not in self._local:
            nbytes = self._ll_bytes if kind else self._normal_bytes
            self._local[kind] = torch.empty((nbytes // 16 * 16,), dtype=torch.uint8, device=self._device)
        tensor = self._local[kind].view(dtype)
        most = int(tensor.numel())
        tensor = tensor[_arguments.integer("offset", offset, 0, most) :]
        if size is None:
            return tensor
        count = 1
        for length in size:
            count *= length
        if count > most - offset:
            _arguments.wrong("size", tuple(size), f"at most {most - offset} elements")
        return tensor[:count].view(size)
