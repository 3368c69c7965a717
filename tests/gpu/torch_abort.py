#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An abort beside a thread that is in cudaFree: run under torchrun, with libshunt preloaded or without.

  torchrun --nproc-per-node 2 torch_abort.py [--within SECONDS]

Rank 0 starts an all-reduce that rank 1 never calls, and a thread of its gives memory back to CUDA, which waits for
the all-reduce and keeps the driver
from all other threads of the process meanwhile. The program's main thread then aborts the process group, as a
watchdog does, and that must end the
all-reduce, the cudaFree and itself within the given time. Exit 77: fewer than two GPUs.
"""
import argparse
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

import gpus

gpus.need("torch_abort")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--within", type=float, default=10)
    o = p.parse_args()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    dev = gpus.mine(local)
    torch.cuda.set_device(dev)
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # nobody but us aborts
    dist.init_process_group("nccl", device_id=dev)
    x = torch.ones(1 << 20, device=dev)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    store = dist.distributed_c10d._get_default_store()
    if rank:
        store.get("over")  # set by rank 0
        os._exit(0)
    big = torch.empty(1 << 28, device=dev)
    dist.all_reduce(x, async_op=True)
    del big
    times = {}

    def free():
        torch.cuda.set_device(dev)
        torch.cuda.empty_cache()
        times["free"] = time.monotonic()

    thread = threading.Thread(target=free)
    thread.start()
    time.sleep(1)  # pause: middle: of the kernels
    held = thread.is_alive()
    began = time.monotonic()

    def late():
        print(f"torch_abort: FAIL: the abort did not end within {o.within:.0f} s", flush=True)
        store.set("over", "1")
        os._exit(1)

    timer = threading.Timer(o.within, late)
    timer.start()
    dist.distributed_c10d._abort_process_group()
    ended = time.monotonic()
    thread.join()
    timer.cancel()
    print(f"torch_abort: {'PASS' if held else 'FAIL: nothing held the driver'}; the abort took {1e3 * (ended - began):.1f} ms, cudaFree ended "
          f"{1e3 * (times['free'] - began):.1f} ms after it began", flush=True)
    store.set("over", "1")
    os._exit(0 if held else 1)


main()
