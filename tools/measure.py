#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs what a machine with GPUs can show of Shunt, and writes it as data.

The steps come in the order of their value, and each has a time limit. What there was no time for is said at the end, with
its command, and is done by the next run: the state folder has the results of the steps that are done. A result is taken again
when the library, the machine, NCCL or the step's command is another one.

  each rank has a GPU of its own   values, times beside NCCL (plain, and with registered buffers), conformance, torture,
                                   replays, plans beside kernels, sanitizers, PyTorch
  one GPU, which ranks share       the same without times: ranks take turns on the GPU
  no GPU                           the part that the sim can do, without times

NVLink multicast is never used: NCCL_NVLS_ENABLE=0 holds for every step.
"""
import argparse
import ctypes
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "gather", "scatter", "sendrecv")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
# The collectives that SHUNT_ALGO and `shunt info -a` write in another way.
BENCH_NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "send": "sendrecv"}
PAIRS_ONLY, NOT_PAIRS = ("pairwise",), ("pipelined",)
SHARING_NCCL = (2, 30, 0)  # the first one that lets ranks share a GPU
SUDDEN_S = 15  # a step is not begun with less time than this

PASSED, FAILED = "passed", "failed"
NO_TIME = "there was no time for it in this run; the next one goes on with it"


class Step:
    """One command and what reads its outcome."""

    def __init__(self, name, what, argv, limit, ranks=0, env=None, reader=None, why_not=None):
        self.name, self.what, self.argv, self.limit, self.ranks = name, what, argv, limit, ranks
        self.env, self.reader, self.why_not = dict(env or {}), reader or last_line, why_not


# What a step's outcome is: (PASSED or FAILED, one line, columns, rows).


def last_line(status, text, _):
    lines = [line for line in text.splitlines() if line.strip()]
    return (PASSED if status == 0 else FAILED), (lines[-1].strip()[:200] if lines else "no output"), [], []


def conform_lines(status, text, report):
    found = re.findall(r"^\d+ passed, \d+ failed, \d+ skipped$", text, re.M)
    result, says, columns, rows = last_line(status, text, report)
    failed = re.findall(r"^(?:not ok|failed|FAIL)[: ].*$", text, re.M)
    return result, "; ".join(([found[-1]] if found else [says]) + failed[:3]), columns, rows


def torture_lines(status, text, report):
    found = re.findall(r"^\d+ ops, .*$", text, re.M)
    result, says, columns, rows = last_line(status, text, report)
    return result, found[-1] if found else says, columns, rows


def sanitizer_lines(status, text, report):
    found = re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): .*$", text, re.M)
    bad = [line for line in found if not re.search(r": 0 (errors|hazards)", line)]
    result, says, columns, rows = last_line(status, text, report)
    if not found or bad:
        result = FAILED
    return result, "%d summaries, of which %d are not empty; %s" % (len(found), len(bad), (bad or found or [says])[0]), columns, rows


def bench_values(status, text, report):
    if not report or "results" not in report:
        return (FAILED,) + last_line(status, text, report)[1:]
    cells = [cell["libraries"][0] for cell in report["results"]]
    wrong = sum(cell["wrong"] or 0 for cell in cells)
    paths = sorted({cell["path"] for cell in cells})
    sizes = sorted({row["bytes"] for row in report["results"]})
    says = "%d rows of %d to %d B, %d wrong elements, by %s" % (len(cells), sizes[0], sizes[-1], wrong, ", ".join(paths))
    return (PASSED if status == 0 and not wrong else FAILED), says, [], []


def bench_times(status, text, report):
    """A row for each size: our time and path, and the others' times."""
    if status or not report or not report.get("results"):
        return (FAILED,) + last_line(status, text, report)[1:]
    labels = [lib["label"] for lib in report["libraries"]]
    first = report["libraries"][0]["label"]
    columns = ["bytes", "mode", "place", "path", "us"] + ["us of " + label for label in labels[1:]]
    rows = []
    for row in report["results"]:
        cells = row["libraries"]
        rows.append([row["bytes"], row["mode"], row["place"], cells[0]["path"]] + [round(cell["time_us"], 3) for cell in cells])
    means = ", ".join("%s %.3f" % (m["of"], m["all"]) for m in report.get("geometric_means", []))
    wrong = sum(cell["wrong"] or 0 for row in report["results"] for cell in row["libraries"][:1])
    return (FAILED if wrong else PASSED), "geometric means of times over those of %s: %s" % (first, means), columns, rows


