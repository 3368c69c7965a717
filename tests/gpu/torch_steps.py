#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How long the steps of training and inference take, communication beside computation: to be compared between
libraries.

  torchrun --nproc-per-node N torch_steps.py [--only NAME,...] [--steps N] [--json FILE]
    Run it with libshunt preloaded and without, in turns.

Prints a line for each of: the same computation without communication; DDP; FSDP2; tensor parallelism in training (an
all-reduce after each pair
of layers); an all-reduce in the background of one multiplication after the other; and decoding tokens by a tensor-parallel model in a CUDA graph.
A step's time is the slowest rank's, the median of all steps. Exit 77: fewer than two GPUs.
"""
import argparse
import json
import os
import statistics
import sys

import torch
import torch.distributed as dist
from torch import nn

import gpus

gpus.need("torch_steps")

rank, world, local = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
dev = gpus.mine(local)
torch.cuda.set_device(dev)

WIDTH, LAYERS, TOKENS = 4096, 8, 8192


class Block(nn.Module):
    """About what a layer of a model has: two products of WIDTH by 4 WIDTH, and a norm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model():
    torch.manual_seed(1)
    with torch.device(dev):
        return nn.Sequential(*(Block() for _ in range(LAYERS))).to(torch.bfloat16)


def training(net):
    data = torch.randn(TOKENS, WIDTH, device=dev, dtype=torch.bfloat16)

    def step():
        net(data).float().square().mean().backward()
        for p in net.parameters():
            p.grad = None
    return step


def alone():
    return training(model())


def ddp():
    return training(nn.parallel.DistributedDataParallel(model(), device_ids=[dev.index], gradient_as_bucket_view=True))


def fsdp():
    from torch.distributed.fsdp import fully_shard
    net = model()
    for block in net:
        fully_shard(block)
    fully_shard(net)
    return training(net)


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g


class Split(nn.Module):
    """Block, its products split among the ranks."""

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, device=dev, dtype=dtype)
        self.up = nn.Linear(WIDTH, 4 * WIDTH // world, bias=False, device=dev, dtype=dtype)
        self.down = nn.Linear(4 * WIDTH // world, WIDTH, bias=False, device=dev, dtype=dtype)

    def forward(self, x):
        return x + Reduce.apply(self.down(nn.functional.gelu(self.up(Copy.apply(self.norm(x))))))


def tensor_parallel():
    return training(nn.Sequential(*(Split() for _ in range(LAYERS))))


def background(mb):
    """One all-reduce of so many megabytes beside multiplications that take about as long, on the stream of
    PyTorch's."""
    a = torch.randn(8192, 8192, device=dev, dtype=torch.bfloat16)
    out = torch.empty_like(a)
    x = torch.randn(mb << 19, device=dev, dtype=torch.bfloat16)
    times = max(1, mb // 200)

    def step():
        work = dist.all_reduce(x, async_op=True)
        for _ in range(times):
            torch.mm(a, a, out=out)
        work.wait()
    return step


def decode(tokens):
    """A model's answer to so many tokens at once, in a graph: 64 layers, two small all-reduces in each."""
    net = nn.Sequential(*(Split() for _ in range(4))).eval()
    x = torch.randn(tokens, WIDTH, device=dev, dtype=torch.bfloat16)

    @torch.no_grad()
    def run():
        y = x
        for _ in range(32):
            y = net(y)
        return y
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


CASES = {"alone": alone, "ddp": ddp, "fsdp": fsdp, "tensor_parallel": tensor_parallel,
         "background_16M": lambda: background(16), "background_256M": lambda: background(256),
         "decode_1": lambda: decode(1), "decode_16": lambda: decode(16), "decode_64": lambda: decode(64)}


def measure(step, steps):
    """Nothing waits between the steps that are not counted and those that are: a GPU that rested is faster for
    seconds."""
    for _ in range(steps // 2 + 5):
        step()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for m in marks[1:]:
        step()
        m.record()
    torch.cuda.synchronize()
    times = torch.tensor([a.elapsed_time(b) for a, b in zip(marks, marks[1:])], device=dev)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times.tolist()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--only", default=",".join(CASES))
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--json")
    o = p.parse_args()
    dist.init_process_group("nccl", device_id=dev)
    for n in (1, 1 << 20, 1 << 26):
        dist.all_reduce(torch.zeros(n, device=dev))
    results = {}
    for name in o.only.split(","):
        times = measure(CASES[name](), o.steps)
        torch.cuda.empty_cache()
        results[name] = statistics.median(times)
        if rank == 0:
            print(f"{name:16} {results[name]:9.3f} ms a step, {min(times):9.3f} to {max(times):.3f}", flush=True)
    if rank == 0 and o.json:
        with open(o.json, "w") as f:
            json.dump(results, f)
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


main()
