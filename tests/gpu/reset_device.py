#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A program that resets its device between communicators, in processes of which each is shown one GPU: run with libshunt preloaded or without.

  python3 reset_device.py [--rounds N] [--devices A,B]

Starts two processes under CUDA_VISIBLE_DEVICES. Each makes a communicator, sums numbers, destroys it and calls cudaDeviceReset(), several times. Both may be
shown the same one with SHUNT_MULTI_RANK_GPU=1. Exit 77: there are not so many GPUs.
"""
import argparse
import ctypes
import os
import subprocess
import sys

import torch

COUNT = 100000


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def rank_main(rank, rounds):
    nccl = ctypes.CDLL("libnccl.so.2")
    cuda = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
    good = True
    for turn in range(rounds):
        unique, comm, buf = Id(), ctypes.c_void_p(), ctypes.c_void_p()
        host = (ctypes.c_float * COUNT)(*([float(turn + rank)] * COUNT))
        assert cuda.cudaSetDevice(0) == 0
        if rank == 0:
            assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
            print(bytes(unique).hex(), flush=True)
        else:
            unique = Id.from_buffer_copy(bytes.fromhex(sys.stdin.readline()))
        assert cuda.cudaMalloc(ctypes.byref(buf), ctypes.c_size_t(4 * COUNT)) == 0
        assert nccl.ncclCommInitRank(ctypes.byref(comm), 2, unique, rank) == 0
        assert cuda.cudaMemcpy(buf, host, ctypes.c_size_t(4 * COUNT), 1) == 0
        assert nccl.ncclAllReduce(buf, buf, ctypes.c_size_t(COUNT), 7, 0, comm, None) == 0
        assert cuda.cudaMemcpy(host, buf, ctypes.c_size_t(4 * COUNT), 2) == 0
        good &= all(v == 2 * turn + 1 for v in host)
        assert nccl.ncclCommDestroy(comm) == 0
        assert cuda.cudaDeviceReset() == 0
    return 0 if good else 1


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--devices", default="0,1")
    p.add_argument("--rank", type=int)
    o = p.parse_args()
    if o.rank is not None:
        return rank_main(o.rank, o.rounds)
    devices = o.devices.split(",")
    if torch.cuda.device_count() <= max(int(d) for d in devices):
        print("SKIP reset_device: needs GPUs " + o.devices)
        return 77
    ranks, ids = [], None
    for r, device in enumerate(devices):
        env = dict(os.environ, CUDA_VISIBLE_DEVICES=device)
        command = [sys.executable, __file__, "--rounds", str(o.rounds), "--rank", str(r)]
        ranks.append(subprocess.Popen(command, env=env, stdin=ids, stdout=subprocess.PIPE if r == 0 else None))
        ids = ranks[0].stdout
    results = [rank.wait() for rank in ranks]
    print(f"reset_device: {'FAIL: ' + str(results) if any(results) else 'PASS'}")
    return 1 if any(results) else 0


sys.exit(main())