def init_times(status, text, report):
    if status or not report or not report.get("init"):
        return (FAILED,) + last_line(status, text, report)[1:]
    rows = [[row["library"], row["step"], round(row["time_us"], 1), round(row["rounds_us"][0], 1), round(row["memory_bytes"] / 2**20, 1)]
            for row in report["init"]]
    return PASSED, "%d communicators more" % report["comms"], ["library", "step", "us", "us of the first", "MiB"], rows


def torch_times(status, text, report):
    result, says, _, _ = last_line(status, text, report)
    rows = [[name] + ([value] if not isinstance(value, (list, dict)) else [json.dumps(value)]) for name, value in (report or {}).items()]
    return result, says, ["case", "ms a step"] if rows else [], rows


class Machine:
    """What there is to run on, and how ranks lie on it."""

    def __init__(self, options):
        self.gpus, self.topology = self.look()
        asked = options.device
        if asked == "auto":
            asked = "sim" if not self.gpus else "gpu"
        if asked == "gpu" and not self.gpus:
            sys.exit("measure: --device gpu: nvidia-smi shows no GPU here")
        self.kind = "sim" if asked == "sim" else "shared" if len(self.gpus) == 1 else "own"
        if self.kind == "sim":
            self.gpus, self.topology = [], ""
        most = {"sim": 2, "shared": 4}.get(self.kind, min(8, len(self.gpus)))
        self.ranks = options.ranks or {"sim": [2], "shared": [2, 4]}.get(self.kind) or sorted({most, 4 if most > 4 else 2, 2}, reverse=True)
        for n in self.ranks:
            if self.kind == "own" and n > len(self.gpus):
                sys.exit("measure: --ranks %d: there are %d GPUs, and times are of ranks with a GPU each" % (n, len(self.gpus)))

    @staticmethod
    def look():
        if not shutil.which("nvidia-smi"):
            return [], ""
        ask = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=60)
        gpus = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines() if line.count(",") == 2]
        if answer.returncode or not gpus:
            return [], ""
        topology = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60).stdout
        return gpus, re.sub(r"\x1b\[[0-9;]*m", "", topology).split("Legend:")[0].rstrip()

    def describe(self):
        first = self.gpus[0] if self.gpus else ["the sim", "", ""]
        text = {"own": "each rank has a GPU of its own", "shared": "ranks share the GPU", "sim": "CPU threads stand for GPUs"}
        return {"gpus": len(self.gpus), "gpu": first[0], "driver": first[1], "compute_capability": first[2], "topology": self.topology,
                "ranks": text[self.kind]}

    def name(self):
        return "sim" if self.kind == "sim" else "%dx%s" % (len(self.gpus), re.sub(r"[^A-Za-z0-9]+", "-", self.gpus[0][0].replace("NVIDIA ", "")))


