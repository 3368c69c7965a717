# SPDX-License-Identifier: MIT
"""
MSCCL++'s own programs, unmodified: with `shunt run --mscclpp` each writes the plan that MSCCL++'s language makes of it,
up to the order of its words, and those that mean a call of NCCL give right values on the sim. MSCCLPP_SOURCE names a
checkout (it is not part of Shunt's sources); without it the test is skipped.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator

SOURCE = os.environ.get("MSCCLPP_SOURCE", "")
SHUNT = os.path.join(os.environ["TEST_BUILD"], "tools", "shunt")
FOLDERS = ("python/mscclpp/language/tests", "test/executor-tests/algos", "python/mscclpp/default_algos")
# These do not run with MSCCL++ either: two use names that are gone, one waits once too seldom.
STALE = ("allgather_ring", "alltoall_pkt", "put_with_signal_fuse_test")
# Its blocks wait for another block of the peer than the one that writes what they read.
RACES = ("reduce_tbg",)

# MSCCL++'s language asks for a package of which it uses this much.
SORTED = """
class SortedDict(dict):
    def keys(self):
        return sorted(super().keys())
"""
# One of its programs is a function alone.
CALL = """
import importlib.util, sys
from mscclpp.language.collectives import ReduceScatter
from mscclpp.language.utils import AlgoSpec
spec = importlib.util.spec_from_file_location("program", sys.argv[1])
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
ranks, node, group = map(int, sys.argv[3:])
print(program.reducescatter_multi_nodes(AlgoSpec(
    name=sys.argv[2], collective=ReduceScatter(ranks, 1, True), nranks_per_node=node, world_size=ranks, in_place=True,
    instances=1, protocol="LL", auto_sync=False, reuse_resources=True, use_double_scratch_buffer=True,
), group).to_json())
"""


def arguments(options: set[str]) -> list[list[str]]:
    """What a program that has these options is run with."""
    if "nnodes" in options:
        return [
            ["--nnodes", "2", "--gpus_per_node", "2", "--instances", "1"],
            ["--nnodes", "1", "--gpus_per_node", "4", "--split_mask", "0x1", "--instances", "4"],
        ]
    if "tbg_size" in options:
        return [["--num_gpus", "2", "--gpus_per_node", "4", "--tbg_size", size] for size in ("1", "2")]
    if {"num_gpus", "gpus_per_node"} <= options:
        both = [["--num_gpus", "4", "--gpus_per_node", "2"], ["--num_gpus", "8", "--gpus_per_node", "4"]]
        return both + ([[*both[0], "--tbg", "2"]] if "tbg" in options else [])
    found = [["--num_gpus", n] for n in ("2", "4", "8")] if "num_gpus" in options else [[]]
    if "gpus_per_node" in options:
        found = [["--gpus_per_node", n] for n in ("1", "2", "4")]
    if "instances" in options:
        found += [[*one, "--instances", "2", "--min_message_size", "4096"] for one in found]
    return found


def programs() -> Iterator[tuple[str, list[str]]]:
    """Names of plans, and what python is to run for each."""
    for folder in FOLDERS:
        for path, _, names in sorted(os.walk(os.path.join(SOURCE, folder))):
            for name in sorted(names):
                file, stem = os.path.join(path, name), name[:-3]
                if not name.endswith(".py") or name == "__init__.py":
                    continue
                with open(file, encoding="utf-8") as text:
                    options = set(re.findall(r'"--(\w+)"', text.read()))
                tag = f"{os.path.basename(path)}-{stem}"
                if not options:
                    for i, numbers in enumerate((["4", "2", "1"], ["4", "2", "4"], ["8", "4", "1"])):
                        yield f"{tag}-{i}", ["-c", CALL, file, f"{tag}-{i}", *numbers]
                    continue
                for i, given in enumerate(arguments(options)):
                    yield f"{tag}-{i}", [file, *(["--name", f"{tag}-{i}"] if "name" in options else []), *given]


def checked(folder: str) -> dict[str, dict[str, object]]:
    out = subprocess.run([SHUNT, "plan", "check", "--json", folder], capture_output=True, text=True, check=False).stdout
    return {os.path.basename(row["file"])[:-5]: row for row in json.loads(out)}


class Corpus(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="shunt-")
        self.addCleanup(scratch.cleanup)
        self.top = scratch.name
        package = os.path.join(self.top, "theirs", "mscclpp")
        os.makedirs(package)
        with open(os.path.join(package, "__init__.py"), "w", encoding="utf-8"):
            pass
        with open(os.path.join(self.top, "theirs", "sortedcontainers.py"), "w", encoding="utf-8") as file:
            file.write(SORTED)
        for name in ("language", "default_algos"):
            os.symlink(os.path.join(SOURCE, "python/mscclpp", name), os.path.join(package, name))

    def write(self, plans: str, name: str, command: list[str], env: dict[str, str]) -> str:
        """The last line of stderr if it fails."""
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
        with open(os.path.join(self.top, plans, f"{name}.json"), "w", encoding="utf-8") as file:
            file.write(done.stdout)
        return ""

    def test_programs(self) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("SHUNT_")}
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        theirs, ours = dict(env, PYTHONPATH=os.path.join(self.top, "theirs")), env
        refused: dict[str, str] = {}
        for plans in ("their-plans", "our-plans"):
            os.mkdir(os.path.join(self.top, plans))
        for name, command in programs():
            failed = self.write("their-plans", name, [sys.executable, *command], theirs)
            error = self.write("our-plans", name, [SHUNT, "run", "--mscclpp", "--", sys.executable, *command], ours)
            stale = any(stem in name for stem in STALE)
            self.assertEqual(bool(failed), stale, f"{name}: MSCCL++ says {failed!r}")
            if error:
                self.assertTrue(stale, f"{name}: {error}")
                refused[name] = error
        for error in refused.values():
            self.assertRegex(error, r"\.py:\d+: ")
        their_plans, our_plans = (
            checked(os.path.join(self.top, "their-plans")),
            checked(os.path.join(self.top, "our-plans")),
        )
        files = {name.rsplit("-", 1)[0] for name in their_plans}
        self.assertGreaterEqual(len(files), 70)
        for name, row in their_plans.items():
            with self.subTest(name):
                self.assertEqual(our_plans[name]["ok"], row["ok"])
                self.assertEqual(our_plans[name].get("hash"), row.get("hash"))
        for name, row in our_plans.items():
            races = name.split("-")[1] in RACES
            if row["ok"] and row["collective"] not in ("test", "sendrecv") and not races:
                with self.subTest(name):
                    path = os.path.join(self.top, "our-plans", f"{name}.json")
                    low = max(int(str(row["min_message_size"])), 32768)
                    command = [SHUNT, "plan", "run", "--device", "sim", "-b", str(low), "-e", str(low), path]
                    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
                    self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        print(f"{len(files)} programs, {len(their_plans)} plans, {len(our_plans) - len(their_plans)} more; {refused}")


class Examples(unittest.TestCase):
    """MSCCL++'s examples of its run-time API, with stand-ins for torch and netifaces, which look at the results."""

    def run_ranks(self, name: str, ranks: int = 2) -> list[str]:
        with open(os.path.join(SOURCE, "examples", "torch-integration", name), encoding="utf-8") as file:
            text = file.read()
        # Its number of ranks stands in the example, which looks at no result.
        for theirs, ours in (
            ("AllReduce(8,", f"AllReduce({ranks},"),
            ("nranks_per_node=8", f"nranks_per_node={ranks}"),
            ("torch.cuda.device_count()", str(ranks)),
            ("x.normal_()", "x.fill_(int(os.environ['RANK']) + 1)"),
            ("torch.randn(1 << 22", "x = torch.full((1 << 22,), int(os.environ['RANK']) + 1"),
            ("    comm.barrier()\n    comm.destroy()", "    torch.cuda.synchronize()\n    comm.barrier()"),
            ("    print(f", f"    assert x.is_filled({sum(range(ranks + 1))})\n    print(f"),
        ):
            text = text.replace(theirs, ours)
        with tempfile.TemporaryDirectory(prefix="shunt-") as folder, socket.socket() as probe:
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
            probe.close()
            stand_ins = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stand_ins")
            env = dict(
                os.environ,
                PYTHONPATH=os.pathsep.join([stand_ins, os.environ["PYTHONPATH"]]),
                MSCCLPP_MASTER_ADDR="127.0.0.1",
                MSCCLPP_MASTER_PORT=port,
                WORLD_SIZE=str(ranks),
                STAND_IN_STORE=folder,
            )
            command = [SHUNT, "run", "--stats", "--mscclpp", "--device", "sim", "--", sys.executable, path]
            started = [
                subprocess.Popen(
                    command,
                    env=dict(env, RANK=str(rank), LOCAL_RANK=str(rank)),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank in range(ranks)
            ]
            outs = [one.communicate(timeout=100) for one in started]
            for one, (_, err) in zip(started, outs, strict=True):
                self.assertEqual(one.returncode, 0, err)
            return [out + err for out, err in outs]

    def test_examples(self) -> None:
        for name, says in (
            ("dsl_with_nccl_api.py", "allreduce +allreduce_nvls +1 "),
            ("customized_comm_with_dsl.py", "allreduce completed successfully"),
            ("customized_comm_with_default_algo.py", "All-reduce operation completed successfully"),
        ):
            with self.subTest(name):
                for out in self.run_ranks(name):
                    self.assertRegex(out, says)


if __name__ == "__main__":
    if not SOURCE:
        print("MSCCLPP_SOURCE names no checkout of MSCCL++: skipped")
        sys.exit(77)
    unittest.main()
