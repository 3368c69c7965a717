#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""count.py PROGRAM: counts the instructions of the host path of calls, with callgrind, and fails if a kind needs more
than its limit.

What the fakes of the driver and of NCCL do is left out; what the C library does for us is not.
"""
import os
import shutil
import subprocess
import sys
import tempfile

# Instructions of one call, in the order in which PROGRAM makes them: measured with gcc 12 at -O2 on x86-64, and 2 %
# more.
LIMITS = {
    "allreduce": 1885,
    "messages": 4080,
    "messages8": 18080,
    "forwarded": 895,
    "forwarded_group": 1157,
    "empty_group": 348,
}
CALLS = 50
FAKES = ("fake_nccl/libnccl.so", "libcuda.so", "libnvidia-ml.so")


def is_fake(ob):
    return any(fake in ob for fake in FAKES)


def instructions(path):
    """Of a callgrind file: all but those of the fakes, and of what they called."""
    total = 0
    ob = callee = None
    is_call = False
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("ob="):
                ob = line[3:].strip()
            elif line.startswith("cob="):
                callee = line[4:].strip()
            elif line.startswith("calls="):
                is_call = True
            elif line[:1] in "0123456789+-*":
                cost = int(line.split()[-1])
                if is_call:  # what was counted until it returned
                    if is_fake(ob) and not is_fake(callee or ob):
                        total -= cost
                    is_call = False
                    callee = None
                elif not is_fake(ob):
                    total += cost
    return total


def main():
    if len(sys.argv) < 2:
        print("skipped: the limits are for a build by gcc with optimization, for x86-64, without sanitizers and coverage")
        return 77
    if not shutil.which("valgrind"):
        print("skipped: there is no valgrind")
        return 77
    # Meson has the C library fill all that malloc gives and free gets.
    env = {name: value for name, value in os.environ.items() if name != "MALLOC_PERTURB_"}
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "callgrind")
        run = subprocess.run(
            ["valgrind", "--tool=callgrind", "--toggle-collect=measured", "--dump-after=measured", "--compress-strings=no",
             "--compress-pos=no", "--callgrind-out-file=" + out, sys.argv[1], str(CALLS)],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if run.returncode:
            print("%s: status %d\n%s" % (sys.argv[1], run.returncode, run.stdout))
            return 1
        for number, (kind, limit) in enumerate(LIMITS.items(), 1):
            n = instructions("%s.%d" % (out, number)) / CALLS
            bad += n > limit
            print("%-16s %6.0f instructions, limit %6d%s" % (kind, n, limit, "   TOO MANY" if n > limit else ""))
    if bad:
        print("what a call costs has grown: find out why (callgrind_annotate), or measure the new limits and say why in the commit")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
