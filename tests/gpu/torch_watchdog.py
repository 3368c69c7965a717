#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch when a rank does not come: the process group is aborted, torn down, and a new one works in the same
processes.

  torchrun --nproc-per-node N torch_watchdog.py [--shrink-abort] [CASE...]

With libshunt preloaded, standalone (SHUNT_NCCL_LIB=none), or with neither for comparison. One line for each case. --shrink-abort adds
shrink_group(SHRINK_ABORT) with a rank that hangs, which is said to hang in PyTorch 2.11 itself. Exit 77: fewer than two GPUs.
"""

import argparse
import datetime
import faulthandler
import os
import sys
import threading
import time

# Read when torch is loaded or a group is made. Nothing may end the process but the cases: no monitor, and no waiting
# for dumps: the watchdog
# sleeps four times WAIT_TIMEOUT_DUMP_MILSEC between a timeout and the abort, a minute by default, whether there are
# dumps or not.
os.environ.update(
    TORCH_NCCL_ENABLE_MONITORING="0",
    TORCH_NCCL_DUMP_ON_TIMEOUT="0",
    TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="250",
    TORCH_FR_BUFFER_SIZE="0",
    TORCH_NCCL_PROPAGATE_ERROR="0",
)
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import gpus

gpus.need("torch_watchdog")

rank, world, local = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
dev = gpus.mine(local)
torch.cuda.set_device(dev)
late = world - 1  # the rank that does not come
# torch's ErrorHandlingMode: what the watchdog does when a call fails or takes too long.
NOTHING, CLEAN_UP_ONLY = 0, 2
LIMIT_S, WATCHDOG_S, ABORT_AFTER_S, GRACE_S = 120, 5, 2, 10

agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
base = dist.TCPStore(
    os.environ["MASTER_ADDR"],
    int(os.environ["MASTER_PORT"]),
    world,
    rank == 0 and not agent,
    datetime.timedelta(seconds=LIMIT_S),
    wait_for_workers=False,
)
groups = 0


class Failed(Exception):
    pass


def must(good, what):
    if not good:
        raise Failed(what)


def begin(mode, timeout_s=LIMIT_S):
    """A new default group, under keys of its own: those of the last one are still in the store."""
    global groups
    groups += 1
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = str(mode)
    dist.init_process_group(
        "nccl",
        store=dist.PrefixStore(f"group{groups}", base),
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=timeout_s),
        device_id=dev,
    )


def synchronize(name, n=world):
    """Without the group that is under test."""
    key = f"synchronize/{name}"
    base.add(key, 1)
    end = time.monotonic() + LIMIT_S
    while base.add(key, 0) < n:
        must(time.monotonic() < end, f'the others do not come to "{name}"')
        time.sleep(0.01)  # pause: poll


def values(group=None, ranks=None):
    """Are collectives right, small and large ones, whoever runs them?"""
    ranks = ranks or list(range(world))
    for count in (1, 1001, 100003, 1 << 22):
        x = torch.arange(count, dtype=torch.int64, device=dev) * (rank + 1)
        dist.all_reduce(x, group=group)
        want = torch.arange(count, dtype=torch.int64) * sum(r + 1 for r in ranks)
        must(torch.equal(x.cpu(), want), f"all_reduce of {count} is wrong")
    parts = [torch.empty(777, device=dev) for _ in ranks]
    dist.all_gather(parts, torch.full((777,), float(rank), device=dev), group=group)
    for part, r in zip(parts, ranks):
        must(bool((part == r).all()), "all_gather is wrong")


def new_group_works():
    synchronize(f"new group {groups}")
    begin(NOTHING)
    values()
    dist.destroy_process_group()


def abort_later():
    """From another thread, as a program does that has seen enough. Returns the thread and a list for what it raised."""
    raised = []

    def run():
        time.sleep(ABORT_AFTER_S)  # pause: middle: of the hang
        try:
            c10d._abort_process_group()
        except Exception as e:  # told by the main thread
            raised.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def hang(call):
    """All but one make the call, and wait for it until another thread aborts; then the one aborts as well."""
    if rank == late:
        synchronize(f"hang {groups}")
        c10d._abort_process_group()
        return
    thread, raised = abort_later()
    began = time.monotonic()
    call()
    torch.cuda.synchronize()
    took = time.monotonic() - began
    thread.join()
    must(not raised, f"the abort raised {raised}")
    must(
        ABORT_AFTER_S * 0.9 < took < ABORT_AFTER_S + 2,
        f"the device was free after {took:.1f} s, and the abort came after {ABORT_AFTER_S} s",
    )
    synchronize(f"hang {groups}")


def case_renew():
    """Destroyed and made again, with nothing wrong."""
    for _ in range(3):
        begin(CLEAN_UP_ONLY)
        values()
        dist.destroy_process_group()
        synchronize(f"renew {groups}")


def case_watchdog():
    """The watchdog's timeout aborts the group; the main thread gets its device back, and tears the group down."""
    begin(CLEAN_UP_ONLY, WATCHDOG_S)
    values()
    x = torch.ones(1 << 18, device=dev)
    if rank == late:
        synchronize("watchdog")
        c10d._abort_process_group()
    else:
        began = time.monotonic()
        work = dist.all_reduce(x, async_op=True)
        torch.cuda.synchronize()
        took = time.monotonic() - began
        must(
            WATCHDOG_S * 0.9 < took < WATCHDOG_S + GRACE_S,
            f"the device was free after {took:.1f} s, the timeout is {WATCHDOG_S} s",
        )
        try:  # what the program sees of it, if it asks
            work.wait()
        except Exception as e:
            print(f"# rank {rank}: wait: {str(e).splitlines()[0][:200]}", flush=True)
        del work
        synchronize("watchdog")
        dist.destroy_process_group()
    new_group_works()


