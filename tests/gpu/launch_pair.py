# SPDX-License-Identifier: MIT
"""For scripts beside this one: two processes that share a communicator, each of them shown one GPU, with the calls of
NCCL and of the CUDA runtime
themselves."""
import argparse
import ctypes
import os
import subprocess
import sys

import torch


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Rank:
    def __init__(self, rank, count):
        self.rank, self.count = rank, count
        self.nccl = ctypes.CDLL("libnccl.so.2")
        self.cuda = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")

    def malloc(self, size):
        ptr = ctypes.c_void_p()
        assert self.cuda.cudaMalloc(ctypes.byref(ptr), ctypes.c_size_t(size)) == 0
        return ptr

    def connect(self):
        """A communicator, and a buffer of so many float32."""
        unique, self.comm = Id(), ctypes.c_void_p()
        assert self.cuda.cudaSetDevice(0) == 0
        if self.rank == 0:
            assert self.nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
            print(bytes(unique).hex(), flush=True)
        else:
            unique = Id.from_buffer_copy(bytes.fromhex(sys.stdin.readline()))
        self.buf = self.malloc(4 * self.count)
        assert self.nccl.ncclCommInitRank(ctypes.byref(self.comm), 2, unique, self.rank) == 0

    def sum(self):
        assert self.nccl.ncclAllReduce(self.buf, self.buf, ctypes.c_size_t(self.count), 7, 0, self.comm, None) == 0


def main(name, rank_main, expected=(0, 0)):
    """rank_main(rank) in both processes, which end as expected. Standard output of rank 0 carries ids to the other."""
    p = argparse.ArgumentParser()
    p.add_argument("--devices", default="0,1")
    p.add_argument("--rank", type=int)
    o = p.parse_args()
    if o.rank is not None:
        return rank_main(o.rank)
    devices = o.devices.split(",")
    if torch.cuda.device_count() <= max(int(d) for d in devices):
        print(f"SKIP {name}: needs GPUs {o.devices}")
        return 77
    ranks, ids = [], None
    for r, device in enumerate(devices):
        env = dict(os.environ, CUDA_VISIBLE_DEVICES=device)
        out = subprocess.PIPE if r == 0 else None
        ranks.append(subprocess.Popen([sys.executable, sys.argv[0], "--rank", str(r)], env=env, stdin=ids, stdout=out))
        ids = ranks[0].stdout
    results = tuple(rank.wait() for rank in ranks)
    print(f"{name}: {'PASS' if results == expected else f'FAIL: {results}'}")
    return 0 if results == expected else 1