class Nccl:
    """The real NCCL: its library and version. The library is opened in a process of its own."""

    def __init__(self, path, explicit):
        self.path, self.version, self.explicit = path, None, explicit
        if path:
            code = "import ctypes,sys;v=ctypes.c_int();r=ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v));print(r,v.value)"
            out = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
            found = re.match(r"0 (\d+)$", out.stdout.strip())
            if not found:
                if explicit:
                    sys.exit("measure: --nccl %s: not a library of NCCL: %s" % (path, (out.stderr.strip().splitlines() or ["?"])[-1]))
                self.path = None
            else:
                number = int(found.group(1))
                self.version = (number // 10000, number // 100 % 100, number % 100)

    @staticmethod
    def find(options, shunt_env):
        if options.nccl == "none":
            return Nccl(None, True)
        if options.nccl:
            return Nccl(os.path.abspath(options.nccl), True)
        given = shunt_env.get("SHUNT_NCCL_LIB", "")
        if given:
            return Nccl(None if given == "none" else given, given == "none")
        spec = importlib.util.find_spec("nvidia")
        for folder in (spec.submodule_search_locations if spec else []):
            path = os.path.join(folder, "nccl", "lib", "libnccl.so.2")
            if os.path.exists(path):
                return Nccl(path, False)
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib"):
            path = os.path.join(folder, "libnccl.so.2")
            if os.path.exists(path):
                return Nccl(path, False)
        return Nccl(None, False)

    def text(self):
        return ".".join(map(str, self.version)) if self.version else "none"


def base_env(machine, nccl):
    """The variables that a step's command gets: the ones that are shown with it."""
    env = {}
    if machine.kind == "sim":
        env["SHUNT_NCCL_LIB"] = "none"
    elif machine.kind == "shared":
        env["SHUNT_MULTI_RANK_GPU"] = "1"
        if nccl.version and nccl.version >= SHARING_NCCL:
            env["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
            env["SHUNT_NCCL_LIB"] = nccl.path
        else:
            env["SHUNT_NCCL_LIB"] = "none"
    else:
        env["SHUNT_NCCL_LIB"] = nccl.path or "none"
    return env


class Plan:
    """The list of steps for a machine."""

    def __init__(self, machine, nccl, build):
        self.machine, self.nccl, self.build = machine, nccl, build
        self.shunt = os.path.join(build, "tools", "shunt")
        self.env = base_env(machine, nccl)
        self.alone = dict(self.env, SHUNT_NCCL_LIB="none")
        self.alone.pop("NCCL_MULTI_RANK_GPU_ENABLE", None)
        self.sim = machine.kind == "sim"
        self.device = ["--device", "sim"] if self.sim else []
        self.times = machine.kind == "own"
        self.steps = []

    def add(self, *args, **more):
        self.steps.append(Step(*args, **more))

    def bench(self, name, what, args, limit, ranks, reader, **more):
        self.add(name, what, [self.shunt, "bench"] + args + ["-n", str(ranks)] + self.device + ["--json", "@JSON"], limit, ranks,
                 reader=reader, **more)

    def values(self, n):
        """What the kernels give, for all types and operators, without a real NCCL: as selected, and by each algorithm."""
        last, factor = ("16K", "16") if self.sim else ("4M", "64")
        for c in COLLECTIVES:
            what = ["-d", "all"] + (["-o", "all"] if c in REDUCING else [])
            args = [c, "-b", "1000", "-e", last, "-f", factor, "-r", "1", "-i", "1", "-w", "0", "--mode", "eager"] + what
            self.bench("values/%s/%d" % (c, n), "values of all types and operators", args, 90, n, bench_values, env=self.alone)

    def algorithms(self, n):
        text = subprocess.run([self.shunt, "info", "-a"], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, SHUNT_NCCL_LIB="none", SHUNT_LOG="none")).stdout
        last, factor = ("32K", "32") if self.sim else ("9M", "96")
        for algo, kind, rest in re.findall(r"^  (\S+)\s+(\S+)\s+(.*)$", text, re.M):
            c = BENCH_NAMES.get(kind, kind)
            if c not in COLLECTIVES:
                continue
            args = [c, "-b", "1000", "-e", last, "-f", factor, "-d", "float16", "-r", "1", "-i", "2"]
            args += ["--register"] if rest.startswith("windows") else []
            if algo in PAIRS_ONLY and n != 2 or algo in NOT_PAIRS and n == 2:
                continue
            self.bench("algorithms/%s/%s/%d" % (kind, algo, n), "values by one algorithm", args, 60, n, bench_values,
                       env=dict(self.alone, SHUNT_ALGO="%s:0-:%s" % (kind, algo)))

    def beside(self, n, mode):
        """Times beside NCCL's, interleaved in one run."""
        for c in COLLECTIVES:
            args = [c, "-d", "float16", "--no-check", "--mode", mode, "-r", "5", "-i", "40" if mode == "graph" else "20", "-b", "1K", "-e", "1G",
                    "-f", "4", "--out-of-place", "--vs", "nccl", "--vs", "nccl:reg"]
            self.bench("beside NCCL/%s/%s/%d" % (c, mode, n), "times beside NCCL, plain and with registered buffers", args, 90, n, bench_times,
                       env=self.env, why_not=self.no_times())

    def no_times(self):
        if not self.times:
            return "a time counts only where each rank has a GPU of its own"
        return None if self.nccl.path else "there is no real NCCL: --nccl PATH names one"

    def overlay(self, name, what, n, argv, limit, reader, why_not=None):
        """The same in front of NCCL, where there is one that goes with these GPUs."""
        if self.sim:
            why_not = "NCCL needs a GPU"
        elif not self.nccl.path:
            why_not = "there is no real NCCL: --nccl PATH names one"
        elif self.env["SHUNT_NCCL_LIB"] == "none":
            why_not = "NCCL %s refuses ranks that share a GPU: --nccl PATH names one from %d.%d on" % ((self.nccl.text(),) + SHARING_NCCL[:2])
        self.add(name, what, argv, limit, n, self.env, reader, why_not)

    def conform(self, n):
        args = ["--filter", "bfloat16"] if self.sim else []
        self.add("conformance/%d" % n, "conformance without a real NCCL",
                 [self.shunt, "conform", "-n", str(n), "--quick"] + self.device + args, 200, n, self.alone, conform_lines)
        self.overlay("conformance in front of NCCL/%d" % n, "conformance in front of NCCL", n, [self.shunt, "conform", "-n", str(n), "--quick"], 200,
                     conform_lines)

    def torture(self, n):
        if self.sim:
            length = ["--ops", "200", "--seed", "1"]
        else:
            length = ["--minutes", "0.3", "--max", "16M"] + (["--shared"] if self.machine.kind == "shared" else [])
        argv = [self.shunt, "torture", "-n", str(n)] + self.device + length
        self.add("torture/%d" % n, "random calls without a real NCCL", argv, 90, n, self.alone, torture_lines)
        self.overlay("torture in front of NCCL/%d" % n, "random calls in front of NCCL", n, argv, 90, torture_lines)
        if self.machine.kind == "own":
            self.add("torture/threads/%d" % n, "random calls of ranks that are threads", argv + ["--threads"], 90, n, self.alone, torture_lines)

    def replays(self, n):
        """Graphs of 20 calls, launched often."""
        calls = {"own": "200000", "shared": "400", "sim": "40"}[self.machine.kind]
        size = "4K" if self.sim else "64K"
        for c in ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast", "reduce"):
            args = [c, "--mode", "graph", "-i", calls, "-r", "1", "--out-of-place", "-b", size, "-e", size, "-d", "float16"]
            self.bench("replays/%s/%d" % (c, n), "values after replays of graphs of 20 calls", args, 60, n, bench_values, env=self.alone)

    def plans(self, n):
        folder = os.path.join(ROOT, "plans")
        for name in sorted(os.listdir(folder)):
            if name.endswith("_%d.json" % n):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    first = max(1024, -(-json.load(f).get("min_message_size", 0) // 65536) * 65536)
                last = first if self.sim else max(first, 4 << 20)
                for mode in ((), ("--graph",)):
                    argv = [self.shunt, "plan", "run", "-n", str(n), "-b", str(first), "-e", str(last), "-f", "64", "-r", "1", "-i", "2", *mode,
                            *self.device, os.path.join("plans", name)]
                    step = "plans/%s/%s/%d" % (name[:-len("_%d.json" % n)], "graph" if mode else "eager", n)
                    self.add(step, "values of a plan", argv, 60, n, self.alone)

    def plans_beside(self, n):
        """A plan's times, and the kernel's of the same sizes, one run after the other: a run has one set of plans."""
        for c, plan in (("all_reduce", "twoshot-ll"), ("all_reduce", "oneshot-ll"), ("all_gather", "oneshot-ll")):
            path = "plans/%s_%s_%d.json" % (c, plan, n)
            if not os.path.exists(os.path.join(ROOT, path)):
                continue
            args = [c, "--mode", "graph", "-r", "9", "-i", "200", "--out-of-place", "-b", "64K", "-e", "1M", "-f", "2", "-d", "float32", "--no-check"]
            why_not = None if self.times else self.no_times()
            self.bench("plans beside kernels/%s_%s/plan/%d" % (c, plan, n), "times of a plan", args, 60, n, bench_times, why_not=why_not,
                       env=dict(self.alone, SHUNT_PLAN_DIR=path))
            if plan != "oneshot-ll" or c != "all_reduce":
                self.bench("plans beside kernels/%s/kernel/%d" % (c, n), "times of the kernel", args, 60, n, bench_times, why_not=why_not,
                           env=self.alone)

    def sanitizers(self, n):
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        why_not = None
        if self.sim:
            why_not = "there is no GPU; tools/test.sh runs ThreadSanitizer and AddressSanitizer on the sim"
        elif not os.path.exists(tool):
            why_not = "there is no compute-sanitizer"
        cases = [("selected", c, "1M", {}) for c in ("all_reduce", "all_gather", "reduce_scatter", "sendrecv", "broadcast", "reduce")]
        cases += [("simple", c, "3M", {"SHUNT_ALGO": "%s:0-:simple" % kind}) for c, kind in (("all_reduce", "allreduce"), ("alltoall", "alltoall"))]
        for which, c, last, env in cases:
            for check in ("memcheck", "racecheck"):
                argv = [tool, "--tool", check, "--target-processes", "all", self.shunt, "bench", c, "-n", str(n), "-b", "1024", "-e", last, "-f", "32",
                        "-d", "float16", "-r", "1", "-i", "1", "-w", "0", "--out-of-place", "--timeout", "100"]
                self.add("sanitizers/%s/%s/%s/%d" % (check, which, c, n), "compute-sanitizer", argv, 110, n, dict(self.alone, **env),
                         sanitizer_lines, why_not)

    def communicators(self, n):
        args = ["all_reduce", "--init", "-r", "3", "--comms", "4", "--vs", "nccl"]
        self.bench("communicators/%d" % n, "what a communicator costs", args, 90, n, init_times, env=self.env, why_not=self.no_times())

    def torch(self, n):
        why_not = None
        if self.sim:
            why_not = "PyTorch needs a GPU"
        elif not importlib.util.find_spec("torch"):
            why_not = "there is no PyTorch"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
        run = [self.shunt, "run", "--"] + torchrun
        replays = {"own": "200", "shared": "20"}.get(self.machine.kind, "1")
        for script, more, limit in (("torch_nccl.py", ["--replays", replays], 100), ("torch_train.py", [], 120)):
            argv = run + ["tests/gpu/" + script] + more
            self.add("PyTorch/%s/%d" % (script, n), "PyTorch without a real NCCL", argv, limit, n, self.alone, why_not=why_not)
            self.overlay("PyTorch in front of NCCL/%s/%d" % (script, n), "PyTorch in front of NCCL", n, argv, limit, None, why_not)
        shared = "order_torch.py does not end within a minute where ranks share a GPU" if self.machine.kind == "shared" else None
        self.add("PyTorch/order_torch.py/%d" % n, "order of eager calls and graphs", run + ["tests/gpu/order_torch.py"], 90, n, self.env,
                 why_not=why_not or shared)
        steps = ["tests/gpu/torch_steps.py", "--steps", "20", "--json", "@JSON"]
        self.add("steps/shunt/%d" % n, "steps of training and inference with Shunt", run + steps, 120, n, self.env, torch_times,
                 why_not or self.no_times())
        self.add("steps/nccl/%d" % n, "steps of training and inference with NCCL", torchrun + steps, 120, n, {}, torch_times,
                 why_not or self.no_times())

    def all(self):
        for n in self.machine.ranks:
            self.values(n)
            self.beside(n, "graph")
            self.conform(n)
            self.torture(n)
        for n in self.machine.ranks:
            self.replays(n)
            self.plans_beside(n)
            self.communicators(n)
            self.beside(n, "eager")
        for n in self.machine.ranks[:1]:
            self.sanitizers(n)
        for n in self.machine.ranks:
            self.torch(n)
        for n in self.machine.ranks:
            self.algorithms(n)
            self.plans(n)
        return self.steps


class Runner:
    def __init__(self, options, machine, nccl, build, deadline):
        self.options, self.machine, self.nccl, self.build, self.deadline = options, machine, nccl, build, deadline
        library = os.path.join(build, "src", "libshunt.so")
        with open(library, "rb") as f:
            self.library = hashlib.sha256(f.read()).hexdigest()[:16]
        self.state = options.state
        os.makedirs(self.state, exist_ok=True)
        self.entries, self.left_out = {}, []

    def shown(self, step):
        """The command as one types it: the built command is `shunt`, NCCL's path is its own variable."""
        env = " ".join("%s=%s" % (k, "$NCCL" if v == self.nccl.path else v) for k, v in sorted(step.env.items()))
        words = []
        argv = step.argv[:]
        if "@JSON" in argv:
            at = argv.index("@JSON")
            del argv[at - 1:at + 1]
        for word in argv:
            word = {os.path.join(self.build, "tools", "shunt"): "shunt", sys.executable: "python3"}.get(word, word)
            words.append(os.path.basename(word) if word.endswith("compute-sanitizer") else word)
        return (env + " " if env else "") + " ".join(words)

    def paths(self, step):
        key = hashlib.sha256(json.dumps([self.library, self.machine.describe(), self.nccl.text(), self.shown(step)]).encode()).hexdigest()[:20]
        stem = os.path.join(self.state, re.sub(r"[^A-Za-z0-9_.-]+", "_", step.name) + "-" + key[:10])
        return stem + ".json", stem + ".log", stem + ".report"

    def run(self, step):
        kept, log, report = self.paths(step)
        if os.path.exists(kept) and not self.options.again:
            with open(kept, encoding="utf-8") as f:
                self.entries[step.name] = json.load(f)
            return
        if step.why_not:
            self.leave(step, step.why_not)
            return
        left = self.deadline - time.monotonic()
        if left < SUDDEN_S if not self.machine.kind == "sim" else left < 2:
            self.leave(step, NO_TIME)
            return
        limit = min(step.limit, left)
        print("%-50s" % step.name, end=" ", flush=True)
        began = time.monotonic()
        status, text = self.command(step, log, report, limit)
        took = time.monotonic() - began
        if status is None and limit < step.limit:
            print("cut short by the end of the run")
            self.leave(step, NO_TIME)
            return
        data = None
        if os.path.exists(report):
            with open(report, encoding="utf-8") as f:
                data = json.load(f)
            os.unlink(report)
        if status is None:
            result, says, columns, rows = FAILED, "had not ended after %d seconds" % step.limit, [], []
        else:
            result, says, columns, rows = step.reader(status, text, data)
            if status == 77:
                print("left out: " + says)
                self.leave(step, says)
                return
        entry = {"step": step.name, "what": step.what, "command": self.shown(step), "result": result, "says": says}
        if step.ranks:
            entry["ranks"] = step.ranks
        if rows:
            entry["columns"], entry["rows"] = columns, rows
        write_json(kept, entry)
        self.entries[step.name] = entry
        print("%s, %.0f s: %s" % (result, took, says))
        if result == FAILED:
            print("  %s\n  its output is in %s" % (entry["command"], log))

    def command(self, step, log, report, limit):
        """The exit status, or None if it did not end, and its output. Ends all that it started."""
        env = dict(os.environ, NCCL_NVLS_ENABLE="0", SHUNT_LIB=os.path.join(self.build, "src", "libshunt.so"), **step.env)
        # Neither plans nor tuning files of who runs this; a step's own variables hold.
        for name in [k for k in env if k.startswith(("SHUNT_", "MSCCLPP_")) and k != "SHUNT_LIB" and k not in step.env]:
            del env[name]
        env["SHUNT_CACHE_DIR"] = "/dev/null"
        argv = [report if word == "@JSON" else word for word in step.argv]
        with open(log, "w", encoding="utf-8") as out:
            out.write("# %s\n" % self.shown(step))
            out.flush()
            child = subprocess.Popen(argv, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = child.wait(timeout=limit)
            except (subprocess.TimeoutExpired, KeyboardInterrupt) as e:
                status = None
                end_group(child)
                if isinstance(e, KeyboardInterrupt):
                    raise
        with open(log, encoding="utf-8", errors="replace") as f:
            return status, f.read()

    def leave(self, step, why):
        """Steps of one group that lack the same are one line, with the command that takes them."""
        group = step.name.split("/")[0]
        for entry in self.left_out:
            if (entry["group"], entry["why"]) == (group, why):
                entry["steps"].append(step.name)
                return
        ranks = " --ranks %s" % ",".join(map(str, self.options.ranks)) if self.options.ranks else ""
        self.left_out.append({"group": group, "why": why, "command": "tools/measure.sh --only '%s/'%s" % (group, ranks), "steps": [step.name]})

    def write(self, path, commit, date):
        env = {k: v for k, v in os.environ.items() if k.startswith("NCCL_")}
        env.update(NCCL_NVLS_ENABLE="0", SHUNT_CACHE_DIR="/dev/null")
        write_json(path, {"date": date, "commit": commit, "command": "tools/measure.sh", "environment": env, "machine": self.machine.describe(),
                          "nccl": self.nccl.text(), "entries": list(self.entries.values()), "left_out": self.left_out})


def end_group(child):
    for number, seconds in ((signal.SIGTERM, 3), (signal.SIGKILL, 10)):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            return
        try:
            child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            pass
    # The group's leader has ended; the others of it, too.


def write_json(path, data):
    """Indented, with lists of numbers and words, and so each row of a table, on a line of their own."""
    lines = []

    def plain(value):
        """What fits on a line: no table, and no object of its own."""
        return not isinstance(value, (dict, list)) or isinstance(value, list) and all(
            not isinstance(v, dict) and (not isinstance(v, list) or all(not isinstance(w, (dict, list)) for w in v)) for v in value)

    def write(value, depth, before, after, in_rows=False):
        pad = " " * depth
        if isinstance(value, dict) and value:
            lines.append(pad + before + "{")
            for i, (key, item) in enumerate(value.items()):
                write(item, depth + 1, json.dumps(key) + ": ", "," if i + 1 < len(value) else "", key in ("rows", "notes", "steps"))
            lines.append(pad + "}" + after)
        elif isinstance(value, list) and value and (in_rows or not plain(value)):
            lines.append(pad + before + "[")
            for i, item in enumerate(value):
                write(item, depth + 1, "", "," if i + 1 < len(value) else "")
            lines.append(pad + "]" + after)
        else:
            lines.append(pad + before + json.dumps(value, ensure_ascii=False) + after)

    write(data, 0, "", "")
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    os.replace(path + ".new", path)


def commit_of(options):
    if options.commit:
        return options.commit
    try:
        out = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty"], capture_output=True, text=True)
        return out.stdout.strip() if out.returncode == 0 else "unknown"
    except FileNotFoundError:
        return "unknown"


def make_build(options, machine, deadline):
    """The folder of a build for this machine. Ninja goes on where a run before this one ended."""
    if options.build:
        folder = os.path.abspath(options.build)
    else:
        folder = os.path.join(ROOT, "build")
        commands = []
        if not os.path.exists(os.path.join(folder, "build.ninja")):
            archs = sorted({gpu[2].replace(".", "") for gpu in machine.gpus})
            cuda = ["-Dcuda=disabled"] if machine.kind == "sim" else ["-Dcuda=enabled", "-Dgpu_archs=" + ",".join(archs)]
            commands.append(["meson", "setup", folder, "-Dtests=disabled"] + cuda)
        commands.append(["ninja", "-C", folder, "src/libshunt.so", "tools/shunt"])
        for argv in commands:
            print("building: " + " ".join(argv), flush=True)
            try:
                done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=max(1, deadline - time.monotonic()))
            except FileNotFoundError:
                sys.exit("measure: there is no %s: build elsewhere, and name the folder by --build DIR" % argv[0])
            except subprocess.TimeoutExpired:
                sys.exit("measure: the build did not end in this run's time: run it again, it goes on; or name a built folder by --build DIR")
            if done.returncode:
                sys.exit("%s\nmeasure: the build failed: %s" % ((done.stdout + done.stderr)[-3000:], " ".join(argv)))
    for need in ("tools/shunt", "src/libshunt.so"):
        if not os.path.exists(os.path.join(folder, need)):
            sys.exit("measure: there is no %s in %s: ninja -C %s %s" % (need, folder, folder, need))
    try_it = subprocess.run([os.path.join(folder, "tools", "shunt"), "--help"], capture_output=True, text=True, timeout=60)
    if try_it.returncode:
        sys.exit("measure: %s/tools/shunt does not start here: %s" % (folder, try_it.stderr.strip()))
    return folder


def rank_list(text):
    ranks = [int(n) if n.isdigit() else 0 for n in text.split(",")]
    if any(n < 2 or n > 8 for n in ranks):
        raise argparse.ArgumentTypeError("%s: 2 to 8 ranks, separated by commas" % text)
    return ranks


def parse(argv):
    p = argparse.ArgumentParser(prog="tools/measure.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                epilog="Exit status: 0; 1 if a step failed; 2 for a wrong option.")
    p.add_argument("--build", metavar="DIR", help="a folder that is built already (default: build, which is made)")
    p.add_argument("--nccl", metavar="PATH", help="NCCL's library; none: without one (default: SHUNT_NCCL_LIB, PyTorch's, the system's)")
    p.add_argument("--out", metavar="DIR", default=os.path.join(ROOT, "docs", "results"), help="where the results go (docs/results)")
    p.add_argument("--state", metavar="DIR", default=os.path.join(ROOT, ".deps", "measure"), help="results of single steps (.deps/measure)")
    p.add_argument("--budget", metavar="S", type=int, default=540, help="seconds that a run takes at most (540)")
    p.add_argument("--ranks", metavar="N,...", type=rank_list, help="numbers of ranks (as many as GPUs, then fewer)")
    p.add_argument("--device", choices=("auto", "gpu", "sim"), default="auto")
    p.add_argument("--only", metavar="TEXT", action="append", default=[], help="only steps whose name contains this; may be given again")
    p.add_argument("--again", action="store_true", help="take the steps anew, whatever the state folder has")
    p.add_argument("--commit", metavar="ID", help="what was built, where git cannot tell")
    p.add_argument("--list", action="store_true", help="print the steps and run nothing")
    return p.parse_args(argv)


def main(argv):
    options = parse(argv)
    deadline = time.monotonic() + options.budget
    machine = Machine(options)
    build = make_build(options, machine, deadline)
    nccl = Nccl.find(options, os.environ)
    options.state = os.path.abspath(options.state)
    steps = [s for s in Plan(machine, nccl, build).all() if not options.only or any(text in s.name for text in options.only)]
    if not steps:
        sys.exit("measure: no step's name contains %s: --list prints them" % " or ".join(options.only))
    runner = Runner(options, machine, nccl, build, deadline)
    if options.list:
        for step in steps:
            print("%-50s %s" % (step.name, "left out: " + step.why_not if step.why_not else runner.shown(step)))
        return 0
    commit, date = commit_of(options), time.strftime("%Y-%m-%d", time.gmtime())
    where = machine.describe()
    print("%s, %s, driver %s, NCCL %s%s, commit %s" % (machine.name(), where["ranks"], where["driver"] or "none", nccl.text(),
                                                       " (%s)" % nccl.path if nccl.path else "", commit))
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, "%s-%s-%s.json" % (date, machine.name(), commit))
    for step in steps:
        runner.run(step)
        runner.write(path, commit, date)
    failed = [e for e in runner.entries.values() if e["result"] == FAILED]
    print("\n%d steps done, %d failed, %d left out" % (len(runner.entries), len(failed), len(runner.left_out)))
    for entry in failed:
        print("failed: %s: %s\n  %s" % (entry["step"], entry["says"], entry["command"]))
    for entry in runner.left_out:
        print("left out: %s (%d steps): %s\n  %s" % (entry["group"], len(entry["steps"]), entry["why"], entry["command"]))
    print("results: " + path)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