def case_abort():
    """_abort_process_group from another thread, with the watchdog switched off."""
    begin(NOTHING)
    values()
    x = torch.ones(1 << 18, device=dev)
    hang(lambda: dist.all_reduce(x, async_op=True))
    new_group_works()


def case_abort_twice():
    """The same again at once, with messages of a pipeline."""
    for _ in range(2):
        begin(NOTHING)
        x = torch.ones(5000, device=dev)
        dist.all_reduce(x)
        if rank == late:
            hang(None)
        else:
            hang(lambda: dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, late)]))
    new_group_works()


def case_abort_groups():
    """A rank hangs in one of several groups, and all are aborted together."""
    begin(NOTHING)
    a, b = dist.new_group(list(range(world))), dist.new_group(list(range(world)))
    values()
    values(a)
    values(b)
    x = torch.ones(3000, device=dev)
    hang(lambda: dist.all_reduce(x, group=a, async_op=True))
    new_group_works()


def case_abort_graph():
    """A captured graph is alive, and its replay hangs."""
    begin(NOTHING)
    x = torch.ones(20000, device=dev)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    x.fill_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            dist.all_reduce(x)
    x.fill_(1)
    graph.replay()
    torch.cuda.synchronize()
    must(bool((x == float(world) ** 3).all()), "the graph's sum is wrong")
    hang(graph.replay)
    del graph
    torch.cuda.synchronize()
    new_group_works()


def case_shrink():
    """A healthy group goes on without its last rank."""
    begin(NOTHING)
    group = dist.new_group(list(range(world)))
    values(group)
    if rank == late:
        dist.destroy_process_group(group)
    else:
        shrunk = dist.shrink_group([late], group=group)
        values(shrunk, list(range(world - 1)))
        dist.destroy_process_group(shrunk)
    synchronize("shrink")
    values()
    dist.destroy_process_group()
    new_group_works()


def case_shrink_abort():
    """The last rank hangs, and the others shrink the group, which ends what they wait in."""
    begin(NOTHING)
    group = dist.new_group(list(range(world)))
    values(group)
    x = torch.ones(3000, device=dev)
    if rank == late:
        synchronize("shrink_abort")
    else:
        dist.all_reduce(x, group=group, async_op=True)
        shrunk = dist.shrink_group([late], group=group, shrink_flags=c10d.SHRINK_ABORT)
        torch.cuda.synchronize()
        values(shrunk, list(range(world - 1)))
        synchronize("shrink_abort")
    c10d._abort_process_group()
    new_group_works()


parser = argparse.ArgumentParser()
parser.add_argument("--shrink-abort", action="store_true")
parser.add_argument("case", nargs="*")
args = parser.parse_args()
cases = ["renew", "watchdog", "abort", "abort_twice", "abort_groups", "abort_graph", "shrink"] + [
    "shrink_abort"
] * args.shrink_abort
failed = 0
for name in args.case or cases:
    text, began = "", time.monotonic()
    if name.startswith("shrink") and not hasattr(dist, "shrink_group"):
        text = "skipped: this PyTorch has no shrink_group"
    else:
        # A hang ends all with a traceback: what comes behind it would hang as well.
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        try:
            globals()[f"case_{name}"]()
        except Exception as e:
            text = f"FAIL {type(e).__name__}: {e}"
    base.set(f"result/{name}/{rank}", text or "ok")
    results = [base.get(f"result/{name}/{r}").decode() for r in range(world)]
    faulthandler.cancel_dump_traceback_later()
    if rank == 0:
        bad = [f"rank {r}: {t}" for r, t in enumerate(results) if t != "ok"]
        print(f"{name}: {'; '.join(bad) or 'ok'} ({time.monotonic() - began:.1f} s)", flush=True)
    if any(t.startswith("FAIL") for t in results):
        failed = 1
        break  # the ranks may be at different places
synchronize("end")
if rank == 0:
    print("FAIL" if failed else "PASS", flush=True)
    time.sleep(0 if agent else 1)  # pause: grace: the others may ask this rank's store once more
os._exit(failed)  # whatever a failed group has left behind
