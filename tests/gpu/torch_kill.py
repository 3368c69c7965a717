#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A job of PyTorch whose rank 1 is killed in the middle of a loop of all-reduces, and a new job right after it on the
same devices.

  torch_kill.py --shunt build/tools/shunt [-n N] [--standalone] [--within SECONDS]

Starts the ranks itself (`shunt run`). The others must name the dead rank, its process and the collective, get their devices back and end by
themselves within the given time. Prints how long that took, and how long the new job. Exit 77: not enough GPUs.
"""
import os
import re
import signal
import sys
import tempfile
import time

from torch_jobs import Job, gpus_missing, join, options, wait_for

COUNT = 1 << 18
VICTIM = 1


def worker(endless):
    import torch
    import torch.distributed as dist

    rank, world = join()
    x = torch.full((COUNT,), float(rank + 1), device="cuda")
    want = world * (world + 1) / 2
    rounds = 0
    try:
        while endless or rounds < 50:
            y = x.clone()
            for _ in range(20):
                dist.all_reduce(y)
                y.div_(want).mul_(rank + 1)
            dist.all_reduce(y)
            torch.cuda.synchronize()
            assert bool((y == want).all()), "wrong sums"
            rounds += 1
            if rounds == 50:
                print("running", flush=True)
    except Exception as e:
        print(f"raised: {' '.join(str(e).split())[:300]}", flush=True)
    began = time.monotonic()
    z = torch.arange(1 << 20, device="cuda").sum().item()
    print(f"device works: {z == (1 << 20) * ((1 << 20) - 1) // 2} in {1000 * (time.monotonic() - began):.1f} ms", flush=True)
    os._exit(0)


def rank_is_wrong(job, r):
    said = job.said(r)
    named = re.search(rf"rank {VICTIM} died \(pid {job.ranks[VICTIM].pid}\) and rank {r} waits for it in allreduce of {COUNT} float32.*", said)
    if not named or "device works: True" not in said or "raised: " not in said:
        return f"rank {r} says:\n{said[-2000:]}"
    print(f"# rank {r}: {named.group(0)}; {re.search('device works.*', said).group(0)}", flush=True)
    return None


def kill_one(args, job):
    """What is wrong, or None."""
    wait_for("the ranks come to run", lambda: job.all_said("running"))
    time.sleep(0.3)  # pause: middle: of the collective
    job.ranks[VICTIM].send_signal(signal.SIGKILL)
    began = time.monotonic()
    left = [r for r in range(args.n) if r != VICTIM]
    wait_for("the others end", lambda: all(job.ranks[r].poll() is not None for r in left), args.within)
    print(f"# the others ended {time.monotonic() - began:.2f} s after the kill", flush=True)
    return next(filter(None, (rank_is_wrong(job, r) for r in left)), None)


def run_again(_, job):
    began = time.monotonic()
    wait_for("the new job ends", lambda: all(rank.poll() is not None for rank in job.ranks))
    if any(rank.returncode for rank in job.ranks) or not job.all_said("running") or any("raised" in job.said(r) for r in range(len(job.ranks))):
        return f"the new job:\n{job.last_words(1000)}"
    print(f"# a new job with the same devices: {time.monotonic() - began:.1f} s, all sums right", flush=True)
    return None


def check(args, top):
    """What is wrong, or None."""
    for what, worker_does in ((kill_one, "endless"), (run_again, "once")):
        job = Job(args, __file__, worker_does, top, worker_does, SHUNT_LOG="warn")
        try:
            wrong = what(args, job)
        except RuntimeError as e:
            wrong = f"{e}\n{job.last_words(1000)}"
        finally:
            job.kill()
        if wrong:
            return wrong
    return None


def main():
    parser = options()
    parser.add_argument("--within", type=float, default=15)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker == "endless")
    if gpus_missing("torch_kill", args.n):
        return 77
    with tempfile.TemporaryDirectory() as top:
        wrong = check(args, top)
    print(f"torch_kill: {wrong or 'ok'}", flush=True)
    return int(wrong is not None)


if __name__ == "__main__":
    sys.exit(main())
