# SPDX-License-Identifier: MIT
"""The wheel of this build: what is in it, and that it works in an environment that has nothing else."""

import base64
import contextlib
import csv
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

from helper import Case, variable

sys.path.insert(0, os.path.join(variable("TEST_SOURCE"), "python"))
import build_libshunt

SETTINGS = {"build-dir": variable("TEST_BUILD")}
ELF_FILES = {
    "libshunt/bin/shunt",
    "libshunt/lib/libshunt.so",
    "libshunt/lib/libshunt_api.so.0",
    "libshunt/lib/shunt/libnccl.so",
    "libshunt/lib/shunt/libshunt_api.so.0",
    "libshunt/lib/shunt/nccl_ep/libnccl_ep.so.0",
}
OTHERS = {
    "libshunt/include/shunt/device.h",
    "libshunt/include/shunt/ep.h",
    "libshunt/include/shunt/kernel.h",
    "libshunt/include/shunt/plugin.h",
    "libshunt/include/shunt/shunt.h",
    "libshunt/lib/cmake/shunt/shuntConfig.cmake",
    "libshunt/lib/cmake/shunt/shuntConfigVersion.cmake",
    "libshunt/lib/libnccl.so",
    "libshunt/lib/libshunt_api.so",
    "libshunt/lib/pkgconfig/shunt.pc",
    "libshunt/lib/shunt/bin/ncclras",
    "libshunt/py.typed",
}
INFO = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


def find_pip() -> list[str] | None:
    """A pip that installs into other environments."""
    own = os.path.join(variable("TEST_SOURCE"), ".deps", "venv", "bin", "python3")
    for python in (sys.executable, own):
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-c", "import pip"], capture_output=True).returncode == 0:
                return [python, "-m", "pip", "--isolated", "--no-cache-dir", "--disable-pip-version-check"]
    return None


PIP = find_pip()


def run_pip(*arguments: str) -> None:
    """Its home is a folder of its own: it caches wheels there, and so do tools that it asks for their versions. What it
    compiles stands beside the sources, for uninstalling."""
    assert PIP
    with tempfile.TemporaryDirectory() as home:
        env = dict(os.environ, HOME=home, PYTHONDONTWRITEBYTECODE="1", PYTHONPYCACHEPREFIX="")
        done = subprocess.run([*PIP, *arguments], capture_output=True, text=True, env=env)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)


