#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_runs.py TOOLS LIBCUDA: what tools/test.sh counts, runs again and says at its end, over a Meson that runs nothing.

The Meson here is a script: the results of a test are the letters of its line in the file `results`, one for each time it runs: O passes,
F fails, S skips, I was interrupted, R fails with a report of a sanitizer, X with the exit status of one, V of memcheck. Its log has
the titles of the Meson that the file `version` names.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOLS = os.path.abspath(sys.argv.pop(1))
LIBCUDA = os.path.abspath(sys.argv.pop(1))  # a driver for CUDA 12.2
MESON = r"""#!/usr/bin/env python3
import json, os, sys
args = sys.argv[1:]
rows = [line.split() for line in open("results")]
build = args[args.index("-C") + 1]
logs, info = build + "/meson-logs", build + "/meson-info"
for folder in logs, info:
    os.makedirs(folder, exist_ok=True)
with open(info + "/intro-tests.json", "w") as f:
    json.dump([{"name": name, "suite": ["shunt:" + s for s in suites.split("+")]} for suites, name, _ in rows], f)
version = open("version").read()
title = {"1.0": "shunt:%s / %s", "1.0 with one suite": "%.0s%s", "1.12": "%s - shunt:%s"}[version]
named = [name for _, name, _ in rows if name in args]
with open("calls", "a") as calls:
    calls.write(" ".join(args) + "\n")
failed = False
with open(logs + "/testlog-own.json", "w") as log:
    for row in rows:
        suite, name, letters = row
        if named and name not in named:
            continue
        result = {"O": "OK", "S": "SKIP", "I": "INTERRUPT"}.get(letters[0], "FAIL")
        failed = failed or result in ("FAIL", "INTERRUPT")
        row[2] = letters[1:] or "-"
        text = {"OK": "[  SKIPPED ] test_half\n", "SKIP": "no cable"}.get(result, "it broke")
        test = {"name": title % (suite, name), "result": result, "stdout": text, "returncode": 0 if result == "OK" else 1}
        if letters[0] == "R":
            test["stderr"] = "==17==ERROR: LeakSanitizer: detected memory leaks\n"
        if letters[0] in "XV":
            test["returncode"] = {"X": 66, "V": 99}[letters[0]]
        log.write(json.dumps(test) + "\n")
open("results", "w").write("".join(" ".join(row) + "\n" for row in rows))
if os.path.exists("killed"):
    os.kill(os.getpid(), 9)
open(logs + "/testlog-own.junit.xml", "w").close()
print("what it says is for people")
sys.exit(failed)
"""
MESONS = "1.0", "1.0 with one suite", "1.12"
SCRIPT = """set -u
all= log=log tsan_wrapper=
. tools/setup.sh
gpu_count() { echo 0; }
. tools/test_runs.sh
jobs=7
%s
again
finish
"""


