# SPDX-License-Identifier: MIT
"""Shunt in this process: enable() and status() beside a library that is linked with NCCL, as PyTorch's is.

Each case runs in an interpreter of its own. What the library's call returns says who answered it: a stand-in for
NVIDIA's libnccl.so.2, or Shunt without a real NCCL.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import libshunt
from helper import Case, run_python, variable

LIBRARY = os.path.realpath(variable("SHUNT_LIB"))
NCCL = variable("FAKE_NCCL")
USERS = {"lazy": variable("USER_LAZY"), "now": variable("USER_NOW")}
# The versions that the two report.
SHUNT_VERSION, FAKE_VERSION = 22809, 22707

PRELUDE = """
import ctypes, os, sys, warnings
import libshunt
user = sys.argv[1]
def load(mode=ctypes.RTLD_LOCAL):
    return ctypes.CDLL(user, mode=mode)
def answers(library):
    return library.user_version()
"""


class Process(Case):
    def run_case(self, code: str, user: str = "now", **variables: str | None) -> str:
        run = run_python(PRELUDE + code, USERS[user], **variables)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def test_enabled_before_the_user_is_as_good_as_a_preload(self) -> None:
        for user in USERS:
            for mode in "RTLD_LOCAL", "RTLD_GLOBAL":
                with self.subTest(user=user, mode=mode):
                    out = self.run_case(
                        f"before = libshunt.enable(nccl='none')\nlibrary = load(ctypes.{mode})\n"
                        "now = libshunt.status()\n"
                        "print(before.active, now.active, len(now.users), now.users[0].library == user,\n"
                        "      now.users[0].answered_by == now.library, answers(library), libshunt.status().active)",
                        user,
                    )
                    self.assertEqual(out, f"True True 1 True True {SHUNT_VERSION} True\n")

    def test_status_loads_nothing(self) -> None:
        out = self.run_case(
            "s = libshunt.status()\nprint(s.active, s.library, s.users, 'libnccl' in open('/proc/self/maps').read())"
        )
        self.assertEqual(out, "False None () False\n")

    def test_enabled_twice(self) -> None:
        out = self.run_case(
            "libshunt.enable(nccl='none')\nlibrary = load()\n"
            "print(libshunt.enable().active, os.environ['LD_PRELOAD'], answers(library))"
        )
        self.assertEqual(out, f"True {LIBRARY} {SHUNT_VERSION}\n")

    def test_enabled_after_a_preload(self) -> None:
        out = self.run_case(
            "library = load()\ns = libshunt.enable()\nprint(s.active, s.users[0].answered_by, answers(library))",
            LD_PRELOAD=LIBRARY,
        )
        self.assertEqual(out, f"True {LIBRARY} {SHUNT_VERSION}\n")

    def test_too_late_names_the_command_that_would_work(self) -> None:
        for user in USERS:
            with self.subTest(user=user):
                run = run_python(PRELUDE + "load()\nlibshunt.enable()", USERS[user])
                self.assertEqual(run.returncode, 1)
                self.assert_one_line(run.stderr, "loaded already", NCCL, USERS[user], "shunt run -- ", " -c ")

    def test_too_late_without_strictness_is_a_warning(self) -> None:
        out = self.run_case(
            "library = load()\n"
            "with warnings.catch_warnings(record=True) as said:\n"
            "    warnings.simplefilter('always')\n"
            "    s = libshunt.enable(strict=False)\n"
            "print(len(said), 'shunt run -- ' in str(said[0].message), s.active, answers(library))"
        )
        self.assertEqual(out, f"1 True False {FAKE_VERSION}\n")

    def test_status_tells_whom_the_loader_has_bound(self) -> None:
        """A library that somebody loads too late answers nobody who is bound, and whoever is bound later."""
        for user in USERS:
            with self.subTest(user=user):
                out = self.run_case(
                    "library = load()\n"
                    "ctypes.CDLL(os.environ['SHUNT_LIB'], mode=ctypes.RTLD_GLOBAL)\n"
                    "s = libshunt.status()\n"
                    "told = os.path.realpath(s.users[0].answered_by) == s.library\n"
                    f"print(told == (answers(library) == {SHUNT_VERSION}), s.active, told)",
                    user,
                )
                told = out.split()[2]
                self.assertEqual(out, f"True False {told}\n")
                if user == "now":
                    self.assertEqual(told, "False")

    def test_children_have_it(self) -> None:
        out = self.run_case(
            "import subprocess\nlibshunt.enable(nccl='none')\n"
            "code = 'import ctypes, libshunt, sys; l = ctypes.CDLL(sys.argv[1]); ' \\\n"
            "       'print(libshunt.status().active, l.user_version())'\n"
            "print(subprocess.run([sys.executable, '-c', code, user], capture_output=True, text=True).stdout)"
        )
        self.assertEqual(out.strip(), f"True {SHUNT_VERSION}")

    def test_spawned_children_of_multiprocessing_have_it(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "spawned.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(
                    "import ctypes, multiprocessing, sys\nimport libshunt\n"
                    "def child(user, queue):\n"
                    "    queue.put((libshunt.status().active, ctypes.CDLL(user).user_version()))\n"
                    "if __name__ == '__main__':\n"
                    "    libshunt.enable(nccl='none')\n"
                    "    context = multiprocessing.get_context('spawn')\n"
                    "    queue = context.Queue()\n"
                    "    process = context.Process(target=child, args=(sys.argv[1], queue))\n"
                    "    process.start()\n    print(*queue.get())\n    process.join()\n"
                )
            command = [sys.executable, path, USERS["now"]]
            env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
            done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)
            self.assertEqual(done.stdout, f"True {SHUNT_VERSION}\n", done.stderr)

    def test_a_path_with_a_blank_reaches_children_too(self) -> None:
        with tempfile.TemporaryDirectory(prefix="a blank ") as folder:
            library = os.path.join(folder, "libshunt.so")
            shutil.copy(LIBRARY, library)
            out = self.run_case(
                "import subprocess\nlibshunt.enable(nccl='none')\n"
                "code = 'import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).user_version())'\n"
                "r = subprocess.run([sys.executable, '-c', code, user], capture_output=True, text=True)\n"
                "print(r.stdout.strip(), r.stderr.strip(), answers(load()))",
                SHUNT_LIB=library,
            )
            self.assertEqual(out, f"{SHUNT_VERSION}  {SHUNT_VERSION}\n")

    def test_another_real_nccl_than_the_one_in_use_is_refused(self) -> None:
        run = run_python(
            PRELUDE + "libshunt.enable(nccl=sys.argv[2])\nload().user_version()\nlibshunt.enable(nccl='none')",
            USERS["now"],
            NCCL,
            SHUNT_NCCL_LIB=None,
        )
        self.assert_one_line(run.stderr, "libshunt._lib.Error", "in front of", NCCL, "SHUNT_NCCL_LIB=none")

    def test_the_real_nccl_is_named(self) -> None:
        out = self.run_case(
            f"libshunt.enable(nccl={NCCL!r})\nprint(libshunt.status().nccl, answers(load()), libshunt.status().nccl)"
        )
        self.assertEqual(out, f"None {FAKE_VERSION} {NCCL}\n")


class BadLibraries(Case):
    """Each gets one line that names the file and says what to do."""

    def refused(self, library: str, *parts: str, code: str = "libshunt.enable()", **variables: str | None) -> None:
        run = run_python("import libshunt\n" + code, SHUNT_LIB=library, **variables)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assert_one_line(run.stderr, "libshunt._lib.Error: ", *parts)

    def changed(self, folder: str, change: tuple[bytes, bytes], name: str = "libshunt.so") -> str:
        """A copy of the library with some bytes replaced, by as many."""
        path = os.path.join(folder, name)
        with open(LIBRARY, "rb") as file:
            data = file.read()
        self.assertIn(change[0], data)
        self.assertEqual(len(change[0]), len(change[1]))
        with open(path, "wb") as file:
            file.write(data.replace(change[0], change[1], 1))
        return path

    def test_a_file_that_is_not_there(self) -> None:
        self.refused("/no/such/libshunt.so", '"/no/such/libshunt.so", which is not a file', "unset")

    def test_a_foreign_library_under_our_name(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "libshunt.so")
            shutil.copy(USERS["now"], path)
            self.refused(path, path, "is no libshunt.so", "unset SHUNT_LIB")

    def test_a_library_for_another_machine(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            # The ELF header: a shared object for x86-64; then one for AArch64.
            path = self.changed(folder, (b"\3\0\x3e\0\1\0\0\0", b"\3\0\xb7\0\1\0\0\0"))
            self.refused(path, path, "is for another machine", "x86-64 or aarch64 Linux")
            with open(path, "wb") as file:
                file.write(b"shunt_version, but no library")
            self.refused(path, path, "is for another machine", "x86-64 or aarch64 Linux")

    def test_a_library_for_a_newer_c_library(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = self.changed(folder, (b"GLIBC_2.34\0", b"GLIBC_2.99\0"))
            self.refused(path, path, "newer C library than this machine's (glibc", "tools/wheel.sh")

    def test_a_library_of_another_version(self) -> None:
        self.refused(variable("OLDER_SHUNT"), "has no shunt_", "let both be of one version")

    def test_two_of_us_in_one_process(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "libshunt.so")
            shutil.copy(LIBRARY, other)
            both = f"import ctypes\nctypes.CDLL({other!r})\nctypes.CDLL({LIBRARY!r})\n"
            for call in "enable", "status":
                self.refused(LIBRARY, other, LIBRARY, "same file", code=both + f"libshunt.{call}()")
            self.refused(LIBRARY, other, LIBRARY, "is loaded already", "same file", LD_PRELOAD=other)

    def test_a_source_tree_without_a_library(self) -> None:
        run = run_python("import libshunt\nlibshunt.enable()", SHUNT_LIB=None)
        self.assert_one_line(run.stderr, "libshunt._lib.Error", "is not there", "SHUNT_LIB", "install the wheel again")


class Names(Case):
    def test_version_is_that_of_the_library(self) -> None:
        out = run_python("import libshunt; print(libshunt.enable().version == libshunt.__version__)").stdout
        self.assertEqual(out, "True\n")
        with open(os.path.join(variable("TEST_SOURCE"), "meson.build"), encoding="utf-8") as file:
            self.assertIn(f"version: '{libshunt.__version__}'", file.read())


if __name__ == "__main__":
    unittest.main()
