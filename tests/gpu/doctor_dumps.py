#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Jobs of PyTorch that hang, and what `shunt doctor` says of the dumps that their processes leave.

  doctor_dumps.py --shunt build/tools/shunt [-n N] [--standalone] [SCENARIO...]

Starts the ranks itself (`shunt run`), waits until they hang, has them write their dumps (SIGUSR1, or by themselves when a deadline
passes or SHUNT_CHECK finds the difference), and reads what the doctor makes of these. One line for each scenario. Exit 77: no two GPUs.
"""
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from torch_jobs import LIMIT_S, Job, gpus_missing, join, options, wait_for

COUNT = 1000


def worker(scenario):
    import torch
    import torch.distributed as dist

    rank, _ = join()
    x = torch.ones(COUNT, device="cuda")
    for _ in range(5):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    odd = rank == 1
    kept = []
    if scenario == "skip" and not odd:
        kept.append(dist.all_reduce(x, async_op=True))
    if scenario == "skip_last_of_many":
        for i in range(3):
            if not odd or i:
                kept.append(dist.all_reduce(torch.ones(COUNT + i, device="cuda"), async_op=True))
    if scenario == "count":
        kept.append(dist.all_reduce(torch.ones(2 * COUNT if odd else COUNT, device="cuda"), async_op=True))
    if scenario == "kind":
        y = torch.ones(COUNT, device="cuda")
        kept.append(dist.broadcast(y, 1, async_op=True) if odd else dist.all_reduce(y, async_op=True))
    print("hanging", flush=True)
    time.sleep(LIMIT_S + 60)  # pause: late: this rank hangs
    os._exit(0)


ROW = rf"allreduce of {COUNT} float32, sum"
SKIP = rf"rank 1 \(pid \d+ on .*\) is behind: it has not called collective \d+ \({ROW}\)"
OTHER = rf"called allreduce of {2 * COUNT} float32, sum as collective \d+, where .* called {ROW}"
# scenario, how the dumps come about, environment, what the doctor must say of them
SCENARIOS = {
    "skip": ("skip", "signal", {}, SKIP),
    "skip_last_of_many": ("skip_last_of_many", "signal", {}, r"rank 1 .* called allreduce of 1001 .*; it looks as if rank 1 left out that one"),
    "count": ("count", "signal", {}, rf"rank 1 .* {OTHER}"),
    "kind": ("kind", "signal", {}, rf"rank 1 .* called broadcast of {COUNT} float32, root 1 as collective \d+, where .* called {ROW}"),
    "deadline": ("skip", "error", {"SHUNT_TIMEOUT": "5s"}, rf"ended it with ETIMEDOUT, after waiting for rank 1 in call \d+, {ROW}"),
    "check": ("count", "error", {"SHUNT_CHECK": "1"}, rf"ended it with EBADE, because rank \d calls allreduce of ({COUNT}|{2 * COUNT}) float32, sum"),
}


def run(args, row):
    scenario, how, more, pattern = row
    with tempfile.TemporaryDirectory() as top:
        dumps = os.path.join(top, "dumps")

        def files():
            return {re.sub(r"-\d+\.json$", "", f) for f in glob.glob(os.path.join(dumps, "shunt-*.json"))}

        job = Job(args, __file__, scenario, top, SHUNT_DUMP_DIR=dumps, SHUNT_DUMP_SIGNAL="1", **more)
        try:
            if how == "signal":
                wait_for("the ranks come to hang", lambda: job.all_said("hanging"), alive=job.ranks)
                time.sleep(2)  # pause: grace: a younger wait may be a job that runs
                for rank in job.ranks:
                    rank.send_signal(signal.SIGUSR1)
                wait_for("all ranks' dumps", lambda: len(files()) == args.n, alive=job.ranks)
            else:
                wait_for("a dump of an error", files, alive=job.ranks)
                time.sleep(2)  # pause: poll
            got = subprocess.run([args.shunt, "doctor", "dumps", dumps], capture_output=True, text=True, timeout=LIMIT_S)
        except RuntimeError as e:
            return f"{e}\n{job.last_words(1500)}"
        finally:
            job.kill()
    if got.returncode != 2 or not re.search(pattern, got.stdout):
        return f"status {got.returncode}, wanted \"{pattern}\" in:\n{got.stdout}{got.stderr}"
    line = next(x for x in got.stdout.splitlines() if re.search(pattern, x))
    print(f"# {' '.join(line.split())}", flush=True)
    return None


def main():
    parser = options()
    parser.add_argument("scenario", nargs="*")
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
    if gpus_missing("doctor_dumps", args.n):
        return 77
    failed = 0
    for name in args.scenario or SCENARIOS:
        wrong = run(args, SCENARIOS[name])
        print(f"{name}: {wrong or 'ok'}", flush=True)
        failed |= wrong is not None
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
