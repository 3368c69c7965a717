#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A client that opens libnccl.so.2 by name through ctypes, as vLLM's pynccl does; one process drives all GPUs with
ncclCommInitAll.
Also torch.cuda.nccl, the old single-process interface. Exit 77: fewer than two GPUs."""
import ctypes
import sys

import torch

n = torch.cuda.device_count()
if n < 2:
    print("SKIP ctypes_client: needs two GPUs")
    sys.exit(77)
lib = ctypes.CDLL("libnccl.so.2")
ver = ctypes.c_int()
assert lib.ncclGetVersion(ctypes.byref(ver)) == 0
comms = (ctypes.c_void_p * n)()
assert lib.ncclCommInitAll(comms, n, None) == 0
for count in (1, 1000, 1 << 20):
    xs = [torch.full((count,), float(d + 1), device=f"cuda:{d}") for d in range(n)]
    assert lib.ncclGroupStart() == 0
    for d in range(n):
        s = torch.cuda.current_stream(d).cuda_stream
        assert lib.ncclAllReduce(ctypes.c_void_p(xs[d].data_ptr()), ctypes.c_void_p(xs[d].data_ptr()), ctypes.c_size_t(count),
                                 ctypes.c_int(7), ctypes.c_int(0), ctypes.c_void_p(comms[d]), ctypes.c_void_p(s)) == 0
    assert lib.ncclGroupEnd() == 0
    for d in range(n):
        torch.cuda.synchronize(d)
        assert bool((xs[d] == n * (n + 1) / 2).all()), (count, d)
path = ctypes.c_char_p(0)
if hasattr(lib, "shunt_path_of"):
    lib.shunt_path_of(ctypes.c_void_p(comms[0]), b"allreduce", ctypes.c_size_t(1000), 7, 0, ctypes.byref(path))
for d in range(n):
    assert lib.ncclCommDestroy(ctypes.c_void_p(comms[d])) == 0

import torch.cuda.nccl as nccl  # noqa: E402

ins = [torch.full((5000,), float(d), device=f"cuda:{d}") for d in range(n)]
outs = [torch.empty_like(x) for x in ins]
nccl.all_reduce(ins, outs)
torch.cuda.synchronize()
assert all(bool((o.cpu() == n * (n - 1) / 2).all()) for o in outs)
print(f"ctypes_client: PASS (version {ver.value}, {n} GPUs, 1000 floats by {path.value.decode() if path.value else 'nccl'})")
