#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What PyTorch's all_to_all_single takes for the rows of `shunt bench ep`: the same routing, the same bytes.

  torchrun --nproc-per-node N ep_all_to_all.py [--tokens LIST] [--json FILE]
    Run it with libshunt preloaded and without.

The rows are ready in the order of their ranks, and all ranks know all counts: so a dispatcher that is made of this call
has more to do, as it orders the rows before and after. dispatch: a row of fp8 and its scales for each rank that a token
goes to; combine: a row of bfloat16 for each of these, back. Prints the median of rounds, microseconds a call on the
slowest rank, eager and in a graph. Values are checked. Exit 77: fewer than two GPUs.
"""
import argparse
import json
import os
import sys

import torch
import torch.distributed as dist

import gpus

M64 = (1 << 64) - 1


def random(state):
    """ref_random() of tools/common/reference.c: the next state and the number."""
    state = (state + 0x9e3779b97f4a7c15) & M64
    z = (state ^ state >> 30) * 0xbf58476d1ce4e5b9 & M64
    z = (z ^ z >> 27) * 0x94d049bb133111eb & M64
    return state, z ^ z >> 31


def ranks_of(seed, rank, token, experts, topk, world):
    """The ranks that a token goes to, as tools/common/ep_call.c chooses its experts: each once."""
    state = seed ^ ((rank << 32 | token) + 1) * 0x9e3779b97f4a7c15 & M64 ^ 4 * 0xc2b2ae3d27d4eb4f & M64
    state, _ = random(state)
    state = random(state)[1]
    chosen = []
    while len(chosen) < topk:
        state, number = random(state)
        while number % experts in chosen:
            state, number = random(state)
        chosen.append(number % experts)
        state, _ = random(state)  # the weight
    return {expert // (experts // world) for expert in chosen}


def counts_of(o, tokens, world):
    """[source][to]: rows."""
    counts = [[0] * world for _ in range(world)]
    for source in range(world):
        for token in range(tokens):
            for to in ranks_of(o.seed, source, token, o.experts, o.topk, world):
                counts[source][to] += 1
    return counts


def both_halves(o, tokens, rank, world, dev):
    counts = counts_of(o, tokens, world)
    to, come = counts[rank], [counts[source][rank] for source in range(world)]
    found = {}
    for name, width, dtype, send, receive in (("dispatch", o.hidden + o.hidden // 32, torch.uint8, to, come),
                                              ("combine", o.hidden, torch.bfloat16, come, to)):
        mine = torch.full((sum(send), width), rank + 1, device=dev, dtype=dtype)
        theirs = torch.zeros((sum(receive), width), device=dev, dtype=dtype)
        found[name] = gpus.measure(lambda: dist.all_to_all_single(theirs, mine, receive, send))
        expected = torch.repeat_interleave(torch.arange(1, world + 1), torch.tensor(receive)).to(dev, dtype)
        if not torch.equal(theirs, expected[:, None].expand_as(theirs)):
            sys.exit("rank %d: wrong values: %s of %d tokens" % (rank, name, tokens))
    return found


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--tokens", default="1,8,64,128,512,4096")
    p.add_argument("--hidden", type=int, default=7168)
    p.add_argument("--topk", type=int, default=8)
    p.add_argument("--experts", type=int, default=256)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json")
    o = p.parse_args()
    gpus.need("ep_all_to_all")
    rank, world, local = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    dev = gpus.mine(local)
    torch.cuda.set_device(dev)
    dist.init_process_group("nccl", device_id=dev)
    dist.all_reduce(torch.zeros(1, device=dev))
    results = {}
    for tokens in map(int, o.tokens.split(",")):
        for name, times in both_halves(o, tokens, rank, world, dev).items():
            for calls, us in zip(("eager", "graph"), times):
                results["%s of %d tokens, %s" % (name, tokens, calls)] = us
                if rank == 0:
                    print("%-8s %6d tokens %-5s %10.2f us" % (name, tokens, calls, us), flush=True)
    if rank == 0 and o.json:
        with open(o.json, "w") as f:
            json.dump(results, f)
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
