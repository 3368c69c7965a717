#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A peer that dies while this rank's program is in cudaFree: run with libshunt preloaded, and SHUNT_TIMEOUT well
above 10 s.

  python3 die_in_free.py [--devices A,B]

Rank 1 is killed; rank 0 starts an all-reduce with it and calls cudaFree, which waits for that and keeps the driver
from all threads of the process
meanwhile. It has to come back within 10 s, and the communicator has to say ncclRemoteError. Both may be shown the
same GPU with SHUNT_MULTI_RANK_GPU=1.
Exit 77: there are not so many GPUs.
"""
import ctypes
import os
import signal
import sys
import time

import launch_pair as pair

REMOTE_ERROR = 6


def rank_main(rank):
    r, state = pair.Rank(rank, 100000), ctypes.c_int()
    r.connect()
    other = r.malloc(1 << 30)
    r.sum()
    assert r.cuda.cudaDeviceSynchronize() == 0
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    r.sum()
    r.cuda.cudaFree(other)
    took = time.monotonic() - began
    r.nccl.ncclCommGetAsyncError(r.comm, ctypes.byref(state))
    r.nccl.ncclCommAbort(r.comm)
    print(f"cudaFree took {took:.1f} s, the communicator says {state.value}", file=sys.stderr)
    return 0 if took < 10 and state.value == REMOTE_ERROR else 1


sys.exit(pair.main("die_in_free", rank_main, (0, -signal.SIGKILL)))
