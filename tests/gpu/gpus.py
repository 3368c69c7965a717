# SPDX-License-Identifier: MIT
"""For scripts beside this one: which GPU a rank has, and what calls take. With SHUNT_MULTI_RANK_GPU=1, and NCCL_MULTI_RANK_GPU_ENABLE=1
for the real NCCL (from 2.30
on), ranks share those that there are: slow, and enough to see whether values and order are right."""
import os
import statistics
import sys

import torch
import torch.distributed as dist

GRAPH_CALLS, ROUNDS = 20, 10


def need(script, n=2):
    """Ends the script if ranks would have to share GPUs, and were not told to."""
    shared = os.environ.get("SHUNT_MULTI_RANK_GPU", "0") not in ("", "0")
    if torch.cuda.device_count() < (1 if shared else n):
        print(f"SKIP {script}: needs {n} GPUs")
        sys.exit(77)


def mine(local):
    return torch.device("cuda", local % torch.cuda.device_count())


def measure(call):
    """Microseconds a call: the median of rounds of GRAPH_CALLS calls on the slowest rank, eager and in a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(5):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(GRAPH_CALLS):
            call()
    medians = []
    for run in (lambda: [call() for _ in range(GRAPH_CALLS)], graph.replay):
        times = []
        for _ in range(ROUNDS + 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            dist.barrier()
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / GRAPH_CALLS)
        slowest = torch.tensor(times[2:], device="cuda")
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        medians.append(statistics.median(slowest.tolist()))
    return medians
