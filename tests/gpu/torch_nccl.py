#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch with backend="nccl", unmodified: run under torchrun, with libshunt preloaded or without.

  torchrun --nproc-per-node N torch_nccl.py [--ddp-out FILE] [--replays N]

Every all_reduce result is compared with one that each rank computes by itself. --ddp-out writes the losses and a
digest of the
parameters of a small DDP training, to be compared between libraries. Exit 77: fewer than two GPUs.
"""
import argparse
import os
import sys
import time

import torch
import torch.distributed as dist

import gpus

gpus.need("torch_nccl")

rank, world, local = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
dev = gpus.mine(local)
torch.cuda.set_device(dev)
failures = 0


def check(name, ok):
    global failures
    if not ok:
        failures += 1
        print(f"FAIL rank {rank}: {name}", flush=True)


def data(r, count, dtype, seed):
    g = torch.Generator().manual_seed(seed * 1000 + r)
    if dtype.is_floating_point:
        return (torch.randn(count, generator=g) * 2).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=g).to(dtype)
    return torch.randint(0, 4, (count,), generator=g).to(dtype)


def reference(inputs, op, dtype):
    """In rank order, 16-bit floats in fp32."""
    acc = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    xs = [x.to(acc) for x in inputs]
    if op == dist.ReduceOp.AVG:
        inv = torch.tensor(1.0 / len(xs), dtype=dtype).to(acc)
        xs = [(x * inv).to(dtype).to(acc) for x in xs]
    v = xs[0]
    for x in xs[1:]:
        if dtype == torch.bool:
            v = (v | x) if op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX) else (v & x)
        elif op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            v = v + x
        elif op == dist.ReduceOp.PRODUCT:
            v = v * x
        elif op == dist.ReduceOp.MAX:
            v = torch.maximum(v, x)
        else:
            v = torch.minimum(v, x)
    return v.to(dtype)


def ops(group=None, ranks=None, seed=1):
    ranks = ranks or list(range(world))
    R = dist.ReduceOp
    for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
                  torch.bool):
        for op in (R.SUM, R.PRODUCT, R.MIN, R.MAX, R.AVG):
            if (op == R.AVG and not dtype.is_floating_point) or (dtype == torch.bool and op == R.PRODUCT):
                continue
            for count in (1, 1001, 70001, 1 << 20):
                inputs = [data(r, count, dtype, seed) for r in ranks]
                want = reference(inputs, op, dtype)
                x = data(rank, count, dtype, seed).to(dev)
                dist.all_reduce(x, op, group=group)
                got = x.cpu()
                if dtype.is_floating_point:
                    tol = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
                    ok = torch.allclose(got.double(), want.double(), rtol=tol, atol=tol)
                else:
                    ok = torch.equal(got, want)
                check(f"{dtype} {op} {count}", ok)
                seed += 1
        # PyTorch takes no bfloat16 factor.
        if dtype in (torch.float16, torch.float32, torch.float64):
            x = torch.full((777,), 2.0, dtype=dtype, device=dev)
            dist.all_reduce(x, dist._make_nccl_premul_sum(0.5), group=group)
            check(f"{dtype} premul", torch.equal(x.cpu(), torch.full((777,), float(len(ranks)), dtype=dtype)))
            factor = torch.tensor([0.25], dtype=dtype, device=dev)
            x = torch.full((777,), 2.0, dtype=dtype, device=dev)
            dist.all_reduce(x, dist._make_nccl_premul_sum(factor), group=group)
            check(f"{dtype} premul on the device", torch.equal(x.cpu(), torch.full((777,), len(ranks) / 2, dtype=dtype)))


def bits_equal_everywhere():
    x = data(rank, 100003, torch.bfloat16, 77).to(dev)
    first = None
    for _ in range(3):
        y = x.clone()
        dist.all_reduce(y)
        all_y = [torch.empty_like(y) for _ in range(world)]
        dist.all_gather(all_y, y)
        for other in all_y:
            check("same bits on all ranks", torch.equal(other.view(torch.int16), y.view(torch.int16)))
        first = y if first is None else first
        check("same bits in every run", torch.equal(first.view(torch.int16), y.view(torch.int16)))


def graphs(replays):
    n = 5000
    x, y = torch.zeros(n, device=dev), torch.zeros(4 << 20, device=dev)
    for t in (x, y):
        dist.all_reduce(t)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        dist.all_reduce(x)
        x.mul_(1.0 / world)
        dist.all_reduce(y)
        y.mul_(1.0 / world)
    e = torch.full((300,), 1.0, device=dev)
    x.copy_(torch.arange(n, device=dev) + rank)
    y.copy_(torch.arange(y.numel(), device=dev) % 1000 + rank)
    for i in range(replays):
        g.replay()
        if i % 100 == 0:
            dist.all_reduce(e)
            e.div_(world)
    torch.cuda.synchronize()
    mean = (world - 1) / 2
    check("graph, small", torch.allclose(x.cpu(), torch.arange(n) + mean, rtol=1e-5))
    check("graph, 16 MB", torch.allclose(y.cpu(), torch.arange(y.numel()) % 1000 + mean, rtol=1e-5))
    check("eager between replays", torch.allclose(e.cpu(), torch.ones(300)))


def others():
    """What we forward, between what we do not."""
    a = torch.full((1000,), float(rank), device=dev)
    dist.broadcast(a, 1)
    check("broadcast", bool((a == 1).all()))
    out = [torch.empty(10, device=dev) for _ in range(world)]
    dist.all_gather(out, torch.full((10,), float(rank), device=dev))
    check("all_gather", all(bool((o == i).all()) for i, o in enumerate(out)))
    r = torch.empty(10, device=dev)
    dist.reduce_scatter_tensor(r, torch.ones(10 * world, device=dev))
    check("reduce_scatter", bool((r == world).all()))
    t = torch.arange(world, dtype=torch.float32, device=dev) + 10 * rank
    u = torch.empty_like(t)
    dist.all_to_all_single(u, t)
    check("all_to_all", torch.equal(u.cpu(), torch.arange(world, dtype=torch.float32) * 10 + rank))
    peer = rank ^ 1
    if peer < world:
        s, q = torch.full((5,), float(rank), device=dev), torch.empty(5, device=dev)
        for req in dist.batch_isend_irecv([dist.P2POp(dist.isend, s, peer), dist.P2POp(dist.irecv, q, peer)]):
            req.wait()
        check("send/recv", bool((q == peer).all()))
    obj = [None] * world
    dist.all_gather_object(obj, {"rank": rank})
    check("objects", [o["rank"] for o in obj] == list(range(world)))
    dist.barrier()


def async_and_coalesced():
    xs = [torch.full((1000 * (i + 1),), float(rank), device=dev) for i in range(6)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for w in works:
        w.wait()
    total = world * (world - 1) / 2
    check("async", all(bool((x == total).all()) for x in xs))
    ys = [torch.full((100 * (i + 1),), float(rank), device=dev) for i in range(6)]
    with dist._coalescing_manager(device=dev):
        for y in ys:
            dist.all_reduce(y)
    torch.cuda.synchronize()
    check("coalesced", all(bool((y == total).all()) for y in ys))
    # Two groups over the same ranks, each on its own stream.
    g1, g2 = dist.new_group(), dist.new_group()
    s1, s2 = torch.cuda.Stream(), torch.cuda.Stream()
    a, b = torch.ones(200000, device=dev), torch.ones(3000, device=dev)
    torch.cuda.synchronize()
    for _ in range(20):
        with torch.cuda.stream(s1):
            dist.all_reduce(a, group=g1)
            a.div_(world)
        with torch.cuda.stream(s2):
            dist.all_reduce(b, group=g2)
            b.div_(world)
    torch.cuda.synchronize()
    check("two groups, two streams", bool((a == 1).all()) and bool((b == 1).all()))


def ddp(path):
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
                                torch.nn.Linear(1024, 10)).to(dev)
    net = torch.nn.parallel.DistributedDataParallel(model, device_ids=[dev.index], bucket_cap_mb=1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for step in range(30):
        g = torch.Generator().manual_seed(step * world + rank)
        x, y = torch.randn(64, 256, generator=g).to(dev), torch.randint(0, 10, (64,), generator=g).to(dev)
        loss = torch.nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    total = sum(p.double().abs().sum().item() for p in model.parameters())
    if rank == 0 and path:
        with open(path, "w") as f:
            f.write("\n".join(repr(v) for v in losses + [total]) + "\n")
    same = torch.tensor([total], dtype=torch.float64, device=dev)
    every = [torch.empty_like(same) for _ in range(world)]
    dist.all_gather(every, same)
    check("DDP parameters equal on all ranks", all(torch.equal(e, same) for e in every))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ddp-out")
    p.add_argument("--replays", type=int, default=10000)
    args = p.parse_args()
    dist.init_process_group("nccl", device_id=dev)
    parts = [("ops", ops), ("bits", bits_equal_everywhere), ("others", others), ("async", async_and_coalesced),
             ("graphs", lambda: graphs(args.replays)), ("ddp", lambda: ddp(args.ddp_out))]
    if world >= 4:
        half = [r for r in range(world) if r % 2 == rank % 2]
        groups = [dist.new_group([r for r in range(world) if r % 2 == k]) for k in range(2)]
        parts.insert(1, ("sub-groups", lambda: ops(groups[rank % 2], half, 500)))
    for name, fn in parts:
        t = time.time()
        fn()
        torch.cuda.synchronize()
        if rank == 0:
            print(f"{name}: {failures} failures, {time.time() - t:.1f} s", flush=True)
    n = torch.tensor([failures], device=dev)
    dist.all_reduce(n)
    if rank == 0:
        print(f"torch_nccl: {'PASS' if n.item() == 0 else 'FAIL'} "
              f"({n.item()} failures, {world} ranks, NCCL {torch.cuda.nccl.version()})")
    dist.destroy_process_group()
    sys.exit(1 if n.item() else 0)


main()
