# SPDX-License-Identifier: MIT
"""The steps for a machine, in the order of their value."""
import glob
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

import outcomes
from machine import SHARING_NCCL

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "gather", "scatter",
               "sendrecv")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
# The collectives that SHUNT_ALGO and `shunt info -a` write in another way.
BENCH_NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
               "send": "sendrecv"}
PAIRS_ONLY, NOT_PAIRS = ("pairwise",), ("pipelined",)
NO_OWN_GPU = "a time counts only where each rank has a GPU of its own"
NOT_AS_MANY = "tables are for hosts with as many ranks each"
NO_NCCL = "there is no real NCCL: --nccl PATH names one"


class Step:
    """One command, the function that reads its outcome, and the reason if it cannot run here."""

    def __init__(self, name, what, argv, limit, ranks, env, reader=None, why_not=None):
        self.name, self.what, self.argv, self.limit, self.ranks = name, what, argv, limit, ranks
        self.env, self.reader, self.why_not = dict(env), reader or outcomes.last_line, why_not
        self.nccl = None  # where several are measured: this step's

    def uses(self, nccl):
        return nccl.path is not None and self.env.get("SHUNT_NCCL_LIB") == nccl.path


class Steps:
    """The list for a machine. Each method adds the steps of a group for n ranks."""

    def __init__(self, machine, nccl, build):
        self.machine, self.nccl = machine, nccl
        self.build, self.shunt = build, os.path.join(build, "tools", "shunt")
        self.examples = os.path.join(build, "plans", "examples")
        self.sim, self.times = machine.kind == "sim", machine.kind == "own"
        self.device = ["--device", "sim"] if self.sim else []
        self.alone = {"SHUNT_NCCL_LIB": "none"}
        if machine.kind == "shared":
            self.alone["SHUNT_MULTI_RANK_GPU"] = "1"
        self.overlay_env, self.no_overlay = self.in_front()
        self.list = []

    def in_front(self):
        """The variables of steps in front of NCCL, and the reason if none can run."""
        if self.sim:
            return self.alone, "NCCL needs a GPU"
        if not self.nccl.path:
            return self.alone, NO_NCCL
        if self.times:
            return dict(self.alone, SHUNT_NCCL_LIB=self.nccl.path), None
        if self.nccl.version < SHARING_NCCL:
            return self.alone, ("NCCL %s refuses ranks that share a GPU: --nccl PATH names one from %d.%d on" %
                                (self.nccl.text(), *SHARING_NCCL[:2]))
        return dict(self.alone, SHUNT_NCCL_LIB=self.nccl.path, NCCL_MULTI_RANK_GPU_ENABLE="1"), None

    def no_times(self):
        if not self.times:
            return NO_OWN_GPU
        return None if self.nccl.path else NO_NCCL

    def add(self, *args, **more):
        self.list.append(Step(*args, **more))

    def command(self, n, words):
        """`shunt WORDS -n N`, on the device of this machine."""
        return [self.shunt, *words.split(), "-n", str(n), *self.device]

    def bench(self, name, what, words, limit, n, env, reader, why_not=None):
        argv = self.command(n, "bench " + words) + ["--json", "@JSON"]
        self.add("%s/%d" % (name, n), what, argv, limit, n, env, reader, why_not)

    def alone_and_in_front(self, group, what, n, argv, limit, reader, why_not=None):
        """Without a real NCCL, and in front of it."""
        first, _, rest = group.partition("/")
        tail = "%s/%d" % ("/" + rest if rest else "", n)
        self.add(first + tail, what + " without a real NCCL", argv, limit, n, self.alone, reader, why_not)
        self.add(first + " in front of NCCL" + tail, what + " in front of NCCL", argv, limit, n, self.overlay_env,
                 reader, why_not or self.no_overlay)

    def values(self, n):
        sizes = "-b 1000 -e 16K -f 16" if self.sim else "-b 1000 -e 4M -f 64"
        for c in COLLECTIVES:
            words = "%s %s -r 1 -i 1 -w 0 --mode eager -d all" % (c, sizes)
            words += " -o all" if c in REDUCING else ""
            self.bench("values/" + c, "values of all types and operators", words, 90, n, self.alone,
                       outcomes.bench_values)

    def algorithms(self, n):
        """Each that the library names, at all sizes."""
        env = dict(os.environ, SHUNT_NCCL_LIB="none", SHUNT_LOG="none")
        text = subprocess.run([self.shunt, "info", "-a"], capture_output=True, text=True, timeout=60, env=env).stdout
        sizes = "-b 1000 -e 32K -f 32" if self.sim else "-b 1000 -e 9M -f 96"
        for algo, kind, rest in re.findall(r"^  (\S+)\s+(\S+)\s+(.*)$", text, re.M):
            c = BENCH_NAMES.get(kind, kind)
            if c not in COLLECTIVES or algo in PAIRS_ONLY and n != 2 or algo in NOT_PAIRS and n == 2:
                continue
            words = "%s %s -d float16 -r 1 -i 2" % (c, sizes) + (" --register" if rest.startswith("windows") else "")
            env = dict(self.alone, SHUNT_ALGO="%s:0-:%s" % (kind, algo))
            self.bench("algorithms/%s/%s" % (kind, algo), "values by one algorithm", words, 60, n, env,
                       outcomes.bench_values)

    def beside(self, n, mode):
        for c in COLLECTIVES:
            words = "%s -d float16 --no-check --mode %s -r 5 -i %s -b 1K -e 1G -f 4 --out-of-place" % (
                c, mode, "40" if mode == "graph" else "20")
            self.bench("beside NCCL/%s/%s" % (c, mode), "times beside NCCL, plain and with registered buffers",
                       words + " --vs nccl --vs nccl:reg", 90, n, self.overlay_env, outcomes.bench_times,
                       self.no_times())

    def hosts(self, n):
        """Ranks on hosts that are names, one rank or two on each: Shunt by its own kernels at every size, which says what its tables should have."""
        kinds = {c: next((kind for kind, name in BENCH_NAMES.items() if name == c), c) for c in COLLECTIVES}
        for hosts in sorted({n, (n + 1) // 2} - {1}):
            for c in COLLECTIVES:
                env = dict(self.overlay_env, NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1", SHUNT_NET="tcp",
                           SHUNT_ALGO="%s:0-:hierarchical" % kinds[c])
                words = "%s -d float16 --no-check --mode graph --hosts %d --names -r 5 -i 20 -b 8 -e 64M -f 8 --out-of-place --vs nccl" % (c, hosts)
                self.bench("hosts/%s/%d" % (c, hosts), "times over hosts by tcp over loopback, beside NCCL", words, 90, n, env, outcomes.bench_times,
                           self.no_times() or (NOT_AS_MANY if n % hosts else None))

    def links(self, n):
        """
        Without NVLink: values, and times beside NCCL as it comes and where its copy engines go through the host's memory. Simple and the
        selected algorithm, which says what the tables should have.
        """
        off = {"NCCL_P2P_DISABLE": "1"}
        self.add("links/values/%d" % n, "conformance through the host's memory", self.command(n, "conform --quick"), 200, n,
                 dict(self.alone, **off), outcomes.conform_lines, self.no_times())
        kinds = {name: kind for kind, name in BENCH_NAMES.items()}
        for c in COLLECTIVES:
            words = c + " --no-check --mode graph -r 5 -i 20 -b 1K -e 256M -f 4 --out-of-place"
            rule = {"SHUNT_ALGO": "%s:0-:simple" % kinds.get(c, c)} if c != "sendrecv" else {}
            for name, tail, env in (("selected", " --vs nccl", {}), ("simple", " --vs nccl", rule),
                                    ("copy engines", " --lib nccl", {"NCCL_SHM_USE_CUDA_MEMCPY": "1"})):
                self.bench("links/%s/%s" % (c, name), "times through the host's memory", words + tail, 90, n,
                           dict(self.overlay_env, **off, **env), outcomes.bench_times, self.no_times())
        self.add("links/tune/%d" % n, "a table through the host's memory", self.command(n, "tune --quick -o @JSON"), 300, n,
                 dict(self.overlay_env, **off), None, self.no_times())

    def batch_invariant(self, n):
        """
        The settings that frameworks export so that NCCL's sums do not depend on the batch, beside which Shunt needs one variable; and
        the times without all of this.
        """
        pinned = dict(self.overlay_env, SHUNT_DETERMINISTIC="1", NCCL_ALGO="ring,tree;allreduce:tree", NCCL_PROTO="Simple",
                      NCCL_MIN_NCHANNELS="1", NCCL_MAX_NCHANNELS="1", NCCL_NTHREADS="1")
        for c in (*REDUCING, "all_gather"):
            words = c + " -d bfloat16 --no-check --mode graph -r 5 -i 40 -b 1K -e 64M -f 4 --out-of-place --vs nccl"
            self.bench("batch invariant/" + c, "times beside NCCL under batch-invariant settings", words, 90, n, pinned,
                       outcomes.bench_times, self.no_times())
            self.bench("batch invariant/%s/free" % c, "the same without these settings", words, 90, n, self.overlay_env,
                       outcomes.bench_times, self.no_times())

    def conformance(self, n):
        argv = self.command(n, "conform --quick" + (" --filter bfloat16" if self.sim else ""))
        self.alone_and_in_front("conformance", "conformance", n, argv, 200, outcomes.conform_lines)

    def torture(self, n):
        words = "torture --ops 200 --seed 1" if self.sim else "torture --minutes 0.3 --max 16M"
        argv = self.command(n, words + (" --shared" if self.machine.kind == "shared" else ""))
        self.alone_and_in_front("torture", "random calls", n, argv, 90, outcomes.torture_lines)
        if self.times:
            self.add("torture/threads/%d" % n, "random calls of ranks that are threads", argv + ["--threads"], 90, n,
                     self.alone, outcomes.torture_lines)

    def replays(self, n):
        calls = {"own": "200000", "shared": "400", "sim": "40"}[self.machine.kind]
        size = "4K" if self.sim else "64K"
        for c in ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast", "reduce"):
            words = "%s --mode graph -i %s -r 1 --out-of-place -b %s -e %s -d float16" % (c, calls, size, size)
            self.bench("replays/" + c, "values after replays of graphs of 20 calls", words, 60, n, self.alone,
                       outcomes.bench_values)

    def plans(self, n):
        """The values of the build's example plans, from the smallest size that each admits."""
        for path in sorted(glob.glob(os.path.join(self.examples, "*_%d.json" % n))):
            name = os.path.basename(path)
            with open(path, encoding="utf-8") as f:
                first = max(1024, -(-json.load(f).get("min_message_size", 0) // 65536) * 65536)
            last = first if self.sim else max(first, 4 << 20)
            for mode in ("eager", "graph"):
                words = "plan run -b %d -e %d -f 64 -r 1 -i 2" % (first, last) + (" --graph" if mode == "graph" else "")
                self.add("plans/%s/%s/%d" % (name[:-len("_%d.json" % n)], mode, n), "values of a plan",
                         self.command(n, words) + [path], 60, n, self.alone)

    def plans_beside(self, n):
        """A plan's times, and the kernel's, one run after the other: a run has one set of plans."""
        sizes = "--mode graph -r 9 -i 200 --out-of-place -b 64K -e 1M -f 2 -d float32 --no-check"
        why_not = None if self.times else NO_OWN_GPU
        for c, shapes in (("all_reduce", ("twoshot-ll", "oneshot-ll")), ("all_gather", ("oneshot-ll",))):
            for shape in shapes:
                path = os.path.join(self.examples, "%s_%s_%d.json" % (c, shape, n))
                if os.path.exists(path):
                    self.bench("plans beside kernels/%s_%s/plan" % (c, shape), "times of a plan", c + " " + sizes, 60,
                               n, dict(self.alone, SHUNT_PLAN_DIR=path), outcomes.bench_times, why_not)
            self.bench("plans beside kernels/%s/kernel" % c, "times of the kernel", c + " " + sizes, 60, n, self.alone,
                       outcomes.bench_times, why_not)

    def sanitizers(self, n, first):
        """The two protocols of all-reduces and messages first; the rest comes last, as each takes a while."""
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        why_not = None
        if self.sim:
            why_not = "there is no GPU; tools/test.sh runs ThreadSanitizer and AddressSanitizer on the sim"
        elif not os.path.exists(tool):
            why_not = "there is no compute-sanitizer"
        selected = ("all_reduce", "sendrecv") if first else ("all_gather", "reduce_scatter", "broadcast", "reduce")
        cases = [("selected", c, "1M", {}) for c in selected]
        c, kind = ("all_reduce", "allreduce") if first else ("alltoall", "alltoall")
        cases.append(("simple", c, "3M", {"SHUNT_ALGO": "%s:0-:simple" % kind}))
        for which, c, last, env in cases:
            words = "bench %s -b 1024 -e %s -f 32 -d float16 -r 1 -i 1 -w 0 --out-of-place --timeout 100" % (c, last)
            for check in ("memcheck", "racecheck"):
                argv = [tool, "--tool", check, "--target-processes", "all"] + self.command(n, words)
                self.add("sanitizers/%s/%s/%s/%d" % (check, which, c, n), "compute-sanitizer", argv, 110, n,
                         dict(self.alone, **env), outcomes.sanitizer_lines, why_not)

    def communicators(self, n):
        self.bench("communicators", "what a communicator costs", "all_reduce --init -r 3 --comms 4 --vs nccl", 90, n,
                   self.overlay_env, outcomes.init_times, self.no_times())

    def expert_parallel(self, n):
        """Values where ranks share a GPU; times beside their floors, and PyTorch's all-to-alls of the same rows."""
        some = "-t 1,8,64,128,512,1024 -r 7" if self.times else "-t 5 --hidden 1024 -w 0 -i 1 -r 1"
        self.bench("expert parallel/low latency", "low latency dispatch and combine", "ep --mode ll " + some, 60, n,
                   self.alone, outcomes.ep_times)
        some = "-t 1,8,64,128,512,1024,2048,4096 -r 7 -i 40" if self.times else "-t 5 --hidden 1024 -w 0 -i 1 -r 1"
        self.bench("expert parallel/normal", "dispatch and combine of normal mode", "ep --mode normal " + some, 60, n,
                   self.alone, outcomes.ep_times)
        self.add("expert parallel/torture/%d" % n, "random calls of groups",
                 self.command(n, "torture --ep --seed 1 --ops " + ("60" if self.sim else "400")), 60, n, self.alone,
                 outcomes.torture_lines)
        faults = os.path.join(self.build, "tests", "e2e", "test_ep_faults")
        self.add("expert parallel/faults/%d" % n, "deaths and late ranks of groups", [faults], 60, n,
                 dict(self.alone, SHUNT_DEVICE="sim" if self.sim else "cuda", SHUNT_MULTI_RANK_GPU="1"), None,
                 None if os.path.exists(faults) else "the build has no tests")
        script = "-m torch.distributed.run --standalone --nproc-per-node %d tests/gpu/ep_all_to_all.py --json @JSON" % n
        for name, argv in (("shunt", [self.shunt, "run", "--"]), ("nccl", [])):
            self.add("expert parallel/all_to_all/%s/%d" % (name, n), "PyTorch's all_to_all_single through " + name,
                     argv + [sys.executable] + script.split(), 60, n, self.overlay_env if argv else {},
                     outcomes.all_to_all_times, self.no_torch() or self.no_times())

    def no_torch(self):
        if self.sim:
            return "PyTorch needs a GPU"
        return None if importlib.util.find_spec("torch") else "there is no PyTorch"

    def torch(self, n):
        why_not = self.no_torch()
        launch = "-m torch.distributed.run --standalone --nproc-per-node %d tests/gpu/" % n
        torchrun = [sys.executable] + launch.split()
        run = [self.shunt, "run", "--"] + torchrun

        def script(argv, words):
            name, *rest = words.split()
            return argv[:-1] + [argv[-1] + name] + rest

        replays = "200" if self.times else "20"
        self.alone_and_in_front("PyTorch/collectives", "PyTorch's collectives", n,
                                script(run, "torch_nccl.py --replays " + replays), 100, None, why_not)
        self.alone_and_in_front("PyTorch/trainings", "PyTorch's trainings", n, script(run, "torch_train.py"), 120, None,
                                why_not)
        slow = "it does not end within a minute where ranks share a GPU" if self.machine.kind == "shared" else None
        self.add("PyTorch/order/%d" % n, "order of eager calls and graphs", script(run, "order_torch.py"), 90, n,
                 self.overlay_env, None, why_not or slow)
        words = "torch_steps.py --steps 20 --json @JSON"
        self.add("steps/shunt/%d" % n, "steps of training and inference with Shunt", script(run, words), 120, n,
                 self.overlay_env, outcomes.torch_times, why_not or self.no_times())
        self.add("steps/nccl/%d" % n, "steps of training and inference with NCCL", script(torchrun, words), 120, n, {},
                 outcomes.torch_times, why_not or self.no_times())

    def all(self):
        """Times first if they count; else all steps of one number of ranks before those of the next."""
        for n in self.machine.ranks if self.times else []:
            self.values(n)
            self.beside(n, "graph")
            self.batch_invariant(n)
            self.hosts(n)
            self.links(n)
            self.expert_parallel(n)
            self.conformance(n)
            self.torture(n)
        for n in self.machine.ranks:
            if not self.times:
                self.values(n)
                self.expert_parallel(n)
                self.conformance(n)
                self.torture(n)
            self.sanitizers(n, True)
            self.replays(n)
            self.plans_beside(n)
            self.communicators(n)
            self.beside(n, "eager")
            self.torch(n)
            self.algorithms(n)
            self.plans(n)
        for n in self.machine.ranks:
            self.sanitizers(n, False)
            if not self.times:
                self.hosts(n)
                self.links(n)
                self.batch_invariant(n)
                self.beside(n, "graph")
        return self.list


def steps_of(machine, nccls, build):
    """Each step in front of NCCL once for each version, one right after the other."""
    steps = []
    for alike in zip(*(Steps(machine, nccl, build).all() for nccl in nccls)):
        if len(nccls) == 1 or not any(step.uses(nccl) for step, nccl in zip(alike, nccls)):
            steps.append(alike[0])
            continue
        for step, nccl in zip(alike, nccls):
            step.nccl, step.name = nccl, "%s/NCCL %s" % (step.name, nccl.text())
            steps.append(step)
    return steps