class Runs(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        os.mkdir(self.path("tools"))
        os.mkdir(self.path("tests"))
        os.mkdir(self.path("bin"))
        for name in "setup.sh", "test_runs.sh", "test_results.py", "test_targets.py":
            shutil.copy(os.path.join(TOOLS, name), self.path("tools", name))
        self.write("tests/required.txt", "# kind run what\n")
        self.write("version", "1.0")
        self.write("bin/meson", MESON)
        # No wrapper of the interpreter, and none of its packages, which take most of the time of each start.
        self.write("bin/python3", '#!/bin/sh\nexec "%s" -S "$@"\n' % sys.executable)
        for name in "meson", "python3":
            os.chmod(self.path("bin", name), 0o755)

    def path(self, *parts):
        return os.path.join(self.dir.name, *parts)

    def write(self, name, text):
        with open(self.path(name), "w") as out:
            out.write(text)

    def calls(self):
        with open(self.path("calls")) as lines:
            return lines.read().splitlines()

    def run_tests(self, results, script="tests plain --suite unit"):
        self.write("results", results)
        env = dict(os.environ, PATH=self.path("bin") + ":" + os.environ["PATH"])
        done = subprocess.run(
            ["sh", "-c", SCRIPT % script],
            cwd=self.dir.name,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.text = done.stdout
        return done.returncode, done.stdout.splitlines()

    def test_what_passes_is_counted(self):
        status, lines = self.run_tests("unit a O\nunit b O\n")
        self.assertEqual((status, lines[-1]), (0, "2 passed, 0 failed, 0 skipped"))
        self.assertEqual(len(self.calls()), 1)
        self.assertIn("--num-processes 7", self.calls()[0])
        self.assertIn("--no-suite long", self.calls()[0])
        self.assertIn("skipped: a part of a: test_half", self.text)

    def test_what_passes_the_second_time_is_flaky(self):
        status, lines = self.run_tests("unit a O\nunit b FO\n")
        self.assertEqual(status, 0, self.text)
        self.assertEqual(lines[-2:], ["flaky: b (plain)", "2 passed, 0 failed, 0 skipped"])
        self.assertIn("failed, and runs again: shunt:unit / b: FAIL", self.text)
        self.assertIn("it broke", self.text)
        self.assertEqual(len(self.calls()), 2)
        self.assertIn("--num-processes 1 b", self.calls()[1])

    def test_what_fails_twice_has_failed(self):
        status, lines = self.run_tests("unit a O\nunit b FF\nunit c FO\n")
        self.assertEqual(status, 1)
        self.assertEqual(lines[-2:], ["flaky: c (plain)", "2 passed, 1 failed, 0 skipped"])
        self.assertIn("not ok, twice: shunt:unit / b: FAIL", self.text)
        self.assertNotIn("flaky: b", self.text)

    def test_what_skips_the_second_time_has_failed(self):
        status, lines = self.run_tests("unit a O\nunit b FS\n")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_what_a_sanitizer_reports_fails_the_run(self):
        status, lines = self.run_tests("unit a O\nunit r RO\nunit x XO\nunit v VO\nunit c FO\n")
        self.assertEqual(status, 1, self.text)
        self.assertEqual(lines[-2:], ["flaky: c (plain)", "2 passed, 3 failed, 0 skipped"])
        for name, who in ("r", "LeakSanitizer"), ("x", "ThreadSanitizer"), ("v", "memcheck"):
            self.assertIn("not ok: shunt:unit / %s: %s has a report" % (name, who), self.text)
        self.assertTrue(self.calls()[-1].endswith("--num-processes 1 c"))

    def test_many_failures_do_not_run_again(self):
        status, lines = self.run_tests("unit a O\n" + "".join("unit b%d FO\n" % i for i in range(11)))
        self.assertEqual((status, lines[-1]), (1, "1 passed, 11 failed, 0 skipped"))
        self.assertEqual(len(self.calls()), 1)
        self.assertIn("not ok: shunt:unit / b7: FAIL", self.text)

    def test_a_run_that_was_interrupted_has_failed(self):
        status, lines = self.run_tests("unit a O\nunit b FO\nunit c IO\n")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 2 failed, 0 skipped"))
        self.assertEqual(len(self.calls()), 1)

    def test_a_run_without_an_end_has_failed(self):
        self.write("killed", "")
        status, lines = self.run_tests("unit a O\nunit b FO\n")
        self.assertEqual((status, lines[-1]), (1, "2 passed, 1 failed, 0 skipped"))
        self.assertIn("not ok: meson test ended with 137", self.text)

    def test_each_run_repeats_its_own(self):
        status, lines = self.run_tests(
            "unit a OO\nunit b FFOF\n", "tests plain --suite unit\ntests thread --suite unit"
        )
        self.assertEqual(status, 1, self.text)
        self.assertEqual(lines[-2:], ["flaky: b (plain)", "3 passed, 1 failed, 0 skipped"])

    def test_second_run_starts_as_the_first(self):
        self.run_tests("abi a FO\n", "tests valgrind --suite abi")
        self.assertIn("flaky: a (valgrind)", self.text)
        for call in self.calls():
            self.assertIn("-C build --no-rebuild --timeout-multiplier 3 --setup valgrind", call)
        os.remove(self.path("calls"))
        self.run_tests("abi a FO\n", "tests thread --suite abi")
        for call in self.calls():
            self.assertIn("-C build-tsan --no-rebuild --timeout-multiplier 6", call)

    def test_nothing_that_ran_is_no_success(self):
        status, lines = self.run_tests("unit a S\n")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 0 failed, 1 skipped"))
        self.assertIn("skipped: shunt:unit / a: no cable", self.text)
        status, lines = self.run_tests("")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertIn("no test ran in build", self.text)

    def test_a_listed_test_that_skips_is_a_failure(self):
        self.write("tests/required.txt", "any plain a\nany plain suite:sim\nany thread b\nnowhere plain b\n")
        status, lines = self.run_tests("unit a S\nunit b O\nsim c_skipped_no_header S\n")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed, 2 skipped"))
        self.assertIn("not ok: a is listed in tests/required.txt and was skipped: a", self.text)
        status, lines = self.run_tests("unit b O\n")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 2 failed, 0 skipped"))
        self.assertIn("not ok: suite:sim is listed in tests/required.txt and was skipped: it is not there", self.text)

    def test_every_version_of_meson_is_understood(self):
        self.write(
            "tests/required.txt", "any plain a\nany plain suite:sim\nany plain suite:threads\nany plain suite:rdma\n"
        )
        for version in MESONS:
            with self.subTest(version):
                self.write("version", version)
                status, lines = self.run_tests("unit a FO\nsim+threads a_b-a O\nthreads b FF\nunit sim O\n")
                self.assertEqual(lines[-2:], ["flaky: a (plain)", "3 passed, 2 failed, 0 skipped"])
                self.assertIn("--num-processes 1 a b", self.calls()[-1])
                self.assertRegex(self.text, r"not ok, twice: .*\bb: FAIL")
                self.assertEqual(self.text.count("is listed in tests/required.txt"), 1, self.text)
                self.assertIn(
                    "not ok: suite:rdma is listed in tests/required.txt and was skipped: it is not", self.text
                )

    def test_a_title_without_a_name_is_told(self):
        self.write("version", "1.12")
        self.write("bin/meson", MESON.replace('"%s - shunt:%s"', '"%s %s (shunt)"'))
        status, lines = self.run_tests("unit a O\n")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertIn('no test of build has the name at the end of "unit a (shunt)" in build/meson-logs/', self.text)

    def test_a_listed_test_that_is_flaky_has_run(self):
        self.write("tests/required.txt", "any plain a\n")
        status, lines = self.run_tests("unit a FO\n")
        self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed, 0 skipped"))

    def test_a_listed_step_that_skips_is_a_failure(self):
        status, lines = self.run_tests("unit a O\n", "tests plain; skip tsan 'no sanitizer'")
        self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))
        self.write("tests/required.txt", "any step tsan\n")
        status, lines = self.run_tests("unit a O\n", "tests plain; skip tsan 'no sanitizer'")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_the_driver_says_its_cuda_whatever_nvidia_smi_prints(self):
        os.symlink(LIBCUDA, self.path("bin/libcuda.so.1"))
        env = dict(os.environ, LD_LIBRARY_PATH=self.path("bin"))
        script = """. tools/setup.sh
gpu_count() { echo 1; }
nvcc_found() { return 1; }
need_nvcc_wheels() { say "wheels of $1"; }
need_nvcc
driver_cuda() { echo 13.4; }
need_nvcc
"""
        text = subprocess.run(
            ["sh", "-c", script], cwd=self.dir.name, env=env, stdout=subprocess.PIPE, text=True
        ).stdout.splitlines()
        self.assertIn("the driver is for CUDA 12.2, wheels", text[0])
        self.assertEqual(text[1], "== wheels of 13.4")

    def test_parts_beside_the_tests_are_awaited(self):
        script = (
            "(part good echo built; part bad sh -c 'echo broken; exit 3') & beside=$!\n"
            + "tests plain; await good || broken good; await bad || echo status $?; await never || broken never"
        )
        status, lines = self.run_tests("unit a O\n", script)
        self.assertEqual(lines[-5:], ["built", "broken", "status 3", "not ok: never", "1 passed, 1 failed, 0 skipped"])

    @unittest.skipIf(os.geteuid(), "only root may raise a priority")
    def test_what_is_awaited_has_the_priority_of_the_script(self):
        script = """
until_nice() {
	i=0
	until [ "$(nice)" = $1 ]; do
		[ $((i += 1)) -lt 3000 ] && sleep 0.02 || return # pause: poll
	done
}
both() { until_nice 19 && touch low && until_nice $own; }
own=$(nice)
(part a both; part b until_nice 19) & beside=$!
priority 19
until [ -e low ] || [ -e log/a-ended ]; do sleep 0.02; done # pause: poll
await a && wait && await b && tests plain --suite unit
"""
        status, lines = self.run_tests("unit a O\n", script)
        self.assertEqual((status, lines[-1]), (0, "1 passed, 0 failed, 0 skipped"))

    def test_the_sum_of_another_run_is_added(self):
        self.write("said", "flaky: a (plain)\n2 passed, 1 failed, 3 skipped\n")
        self.write("cut", "2 passed, 1 failed, 3 skipped\nended\n")
        status, lines = self.run_tests("unit a O\n", "tests plain; add_up said; add_up cut || broken cut")
        self.assertEqual((status, lines[-2:]), (1, ["not ok: cut", "3 passed, 2 failed, 3 skipped"]))


if __name__ == "__main__":
    unittest.main()
