#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's own distributed tests, those that its wheel carries (torch.testing._internal.distributed), over backend
"nccl" with two ranks:

  torch_own.py [--jobs N] [TEST...]

With libshunt preloaded or without. N tests run at a time, each for at most LIMIT_S. Prints a line for each test that
failed and what it said, and the counts, also when SIGTERM stops it; with SHUNT_STATS=1 also how many calls Shunt took
and how many went to NCCL, since all tests pass too if all calls do. Ends with 1 if a test failed or is left. Exit 77:
fewer than two GPUs, or no `expecttest`, which PyTorch's tests need.
"""

import argparse
import importlib.util
import os
import re
import signal
import sys
import tempfile
import time
import unittest

import torch

import gpus

gpus.need("torch_own")
if importlib.util.find_spec("expecttest") is None:
    print("SKIP torch_own: no expecttest")
    sys.exit(77)
# The tests' module reads them when it is imported. It asks through NVML whether there are GPUs: a process that has
# asked CUDA has no use of it in children that it forks, and all ranks are such.
os.environ.update(BACKEND="nccl", WORLD_SIZE="2", PYTORCH_NVML_BASED_CUDA_CHECK="1")
# The tests compare with exact products. Once their module is there this can no longer be set.
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
from torch.testing._internal.distributed.distributed_test import Barrier, DistributedTest, TestDistBackend

LIMIT_S = 90
Barrier.sync.__func__.__defaults__ = None, LIMIT_S  # 10 s are too few for ranks that start beside many others
COUNTER = re.compile(r" SHUNT +\w+ +(\w+) +(\d+) +\d+ ")


class Tests(TestDistBackend, DistributedTest._DistTestBase):
    """
    Ranks are forked: to import PyTorch takes them longer than most tests. They are there before the test begins, as its
    set-up asks CUDA, and then wait for the values that it has made.
    """

    def fork_ranks(self):
        context = torch.multiprocessing.get_context("fork")
        for rank in range(int(self.world_size)):
            (go, wait), (ours, theirs) = context.Pipe(), context.Pipe()
            process = context.Process(target=self.wait_and_run, args=(wait, rank, self._testMethodName, theirs))
            process.start()
            self.forked.append((process, go, ours))

    @classmethod
    def wait_and_run(cls, wait, rank, name, pipe):
        file_name, environ = wait.recv()
        os.environ.update(environ)
        cls._run(rank, name, file_name, pipe)

    def __init__(self, name):
        super().__init__(name)
        self.forked = []

    def setUp(self):
        super().setUp()
        for process, go, ours in self.forked:
            self.processes.append(process)
            self.pid_to_pipe[process.pid] = ours
            go.send((self.file_name, dict(os.environ)))


def start(test, out):
    """Forks a process, the leader of a session, as a test may leave its ranks hanging."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.dup2(out.fileno(), 1)
    os.dup2(out.fileno(), 2)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    status = 1
    try:
        test.fork_ranks()
        # With Triton the set-up would ask CUDA for a device, which takes a second for nothing.
        torch.utils._triton.has_triton = lambda: False
        result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite([test]))
        status = 1 if not result.wasSuccessful() else 77 if result.skipped else 0
        sys.stdout.flush()
    finally:
        os._exit(status)


def ended(pid, late):
    """How the process ended, or None. Kills it if it is late, and those that it left in any case."""
    if not late and not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        return None
    os.killpg(pid, signal.SIGKILL)
    return {0: "passed", 77: "skipped"}.get(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "failed")


def run(tests, jobs):
    """Yields the name of each test, the outcome, and what it said."""
    running = {}
    try:
        while tests or running:
            while tests and len(running) < jobs:
                out = tempfile.TemporaryFile("w+", errors="replace")
                test = tests.pop(0)
                running[start(test, out)] = test, out, time.monotonic() + LIMIT_S
            time.sleep(0.05)  # pause: poll
            for pid, (test, out, until) in list(running.items()):
                late = time.monotonic() > until
                outcome = ended(pid, late)
                if outcome:
                    del running[pid]
                    out.seek(0)
                    yield test._testMethodName, outcome, out.read() + (f"\nno end after {LIMIT_S} s\n" if late else "")
                    out.close()
    finally:
        for pid in running:
            ended(pid, True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 3))
    parser.add_argument("tests", nargs="*")
    args = parser.parse_args()
    names = args.tests or unittest.TestLoader().getTestCaseNames(Tests)
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    ours, forwarded = 0, 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for name, outcome, said in run([Tests(name) for name in names], args.jobs):
            counts[outcome] += 1
            for path, calls in COUNTER.findall(said):
                ours, forwarded = ours + int(calls) * (path != "nccl"), forwarded + int(calls) * (path == "nccl")
            if outcome == "failed":
                print(f"FAIL {name}\n" + "\n".join(said.splitlines()[-40:]), flush=True)
    except KeyboardInterrupt:
        print("stopped")
    left = len(names) - sum(counts.values())
    passed, failed, skipped = counts.values()
    calls = f"; calls: {ours} by Shunt, {forwarded} by NCCL" if ours or forwarded else ""
    print(f"{passed} passed, {failed} failed, {skipped} skipped, {left} left (torch {torch.__version__}){calls}")
    return 1 if failed or left or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
