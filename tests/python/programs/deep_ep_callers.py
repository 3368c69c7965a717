# SPDX-License-Identifier: MIT
"""
What vLLM, SGLang and Megatron-Core call of `deep_ep`, in their order, with values that have one right answer. The tests
run these programs on the sim with a stand-in for PyTorch, tests/gpu/deep_ep_callers.py with PyTorch on GPUs: they use
what both have.
"""

from __future__ import annotations

import concurrent.futures
import random
import threading
from collections.abc import Callable
from typing import Any

import deep_ep
import torch

TOPK, LOCAL = 4, 3  # experts of a token, experts of a rank
Rows = list[list[float]]


class Job:
    """A rank of the programs."""

    def __init__(self, group: Any, gather: Callable[[Any], list[Any]]) -> None:
        self.group, self.gather = group, gather
        self.rank, self.n = int(group.rank()), int(group.size())
        self.experts = LOCAL * self.n

    def tensor(self, values: Any, dtype: Any) -> Any:
        if dtype == torch.float8_e4m3fn:
            return torch.tensor(values, dtype=torch.float32, device="cuda").to(dtype)
        return torch.tensor(values, dtype=dtype, device="cuda")

    def rows(self, values: Any, width: int, dtype: Any) -> Any:
        return self.tensor(values, dtype) if values else torch.empty((0, width), dtype=dtype, device="cuda")


def expect(what: str, got: Any, wanted: Any) -> None:
    while got != wanted and isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
        at = next(i for i, pair in enumerate(zip(got, wanted, strict=True)) if pair[0] != pair[1])
        what, got, wanted = f"{what} [{at}]", got[at], wanted[at]
    if got != wanted:
        raise AssertionError(f"{what}: {str(got)[:300]}, expected {str(wanted)[:300]}")


