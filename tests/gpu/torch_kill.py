#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A job of PyTorch whose rank 1 is killed in the middle of a loop of all-reduces, and a new job right after it on the same devices.

  torch_kill.py --shunt build/tools/shunt [-n N] [--standalone] [--within SECONDS]

Starts the ranks itself (`shunt run`). The others must name the dead rank, its process and the collective, get their devices back and end by
themselves within the given time. Prints how long that took, and how long the new job. Exit 77: not enough GPUs.
"""
import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

LIMIT_S = 90
COUNT = 1 << 18
VICTIM = 1


def worker(endless):
    import datetime

    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", timeout=datetime.timedelta(minutes=10), device_id=torch.device("cuda", rank))
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


def start(args, top, name, endless):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(args.n), TORCH_NCCL_ASYNC_ERROR_HANDLING="0",
               TORCH_NCCL_ENABLE_MONITORING="0", TORCH_NCCL_DUMP_ON_TIMEOUT="0", SHUNT_LOG="warn")
    if args.standalone:
        env["SHUNT_NCCL_LIB"] = "none"
    jobs, files = [], [os.path.join(top, f"{name}{r}") for r in range(args.n)]
    for r in range(args.n):
        with open(files[r], "w") as out:
            command = [args.shunt, "run", "--", sys.executable, os.path.abspath(__file__), "--worker", "endless" if endless else "once"]
            jobs.append(subprocess.Popen(command, env=dict(env, RANK=str(r), LOCAL_RANK=str(r)), stdout=out, stderr=out))
    return jobs, files


def read(path):
    with open(path) as f:
        return f.read()


def until(ready, seconds):
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def check(args, top):
    """What is wrong, or None."""
    jobs, files = start(args, top, "killed", True)
    try:
        if not until(lambda: all("running" in read(f) for f in files), LIMIT_S):
            return "the job does not start:\n" + "\n".join(read(f)[-1000:] for f in files)
        time.sleep(0.3)
        jobs[VICTIM].send_signal(signal.SIGKILL)
        began = time.monotonic()
        left = [r for r in range(args.n) if r != VICTIM]
        if not until(lambda: all(jobs[r].poll() is not None for r in left), args.within):
            return f"still there {args.within} s later:\n" + "\n".join(read(files[r])[-1000:] for r in left)
        print(f"# the others ended {time.monotonic() - began:.2f} s after the kill", flush=True)
        for r in left:
            said = read(files[r])
            named = re.search(rf"rank {VICTIM} died \(pid {jobs[VICTIM].pid}\) and rank {r} waits for it in allreduce of {COUNT} float32.*", said)
            if not named or "device works: True" not in said or "raised: " not in said:
                return f"rank {r} says:\n{said[-2000:]}"
            print(f"# rank {r}: {named.group(0)}; {re.search('device works.*', said).group(0)}", flush=True)
        began = time.monotonic()
        again, files = start(args, top, "new", False)
        jobs += again
        if not until(lambda: all(j.poll() is not None for j in again), LIMIT_S) or any(j.returncode for j in again):
            return "the new job:\n" + "\n".join(read(f)[-1000:] for f in files)
        if any("running" not in read(f) or "raised" in read(f) for f in files):
            return "the new job:\n" + "\n".join(read(f)[-1000:] for f in files)
        print(f"# a new job with the same devices: {time.monotonic() - began:.1f} s, all sums right", flush=True)
    finally:
        for j in jobs:
            j.kill()
        for j in jobs:
            j.wait()
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shunt", default="shunt")
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--within", type=float, default=15)
    parser.add_argument("--worker")
    args = parser.parse_args()
    if args.worker:
        worker(args.worker == "endless")
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout if os.path.exists("/dev/nvidiactl") else ""
    if listing.count("GPU ") < args.n:
        print(f"SKIP torch_kill: needs {args.n} GPUs")
        return 77
    with tempfile.TemporaryDirectory() as top:
        wrong = check(args, top)
    print(f"torch_kill: {wrong or 'ok'}", flush=True)
    return int(wrong is not None)


if __name__ == "__main__":
    sys.exit(main())
