#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
tune_program.py [SHUNT]: tunes the all-reduce of docs/dsl.md on two ranks of this machine's GPUs, which may share one
(SHUNT_MULTI_RANK_GPU=1), writes what is the fastest at which size, and lets `shunt plan run` confirm each plan there.
Exit 77: no GPU.
"""

import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "python"))
SHUNT = os.path.realpath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "tools", "shunt"))
os.environ.setdefault("SHUNT_LIB", os.path.join(os.path.dirname(os.path.dirname(SHUNT)), "src", "libshunt.so"))
os.environ.setdefault("SHUNT_MULTI_RANK_GPU", "1")
os.environ.setdefault("SHUNT_NCCL_LIB", "none")  # which would refuse ranks that share a GPU

SIZES = [1 << shift for shift in range(12, 25, 4)]
DEVICE = os.environ.get("SHUNT_DEVICE", "cuda")


def main():
    if DEVICE == "cuda" and subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode:
        print("SKIP tune_program: no GPU")
        sys.exit(77)
    import libshunt.language as language

    with open(os.path.join(ROOT, "docs", "dsl.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```python\n(.*?)^```", file.read(), re.DOTALL | re.MULTILINE)
    names = {name: getattr(language, name) for name in language.__all__}
    # Only the functions: the page runs them on the sim.
    (source,) = [block for block in blocks if "def allreduce(" in block]
    exec(source[: source.index("\nfor ranks in")], names)
    space = {"instances": [1, 2, 4, 8], "threads": [256, 512]}
    choices = language.tune(
        lambda instances, threads: names["allreduce"](2, instances, threads), space, SIZES, device=DEVICE
    )
    with tempfile.TemporaryDirectory() as folder:
        for choice in choices:
            path = choice.write(folder)
            sizes = ["-b", str(choice.min_message_size), "-e", str(choice.max_message_size), "-f", "16"]
            print(choice.point, choice.min_message_size, choice.max_message_size, choice.microseconds, flush=True)
            subprocess.run([SHUNT, "plan", "run", "--device", DEVICE, *sizes, path], check=True)


if __name__ == "__main__":
    main()
