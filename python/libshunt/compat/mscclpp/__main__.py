# SPDX-License-Identifier: MIT
"""python -m mscclpp --install: MSCCL++'s default plans, in the folder of the cache where communicators find plans."""

from __future__ import annotations

import argparse
import os
import sys

from libshunt.language import AllReduce

from . import AlgoSpec, default_algos, env

# Hosts of 8 GPUs, sizes, and blocks of a group.
_PLANS = [
    (hosts, sizes, first, last, blocks)
    for hosts in (2, 4)
    for sizes, first, last, blocks in (("1K_64K", 1 << 10, 64 << 10, 1), ("128K_2M", 128 << 10, 2 << 20, 4))
]


def _text(name: str, hosts: int, first: int, last: int, blocks: int) -> str:
    spec = AlgoSpec(
        name=name,
        collective=AllReduce(hosts * 8, 1, True),
        nranks_per_node=8,
        world_size=hosts * 8,
        in_place=True,
        instances=1,
        protocol="LL",
        auto_sync=False,
        num_threads_per_block=1024,
        reuse_resources=True,
        use_double_scratch_buffer=True,
        min_message_size=first,
        max_message_size=last,
        tags={"default": 1},
    )
    return default_algos.allreduce_multi_nodes(spec, thread_block_group_size=blocks).to_json(indent=None)


def _install(folder: str) -> str:
    os.makedirs(folder, exist_ok=True)
    for hosts, sizes, first, last, blocks in _PLANS:
        name = f"allreduce_{hosts}nodes_{sizes}"
        path = os.path.join(folder, name + ".json")
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            file.write(_text(name, hosts, first, last, blocks) + "\n")
        os.replace(file.name, path)  # a communicator that looks meanwhile finds a whole plan
    return (
        f"{len(_PLANS)} plans are in {folder}: all-reduces of 1 KB to 2 MB over 2 and 4 hosts of 8 GPUs run by them, "
        "and not by Shunt's own kernels. `python -m mscclpp --uninstall` takes them away again."
    )


def _uninstall(folder: str) -> str:
    paths = [os.path.join(folder, f"allreduce_{hosts}nodes_{sizes}.json") for hosts, sizes, *_ in _PLANS]
    found = [path for path in paths if os.path.lexists(path)]
    for path in found:
        os.remove(path)
    return f"{len(found)} plans were removed from {folder}."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mscclpp")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--install", action="store_true", help="write MSCCL++'s default plans into the cache")
    what.add_argument("--uninstall", action="store_true", help="remove these plans, and no others, from there")
    options = parser.parse_args()
    folder = os.path.join(env().cache_dir, "default")
    try:
        print(_install(folder) if options.install else _uninstall(folder))
    except OSError as error:
        sys.exit(
            f"mscclpp: cannot write {error.filename or folder}: {error.strerror}: SHUNT_CACHE_DIR names another place"
        )


if __name__ == "__main__":
    main()
