# SPDX-License-Identifier: MIT
"""
torchcomms' backend "shunt" with the real torchcomms, on GPUs: SHUNT_MULTI_RANK_GPU=1 torchrun --nproc-per-node 2
tests/gpu/torchcomms_backend.py. Every rank compares the values of all-reduces (also scaled, asynchronous and of a part),
gathers and messages, on streams of PyTorch's. Ranks may share GPUs. With TORCH_DISTRIBUTED_USE_TORCHCOMMS=1 in the
environment, the same backend also carries a process group, with functional collectives and DDP.
"""

import os

import libshunt
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torchcomms

RANK = int(os.environ["RANK"])
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", RANK)) % torch.cuda.device_count())
OP = torchcomms.ReduceOp


def expect(what: str, got: torch.Tensor, wanted: float) -> None:
    if not bool((got.float() == wanted).all()):
        raise SystemExit(f"rank {RANK}: {what}: {got.flatten()[:4].tolist()}, expected {wanted}")


def process_group() -> None:
    """Each rank's gradient is its number, so their mean is known."""
    dist.init_process_group("cuda:shunt")
    n = dist.get_world_size()
    x = torch.full((1000,), float(RANK), device=DEVICE)
    expect("functional", functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD)), n * (n - 1) / 2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1 << 10, 1 << 10, bias=False, device=DEVICE))
    for _ in range(3):
        model.zero_grad()
        model(torch.full((1, 1 << 10), float(RANK), device=DEVICE)).sum().backward()
        expect("DDP's gradient", next(model.parameters()).grad, (n - 1) / 2)
    dist.all_reduce(x, async_op=True)  # nobody holds its work
    dist.barrier()
    expect("all_reduce", x, n * (n - 1) / 2)
    dist.destroy_process_group()


def main() -> None:
    torch.cuda.set_device(DEVICE)
    if os.environ.get("TORCH_DISTRIBUTED_USE_TORCHCOMMS"):
        process_group()
    comm = torchcomms.new_comm("shunt", DEVICE, name="main")
    n = comm.get_size()
    total = n * (n + 1) // 2
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8):
        for count in (1, 1000, 1 << 20):
            x = torch.full((count,), RANK + 1, dtype=dtype, device=DEVICE)
            comm.all_reduce(x, OP.SUM, async_op=False)
            expect(f"all_reduce of {count} {dtype}", x, total)
            x.fill_(RANK + 1)
            work = comm.all_reduce(x, OP.PREMUL_SUM(2), async_op=True)
            work.wait()
            expect(f"scaled all_reduce of {count} {dtype}", x, 2 * total)
    out = torch.empty(n, 1000, device=DEVICE)
    comm.all_gather_single(out, torch.full((1000,), float(RANK), device=DEVICE), async_op=False)
    for rank in range(n):
        expect(f"all_gather_single of rank {rank}", out[rank], rank)
    y = torch.empty(1000, device=DEVICE)
    comm.reduce_scatter_single(y, torch.ones(n * 1000, device=DEVICE), OP.AVG, async_op=False)
    expect("reduce_scatter_single", y, 1)
    part = comm.split(list(range(n - 1, -1, -1)), "reversed")
    if part.get_device() != comm.get_device():
        raise SystemExit(f"rank {RANK}: the part is on {part.get_device()}, its parent on {comm.get_device()}")
    z = torch.full((10,), float(RANK), device=DEVICE)
    part.broadcast(z, 0, async_op=False)
    expect("broadcast of a part", z, n - 1)
    peer = RANK ^ 1
    if peer < n:
        got = torch.empty(10, device=DEVICE)
        if RANK < peer:
            comm.send(torch.full((10,), float(RANK), device=DEVICE), peer, async_op=False)
            comm.recv(got, peer, async_op=False)
        else:
            comm.recv(got, peer, async_op=False)
            comm.send(torch.full((10,), float(RANK), device=DEVICE), peer, async_op=False)
        expect("recv", got, peer)
    comm.barrier(async_op=False)
    torch.cuda.synchronize()
    if RANK == 0:
        print(libshunt.describe(comm.get_backend_impl().handle()))
    part.finalize()
    comm.finalize()
    print(f"rank {RANK}: all values are right")


if __name__ == "__main__":
    main()