class Batch:
    """Tokens and their experts on all ranks, the same on each rank that makes it. Elements are alike in groups of 128,
    so that casts to fp8 and back change nothing that a comparison of rounded values would see, and so small that
    bfloat16 has all sums."""

    def __init__(self, job: Job, tokens: int, hidden: int, seed: int, least: int = 0) -> None:
        self.job, self.hidden = job, hidden
        self.counts = [least or max(0, tokens - 2 * rank) for rank in range(job.n)]
        chance = random.Random(seed)
        self.topk = [[self._experts_of(chance) for _ in range(count)] for count in self.counts]
        self.weights = [[[chance.choice((0.5, 1.0)) for _ in range(TOPK)] for _ in row] for row in self.topk]
        self.seed = seed

    def _experts_of(self, chance: random.Random) -> list[int]:
        found = chance.sample(range(self.job.experts), TOPK)
        if not chance.randrange(4):
            found[chance.randrange(TOPK)] = -1
        return found

    def row(self, rank: int, token: int) -> list[float]:
        groups = max(1, self.hidden // 128)
        at = [1.0 + (self.seed + 7 * rank + 3 * token + group) % 7 for group in range(groups)]
        return [at[i * groups // self.hidden] for i in range(self.hidden)]

    def x(self, dtype: Any) -> Any:
        job = self.job
        return job.rows([self.row(job.rank, token) for token in range(self.counts[job.rank])], self.hidden, dtype)

    def topk_idx(self) -> Any:
        return self.job.rows(self.topk[self.job.rank], TOPK, torch.int64)

    def topk_weights(self) -> Any:
        return self.job.rows(self.weights[self.job.rank], TOPK, torch.float32)

    def slots(self, expert: int, ranks: list[int]) -> list[tuple[int, int]]:
        """Source and token of an expert's rows."""
        return [(rank, t) for rank in ranks for t, experts in enumerate(self.topk[rank]) if expert in experts]

    def summed(self, ranks: list[int]) -> Rows:
        """What comes back for this rank's tokens, where an expert multiplies by its number on its rank and 1."""
        me, out = self.job.rank, []
        for token, experts in enumerate(self.topk[me]):
            factor = sum(
                weight * (expert % LOCAL + 1)
                for expert, weight in zip(experts, self.weights[me][token], strict=True)
                if expert >= 0 and expert // LOCAL in ranks
            )
            out.append([factor * value for value in self.row(me, token)])
        return out


# ---- normal mode


class Normal(Batch):
    """What a rank sends in normal mode, and what comes to it."""

    def __init__(self, job: Job, tokens: int, hidden: int, seed: int, least: int = 0) -> None:
        super().__init__(job, tokens, hidden, seed, least)
        self.here = range(job.rank * LOCAL, (job.rank + 1) * LOCAL)
        self.came = [
            (rank, t) for rank in range(job.n) for t, row in enumerate(self.topk[rank]) if set(row) & set(self.here)
        ]

    def dispatch(self, buffer: Any, event: Any, x: Any, alignment: int = 1, **more: Any) -> tuple[Any, ...]:
        """The layout and the dispatch, each with its own of the options; returns what dispatch does."""
        options = {name: more[name] for name in ("async_finish", "allocate_on_comm_stream") if name in more}
        per_rank, per_host, per_expert, in_rank, event = buffer.get_dispatch_layout(
            self.topk_idx(), self.job.experts, previous_event=event, **options
        )
        if not options.get("async_finish"):
            self.check_layout(per_rank, per_host, per_expert, in_rank)
        found: tuple[Any, ...] = buffer.dispatch(
            x, topk_idx=self.topk_idx(), topk_weights=self.topk_weights(), num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_host, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
            expert_alignment=alignment, previous_event=event, **more)  # fmt: skip
        return found

    def check_layout(self, per_rank: Any, per_host: Any, per_expert: Any, in_rank: Any) -> None:
        mine, job = self.topk[self.job.rank], self.job
        goes = [[any(e >= 0 and e // LOCAL == rank for e in row) for rank in range(job.n)] for row in mine]
        expect("num_tokens_per_rank", per_rank.tolist(), [sum(row[rank] for row in goes) for rank in range(job.n)])
        # Over hosts each rank has one of its own.
        hosts = None if per_host is None else per_host.tolist()
        expect("num_tokens_per_rdma_rank", hosts, None if hosts is None else per_rank.tolist())
        expect("is_token_in_rank", in_rank.tolist(), goes)
        counts = [sum(row.count(expert) for row in mine) for expert in range(job.experts)]
        expect("num_tokens_per_expert", per_expert.tolist(), counts)

    def check(self, rows: Any, idx: Any, weights: Any, counts: Any, handle: Any, alignment: int = 1) -> None:
        """What came; with counts None, in outputs with room for more."""
        what, n = f"rank {self.job.rank}: received", len(self.came)
        expect(f"{what} rows", rows.tolist()[:n], [self.row(*one) for one in self.came])
        local = [[e - self.here[0] if e in self.here else -1 for e in self.topk[rank][t]] for rank, t in self.came]
        expect(f"{what} experts", idx.tolist(), local + [[-1] * TOPK] * (len(idx.tolist()) - n))
        given = [self.weights[rank][t] for rank, t in self.came]
        given = [[w if e >= 0 else 0.0 for e, w in zip(*pair, strict=True)] for pair in zip(local, given, strict=True)]
        expect(f"{what} weights", weights.tolist()[:n], given)
        if counts is not None:
            expect(f"{what} counts", counts, [
                -(-sum(row.count(e) for row in local) // alignment) * alignment for e in range(LOCAL)
            ])  # fmt: skip
            expect(f"{what} rows", rows.shape[0], n)
        prefix = [sum(one[0] <= rank for one in self.came) for rank in range(self.job.n)]
        expect(f"{what} prefix", [row[self.job.rank] for row in handle[0].tolist()], prefix)

    def work(self, room: int = 0) -> Any:
        """What the experts here make of the rows that came, with weights."""
        made = []
        for rank, t in self.came:
            pairs = zip(self.topk[rank][t], self.weights[rank][t], strict=True)
            factor = sum(weight * (expert % LOCAL + 1) for expert, weight in pairs if expert in self.here)
            made.append([factor * value for value in self.row(rank, t)])
        made += [[0.0] * self.hidden] * (room - len(made))
        return self.job.rows(made, self.hidden, torch.bfloat16)

    def check_summed(self, out: Any, more: float = 0.0) -> None:
        wanted = [[value + more for value in row] for row in self.summed(list(range(self.job.n)))]
        expect(f"rank {self.job.rank}: sums", out.tolist(), wanted)

    def scales(self, rank: int, token: int) -> list[int]:
        return [1000 * rank + 10 * token + group for group in range(max(1, self.hidden // 128))]

    def quantized(self, kind: Any) -> tuple[Any, Any]:
        """Rows in fp8, and scales whose tokens lie next to each other."""
        rank = self.job.rank
        mine = [self.scales(rank, token) for token in range(self.counts[rank])]
        columns = [list(column) for column in zip(*mine, strict=True)] or [[] for _ in self.scales(0, 0)]
        return self.x(torch.float8_e4m3fn), self.job.tensor(columns, kind).transpose(0, 1)

    def check_quantized(self, rows: Any) -> Any:
        expect("scales", rows[1].tolist(), [self.scales(*one) for one in self.came])
        expect("strides", rows[1].stride(), (rows[1].shape[1], 1))
        return rows[0] if hasattr(rows[0], "buffer") else rows[0].float()


def vllm_high_throughput(job: Job) -> None:
    """Without events, then asynchronous; bfloat16 and fp8; a rank without tokens."""
    buffer = deep_ep.Buffer(group=job.group, num_nvl_bytes=1 << 30, num_rdma_bytes=0, low_latency_mode=False,
                            num_qps_per_rank=1, explicitly_destroy=True)  # fmt: skip
    buffer.set_num_sms(20)
    for seed, tokens, fp8, later in ((40, 9, False, False), (41, 2, False, True), (42, 7, True, True)):
        batch = Normal(job, tokens, 256, seed)
        x = batch.quantized(torch.float32) if fp8 else batch.x(torch.bfloat16)
        rows, idx, weights, counts, handle, event = batch.dispatch(
            buffer, None, x, config=buffer.get_dispatch_config(job.n))  # fmt: skip
        expect("event", event.event, None)
        batch.check(batch.check_quantized(rows) if fp8 else rows, idx, weights, counts, handle)
        out, none, event = buffer.combine(x=batch.work(), handle=handle, topk_weights=None, async_finish=later,
                                          config=buffer.get_combine_config(job.n), previous_event=None,
                                          allocate_on_comm_stream=False)  # fmt: skip
        if later:
            event.current_stream_wait()
        expect("weights", none, None)
        batch.check_summed(out)
    ones = job.rows([[1.0] * 256] * batch.counts[job.rank], 256, torch.bfloat16)
    batch.check_summed(buffer.combine(batch.work(), handle, bias=(ones, ones))[0], 2.0)
    buffer.destroy()


def vllm_two_threads(job: Job) -> None:
    """Two micro-batches on threads and streams of their own, whose calls come in turns, as vLLM's do."""
    buffer, device = deep_ep.Buffer(job.group, 1 << 30, explicitly_destroy=True), torch.cuda.current_device()
    turns = [threading.Semaphore(1), threading.Semaphore(0)]

    def in_turn(me: int, call: Callable[[], Any]) -> Any:
        expect("turn", turns[me].acquire(timeout=50), True)
        made = call()
        turns[1 - me].release()
        return made

    def half(me: int) -> None:
        torch.cuda.set_device(device)
        with torch.cuda.stream(torch.cuda.Stream()):
            for seed in (44, 46):
                batch = Normal(job, 6, 128, seed + me)
                x = batch.x(torch.bfloat16)
                rows, idx, weights, counts, handle, _ = in_turn(me, lambda: batch.dispatch(buffer, None, x))  # noqa: B023
                batch.check(rows, idx, weights, counts, handle)
                y = batch.work()
                batch.check_summed(in_turn(me, lambda: buffer.combine(y, handle))[0])  # noqa: B023

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(half, range(2)))
    buffer.destroy()


def sglang_normal(job: Job) -> None:
    """With events from call to call, tensors of the Buffer's stream, and a Config by its names."""
    names = {"num_sms": 24, "num_max_nvl_chunked_send_tokens": 8, "num_max_nvl_chunked_recv_tokens": 256,
             "num_max_rdma_chunked_send_tokens": 16, "num_max_rdma_chunked_recv_tokens": 128}  # fmt: skip
    config = deep_ep.Config(**names)
    nbytes = max(config.get_nvl_buffer_size_hint(512, job.n), 1)
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(4, 128, job.n, job.experts)
    buffer = deep_ep.Buffer(job.group, nbytes, hint, low_latency_mode=True, num_qps_per_rank=LOCAL, allow_mnnvl=True)
    for seed, later in ((50, True), (51, False)):
        batch, event = Normal(job, 8, 256, seed), deep_ep.Buffer.capture() if later else None
        rows, idx, weights, counts, handle, event = batch.dispatch(
            buffer, event, batch.quantized(torch.int32), 128, async_finish=later, allocate_on_comm_stream=later,
            config=config)  # fmt: skip
        if later:
            event.current_stream_wait()
        batch.check(batch.check_quantized(rows), idx, weights, counts, handle, 128)
        y = batch.work()
        event = deep_ep.Buffer.capture() if later else None
        out, _, event = buffer.combine(y, handle, async_finish=later, previous_event=event,
                                       allocate_on_comm_stream=later, config=config)  # fmt: skip
        if later:
            event.current_stream_wait()
        batch.check_summed(out)
        # The same Buffer decodes.
        buffer.clean_low_latency_buffer(4, 128, job.experts)
        small = Batch(job, 4, 128, seed)
        packed, count, low, _, _ = buffer.low_latency_dispatch(
            small.x(torch.bfloat16), small.topk_idx(), 4, job.experts
        )
        done = experts_work(small, packed, count, list(range(job.n)))
        check_sums(small, buffer.low_latency_combine(done, small.topk_idx(), small.topk_weights(), low)[0],
                   list(range(job.n)))  # fmt: skip


def megatron_fused_a2a(job: Job) -> None:
    """Forward and backward of its two functions, whose handle goes through as a tuple; a Buffer that grows."""
    from deep_ep.utils import EventHandle, EventOverlap

    config, buffer = deep_ep.Buffer.get_dispatch_config(job.n), None
    for seed, later, hidden in ((60, False, 128), (61, True, 512)):
        nbytes = config.get_nvl_buffer_size_hint(2 * hidden, job.n)
        if buffer is None or buffer.group != job.group or buffer.num_nvl_bytes < nbytes or buffer.num_rdma_bytes < 0:
            buffer = deep_ep.Buffer(job.group, nbytes, config.get_rdma_buffer_size_hint(2 * hidden, job.n))
        options = {"async_finish": later, "allocate_on_comm_stream": later}

        def before(later: bool = later) -> Any:
            return EventOverlap(EventHandle()) if later else None

        def wait(event: Any, later: bool = later) -> None:
            if later:
                event.current_stream_wait()

        batch = Normal(job, 8, hidden, seed)
        rows, idx, weights, counts, handle, event = batch.dispatch(buffer, before(), batch.x(torch.bfloat16), **options)
        wait(event)
        batch.check(rows, idx, weights, counts, handle)
        out, _, event = buffer.combine(batch.work(), handle=tuple(handle), previous_event=before(), **options)
        wait(event)
        batch.check_summed(out)
        # Backward of combine: gradients go the way of the tokens. Backward of dispatch: they are added, as weights are.
        x = batch.x(torch.bfloat16)
        again, none_idx, none_weights, none_counts, none_handle, event = buffer.dispatch(
            x, handle=handle, previous_event=before(), **options
        )
        wait(event)
        expect("cached", (none_idx, none_weights, none_counts, none_handle), (None, None, None, None))
        expect("gradients", again.tolist(), rows.tolist())
        grads, grad_weights, event = buffer.combine(
            again, handle, topk_weights=weights, previous_event=before(), **options
        )
        wait(event)
        me, used = job.rank, [len({e // LOCAL for e in row if e >= 0}) for row in batch.topk[job.rank]]
        wanted = [[used[t] * value for value in batch.row(me, t)] for t in range(batch.counts[me])]
        expect("summed gradients", grads.tolist(), wanted)
        given = [
            [w if e >= 0 else 0.0 for e, w in zip(*pair, strict=True)]
            for pair in zip(batch.topk[me], batch.weights[me], strict=True)
        ]
        expect("gradients of weights", grad_weights.tolist(), given)


def captured_step(job: Job, stream: Any, step: Callable[[], None]) -> Any:
    """The graph of it, after all ranks have made it once."""
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    job.gather(None)
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph


def captured_normal(job: Job) -> None:
    """Layout, dispatch and combine in a graph, with room for what may come at most."""
    room, buffer = 4 * job.n, deep_ep.Buffer(job.group, 1 << 30, explicitly_destroy=True)
    first = Normal(job, 4, 128, 70, least=4)
    x, topk_idx, weights = first.x(torch.bfloat16), first.topk_idx(), first.topk_weights()
    y = torch.zeros((room, 128), dtype=torch.bfloat16, device="cuda")
    stream = buffer.get_comm_stream()
    kept: list[Any] = []

    def step() -> None:
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, job.experts)
        rows, idx, got, counts, handle, _ = buffer.dispatch(
            x, topk_idx=topk_idx, topk_weights=weights, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert, num_worst_tokens=room)  # fmt: skip
        expect("counts", counts, [])
        out, _, _ = buffer.combine(y, handle)
        kept[:] = [rows, idx, got, handle, out, per_rank, per_expert, in_rank]

    graph = captured_step(job, stream, step)
    with torch.cuda.stream(stream):
        for seed in range(70, 73):
            batch = Normal(job, 4, 128, seed, least=4)
            x.copy_(batch.x(torch.bfloat16))
            topk_idx.copy_(batch.topk_idx())
            weights.copy_(batch.topk_weights())
            y.copy_(batch.work(room))
            graph.replay()
            stream.synchronize()
            batch.check(*kept[:3], None, kept[3])
            batch.check_summed(kept[4])
    job.gather(None)
    buffer.destroy()


# ---- low latency mode


def dequantized(rows: Any, hidden: int) -> Any:
    """Rows of a low latency dispatch, as lists."""
    if not isinstance(rows, tuple):
        return rows.tolist()
    values, scales = rows[0].tolist() if hasattr(rows[0], "buffer") else rows[0].float().tolist(), rows[1].tolist()
    words = isinstance(scales[0][0][0], int)

    def scale(row: Any, i: int) -> float:
        if not words:
            return float(row[i // 128])
        return float(2.0 ** ((row[i // 512] >> 8 * (i // 128 % 4) & 255) - 127))

    return [
        [[round(v * scale(at, i), 3) for i, v in enumerate(row)] for row, at in zip(*expert, strict=True)]
        for expert in zip(values, scales, strict=True)
    ]


def experts_work(batch: Batch, rows: Any, count: Any, ranks: list[int]) -> Any:
    """Compares what came with what should have come, and does the experts' work."""
    job, got, counts = batch.job, dequantized(rows, batch.hidden), count.tolist()
    for local in range(LOCAL):
        wanted = batch.slots(job.rank * LOCAL + local, ranks)
        expect(f"rank {job.rank}: rows of expert {local}", counts[local], len(wanted))
        for slot, (rank, token) in enumerate(wanted):
            expect(f"rank {job.rank}: expert {local}, slot {slot}", got[local][slot], batch.row(rank, token))
        got[local] = [
            [value * (local + 1) for value in row] if slot < len(wanted) else [0.0] * batch.hidden
            for slot, row in enumerate(got[local])
        ]
    return job.tensor(got, torch.bfloat16)


def check_sums(batch: Batch, out: Any, ranks: list[int]) -> None:
    expect(f"rank {batch.job.rank}: sums", out.tolist(), batch.summed(ranks))


def low_latency_buffer(job: Job, tokens: int, hidden: int, **more: Any) -> Any:
    nbytes = deep_ep.Buffer.get_low_latency_rdma_size_hint(tokens, hidden, job.n, job.experts)
    return deep_ep.Buffer(group=job.group, num_nvl_bytes=1 << 30, num_rdma_bytes=nbytes, low_latency_mode=True,
                          num_qps_per_rank=LOCAL, **more)  # fmt: skip


def vllm_low_latency(job: Job) -> None:
    """Always with hooks at dispatch; two micro-batches in turns."""
    most, hidden, all_ranks = 6, 512, list(range(job.n))
    buffer = low_latency_buffer(job, most, hidden, explicitly_destroy=True, allow_nvlink_for_low_latency_mode=True,
                                allow_mnnvl=False)  # fmt: skip
    for round_scale, use_ue8m0, use_fp8, combine_hook in (
        (False, False, False, True), (False, False, True, False), (True, True, True, True),
    ):  # fmt: skip
        halves = [Batch(job, most, hidden, seed) for seed in (1, 2)]
        calls = [
            buffer.low_latency_dispatch(batch.x(torch.bfloat16), batch.topk_idx(), most, job.experts, use_fp8=use_fp8,
                                        round_scale=round_scale, use_ue8m0=use_ue8m0, async_finish=False,
                                        return_recv_hook=True)
            for batch in halves
        ]  # fmt: skip
        for batch, (rows, count, handle, event, hook) in zip(halves, calls, strict=True):
            expect("event", event.event, None)
            hook()
            done = experts_work(batch, rows, count, all_ranks)
            out = torch.empty((batch.counts[job.rank], hidden), dtype=torch.bfloat16, device="cuda")
            result, _, hook = buffer.low_latency_combine(
                done, batch.topk_idx(), batch.topk_weights(), handle, async_finish=False, zero_copy=False,
                return_recv_hook=combine_hook, out=out)  # fmt: skip
            if combine_hook:
                hook()
            expect("out", result is out, True)
            check_sums(batch, out, all_ranks)
    buffer.destroy()


def vllm_fault_tolerance(job: Job) -> None:
    """The last rank does not take part, then does again."""
    most, hidden, batch = 4, 128, Batch(job, 4, 128, 3)
    buffer = low_latency_buffer(job, most, hidden, explicitly_destroy=True, enable_shrink=True)
    masks = torch.zeros((job.n,), dtype=torch.int32, device="cuda")
    last = job.n - 1

    def one_step(ranks: list[int]) -> None:
        rows, count, handle, _, hook = buffer.low_latency_dispatch(
            batch.x(torch.bfloat16), batch.topk_idx(), most, job.experts, use_fp8=False, return_recv_hook=True
        )
        hook()
        done = experts_work(batch, rows, count, ranks)
        out, _, hook = buffer.low_latency_combine(done, batch.topk_idx(), batch.topk_weights(), handle,
                                                  return_recv_hook=True)  # fmt: skip
        hook()
        check_sums(batch, out, ranks)

    if job.rank != last:
        buffer.low_latency_update_mask_buffer(last, True)
        one_step(list(range(last)))
        buffer.low_latency_query_mask_buffer(masks)
        expect("masks", masks.tolist(), [0] * last + [1])
        buffer.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True).zero_()
        buffer.low_latency_clean_mask_buffer()
        buffer.low_latency_query_mask_buffer(masks)
        expect("masks", masks.tolist(), [0] * job.n)
    buffer.destroy()
    # A rank that comes back makes a Buffer with all others: the numbers of calls are a group's.
    buffer = low_latency_buffer(job, most, hidden, explicitly_destroy=True, enable_shrink=True)
    one_step(list(range(job.n)))
    buffer.clean_low_latency_buffer(most, hidden, job.experts)
    buffer.destroy()


def sglang_low_latency(job: Job) -> None:
    """Events, or hooks that are called while another stream is current; never destroyed."""
    most, hidden, all_ranks = 5, 256, list(range(job.n))
    buffer = low_latency_buffer(job, most, hidden, allow_mnnvl=True)
    expect("group_size", (buffer.group_size, buffer.low_latency_mode), (job.n, True))
    buffer.clean_low_latency_buffer(most, hidden, job.experts)
    stats = torch.zeros((LOCAL,), dtype=torch.int32, device="cuda")
    other, total = torch.cuda.Stream(), [0] * LOCAL
    for number, (with_hook, zero_copy) in enumerate(((False, False), (True, True))):
        batch = Batch(job, most, hidden, 10 + number)
        rows, count, handle, event, hook = buffer.low_latency_dispatch(
            batch.x(torch.bfloat16), batch.topk_idx(), most, job.experts, use_fp8=True,
            async_finish=not with_hook, return_recv_hook=with_hook, round_scale=True, use_ue8m0=False,
            cumulative_local_expert_recv_stats=stats)  # fmt: skip
        if with_hook:
            with torch.cuda.stream(other):
                hook()
        else:
            event.current_stream_wait()
        expect("scales", rows[1].stride(), (job.n * most * hidden // 128, 1, job.n * most))
        done = experts_work(batch, rows, count, all_ranks)
        total = [had + n for had, n in zip(total, count.tolist(), strict=True)]
        expect("stats", stats.tolist(), total)
        if zero_copy:
            buffer.get_next_low_latency_combine_buffer(handle).copy_(done)
        out, event, hook = buffer.low_latency_combine(
            x=done, topk_idx=batch.topk_idx(), topk_weights=batch.topk_weights(), handle=handle,
            async_finish=not with_hook, return_recv_hook=with_hook, zero_copy=zero_copy)  # fmt: skip
        hook() if with_hook else event.current_stream_wait()
        check_sums(batch, out, all_ranks)


def captured(job: Job) -> None:
    """A dispatch and a combine in a graph that is replayed with other tokens."""
    most, hidden, all_ranks = 4, 128, list(range(job.n))
    buffer = low_latency_buffer(job, most, hidden, explicitly_destroy=True)
    first = Batch(job, most, hidden, 20, least=most)
    x, topk_idx, weights = first.x(torch.bfloat16), first.topk_idx(), first.topk_weights()
    y = torch.zeros((LOCAL, job.n * most, hidden), dtype=torch.bfloat16, device="cuda")
    stream = torch.cuda.Stream()
    kept: list[Any] = []

    def step() -> None:
        rows, count, handle, _, hook = buffer.low_latency_dispatch(x, topk_idx, most, job.experts, use_fp8=False,
                                                                   return_recv_hook=True)  # fmt: skip
        hook()
        out, _, hook = buffer.low_latency_combine(y, topk_idx, weights, handle, return_recv_hook=True)
        hook()
        kept[:] = [rows, count, handle, out]

    graph = captured_step(job, stream, step)
    with torch.cuda.stream(stream):
        for seed in range(20, 25):
            batch = Batch(job, most, hidden, seed, least=most)
            x.copy_(batch.x(torch.bfloat16))
            topk_idx.copy_(batch.topk_idx())
            weights.copy_(batch.topk_weights())
            graph.replay()
            stream.synchronize()
            rows, count, _, out = kept
            y.copy_(experts_work(batch, rows, count, all_ranks))
            graph.replay()
            stream.synchronize()
            check_sums(batch, out, all_ranks)
    job.gather(None)
    buffer.destroy()


def two_buffers(job: Job) -> None:
    """Calls of two groups in turns; Buffers are dropped without destroy() while peers may be in the last call."""
    most, hidden, all_ranks = 4, 128, list(range(job.n))
    for last in (False, True):
        buffers = [low_latency_buffer(job, most, hidden, explicitly_destroy=last) for _ in range(2)]
        batches = [Batch(job, most, hidden, seed) for seed in (30, 31)]
        calls = [
            buffer.low_latency_dispatch(batch.x(torch.bfloat16), batch.topk_idx(), most, job.experts, use_fp8=False)
            for buffer, batch in zip(buffers, batches, strict=True)
        ]
        for buffer, batch, (rows, count, handle, _, _) in zip(buffers, batches, calls, strict=True):
            done = experts_work(batch, rows, count, all_ranks)
            out, _, _ = buffer.low_latency_combine(done, batch.topk_idx(), batch.topk_weights(), handle)
            check_sums(batch, out, all_ranks)
        if last:
            for buffer in buffers:
                buffer.destroy()


def dropped(job: Job) -> None:
    """Rank 0 has sent, and has no Buffer any more, when the others begin: they get its rows and write to its memory."""
    batch, buffer = Batch(job, 4, 128, 35), low_latency_buffer(job, 4, 128)
    if job.rank == 0:
        kept = buffer.low_latency_dispatch(batch.x(torch.bfloat16), batch.topk_idx(), 4, job.experts, use_fp8=False,
                                           return_recv_hook=True)  # fmt: skip
        torch.cuda.synchronize()
        buffer = None
        job.gather(None)
        del kept
        return
    job.gather(None)
    rows, count, _, _, _ = buffer.low_latency_dispatch(
        batch.x(torch.bfloat16), batch.topk_idx(), 4, job.experts, use_fp8=False
    )
    experts_work(batch, rows, count, list(range(job.n)))


PROGRAMS: list[Callable[[Job], None]] = [
    vllm_high_throughput,
    vllm_two_threads,
    sglang_normal,
    megatron_fused_a2a,
    captured_normal,
    vllm_low_latency,
    vllm_fault_tolerance,
    sglang_low_latency,
    captured,
    two_buffers,
    dropped,
]
