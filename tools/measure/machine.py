# SPDX-License-Identifier: MIT
"""What there is to run on: GPUs, and the real NCCL."""
import importlib.util
import os
import re
import shutil
import subprocess
import sys

SHARING_NCCL = (2, 30, 0)  # the first one that lets ranks share a GPU
SYSTEM_NCCL = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib")
RANKS_TEXT = {"own": "each rank has a GPU of its own", "shared": "ranks share the GPU",
              "sim": "CPU threads stand for GPUs"}
ASK_VERSION = """import ctypes, sys
version = ctypes.c_int()
print(ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version)), version.value)"""


def output_of(argv):
    """"" where there is no such command, or it fails."""
    if not shutil.which(argv[0]):
        return ""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else ""


class Machine:
    """kind: own, shared or sim, as ranks lie on the GPUs. gpus: name, driver and compute capability of each."""

    def __init__(self, device, ranks):
        lines = output_of(["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"])
        self.gpus = [[cell.strip() for cell in line.split(",")] for line in lines.splitlines() if line.count(",") == 2]
        if device == "gpu" and not self.gpus:
            sys.exit("measure: --device gpu: nvidia-smi shows no GPU here")
        if device == "sim":
            self.gpus = []
        self.kind = ("sim", "shared", "own")[min(2, len(self.gpus))]
        self.topology = ""
        if self.gpus:
            text = re.sub(r"\x1b\[[0-9;]*m", "", output_of(["nvidia-smi", "topo", "-m"]))
            self.topology = text.split("Legend:")[0].rstrip()
        most = min(8, len(self.gpus))
        own = sorted({most, 4 if most > 4 else 2, 2}, reverse=True)
        self.ranks = ranks or {"sim": [2], "shared": [2, 4], "own": own}[self.kind]
        if self.kind == "own" and max(self.ranks) > len(self.gpus):
            sys.exit("measure: --ranks %d: there are %d GPUs, and times are of ranks with a GPU each" %
                     (max(self.ranks), len(self.gpus)))

    def describe(self):
        name, driver, capability = self.gpus[0] if self.gpus else ("the sim", "", "")
        return {"gpus": len(self.gpus), "gpu": name, "driver": driver, "compute_capability": capability,
                "topology": self.topology, "ranks": RANKS_TEXT[self.kind]}

    def name(self):
        if self.kind == "sim":
            return "sim"
        return "%dx%s" % (len(self.gpus), re.sub(r"[^A-Za-z0-9]+", "-", self.gpus[0][0].replace("NVIDIA ", "")))


class Nccl:
    """path and version of the real NCCL, or None."""

    def __init__(self, asked):
        """asked: the value of --nccl, which may be `none` or empty."""
        self.path, self.version = None, None
        given = asked or os.environ.get("SHUNT_NCCL_LIB", "")
        if given == "none":
            return
        for path in [os.path.abspath(given)] if given else self.candidates():
            # In a process of its own: a library that was opened stays, and may run any code.
            done = subprocess.run([sys.executable, "-c", ASK_VERSION, path], capture_output=True, text=True, timeout=60)
            found = re.match(r"0 (\d+)$", done.stdout.strip())
            if found:
                number = int(found.group(1))
                self.path, self.version = path, (number // 10000, number // 100 % 100, number % 100)
                return
            if given:
                sys.exit("measure: --nccl %s: not a library of NCCL: %s" %
                         (path, (done.stderr.strip().splitlines() or ["it says no version"])[-1]))

    @staticmethod
    def candidates():
        """PyTorch's, and the system's."""
        spec = importlib.util.find_spec("nvidia")
        folders = [os.path.join(folder, "nccl", "lib") for folder in (spec.submodule_search_locations if spec else [])]
        paths = [os.path.join(folder, "libnccl.so.2") for folder in (*folders, *SYSTEM_NCCL)]
        return [path for path in paths if os.path.exists(path)]

    def text(self):
        return ".".join(map(str, self.version)) if self.version else "none"


def several_nccls(asked):
    """asked: the values of --nccl. Steps have the version in their names, so each version is there once."""
    nccls = [Nccl(path) for path in asked or [None]]
    texts = [nccl.text() for nccl in nccls]
    for i, text in enumerate(texts):
        if len(texts) > 1 and (text == "none" or text in texts[:i]):
            sys.exit("measure: --nccl %s: %s" % (asked[i], "it goes alone" if text == "none" else
                                                 "NCCL %s is named twice; each --nccl takes another version" % text))
    return nccls
