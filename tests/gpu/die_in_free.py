#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A peer that dies while this rank's program is in cudaFree: run with libshunt preloaded, and SHUNT_TIMEOUT well above the given time.

  python3 die_in_free.py [--within SECONDS] [--devices A,B]

Starts two processes that share a communicator. Rank 1 is killed; rank 0 starts an all-reduce with it and calls cudaFree, which waits for that and keeps
the driver from all threads of the process meanwhile. It has to come back within the given time, and the communicator has to say ncclRemoteError. Both may be
given the same device with SHUNT_MULTI_RANK_GPU=1. Exit 77: there are not so many GPUs.
"""
import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time

import torch

COUNT, REMOTE_ERROR = 100000, 6


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def rank_main(rank, within):
    nccl = ctypes.CDLL("libnccl.so.2")
    cuda = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
    unique, comm, buf, other, state = Id(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    assert cuda.cudaSetDevice(0) == 0
    if rank == 0:
        assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
        print(bytes(unique).hex(), flush=True)
    else:
        unique = Id.from_buffer_copy(bytes.fromhex(sys.stdin.readline()))
    assert cuda.cudaMalloc(ctypes.byref(buf), ctypes.c_size_t(4 * COUNT)) == 0
    assert cuda.cudaMalloc(ctypes.byref(other), ctypes.c_size_t(1 << 30)) == 0
    assert nccl.ncclCommInitRank(ctypes.byref(comm), 2, unique, rank) == 0
    assert nccl.ncclAllReduce(buf, buf, ctypes.c_size_t(COUNT), 7, 0, comm, None) == 0
    assert cuda.cudaDeviceSynchronize() == 0
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    assert nccl.ncclAllReduce(buf, buf, ctypes.c_size_t(COUNT), 7, 0, comm, None) == 0
    cuda.cudaFree(other)
    took = time.monotonic() - began
    nccl.ncclCommGetAsyncError(comm, ctypes.byref(state))
    nccl.ncclCommAbort(comm)
    good = took < within and state.value == REMOTE_ERROR
    print(f"cudaFree took {took:.1f} s, the communicator says {state.value}", file=sys.stderr)
    return 0 if good else 1


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--within", type=float, default=10)
    p.add_argument("--devices", default="0,1")
    p.add_argument("--rank", type=int)
    o = p.parse_args()
    if o.rank is not None:
        return rank_main(o.rank, o.within)
    devices = o.devices.split(",")
    if torch.cuda.device_count() <= max(int(d) for d in devices):
        print("SKIP die_in_free: needs GPUs " + o.devices)
        return 77
    ranks, ids = [], None
    for r, device in enumerate(devices):
        env = dict(os.environ, CUDA_VISIBLE_DEVICES=device)
        command = [sys.executable, __file__, "--within", str(o.within), "--rank", str(r)]
        ranks.append(subprocess.Popen(command, env=env, stdin=ids, stdout=subprocess.PIPE if r == 0 else None))
        ids = ranks[0].stdout
    results = [rank.wait() for rank in ranks]
    good = results == [0, -signal.SIGKILL]
    print(f"die_in_free: {'PASS' if good else 'FAIL: ' + str(results)}")
    return 0 if good else 1


sys.exit(main())
