#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Device memory and time that the first accelerated call of a communicator takes, and of four more groups; run under
torchrun with
libshunt preloaded. Fails above 32 MiB a communicator, above 16 MiB for the kernels' code, which the first one of a
process loads for all, or
above 50 ms. Exit 77: fewer than two GPUs."""
import os
import sys
import time

import torch
import torch.distributed as dist

import gpus

gpus.need("memory")
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
dev = gpus.mine(local)
torch.cuda.set_device(dev)
x = torch.ones(1024, device=dev)
torch.cuda.synchronize()


def used():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info(dev)
    return total - free


before = used()
dist.init_process_group("nccl", device_id=dev)
created = used()
# All ranks arrive together without touching the communicator.
store = dist.distributed_c10d._get_default_store()


def barrier(name):
    store.add(name, 1)
    while int(store.add(name, 0)) < dist.get_world_size():
        time.sleep(0.001)  # pause: poll


barrier("a")
t = time.perf_counter()
dist.all_reduce(x)
torch.cuda.synchronize()
ms = (time.perf_counter() - t) * 1e3
first = used()
GROUPS = 4
groups = [dist.new_group() for _ in range(GROUPS)]
barrier("b")
created2 = used()
for g in groups:
    dist.all_reduce(x, group=g)
second = used()
dist.barrier()
if rank == 0:
    print(f"memory: communicator made {(created - before) / 2**20:.1f} MiB, "
          f"its first all_reduce {(first - created) / 2**20:.1f} MiB and {ms:.1f} ms; "
          f"{GROUPS} more groups {(created2 - first) / 2**20:.1f} MiB, their first all_reduces {(second - created2) / 2**20:.1f} MiB")
ok = "LD_PRELOAD" not in os.environ or (first - created <= 48 << 20 and second - created2 <= GROUPS * (32 << 20) and ms <= 50)
dist.destroy_process_group()
sys.exit(0 if ok else 1)
