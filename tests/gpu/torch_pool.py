#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's memory pools of ncclMemAlloc, and FSDP2 with buffers of the process group: run under torchrun, with
libshunt preloaded or without.

  torchrun --nproc-per-node N torch_pool.py [--steps K] [--only plain,registered,symmetric,fsdp,shunt]

Collectives in a pool that is not registered, registered (ncclCommRegister), and registered as symmetric windows
(ncclCommWindowRegister), eager and in a graph; each is compared with the same call in ordinary memory, bit by bit. Then pools are
deregistered and freed, and others come in their place. FSDP2 trains with its buffers from the process group and
without: the losses
must be equal. `shunt` (not by default): libshunt.torch.pool(), which is from before the process group, with a tensor parallel layer
and DDP as docs/guide.md has them; less than 40 s, best with SHUNT_ALGO=allreduce:0-:direct,reducescatter:0-:direct. What this PyTorch does not have is said and left out. Exit 77: fewer than two GPUs.
"""
import argparse
import contextlib
import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn

import gpus

gpus.need("torch_pool")

rank, world, local = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
dev = gpus.mine(local)
torch.cuda.set_device(dev)
failures = 0


def say(text):
    if rank == 0:
        print(text, flush=True)


def check(name, ok):
    global failures
    if not ok:
        failures += 1
        print(f"FAIL rank {rank}: {name}", flush=True)


def send_recv(out, x):
    ops = [dist.P2POp(dist.isend, x, (rank + 1) % world), dist.P2POp(dist.irecv, out, (rank - 1) % world)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


# name: elements of the input and of the output for n, and the call
CALLS = {
    "all_gather": (lambda n: n, lambda n: n * world, dist.all_gather_into_tensor),
    "reduce_scatter": (lambda n: n * world, lambda n: n, dist.reduce_scatter_tensor),
    "all_to_all": (lambda n: n * world, lambda n: n * world, dist.all_to_all_single),
    "all_reduce": (lambda n: n, lambda n: n, lambda out, x: (out.copy_(x), dist.all_reduce(out))),
    "broadcast": (lambda n: n, lambda n: n, lambda out, x: (out.copy_(x), dist.broadcast(out, world - 1))),
    "send_recv": (lambda n: n, lambda n: n, send_recv),
}


def random(n, seed):
    g = torch.Generator(device=dev).manual_seed(seed * 1000 + rank)
    return torch.randn(n, generator=g, device=dev, dtype=torch.bfloat16)


def compare(where, name, n, out, x, graphs):
    call = CALLS[name][2]
    for i in range(3):
        data = random(x.numel(), i)
        want = torch.empty_like(out, memory_format=torch.contiguous_format)
        plain = data.clone()
        call(want, plain)
        if i == 2 and graphs:
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                call(out, x)
        x.copy_(data)
        out.fill_(float("nan"))
        if i == 2 and graphs:
            graph.replay()
        else:
            call(out, x)
        torch.cuda.synchronize()
        check(f"{where}: {name} of {n}, round {i}", torch.equal(out, want))
        check(f"{where}: {name} of {n}, round {i}, the input", torch.equal(x, data))


def pool_round(backend, how, sizes):
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        flat_in = torch.empty(max(sizes) * world, device=dev, dtype=torch.bfloat16)
        flat_out = torch.empty(max(sizes) * world, device=dev, dtype=torch.bfloat16)
    if how == "registered":
        backend.register_mem_pool(pool)
    elif how == "symmetric":
        backend.register_mem_pool(pool, symm=True)
    for name, (ins, outs, _) in CALLS.items():
        for n in sizes:
            compare(how, name, n, flat_out[:outs(n)], flat_in[:ins(n)], graphs=n == sizes[0])
    dist.barrier()
    torch.cuda.synchronize()
    if how != "plain":
        backend.deregister_mem_pool(pool)
    del flat_in, flat_out, pool


def pools(kinds):
    backend = dist.group.WORLD._get_backend(dev)
    if not hasattr(backend, "mem_allocator") or not hasattr(backend, "register_mem_pool"):
        say("torch_pool: this PyTorch's process groups have no memory pools; left out")
        return
    for again in range(2):
        for how in kinds:
            try:
                pool_round(backend, how, [1000, 1 << 20, (40 << 20) + 8])
            except TypeError as e:
                say(f"torch_pool: {how}: not in this PyTorch ({e}); left out")
                continue
            say(f"torch_pool: {how} memory, time {again + 1}: {'ok' if not failures else 'FAILED'}")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False, device=dev, dtype=torch.bfloat16)
        self.down = nn.Linear(4 * width, width, bias=False, device=dev, dtype=torch.bfloat16)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def train(from_group, steps):
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(5)
    net = nn.Sequential(*(Block(4096) for _ in range(8)))
    for block in net:
        fully_shard(block)
    fully_shard(net)
    if from_group:
        for m in net.modules():
            if hasattr(m, "set_allocate_memory_from_process_group_for_comm"):
                m.set_allocate_memory_from_process_group_for_comm(True)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    x = random(8192 * 4096, 7).view(8192, 4096)
    losses, marks = [], [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    for i in range(steps + 1):
        marks[i].record()
        loss = net(x).float().pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in zip(marks[3:], marks[4:]))
    return [v.item() for v in losses], times[len(times) // 2] if times else 0.0


def fsdp(steps):
    from torch.distributed.fsdp import FSDPModule
    if not hasattr(FSDPModule, "set_allocate_memory_from_process_group_for_comm"):
        say("torch_pool: this PyTorch's FSDP2 takes no buffers from the process group; left out")
        return
    plain, plain_ms = train(False, steps)
    torch.cuda.empty_cache()
    try:
        group, group_ms = train(True, steps)
    except RuntimeError as e:
        say(f"torch_pool: FSDP2 with buffers of the process group cannot be: {str(e).splitlines()[0]}")
        return
    check(f"FSDP2: losses {plain} and {group}", plain == group)
    say(f"torch_pool: FSDP2, {plain_ms:.2f} ms a step, with buffers of the process group {group_ms:.2f}")


def timed(run, times=10):
    run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda.synchronize()
    dist.barrier()
    marks[0].record()
    for _ in range(times):
        run()
    marks[1].record()
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]) / times * 1000


def of_shunt(pool, early):
    """early: a tensor of the pool from before the process group."""
    import libshunt
    from torch.nn.parallel import DistributedDataParallel
    pool.register()
    early.fill_(rank + 1)
    dist.all_reduce(early)
    check("a tensor from before the process group", bool((early == world * (world + 1) / 2).all()))
    x, weight = random(4096 * 1024, 1).view(4096, 1024), random(1024 * 4096, 2).view(1024, 4096)
    with pool:
        partial = torch.empty(4096, 4096, dtype=torch.bfloat16, device=dev)
    torch.mm(x, weight, out=partial)
    plain = partial.clone()
    got, want = (torch.empty(4096 // world, 4096, dtype=torch.bfloat16, device=dev) for _ in range(2))
    us = timed(lambda: dist.reduce_scatter_tensor(got, partial)), timed(lambda: dist.reduce_scatter_tensor(want, plain))
    check("tensor parallel", torch.equal(got, want))
    say(f"torch_pool: reduce-scatter of {partial.nbytes >> 20} MB: {us[0]:.0f} us in the pool, {us[1]:.0f} us in other memory")

    def train_ddp(pooled):
        torch.manual_seed(3)
        net = nn.Sequential(*(nn.Linear(2048, 2048, device=dev, dtype=torch.bfloat16) for _ in range(4)))
        model, losses = None, []
        for step in range(4):
            with pool if pooled and step < 2 else contextlib.nullcontext():
                model = model or DistributedDataParallel(net, device_ids=[dev.index], gradient_as_bucket_view=True)
                loss = model(random(64 * 2048, step).view(64, 2048)).float().pow(2).mean()
                loss.backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= p.grad
            losses.append(loss.item())
        return losses

    a, b = train_ddp(True), train_ddp(False)
    check(f"DDP: losses {a} and {b}", a == b)
    paths = {count.path for count in libshunt.torch.stats()[0].counts}
    check(f"windows are used: {sorted(paths)}", "direct" in paths or "direct" not in os.environ.get("SHUNT_ALGO", ""))
    pool.close()
    say(f"torch_pool: libshunt.torch.pool(): paths {', '.join(sorted(paths))}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--only", default="plain,registered,symmetric,fsdp")
    o = p.parse_args()
    only = o.only.split(",")
    if "shunt" in only:
        import libshunt.torch
        pool = libshunt.torch.pool()
        with pool:
            early = torch.empty(1 << 20, device=dev)
    dist.init_process_group("nccl", device_id=dev)
    if "shunt" in only:
        of_shunt(pool, early)
    pools([how for how in ("plain", "registered", "symmetric") if how in only])
    if "fsdp" in only:
        fsdp(o.steps)
    total = torch.tensor([failures], device=dev)
    dist.all_reduce(total)
    say(f"torch_pool: {'PASS' if total.item() == 0 else 'FAIL'}")
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    sys.exit(1 if total.item() else 0)


main()
