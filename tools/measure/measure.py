#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs what a machine with GPUs can show of Shunt, and writes it as data.

The steps come in the order of their value, and each has a time limit. What there was no time
for is said at the end, with its command, and is done by the next run: the state folder has the
results of the steps that are done. A step is taken again when the library, the machine, NCCL or
its command is another one.

  each rank has a GPU of its own   values, times beside NCCL (plain, and with registered
                                   buffers), conformance, torture, sanitizers, replays, plans
                                   beside kernels, PyTorch
  one GPU, which ranks share       the same without times: ranks take turns on the GPU
  no GPU                           the part that the sim can do, without times

NVLink multicast is never used: NCCL_NVLS_ENABLE=0 holds for every step.
"""
import argparse
import os
import subprocess
import sys
import time

import outcomes
from machine import Machine, several_nccls
from runner import Runner
from steps import ROOT, steps_of

# Of a build. The examples are made together.
NEEDED = ("tools/shunt", "src/libshunt.so", "plans/examples/all_reduce_ring_2.json")


def rank_list(text):
    ranks = [int(n) if n.isdigit() else 0 for n in text.split(",")]
    if any(n < 2 or n > 8 for n in ranks):
        raise argparse.ArgumentTypeError("%s: 2 to 8 ranks, separated by commas" % text)
    return ranks


def parse(argv):
    p = argparse.ArgumentParser(prog="tools/measure.sh", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter,
                                epilog="Exit status: 0; 1 if a step failed; 2 for a wrong option.")
    add = p.add_argument
    add("--build", metavar="DIR", help="a folder that is built already (default: build-measure, which is made)")
    add("--nccl", metavar="PATH", action="append",
        help="NCCL's library, or none (default: SHUNT_NCCL_LIB, PyTorch's, the system's); may come again with another version: "
        "steps in front of NCCL run with each, in turns")
    add("--out", metavar="DIR", default=os.path.join(ROOT, "docs", "results"), help="of the results (docs/results)")
    add("--state", metavar="DIR", default=os.path.join(ROOT, ".deps", "measure"), help="of steps (.deps/measure)")
    add("--budget", metavar="S", type=int, default=540, help="seconds that a run takes at most (540)")
    add("--ranks", metavar="N,...", type=rank_list, help="numbers of ranks (as many as GPUs, then fewer)")
    add("--device", choices=("auto", "gpu", "sim"), default="auto", help="(auto: sim where there is no GPU)")
    add("--only", metavar="TEXT", action="append", default=[], help="only steps whose name has this; may come again")
    add("--again", action="store_true", help="take the steps anew, whatever the state folder has")
    add("--commit", metavar="ID", help="what was built, where git cannot tell")
    add("--list", action="store_true", help="print the steps and run nothing")
    return p.parse_args(argv)


def commit_of():
    try:
        argv = ["git", "-C", ROOT, "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty"]
        done = subprocess.run(argv, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else "unknown"
    except FileNotFoundError:
        return "unknown"


def build_here(machine, deadline):
    """Ninja goes on where a run before this one ended."""
    folder = os.path.join(ROOT, "build-measure")
    commands = []
    if not os.path.exists(os.path.join(folder, "build.ninja")):
        cuda = ["-Dcuda=disabled"]
        if machine.gpus:
            archs = sorted({gpu[2].replace(".", "") for gpu in machine.gpus})
            cuda = ["-Dcuda=enabled", "-Dgpu_archs=" + ",".join(archs)]
        commands.append(["meson", "setup", folder, "-Dtests=disabled"] + cuda)
    commands.append(["ninja", "-C", folder, *NEEDED])
    for argv in commands:
        print("building: " + " ".join(argv), flush=True)
        try:
            left = max(1, deadline - time.monotonic())
            done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=left)
        except FileNotFoundError:
            sys.exit("measure: there is no %s: build elsewhere, and name the folder by --build DIR" % argv[0])
        except subprocess.TimeoutExpired:
            sys.exit("measure: the build did not end in this run's time: run it again, it goes on")
        if done.returncode:
            output = (done.stdout + done.stderr)[-3000:]
            sys.exit("%s\nmeasure: the build failed: %s; --build DIR names another one" % (output, " ".join(argv)))
    return folder


def look_at_build(folder):
    for need in NEEDED:
        if not os.path.exists(os.path.join(folder, need)):
            sys.exit("measure: there is no %s in %s: ninja -C %s %s" % (need, folder, folder, need))
    shunt = os.path.join(folder, "tools", "shunt")
    done = subprocess.run([shunt, "--help"], capture_output=True, text=True, timeout=60)
    if done.returncode:
        sys.exit("measure: %s does not start here: %s" % (shunt, done.stderr.strip()))
    return folder


def summary(runner, path):
    """Prints what failed and what was left out. The exit status."""
    failed = [entry for entry in runner.entries.values() if entry["result"] == outcomes.FAILED]
    left_out = sum(len(entry["steps"]) for entry in runner.left_out)
    print("\n%d steps done, %d failed, %d left out" % (len(runner.entries), len(failed), left_out))
    for entry in failed:
        print("failed: %s: %s\n  %s" % (entry["step"], entry["says"], entry["command"]))
    for entry in runner.left_out:
        print("left out: %s (%d): %s\n  %s" % (entry["group"], len(entry["steps"]), entry["why"], entry["command"]))
    print("results: " + path)
    return 1 if failed else 0


def main(argv):
    options = parse(argv)
    deadline = time.monotonic() + options.budget
    machine = Machine(options.device, options.ranks)
    build = look_at_build(os.path.abspath(options.build) if options.build else build_here(machine, deadline))
    nccls = several_nccls(options.nccl)
    steps = [step for step in steps_of(machine, nccls, build)
             if not options.only or any(text in step.name for text in options.only)]
    if not steps:
        sys.exit("measure: no step's name contains %s: --list prints them" % " or ".join(options.only))
    runner = Runner(machine, nccls, build, options, deadline)
    if options.list:
        for step in steps:
            print("%-50s %s" % (step.name, "left out: " + step.why_not if step.why_not else runner.shown(step)))
        return 0
    commit, date = options.commit or commit_of(), time.strftime("%Y-%m-%d", time.gmtime())
    where = machine.describe()
    print("%s, %s, driver %s, NCCL %s, commit %s" %
          (machine.name(), where["ranks"], where["driver"] or "none", runner.nccl_text, commit))
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, "%s-%s-%s.json" % (date, machine.name(), commit))
    for step in steps:
        runner.run(step)
        runner.write(path, commit, date)
    return summary(runner, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
