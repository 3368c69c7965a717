#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times and checks all-gathers and reduce-scatters of parts that differ from rank to rank, as PyTorch makes them: a
group of a broadcast, or of a reduce, for each root.

  torchrun --nproc-per-node N uneven.py [--hidden 2048] [--json FILE]
    Run it with libshunt preloaded and without.

Parts are rows of bfloat16. Prints the median of rounds, microseconds a call on the slowest rank, eager and in a graph.
Exit 77: fewer than two GPUs.
"""

import argparse
import json
import os
import sys

import gpus
import torch
import torch.distributed as dist

# Rows of each rank, in turn.
CASES = [[7, 32, 1, 64], [1, 1, 1, 1], [0, 64, 3, 17], [200, 180, 220, 210], [1000, 3000, 500, 2700], [4096, 1, 1, 4096]]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--hidden", type=int, default=2048)
    p.add_argument("--json")
    o = p.parse_args()
    gpus.need("uneven")
    device = gpus.mine(int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, world, found, wrong = dist.get_rank(), dist.get_world_size(), [], 0
    for case in CASES:
        rows = [case[i % len(case)] for i in range(world)]
        parts = [torch.randn(n, o.hidden, device=device).to(torch.bfloat16) for n in rows]
        for part, root in zip(parts, range(world)):  # all ranks know what must come
            dist.broadcast(part, root)
        mine = parts[rank].clone()
        gathered = [torch.full_like(part, float("nan")) for part in parts]
        inputs = [part * (rank + 1) for part in parts]
        reduced = torch.full_like(mine, float("nan"))
        calls = {
            "all_gather": lambda gathered=gathered, mine=mine: dist.all_gather(gathered, mine),
            "reduce_scatter": lambda reduced=reduced, inputs=inputs: dist.reduce_scatter(reduced, inputs),
        }
        for name, call in calls.items():
            times = [round(us, 2) for us in gpus.measure(call)]
            if name == "all_gather":
                right = all(torch.equal(a, b) for a, b in zip(gathered, parts))
            else:
                want = sum((parts[rank] * (r + 1)).float() for r in range(world))
                right = torch.allclose(reduced.float(), want, rtol=0.02, atol=0.05)
            wrong += not right
            found.append({"call": name, "rows": rows, "eager_us": times[0], "graph_us": times[1], "right": right})
            if not rank:
                print(f"{name:15} {'+'.join(map(str, rows)):22} eager {times[0]:9.2f}  graph {times[1]:9.2f} us"
                      f"{'' if right else '  WRONG'}", flush=True)  # fmt: skip
    if o.json and not rank:
        with open(o.json, "w") as file:
            json.dump({"hidden": o.hidden, "ranks": world, "nccl": torch.cuda.nccl.version(), "calls": found}, file)
    dist.destroy_process_group()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
