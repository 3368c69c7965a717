# SPDX-License-Identifier: MIT
"""
The call sequences of vLLM, SGLang and Megatron-Core (tests/python/programs/deep_ep_callers.py) with PyTorch on GPUs, a
process for each rank: python3 tests/gpu/deep_ep_callers.py [-n 2] [--shunt build/tools/shunt] [PROGRAM...]. Ranks share
GPUs with SHUNT_MULTI_RANK_GPU=1. Takes 60 seconds at most, since whatever is left then is killed.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 55


def worker(args):
    signal.alarm(LIMIT_S)  # whatever a wait of the libraries does
    import datetime

    import gpus
    import torch
    import torch.distributed as dist

    sys.path.insert(0, os.path.join(HERE, "..", "python"))
    gpus.need("deep_ep_callers.py", args.n)
    torch.cuda.set_device(gpus.mine(args.rank))
    dist.init_process_group("gloo", init_method=f"file://{args.worker}/store", rank=args.rank, world_size=args.n,
                            timeout=datetime.timedelta(seconds=LIMIT_S))
    from programs import deep_ep_callers as callers

    def gather(mine):
        found = [None] * args.n
        dist.all_gather_object(found, mine)
        return found

    job, failed = callers.Job(dist.group.WORLD, gather), 0
    for program in callers.PROGRAMS:
        if args.programs and program.__name__ not in args.programs:
            continue
        start = time.monotonic()
        try:
            program(job)
            torch.cuda.synchronize()
            result = "ok"
        except BaseException:
            traceback.print_exc()
            result = "FAILED"
        # A rank that failed tells the others, which would wait for it else.
        results = gather(result)
        failed += results != ["ok"] * args.n
        if args.rank == 0:
            print(f"{program.__name__}: {', '.join(results)} ({time.monotonic() - start:.1f} s)", flush=True)
    return int(failed > 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--hosts", action="store_true", help="each rank is on a host of its own, by name")
    parser.add_argument("--shunt", default=os.path.join(HERE, "..", "..", "build", "tools", "shunt"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("programs", nargs="*")
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        print("SKIP deep_ep_callers.py: no torch with a GPU")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        env = dict(NCCL_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo", SHUNT_EP_TIMEOUT="10s", SHUNT_DEVICE="cuda") | dict(os.environ)
        command = [os.path.abspath(args.shunt), "run", "--deep-ep", "--", sys.executable, os.path.abspath(__file__), "-n", str(args.n), "--worker", folder]
        ranks = [subprocess.Popen([*command, "--rank", str(rank), *args.programs], env=env | ({"SHUNT_HOSTID": f"host{rank}"} if args.hosts else {}))
                 for rank in range(args.n)]
        end = time.monotonic() + LIMIT_S
        try:
            codes = [rank.wait(max(1, end - time.monotonic())) for rank in ranks]
        except subprocess.TimeoutExpired:
            codes = [1]
            print(f"FAILED: not within {LIMIT_S} s", flush=True)
        finally:
            for rank in ranks:
                rank.kill()
    print(f"deep_ep_callers.py: {'all right' if not any(codes) else f'exit statuses {codes}'}")
    return 77 if 77 in codes else int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
