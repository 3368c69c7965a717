# SPDX-License-Identifier: MIT
# Prints the path of an nvcc that came as a Python wheel (nvidia/cu13/bin/nvcc, nvidia/cuda_nvcc/bin/nvcc), or nothing.
import glob
import os

try:
    import nvidia
    roots = list(nvidia.__path__)
except ImportError:
    roots = []
found = [p for root in roots for p in sorted(glob.glob(os.path.join(root, "*", "bin", "nvcc"))) if os.access(p, os.X_OK)]
if found:
    print(found[-1])
