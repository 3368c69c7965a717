# SPDX-License-Identifier: MIT
"""For scripts beside this one: which GPU a rank has. With SHUNT_MULTI_RANK_GPU=1, and NCCL_MULTI_RANK_GPU_ENABLE=1
for the real NCCL (from 2.30
on), ranks share those that there are: slow, and enough to see whether values and order are right."""
import os
import sys

import torch


def need(script, n=2):
    """Ends the script if ranks would have to share GPUs, and were not told to."""
    shared = os.environ.get("SHUNT_MULTI_RANK_GPU", "0") not in ("", "0")
    if torch.cuda.device_count() < (1 if shared else n):
        print(f"SKIP {script}: needs {n} GPUs")
        sys.exit(77)


def mine(local):
    return torch.device("cuda", local % torch.cuda.device_count())
