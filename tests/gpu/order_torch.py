#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One communicator, eager calls and CUDA graphs on streams that nothing orders: they must run in the order of issue,
one at a time.

  torchrun --nproc-per-node N order_torch.py [--replays N] [--cost]

Opens libnccl.so.2 by name (preload libshunt, or not to see NCCL) and speaks its ABI. Each call adds up a buffer of int64 over the
ranks in place, so that a buffer tells how many calls it has seen: two launches that overlap leave wrong sums, or
hang. --cost prints
instead what the ordering costs: a graph's replay per captured call, to be compared with NCCL_GRAPH_MIXING_SUPPORT=0,
and an eager
call while no graph lives and while one does. Exit 77: fewer than two GPUs.
"""
import argparse
import ctypes
import os
import random
import sys
import time

import torch
import torch.distributed as dist

import gpus

gpus.need("order_torch")

rank, world, local = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
torch.cuda.set_device(gpus.mine(local))
dist.init_process_group("gloo")
lib = ctypes.CDLL("libnccl.so.2")
INT64, SUM = 4, 0
failures = 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def ok(result, what):
    if result:
        raise SystemExit(f"rank {rank}: {what} returned {result}")


def check(name, good):
    global failures
    if not good:
        failures += 1
        print(f"FAIL rank {rank}: {name}", flush=True)


def comm_create():
    uid = UniqueId()
    if rank == 0:
        ok(lib.ncclGetUniqueId(ctypes.byref(uid)), "ncclGetUniqueId")
    box = [ctypes.string_at(ctypes.byref(uid), 128)]
    dist.broadcast_object_list(box, 0)
    ctypes.memmove(ctypes.byref(uid), box[0], 128)
    comm = ctypes.c_void_p()
    lib.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]
    ok(lib.ncclCommInitRank(ctypes.byref(comm), world, uid, rank), "ncclCommInitRank")
    return comm


class Buffer:
    """Counts what was issued, and knows the sum that follows from it."""

    def __init__(self, words, seed):
        self.words, self.calls = words, 0
        first = [torch.arange(words, dtype=torch.int64) * 31 + 1 + r * 1000003 + seed * 77 for r in range(world)]
        self.t = first[rank].cuda()
        self.sum = sum(first)

    def call(self, comm, stream):
        p = ctypes.c_void_p(self.t.data_ptr())
        ok(lib.ncclAllReduce(p, p, ctypes.c_size_t(self.words), INT64, SUM, comm, ctypes.c_void_p(stream)), "ncclAllReduce")

    def eager(self, comm, stream):
        self.calls += 1
        self.call(comm, stream.cuda_stream)

    def check(self, name):
        if not self.calls:
            return
        factor = pow(world, self.calls - 1, 1 << 64)
        factor -= (1 << 64) if factor >= 1 << 63 else 0
        check(f"{name}: {self.words} words after {self.calls} calls", torch.equal(self.t.cpu(), self.sum * factor))


class Graph:
    def __init__(self, comm, buffers, stream, other=None):
        """Two calls per buffer; with another stream the second ones are on it."""
        self.buffers = buffers
        self.g = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.g, stream=stream):
            for b in buffers:
                b.call(comm, stream.cuda_stream)
            if other:
                other.wait_stream(stream)
            for b in buffers:
                b.call(comm, (other or stream).cuda_stream)
            if other:
                stream.wait_stream(other)

    def launch(self, stream):
        for b in self.buffers:
            b.calls += 2
        with torch.cuda.stream(stream):
            self.g.replay()


def finish(name, buffers):
    torch.cuda.synchronize()
    for b in buffers:
        b.check(name)
    dist.barrier()


def overlap(comm, replays):
    a, b, c = (torch.cuda.Stream() for _ in range(3))
    high = torch.cuda.Stream(priority=-1)
    # sizes for one-shot and two-shot
    sizes = (7, 1000, 20000, 300000)
    bufs = [Buffer(n, i) for i, n in enumerate(sizes * 2)]

    for x in bufs:
        x.eager(comm, a)
    finish("first use", bufs)

    streams = [a, b, c, high, torch.cuda.default_stream()]
    for i in range(400):
        bufs[i % 8].eager(comm, streams[i * 7 % 5])
    for i in range(100):  # handles of the default streams: legacy by both its names, and per thread
        bufs[i % 4].calls += 1
        bufs[i % 4].call(comm, i % 3)
    finish("eager on changing streams", bufs)

    g1 = Graph(comm, bufs[0:3], a)
    g2 = Graph(comm, bufs[3:6], b, c)
    for i in range(replays):
        g1.launch(a)
        bufs[6 + i % 2].eager(comm, b)
        if i % 500 == 499:
            finish("a graph beside eager calls", bufs)
    for i in range(replays):
        g1.launch(a)
        g2.launch(b)
        if i % 500 == 499:
            finish("two graphs at once", bufs)
    pick = random.Random(1)  # the same on all ranks
    for i in range(replays):
        s, what = pick.choice(streams), pick.random()
        if what < 0.3:
            g1.launch(s)
        elif what < 0.6:
            g2.launch(s)
        else:
            pick.choice(bufs).eager(comm, s)
    finish("anything on any stream", bufs)

    # A capture on one stream while others run eager, in PyTorch's default mode (global).
    g3 = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(g3, stream=c):
        for i in range(10):
            bufs[0].call(comm, c.cuda_stream)
            bufs[1].eager(comm, b)
            bufs[2].eager(comm, a)
    for i in range(100):
        bufs[0].calls += 10
        with torch.cuda.stream(a):
            g3.replay()
        bufs[1].eager(comm, b)
    finish("capture beside eager calls", bufs)
    del g1, g2, g3
    for i in range(100):
        bufs[i % 8].eager(comm, streams[i % 5])
    finish("after the graphs", bufs)


def two_comms(one, two, replays):
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    x, y = Buffer(3000, 1), Buffer(5000, 2)
    for buf, comm in ((x, one), (y, two)):
        buf.eager(comm, a)
    finish("two communicators", [x, y])
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g, stream=a):
        x.call(one, a.cuda_stream)
        y.call(two, a.cuda_stream)
        x.call(one, a.cuda_stream)
    for i in range(replays):
        with torch.cuda.stream(a):
            g.replay()
        x.calls += 2
        y.calls += 1
        x.eager(one, b)
        y.eager(two, b)
    finish("two communicators in a graph", [x, y])


def per_call_us(fn, count, calls):
    """Device time, the best of 7."""
    best = float("inf")
    for _ in range(7):
        dist.barrier()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            fn()
        stop.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(stop) * 1000 / count / calls)
    return best


def cost(comm):
    s = torch.cuda.Stream()
    buf = Buffer(1024, 1)
    rows = []

    def eager():
        buf.call(comm, s.cuda_stream)

    def host_us():
        best = float("inf")
        for _ in range(7):
            torch.cuda.synchronize()
            dist.barrier()
            t = time.perf_counter()
            for _ in range(100):
                eager()
            best = min(best, (time.perf_counter() - t) * 1e6 / 100)
        return best

    with torch.cuda.stream(s):
        eager()
        torch.cuda.synchronize()
        rows.append(("eager, no graph alive", per_call_us(eager, 500, 1), host_us()))
        for calls in (1, 2, 10, 100):
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g, stream=s):
                for _ in range(calls):
                    eager()
            rows.append((f"graph of {calls} calls", per_call_us(g.replay, 500 if calls < 10 else 100, calls), 0))
        rows.append(("eager, a graph alive", per_call_us(eager, 500, 1), host_us()))
        del g
        torch.cuda.synchronize()
        time.sleep(0.1)  # pause: late: the other ranks are ahead
        rows.append(("eager, graph destroyed", per_call_us(eager, 500, 1), host_us()))
    if rank == 0:
        print(f"8 KiB, {world} GPUs, NCCL_GRAPH_MIXING_SUPPORT={os.environ.get('NCCL_GRAPH_MIXING_SUPPORT', '1')}: us per call")
        for name, us, host in rows:
            print(f"  {name:24} {us:7.2f} on the device" + (f" {host:7.2f} on the host" if host else ""))


args = argparse.ArgumentParser()
args.add_argument("--replays", type=int, default=2000)
args.add_argument("--cost", action="store_true")
args = args.parse_args()
first = comm_create()
if args.cost:
    cost(first)
else:
    second = comm_create()
    overlap(first, args.replays)
    two_comms(first, second, args.replays)
    ok(lib.ncclCommDestroy(second), "ncclCommDestroy")
ok(lib.ncclCommDestroy(first), "ncclCommDestroy")
total = torch.tensor([failures])
dist.all_reduce(total)
if rank == 0:
    print("order_torch: " + ("PASS" if total.item() == 0 else f"{total.item()} FAILED"))
dist.destroy_process_group()
sys.exit(1 if total.item() else 0)