class Environment:
    """An environment with the wheel and nothing else."""

    def __init__(self, python: str, folder: str, wheel: str) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
        self.before = self.files()
        self.pip("install", "--no-index", wheel)

    def files(self) -> set[str]:
        return {str(path) for path in Path(self.folder).rglob("*") if path.is_file()}

    def path(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    def pip(self, *arguments: str) -> None:
        run_pip("--python", self.path("bin", "python"), *arguments)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A program of the environment, from another folder and with nothing of this test's variables."""
        kept = {name: os.environ[name] for name in ("HOME", "NCCL_SOCKET_IFNAME") if name in os.environ}
        env = dict(kept, PATH=f"{self.path('bin')}:/usr/bin:/bin", SHUNT_NCCL_LIB="none", **variables)
        program = [self.path("bin", command[0]), *command[1:]] if "/" not in command[0] else list(command)
        return subprocess.run(program, capture_output=True, text=True, env=env, cwd="/", timeout=100)


class Wheel(Case):
    folder: tempfile.TemporaryDirectory[str]
    wheel: str
    sdist: str
    environment: Environment

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory(prefix="a blank ")
        cls.wheel = os.path.join(cls.folder.name, build_libshunt.build_wheel(cls.folder.name, SETTINGS))
        cls.sdist = os.path.join(cls.folder.name, build_libshunt.build_sdist(cls.folder.name))
        cls.environment = Environment(sys.executable, os.path.join(cls.folder.name, "the venv"), cls.wheel)

    @classmethod
    def tearDownClass(cls) -> None:
        """What was installed, and used by now, can go without a trace."""
        cls.environment.pip("uninstall", "-y", "libshunt", "libshunt-deep-ep")
        after = cls.environment.files()
        cls.folder.cleanup()
        assert after == cls.environment.before, after ^ cls.environment.before

    def test_contents(self) -> None:
        with zipfile.ZipFile(self.wheel) as archive:
            names = set(archive.namelist())
            top = next(name for name in names if name.endswith("/RECORD")).split("/")[0]
            elf = {name for name in names if archive.read(name)[:4] == b"\x7fELF"}
            plans = {name for name in names if re.fullmatch(r"libshunt/share/shunt/plans/\w[\w-]+\.json", name)}
            tuning = {name for name in names if re.fullmatch(r"libshunt/share/shunt/tuning/\w[\w-]+\.json", name)}
            sources = {
                name for name in os.listdir(os.path.join(build_libshunt.ROOT, "tuning")) if name.endswith(".json")
            }
            self.assertEqual({os.path.basename(name) for name in tuning}, sources)
            python = {name for name in names if name.startswith("libshunt/") and name.endswith(".py")}
            self.assertEqual(elf, ELF_FILES)
            self.assertEqual(names - elf - plans - tuning - python, OTHERS | {f"{top}/{name}" for name in INFO})
            self.assertEqual(len(plans), 36 + 48)
            self.assertIn("libshunt/__init__.py", python)
            modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
        programs = {"libshunt/bin/shunt", "libshunt/lib/shunt/bin/ncclras"}
        self.assertEqual({name for name, mode in modes.items() if mode != 0o100644}, programs)
        self.assertEqual({modes[name] for name in programs}, {0o100755})

    def test_the_name_deep_ep_is_in_a_wheel_of_its_own(self) -> None:
        wheel = os.path.join(
            self.folder.name, build_libshunt.build_wheel(self.folder.name, {**SETTINGS, "deep-ep": "true"})
        )
        with zipfile.ZipFile(wheel) as archive:
            names = {name for name in archive.namelist() if ".dist-info/" not in name}
        self.assertEqual(names, {"deep_ep/__init__.py", "deep_ep/utils.py"})
        find = "import importlib.util; print(importlib.util.find_spec('deep_ep') is not None)"
        for wanted in "False", "True":
            run = self.environment.run("python", "-c", find)
            self.assertEqual(run.stdout, f"{wanted}\n", run.stderr)
            if wanted == "False":
                self.environment.pip("install", "--no-index", wheel)

    def test_record(self) -> None:
        with zipfile.ZipFile(self.wheel) as archive:
            record = next(name for name in archive.namelist() if name.endswith("/RECORD"))
            rows = list(csv.reader(io.StringIO(archive.read(record).decode())))
            self.assertEqual({row[0] for row in rows}, set(archive.namelist()))
            for name, digest, size in rows:
                if name != record:
                    content = archive.read(name)
                    wanted = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
                    self.assertEqual((digest, int(size)), (f"sha256={wanted}", len(content)), name)

    def test_tag_and_size(self) -> None:
        with zipfile.ZipFile(self.wheel) as archive:
            library = archive.read("libshunt/lib/libshunt.so")
            info = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            self.assertIn(b"License-Expression: MIT\nAuthor: The Shunt authors\n", archive.read(info))
            info = archive.read(next(name for name in archive.namelist() if name.endswith("/WHEEL"))).decode()
        most = 25 << 20 if b"nvcc 1" in library else 3 << 20
        self.assertLessEqual(os.path.getsize(self.wheel), most)
        found = re.fullmatch(
            rf"libshunt-[\d.]+-(py3-none-manylinux_2_(\d+)_{platform.machine()})\.whl", os.path.basename(self.wheel)
        )
        assert found
        self.assertIn(f"Tag: {found[1]}\n", info)
        # What was built here runs here.
        self.assertLessEqual(int(found[2]), int(platform.libc_ver()[1].split(".")[1]))

    @unittest.skipUnless(shutil.which("readelf"), "no readelf")
    def test_needs_the_c_library_alone(self) -> None:
        for name in ELF_FILES:
            path = self.environment.path("lib", f"python3.{sys.version_info[1]}", "site-packages", name)
            listing = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True).stdout
            needed = set(re.findall(r"NEEDED.*\[(.*)\]", listing))
            allowed = {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libm.so.6", "libgcc_s.so.1"}
            self.assertLessEqual(needed, allowed, name)
            self.assertNotIn("RUNPATH", listing)

    def test_the_command(self) -> None:
        version = self.environment.run("shunt", "--version")
        self.assertRegex(version.stdout, r"^shunt \d", version.stderr)
        self.assertEqual(self.environment.run("python", "-m", "libshunt", "--version").stdout, version.stdout)
        self.assertEqual(self.environment.run("shunt", "frobnicate").returncode, 2)
        self.assertIn(self.environment.folder, self.environment.run("shunt", "info", "-l").stdout)
        run = self.environment.run("shunt", "bench", "--device", "sim", "-n", "2", "-b", "1K", "-e", "4K", "-i", "1",
                                   "-w", "1", "--rounds", "2", "all_reduce")  # fmt: skip
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_the_plans(self) -> None:
        include = self.environment.run("shunt", "path", "include").stdout.strip()
        plans = Path(include).parent / "share" / "shunt" / "plans"
        pairs = sorted(str(path) for path in plans.glob("*_2.json"))
        run = self.environment.run("python", "-m", "libshunt", "plan", "check", *pairs)
        self.assertIn(f"{len(pairs)} right, 0 wrong", run.stdout, run.stderr)

    def test_programs_are_run_with_it(self) -> None:
        """torchrun of the same environment; the path of the library has a blank."""
        path = self.environment.path("bin", "torchrun")
        with open(path, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\n# Stands for PyTorch\'s.\nshift\nexec python "$@"\n')
        os.chmod(path, 0o755)
        self.addCleanup(os.unlink, path)
        code = "import ctypes, libshunt\nctypes.CDLL('libnccl.so.2')\nprint(libshunt.status())"
        run = self.environment.run("shunt", "run", "--", "torchrun", "--nproc-per-node=1", "-c", code)
        self.assertEqual(run.stdout.splitlines()[0].split(":")[0], "active", run.stderr)
        self.assertIn(f"{self.environment.folder}/lib/", run.stdout)

    def test_programs_that_want_libnccl_so(self) -> None:
        code = "import ctypes\nprint(hasattr(ctypes.CDLL('libnccl.so'), 'ncclAllReduce'))"
        run = self.environment.run("shunt", "run", "--", "python", "-c", code)
        self.assertEqual(run.stdout, "True\n", run.stderr)

    @unittest.skipUnless(shutil.which("cc"), "no C compiler")
    def test_programs_are_linked_with_it(self) -> None:
        run = self.environment.run
        names = ("lib", "link", "include", "cmake", "pkgconfig")
        paths = {name: run("shunt", "path", name).stdout.strip() for name in names}
        self.assertTrue(os.path.isfile(paths["lib"]))
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "user.c"), os.path.join(folder, "user")
            with open(source, "w", encoding="utf-8") as file:
                file.write(
                    "#include <stdio.h>\n#include <shunt/shunt.h>\nint ncclGetVersion(int *version);\n"
                    "int main(void) { int v = 0; return ncclGetVersion(&v) || !printf("
                    '"%d %s\\n", v > 0, shunt_version()); }\n'
                )
            command = ["cc", "-o", program, source, f"-I{paths['include']}"]
            link = paths["link"]
            # By names, and by paths as Meson does.
            for libs, place in (
                (["-lnccl", "-lshunt_api"], link),
                ([f"{link}/libnccl.so", f"{link}/libshunt_api.so"], ""),
            ):
                env = dict(os.environ, LIBRARY_PATH=place)
                done = subprocess.run([*command, *libs], capture_output=True, text=True, env=env)
                self.assertEqual(done.returncode, 0, done.stderr)
                listing = subprocess.run(["readelf", "-d", program], capture_output=True, text=True).stdout
                self.assertIn("[libnccl.so.2]", listing)
                self.assertRegex(run("shunt", "run", "--", program).stdout, r"^1 \d")
            self.assertTrue(os.path.isfile(os.path.join(paths["cmake"], "shuntConfig.cmake")))
            pkg = ["pkg-config", "--variable=preload", "shunt"]
            env = dict(os.environ, PKG_CONFIG_LIBDIR=paths["pkgconfig"])
            found = subprocess.run(pkg, capture_output=True, text=True, env=env).stdout.strip()
            self.assertEqual(os.path.realpath(found.replace("\\ ", " ")), os.path.realpath(paths["lib"]))

    def test_the_package(self) -> None:
        code = (
            "import libshunt, sys\nprint(libshunt.enable(nccl='none').active, libshunt.library_path())\n"
            "import libshunt.language, libshunt.compat\nprint(sorted(set(sys.modules) & {'numpy', 'torch'}))"
        )
        run = self.environment.run("python", "-c", code)
        self.assertEqual(
            run.stdout.splitlines()[0], f"True {self.environment.run('shunt', 'path', 'lib').stdout.strip()}"
        )
        self.assertEqual(run.stdout.splitlines()[1], "[]", run.stderr)

    def test_other_versions_of_python(self) -> None:
        tried = []
        for minor in range(10, 15):
            python = shutil.which(f"python3.{minor}")
            if minor == sys.version_info[1] or not python:
                continue
            if subprocess.run([python, "-c", "import ctypes, venv"], capture_output=True).returncode:
                continue
            with self.subTest(python=python), tempfile.TemporaryDirectory() as folder:
                environment = Environment(python, os.path.join(folder, "venv"), self.wheel)
                run = environment.run("python", "-c", "import libshunt, libshunt.language; print(libshunt.enable())",
                                      SHUNT_DEVICE="sim")  # fmt: skip
                self.assertIn("active: nobody calls NCCL here yet", run.stdout, run.stderr)
                self.assertRegex(environment.run("shunt", "--version").stdout, r"^shunt \d")
                tried.append(minor)
        if not tried:
            self.skipTest("there is one Python from 3.10 on")
        print("also with Python " + ", ".join(f"3.{minor}" for minor in tried), file=sys.stderr)

    def test_the_sdist_names_its_commit(self) -> None:
        with tarfile.open(self.sdist) as archive:
            top = archive.getnames()[0].split("/")[0]
            file = archive.extractfile(f"{top}/.commit")
            assert file
            self.assertRegex(file.read().decode(), r"^([0-9a-f]{7,}\+?, \d{4}-\d\d-\d\d|unknown)\n$")

    def test_the_sdist_makes_the_same_wheel(self) -> None:
        """The same bytes, by pip and the back end's hooks; what is compiled is taken from this build."""
        with tarfile.open(self.sdist) as archive:
            names = [name.split("/", 1)[1] for name in archive.getnames()]
        for wanted in (
            "PKG-INFO",
            "pyproject.toml",
            "meson.build",
            "python/build_libshunt.py",
            "src/meson.build",
            "LICENSE",
        ):
            self.assertTrue(wanted in names, wanted)
        self.assertFalse([name for name in names if name.startswith(("build", ".deps", ".git/"))])
        with tempfile.TemporaryDirectory() as folder:
            settings = "--config-settings", f"build-dir={variable('TEST_BUILD')}"
            run_pip("wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", folder, *settings, self.sdist)
            again = Path(folder) / os.path.basename(self.wheel)
            self.assertEqual(again.read_bytes(), Path(self.wheel).read_bytes())

    def test_the_files_say_for_which_machine(self) -> None:
        for number, tag in (62, "manylinux_2_34_x86_64"), (183, "manylinux_2_34_aarch64"):
            elf = b"\x7fELF".ljust(18, b"\0") + number.to_bytes(2, "little") + b"\0GLIBC_2.34\0"
            self.assertEqual(build_libshunt._platform({"lib/libshunt.so": (elf, False)}), tag)
        with self.assertRaisesRegex(build_libshunt.BuildError, "machine 243"):
            build_libshunt._machine(b"\x7fELF".ljust(18, b"\0") + b"\xf3\0")

    def test_another_platform_is_refused_by_name(self) -> None:
        with (
            mock.patch("platform.machine", return_value="riscv64"),
            self.assertRaises(build_libshunt.BuildError) as caught,
        ):
            build_libshunt.build_wheel("/nonexistent")
        self.assertIn("x86-64 and aarch64 Linux with glibc, and this is riscv64", str(caught.exception))
        with mock.patch("shutil.which", return_value=None), self.assertRaises(build_libshunt.BuildError) as caught:
            build_libshunt.build_wheel("/nonexistent")
        self.assertIn("not found: cc, c++, meson, ninja, pkg-config", str(caught.exception))
        with tempfile.TemporaryDirectory() as folder:
            for tag in f"manylinux_2_99_{platform.machine()}", "manylinux_2_34_riscv64":
                other = os.path.join(folder, re.sub(r"manylinux_\w+", tag, os.path.basename(self.wheel)))
                shutil.copy(self.wheel, other)
                with self.assertRaisesRegex(AssertionError, "is not a supported wheel on this platform"):
                    run_pip("download", "--no-index", "-d", folder, other)


if __name__ == "__main__":
    if not PIP:
        print("no pip: install python3-pip")
        sys.exit(77)
    unittest.main()
