# SPDX-License-Identifier: MIT
"""Jobs of PyTorch that a test starts itself, a process for each rank, by `shunt run`: a module of the tests beside
it."""
import argparse
import os
import socket
import subprocess
import sys
import time

LIMIT_S = 90


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shunt", default="shunt")
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--worker")
    return parser


def gpus_missing(test, n):
    """Says so, if there are less than n GPUs; then the test is to end with 77."""
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout if os.path.exists("/dev/nvidiactl") else ""
    if listing.count("GPU ") >= n:
        return False
    print(f"SKIP {test}: needs {n} GPUs")
    return True


def join():
    """In a rank of a job: the default group on a GPU of its own. Returns rank and number of ranks."""
    import datetime

    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", timeout=datetime.timedelta(minutes=10), device_id=torch.device("cuda", rank))
    return rank, world


class Job:
    """args: of options(). Runs `script --worker WORKER`; what rank r says is in the file f"{name}{r}" of the folder. more: environment."""

    def __init__(self, args, script, worker, folder, name="rank", **more):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(args.n),
                   TORCH_NCCL_ASYNC_ERROR_HANDLING="0", TORCH_NCCL_ENABLE_MONITORING="0", TORCH_NCCL_DUMP_ON_TIMEOUT="0", **more)
        if args.standalone:
            env["SHUNT_NCCL_LIB"] = "none"
        self.ranks, self.files = [], [os.path.join(folder, f"{name}{r}") for r in range(args.n)]
        command = [args.shunt, "run", "--", sys.executable, os.path.abspath(script), "--worker", worker]
        try:
            for r, file in enumerate(self.files):
                with open(file, "w") as out:
                    self.ranks.append(subprocess.Popen(command, env=dict(env, RANK=str(r), LOCAL_RANK=str(r)), stdout=out, stderr=out))
        except OSError:
            self.kill()
            raise

    def said(self, r):
        with open(self.files[r]) as f:
            return f.read()

    def all_said(self, what):
        return all(what in self.said(r) for r in range(len(self.files)))

    def last_words(self, length):
        return "\n".join(f"rank {r}: {self.said(r)[-length:]}" for r in range(len(self.files)))

    def kill(self):
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.wait()


def wait_for(what, ready, seconds=LIMIT_S, alive=()):
    """RuntimeError if that takes longer, or if one of the processes `alive` ends before."""
    end = time.monotonic() + seconds
    while not ready():
        dead = [r for r, process in enumerate(alive) if process.poll() is not None]
        if dead or time.monotonic() > end:
            raise RuntimeError(f"{what}: " + (f"rank {dead[0]} has ended" if dead else f"not within {seconds} s"))
        time.sleep(0.01)  # pause: poll
