#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A program that resets its device between communicators, in processes of which each is shown one GPU: run with
libshunt preloaded or without.

  python3 reset_device.py [--devices A,B]

Each of two processes makes a communicator, sums numbers, destroys it and calls cudaDeviceReset(), four times. Both
may be shown the same GPU with
SHUNT_MULTI_RANK_GPU=1. Exit 77: there are not so many GPUs.
"""
import ctypes
import sys

import launch_pair as pair

COUNT = 100000


def rank_main(rank):
    r = pair.Rank(rank, COUNT)
    good = True
    for turn in range(4):
        host = (ctypes.c_float * COUNT)(*([float(turn + rank)] * COUNT))
        r.connect()
        assert r.cuda.cudaMemcpy(r.buf, host, ctypes.c_size_t(4 * COUNT), 1) == 0
        r.sum()
        assert r.cuda.cudaMemcpy(host, r.buf, ctypes.c_size_t(4 * COUNT), 2) == 0
        good &= all(v == 2 * turn + 1 for v in host)
        assert r.nccl.ncclCommDestroy(r.comm) == 0
        assert r.cuda.cudaDeviceReset() == 0
    return 0 if good else 1


sys.exit(pair.main("reset_device", rank_main))
