#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs of PyTorch that hang, and what `shunt doctor` says of the dumps that their processes leave.

  doctor_dumps.py --shunt build/tools/shunt [-n N] [--standalone] [SCENARIO...]

Starts the ranks itself (`shunt run`), waits until they hang, has them write their dumps (SIGUSR1, or by themselves when a deadline
passes or SHUNT_CHECK finds the difference), and reads what the doctor makes of these. One line for each scenario. Exit 77: no two GPUs.
"""
import argparse
import glob
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

LIMIT_S = 90
COUNT = 1000


def worker(scenario):
    import datetime

    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", timeout=datetime.timedelta(minutes=10), device_id=torch.device("cuda", rank))
    x = torch.ones(COUNT, device="cuda")
    for _ in range(5):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    odd = rank == 1
    kept = []
    if scenario == "skip" and not odd:
        kept.append(dist.all_reduce(x, async_op=True))
    if scenario == "skip_one_of_many":
        for i in range(3):
            if not odd or i:
                kept.append(dist.all_reduce(torch.ones(COUNT + i, device="cuda"), async_op=True))
    if scenario == "count":
        kept.append(dist.all_reduce(torch.ones(2 * COUNT if odd else COUNT, device="cuda"), async_op=True))
    if scenario == "kind":
        y = torch.ones(COUNT, device="cuda")
        kept.append(dist.broadcast(y, 1, async_op=True) if odd else dist.all_reduce(y, async_op=True))
    print("hanging", flush=True)
    time.sleep(LIMIT_S + 60)
    os._exit(0)


ROW = rf"allreduce of {COUNT} float32, sum"
SKIP = rf"rank 1 \(pid \d+ on .*\) is behind: it has not called collective \d+ \({ROW}\)"
OTHER = rf"called allreduce of {2 * COUNT} float32, sum as collective \d+, where .* called {ROW}"
# scenario, how the dumps come about, environment, what the doctor must say of them
SCENARIOS = {
    "skip": ("skip", "signal", {}, SKIP),
    "skip_one_of_many": ("skip_one_of_many", "signal", {}, r"rank 1 .* called allreduce of 1001 .*; it looks as if rank 1 left out that one"),
    "count": ("count", "signal", {}, rf"rank 1 .* {OTHER}"),
    "kind": ("kind", "signal", {}, rf"rank 1 .* called broadcast of {COUNT} float32, root 1 as collective \d+, where .* called {ROW}"),
    "deadline": ("skip", "error", {"SHUNT_TIMEOUT": "5s"}, rf"ended it with ETIMEDOUT, after waiting for rank 1 in call \d+, {ROW}"),
    "check": ("count", "error", {"SHUNT_CHECK": "1"}, rf"ended it with EBADE, because rank \d calls allreduce of ({COUNT}|{2 * COUNT}) float32, sum"),
}


def wait_for(what, ready, jobs):
    end = time.monotonic() + LIMIT_S
    while not ready():
        dead = [r for r, j in enumerate(jobs) if j.poll() is not None]
        if dead or time.monotonic() > end:
            raise RuntimeError(f"{what}: " + (f"rank {dead[0]} has ended" if dead else f"not within {LIMIT_S} s"))
        time.sleep(0.1)


def run(shunt, n, standalone, row):
    scenario, how, more, pattern = row
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as top:
        dumps, jobs = os.path.join(top, "dumps"), []
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(n), SHUNT_DUMP_DIR=dumps,
                   SHUNT_DUMP_SIGNAL="1", TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_ENABLE_MONITORING="0",
                   TORCH_NCCL_DUMP_ON_TIMEOUT="0", **more)
        if standalone:
            env["SHUNT_NCCL_LIB"] = "none"
        try:
            for r in range(n):
                out = open(os.path.join(top, f"rank{r}"), "w")
                jobs.append(subprocess.Popen([shunt, "run", "--", sys.executable, os.path.abspath(__file__), "--worker", scenario],
                                             env=dict(env, RANK=str(r), LOCAL_RANK=str(r)), stdout=out, stderr=out))

            def said(r):
                with open(os.path.join(top, f"rank{r}")) as f:
                    return f.read()

            def files():
                return {re.sub(r"-\d+\.json$", "", f) for f in glob.glob(os.path.join(dumps, "shunt-*.json"))}

            try:
                if how == "signal":
                    wait_for("the ranks come to hang", lambda: all("hanging" in said(r) for r in range(n)), jobs)
                    time.sleep(2)  # a younger wait may be a job that runs
                    for j in jobs:
                        j.send_signal(signal.SIGUSR1)
                    wait_for("all ranks' dumps", lambda: len(files()) == n, jobs)
                else:
                    wait_for("a dump of an error", files, jobs)
                    time.sleep(2)
            except RuntimeError as e:
                return f"{e}\n" + "\n".join(f"rank {r}: {said(r)[-1500:]}" for r in range(n))
            got = subprocess.run([shunt, "doctor", "dumps", dumps], capture_output=True, text=True, timeout=LIMIT_S)
        finally:
            for j in jobs:
                j.kill()
            for j in jobs:
                j.wait()
    if got.returncode != 2 or not re.search(pattern, got.stdout):
        return f"status {got.returncode}, wanted \"{pattern}\" in:\n{got.stdout}{got.stderr}"
    line = next(x for x in got.stdout.splitlines() if re.search(pattern, x))
    print(f"# {' '.join(line.split())}", flush=True)
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shunt", default="shunt")
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--worker")
    parser.add_argument("scenario", nargs="*")
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout if os.path.exists("/dev/nvidiactl") else ""
    if listing.count("GPU ") < args.n:
        print(f"SKIP doctor_dumps: needs {args.n} GPUs")
        return 77
    failed = 0
    for name in args.scenario or SCENARIOS:
        wrong = run(args.shunt, args.n, args.standalone, SCENARIOS[name])
        print(f"{name}: {wrong or 'ok'}", flush=True)
        failed |= wrong is not None
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
