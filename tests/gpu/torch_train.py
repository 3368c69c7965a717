#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What training and inference programs do with backend="nccl", unmodified: run under torchrun, with libshunt preloaded or without.

  torchrun --nproc-per-node N torch_train.py [--out FILE]

Point-to-point and uneven exchanges are checked against what each rank computes by itself; DDP, FSDP2, tensor- and
pipeline-parallel
trainings write their losses to FILE, to be compared between libraries; SHUNT_STATS=1 shows which calls were
forwarded. Exit 77: fewer
than two GPUs.
"""
import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import gpus

gpus.need("torch_train")

rank, world, local = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
dev = gpus.mine(local)
torch.cuda.set_device(dev)
failures = 0
report = []


def check(name, ok):
    global failures
    if not ok:
        failures += 1
        print(f"FAIL rank {rank}: {name}", flush=True)


def tag(src, dst, i, n, dtype=torch.float32):
    return ((torch.arange(n) * 3 + src * 17 + dst * 5 + i) % 251).to(dtype)


def uneven_all_to_all():
    for case in range(4):
        sizes = [[0 if case == 1 and (s + d) % 2 else (s * 7 + d * 3 + case * 1000) % 2500 + (case == 3) * 300000 for d in range(world)]
                 for s in range(world)]
        sent = torch.cat([tag(rank, d, case, sizes[rank][d]) for d in range(world)]).to(dev)
        got = torch.empty(sum(sizes[s][rank] for s in range(world)), device=dev)
        dist.all_to_all_single(got, sent, [sizes[s][rank] for s in range(world)], sizes[rank])
        check(f"all_to_all_single {case}", torch.equal(got.cpu(), torch.cat([tag(s, rank, case, sizes[s][rank]) for s in range(world)])))
        ins = [tag(rank, d, case, sizes[rank][d]).to(dev) for d in range(world)]
        outs = [torch.empty(sizes[s][rank], device=dev) for s in range(world)]
        dist.all_to_all(outs, ins)
        check(f"all_to_all {case}", all(torch.equal(o.cpu(), tag(s, rank, case, sizes[s][rank])) for s, o in enumerate(outs)))


def point_to_point():
    nxt, prev = (rank + 1) % world, (rank - 1) % world
    for n in (1, 1000, 300001, 4 << 20):
        s, q = tag(rank, nxt, 0, n).to(dev), torch.empty(n, device=dev)
        for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, s, nxt), dist.P2POp(dist.irecv, q, prev)]):
            w.wait()
        check(f"batch_isend_irecv {n}", torch.equal(q.cpu(), tag(prev, rank, 0, n)))
    # Several per pair, in order; both directions.
    reqs, bufs = [], []
    for i in range(5):
        for peer in range(world):
            if peer != rank:
                n = 100 + 37 * i
                q = torch.empty(n, device=dev)
                bufs.append((peer, i, n, q))
                reqs += [dist.P2POp(dist.isend, tag(rank, peer, i, n).to(dev), peer), dist.P2POp(dist.irecv, q, peer)]
    for w in dist.batch_isend_irecv(reqs):
        w.wait()
    check("several messages per pair", all(torch.equal(q.cpu(), tag(p, rank, i, n)) for p, i, n, q in bufs))
    # One after another, a chain.
    t = torch.full((5000,), 1.0, device=dev)
    if rank:
        dist.recv(t, rank - 1)
        t += 1
    if rank + 1 < world:
        dist.send(t, rank + 1)
    check("chain", bool((t == rank + 1).all()))
    # Pairs that do not involve the rest.
    if rank < 2:
        u = torch.full((777,), float(rank), device=dev)
        (dist.send if rank == 0 else dist.recv)(u, 1 - rank)
        check("pair", bool((u == 0).all()))


def the_rest():
    lists = [torch.full((3 + r,), float(r), device=dev) for r in range(world)]
    outs = [torch.empty(3 + r, device=dev) for r in range(world)]
    dist.all_gather(outs, lists[rank])  # uneven: broadcasts with every root
    check("all_gather, uneven", all(torch.equal(o, l) for o, l in zip(outs, lists)))
    out = torch.empty(3 + rank, device=dev)
    dist.reduce_scatter(out, [torch.full((3 + r,), float(rank + r), device=dev) for r in range(world)])
    check("reduce_scatter, uneven", bool((out == world * (world - 1) / 2 + world * rank).all()))
    for root in range(world):
        x = torch.full((1001,), float(rank), device=dev)
        dist.reduce(x, root)
        check(f"reduce to {root}", rank != root or bool((x == world * (world - 1) / 2).all()))
        y = torch.empty(100, device=dev)
        dist.scatter(y, [torch.full((100,), float(r + root), device=dev) for r in range(world)] if rank == root else None, src=root)
        check(f"scatter from {root}", bool((y == rank + root).all()))
        parts = [torch.empty(50, device=dev) for _ in range(world)] if rank == root else None
        dist.gather(torch.full((50,), float(rank), device=dev), parts, dst=root)
        check(f"gather to {root}", rank != root or all(bool((p == r).all()) for r, p in enumerate(parts)))
    objs = [None] * world
    dist.all_gather_object(objs, {"rank": rank, "text": "x" * (rank * 1000)})
    check("all_gather_object", all(o["rank"] == r and len(o["text"]) == 1000 * r for r, o in enumerate(objs)))
    box = [{"from": 1, "list": list(range(5000))}] if rank == 1 else [None]
    dist.broadcast_object_list(box, 1)
    check("broadcast_object_list", box[0]["list"][-1] == 4999)
    gathered = [None] * world if rank == 0 else None
    dist.gather_object(rank * 2, gathered, dst=0)
    check("gather_object", rank != 0 or gathered == [2 * r for r in range(world)])
    ins, sums = [torch.full((world * k,), 1.0, device=dev) for k in (1, 10, 1000)], [torch.empty(k, device=dev) for k in (1, 10, 1000)]
    with dist._coalescing_manager(device=dev):
        for s, i in zip(sums, ins):
            dist.reduce_scatter_tensor(s, i)
    check("coalesced reduce_scatter", all(bool((s == world).all()) for s in sums))
    alls = [torch.empty(world * k, device=dev) for k in (1, 10, 1000)]
    with dist._coalescing_manager(device=dev):
        for a, s in zip(alls, sums):
            dist.all_gather_into_tensor(a, s)
    check("coalesced all_gather", all(bool((a == world).all()) for a in alls))
    for _ in range(3):
        dist.barrier()


def groups():
    """new_group, split_group, many at once, destroyed in another order than made."""
    made = [dist.new_group(list(range(world))) for _ in range(6)]
    if world >= 4:
        halves = [[r for r in range(world) if r % 2 == k] for k in range(2)]
        made.append(dist.split_group(split_ranks=halves))
        pair = dist.new_subgroups(2)[0]
        x = torch.full((10,), float(rank), device=dev)
        dist.all_reduce(x, group=pair)
        check("new_subgroups", bool((x == 2 * (rank // 2 * 2) + 1).all()))
        y = torch.full((10,), float(rank), device=dev)
        dist.all_reduce(y, group=made[-1])
        check("split_group", bool((y == sum(halves[rank % 2])).all()))
    for g in made[:6]:
        z = torch.ones(1000, device=dev)
        dist.all_reduce(z, group=g)
        check("group", bool((z == world).all()))
    graph = torch.cuda.CUDAGraph()
    a = torch.ones(100, device=dev)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):  # one graph, several communicators
        for g in made[:3]:
            dist.all_reduce(a, group=g)
    a.fill_(1)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    check("graph of three communicators", bool((a == float(world) ** 9).all()))
    del graph
    for g in (made[3], made[0], made[5], made[1], made[4], made[2]):
        dist.destroy_process_group(g)


def batch(step, n=32, width=256, who=None):
    g = torch.Generator().manual_seed(step * 100 + (rank if who is None else who))
    return torch.randn(n, width, generator=g).to(dev), torch.randint(0, 10, (n,), generator=g).to(dev)


def mlp():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
                               torch.nn.Linear(512, 10)).to(dev)


def train(net, name, who=None):
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=False)  # TP mixes plain and distributed tensors
    for step in range(15):
        x, y = batch(step, who=who)
        loss = torch.nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        report.append((name, step, loss.item()))


def ddp():
    train(torch.nn.parallel.DistributedDataParallel(mlp(), device_ids=[dev.index], bucket_cap_mb=1), "ddp")


def fsdp2():
    from torch.distributed.fsdp import fully_shard
    net = mlp()
    for layer in net:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    train(net, "fsdp2")


def tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    net = mlp()
    parallelize_module(net, init_device_mesh("cuda", (world,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(net, "tp", who=0)


def pipeline_parallel():
    """GPipe by hand: activations forward, gradients back, by ungrouped and batched messages."""
    torch.manual_seed(7)
    stage = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()).to(dev)
    opt = torch.optim.SGD(stage.parameters(), lr=0.1)
    for step in range(10):
        opt.zero_grad()
        kept = []
        for mb in range(4):
            if rank == 0:
                x = batch(step * 4 + mb, who=0)[0]
            else:
                x = torch.empty(32, 256, device=dev)
                dist.recv(x, rank - 1)
                x.requires_grad_()
            out = stage(x)
            kept.append((x, out))
            if rank + 1 < world:
                dist.send(out.detach(), rank + 1)
        for x, out in kept:
            if rank + 1 < world:
                grad = torch.empty_like(out)
                for w in dist.batch_isend_irecv([dist.P2POp(dist.irecv, grad, rank + 1)]):
                    w.wait()
                out.backward(grad)
            else:
                loss = (out ** 2).mean()
                loss.backward()
                report.append(("pp", step, loss.item()))
            if rank:
                dist.send(x.grad, rank - 1)
        opt.step()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out")
    args = p.parse_args()
    dist.init_process_group("nccl", device_id=dev)
    for name, fn in (("pair first", point_to_point), ("all_to_all", uneven_all_to_all), ("the rest", the_rest), ("groups", groups),
                     ("ddp", ddp), ("fsdp2", fsdp2), ("tensor parallel", tensor_parallel), ("pipeline parallel", pipeline_parallel)):
        t = time.time()
        fn()
        torch.cuda.synchronize()
        if rank == 0:
            print(f"{name}: {failures} failures, {time.time() - t:.1f} s", flush=True)
    rows = [None] * world
    dist.all_gather_object(rows, report)
    if rank == 0 and args.out:
        with open(args.out, "w") as f:
            for r, losses in enumerate(rows):
                for name, step, loss in losses:
                    f.write(f"{name} rank {r} step {step} {loss!r}\n")
    n = torch.tensor([failures], device=dev)
    dist.all_reduce(n)
    if rank == 0:
        print(f"torch_train: {'PASS' if n.item() == 0 else 'FAIL'} ({n.item()} failures, {world} ranks)")
    dist.destroy_process_group()
    sys.exit(1 if n.item() else 0)


main()
