#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Messages of which some are Shunt's and some NCCL's, in one group: run under torchrun, with libshunt preloaded or
without.

  torchrun --nproc-per-node 2 torch_mixed.py

Rank 0 sends a small message and receives a large one in one group (above 256 MB between two ranks it is NCCL's), and
rank 1 makes a call of each, the
small one first; then with the sizes the other way round; then a small and a large broadcast in one group, which a
communicator that does not block
(TORCH_NCCL_USE_COMM_NONBLOCKING=1) launches from a thread of NCCL's. Values are checked. Exit 77: fewer than two GPUs.
"""
import os
import sys

import torch
import torch.distributed as dist

import gpus

gpus.need("torch_mixed")

SMALL, LARGE = 1 << 10, 80 << 20  # of float32


def messages(rank, dev, sent, received, turn):
    """Rank 0 sends `sent` and receives `received` elements at once, rank 1 one after the other."""
    mine, other = (sent, received) if rank == 0 else (received, sent)
    out = torch.full((mine,), float(10 * turn + rank), device=dev)
    into = torch.full((other,), -1.0, device=dev)
    send, recv = dist.P2POp(dist.isend, out, 1 - rank), dist.P2POp(dist.irecv, into, 1 - rank)
    for group in [[send, recv]] if rank == 0 else [[recv], [send]]:
        for work in dist.batch_isend_irecv(group):
            work.wait()
    return bool((into == 10 * turn + 1 - rank).all())


def broadcasts(rank, dev, turn):
    small, large = (torch.full((n,), float(turn if rank == 0 else -1), device=dev) for n in (SMALL, LARGE))
    with dist._coalescing_manager(device=dev, async_ops=True) as work:
        dist.broadcast(small, 0)
        dist.broadcast(large, 0)
    work.wait()
    return bool((small == turn).all() and (large == turn).all())


def main():
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    dev = gpus.mine(local)
    torch.cuda.set_device(dev)
    dist.init_process_group("nccl", device_id=dev)
    good = True
    for turn in range(10):
        if rank < 2:
            good &= messages(rank, dev, SMALL, LARGE, turn)
            good &= messages(rank, dev, LARGE, SMALL, turn)
        good &= broadcasts(rank, dev, turn)
    every = torch.tensor([int(good)], device=dev)
    dist.all_reduce(every, op=dist.ReduceOp.MIN)
    passed = bool(every.item())
    if rank == 0:
        print(f"torch_mixed: {'PASS' if passed else 'FAIL: wrong values'}", flush=True)
    dist.destroy_process_group()
    sys.exit(0 if passed else 1)


main()
