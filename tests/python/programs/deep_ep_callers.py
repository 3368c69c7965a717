# SPDX-License-Identifier: MIT
"""
What vLLM, SGLang and Megatron-Core call of `deep_ep`, in their order, with values that have one right answer. The tests
run these programs on the sim with a stand-in for PyTorch, tests/gpu/deep_ep_callers.py with PyTorch on GPUs: they use
what both have.
"""

from __future__ import annotations

import random
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
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    kept: list[Any] = []

    def step() -> None:
        rows, count, handle, _, hook = buffer.low_latency_dispatch(x, topk_idx, most, job.experts, use_fp8=False,
                                                                   return_recv_hook=True)  # fmt: skip
        hook()
        out, _, hook = buffer.low_latency_combine(y, topk_idx, weights, handle, return_recv_hook=True)
        hook()
        kept[:] = [rows, count, handle, out]

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    job.gather(None)
    with torch.cuda.graph(graph, stream=stream):
        step()
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


PROGRAMS: list[Callable[[Job], None]] = [
    vllm_low_latency,
    vllm_fault_tolerance,
    sglang_low_latency,
    captured,
    two_buffers,
]
