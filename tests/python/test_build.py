# SPDX-License-Identifier: MIT
"""`shunt plan build` and `shunt run --mscclpp`: a program for MSCCL++ runs as it is, and its plans come out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest

SHUNT = os.path.join(os.environ["TEST_BUILD"], "tools", "shunt")
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs", "mscclpp_style.py")


def shunt(*args: str, cwd: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SHUNT, *args], capture_output=True, text=True, cwd=cwd, env=dict(os.environ, **env), check=False
    )


class Build(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="shunt-")
        self.addCleanup(scratch.cleanup)
        self.dir = scratch.name

    def program(self, text: str) -> str:
        path = os.path.join(self.dir, "program.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_options_on_both_sides(self) -> None:
        """-o before the program or at the end; the plan is what the program prints under `shunt run`."""
        printed = shunt("run", "--mscclpp", "--", sys.executable, PROGRAM, "--name", "mine", "--num_gpus", "4").stdout
        for args in (
            ("plan", "build", "-o", "plans", PROGRAM, "--name", "mine", "--num_gpus", "4"),
            ("plan", "build", PROGRAM, "--name", "mine", "--num_gpus", "4", "-o", "plans"),
        ):
            done = shunt(*args, cwd=self.dir)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"^ok     plans/mine.json: allreduce of 4 ranks, hash [0-9a-f]{16}\n$")
            with open(os.path.join(self.dir, "plans", "mine.json"), encoding="utf-8") as file:
                self.assertEqual(file.read(), printed.rstrip("\n") + "\n")
        ran = shunt("plan", "run", "--device", "sim", "-e", "4K", os.path.join(self.dir, "plans", "mine.json"))
        self.assertEqual(ran.returncode, 0, ran.stderr + ran.stdout)

    def test_several_plans(self) -> None:
        """Of one name two files; the same plan once."""
        path = self.program(
            "from libshunt.language import *\n"
            "for blocks in (1, 2, 1):\n"
            "    with CollectiveProgram('a/b', TestCollective(2, 1, 1), 2):\n"
            "        for block in range(blocks):\n"
            "            Rank(0).barrier([block])\n"
            "        JSON()\n"
        )
        self.assertEqual(shunt("plan", "build", path, "-o", self.dir).returncode, 0)
        self.assertEqual(
            sorted(name for name in os.listdir(self.dir) if name.endswith(".json")), ["a_b-2.json", "a_b.json"]
        )

    def test_wrong_plan(self) -> None:
        path = self.program(
            "from mscclpp.language import *\n"
            "with CollectiveProgram('stuck', AllReduce(2), 2):\n"
            "    for rank in range(2):\n"
            "        channel = MemoryChannel(1 - rank, rank)\n"
            "        channel.wait(tb=0)\n"
            "        channel.signal(tb=0)\n"
            "    print(JSON())\n"
        )
        done = shunt("plan", "build", path, "-o", self.dir)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"^wrong  .*/stuck.json: program.py:5: stuck: .*waits in a cycle")

    def test_what_fails_is_one_line(self) -> None:
        for text, says in (
            ("raise SystemExit(3)", "program.py ended with 3"),
            ("", "program.py wrote no plan: it calls neither JSON() nor to_json()"),
            (
                "from mscclpp.language import *\nwith CollectiveProgram('p', AllReduce(2), 2):\n    Rank(2)",
                "program.py:3: rank is 2",
            ),
        ):
            with self.subTest(says):
                done = shunt("plan", "build", self.program(text), "-o", self.dir)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(says, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn("No such file", shunt("plan", "build", "/nonexistent.py").stderr)
        self.assertEqual(shunt("plan", "build").returncode, 2)

    def test_without_the_package(self) -> None:
        for args in (("run", "--mscclpp", "--", "true"), ("plan", "build", PROGRAM)):
            done = shunt(*args, PYTHONPATH="", PYTHONNOUSERSITE="1")
            if "has no package" not in done.stderr:
                self.skipTest("libshunt is installed")
            self.assertEqual(done.returncode, 1)

    def test_enable(self) -> None:
        """For the process and its children; not beside another mscclpp that is there already."""
        probe = (
            "import libshunt.compat, subprocess, sys\n"
            "libshunt.compat.enable(); libshunt.compat.enable()\n"
            "import mscclpp\n"
            "child = [sys.executable, '-c', 'import mscclpp; print(mscclpp.__file__)']\n"
            "print(mscclpp.__file__ == subprocess.run(child, capture_output=True, text=True).stdout.strip())\n"
        )
        out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
        self.assertEqual(out, "True\n")
        probe = "import sys, types, libshunt.compat\nsys.modules['mscclpp'] = types.ModuleType('mscclpp')\n"
        done = subprocess.run(
            [sys.executable, "-c", probe + "libshunt.compat.enable()"], capture_output=True, text=True, check=False
        )
        self.assertIn("ImportError: mscclpp is imported already", done.stderr)

    def test_every_name_in_every_module(self) -> None:
        from libshunt import compat, language

        compat.enable()
        import importlib

        for module in ("program", "rank", "channel", "collectives", "loop", "general", "utils", "internal.types"):
            names = importlib.import_module(f"mscclpp.language.{module}").__dict__
            self.assertLessEqual(set(language.__all__), set(names), module)
        self.assertIs(importlib.import_module("mscclpp.language").AlgoSpec, language.AlgoSpec)

    def test_print(self) -> None:
        done = shunt("run", "--mscclpp", "--print")
        self.assertIn("export PYTHONPATH='", done.stdout)
        self.assertIn("libshunt/compat:", done.stdout)

    def test_plan_of_a_program_is_json(self) -> None:
        done = shunt("run", "--mscclpp", "--", sys.executable, PROGRAM, "--name", "mine", "--num_gpus", "2")
        self.assertEqual(json.loads(done.stdout)["gpus"][0]["input_chunks"], 4)


if __name__ == "__main__":
    unittest.main()
