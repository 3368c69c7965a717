# SPDX-License-Identifier: MIT
"""The build back end of the package (PEP 517): builds Shunt by meson, and packs what that installs with the package.

A wheel of ours fits every Python 3, because the package is pure and opens the library by ctypes. Its tag has the
machine and the oldest C library that the compiled files can do with. There are no symbolic links in it, since wheels
have none, and nothing of NVIDIA's.

Settings (pip install -C NAME=VALUE):
  build-dir  a build directory to take as it is, with its options; else one is made with those below
  cuda       auto (default: kernels for GPUs if there is an nvcc), enabled or disabled
  gpu-archs  compute capabilities, as meson's gpu_archs
  machine    x86_64 or aarch64 (default: this one); for a cross build, which tools/wheel.sh --arch prepares
  deep-ep    true: another wheel, libshunt-deep-ep, which has the name deep_ep for libshunt.deep_ep and nothing else
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from typing import TypeAlias

# What Shunt runs on: the machine in an ELF file, its name, and the capabilities of the GPUs that such machines have.
MACHINES = {62: ("x86_64", "80,90,100"), 183: ("aarch64", "90,100,103,121")}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NAME = "libshunt"
Settings: TypeAlias = "Mapping[str, object] | None"

# The end of an installed file's path, and its place in the package; groups of the first are in the second.
INSTALLED = (
    (r"/(libshunt\.so|libshunt_api\.so\.0)$", r"lib/\1"),
    (r"/(shunt/nccl_ep/libnccl_ep\.so\.0)$", r"lib/\1"),
    (r"/bin/(shunt)$", r"bin/\1"),
    (r"/include/(shunt/\w+\.h)$", r"include/\1"),
    (r"/(shunt/(?:plans|tuning)/[\w-]+\.json)$", r"share/\1"),
    (r"/(cmake/shunt/\w+\.cmake|pkgconfig/shunt\.pc)$", r"lib/\1"),
)
# The folder of libraries of an installation may be deeper than a wheel's.
PLACES_OF_PC = (("prefix", "${pcfiledir}/../.."), ("libdir", "${prefix}/lib"), ("includedir", "${prefix}/include"))
# For programs that are linked with -lnccl or -lshunt_api. The library beside them has NCCL's SONAME, which is what is
# recorded. Not absolute paths, because a wheel does not know where it is put, and no -l, for which Meson, which links
# by the file's path, gives no folder: linkers look for a plain name beside the script.
SCRIPTS = {"lib/libnccl.so": "INPUT(libshunt.so)\n", "lib/libshunt_api.so": "INPUT(libshunt_api.so.0)\n"}
# NCCL's client by name, which `shunt run --ras` puts into PATH.
NCCLRAS = '#!/bin/sh\nexec "$(dirname "$(realpath "$0")")/../../../bin/shunt" ras "$@"\n'
METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: Collectives behind the ABI of NCCL, for Python programs
License-Expression: MIT
Author: The Shunt authors
Keywords: NCCL,collectives,all-reduce,GPU,PyTorch
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Requires-Python: >=3.10
Description-Content-Type: text/markdown

"""


# The command, and the backend by its name for torchcomms.
ENTRY_POINTS = f"""[console_scripts]
shunt = {NAME}.__main__:main

[torchcomms.backends]
shunt = {NAME}.torchcomms
"""


DIST_INFO = ("METADATA", "entry_points.txt")


class BuildError(RuntimeError):
    """What the build lacks, in one line."""


def _version() -> str:
    with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as file:
        found = re.search(r"^project\('shunt'.*? version: '([^']+)'", file.read(), re.M)
    assert found
    return found[1]


def _run(*command: str, capture: bool = False) -> str:
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE if capture else sys.stderr)
    if done.returncode:
        raise BuildError(f"{' '.join(command[:3])} ended with {done.returncode}; what it said stands above")
    return done.stdout if capture else ""


def _setting(settings: Settings, name: str, otherwise: str) -> str:
    return str((settings or {}).get(name) or otherwise)


def _build(settings: Settings) -> str:
    """The directory of a build that is complete."""
    given = _setting(settings, "build-dir", "")
    if given:
        return os.path.abspath(given)
    machine, gpus = _setting(settings, "machine", platform.machine()), dict(MACHINES.values())
    if sys.platform != "linux" or machine not in gpus or platform.libc_ver()[0] != "glibc":
        here = f"{machine} {sys.platform} with {platform.libc_ver()[0] or 'another C library'}"
        raise BuildError(
            f"Shunt runs on x86-64 and aarch64 Linux with glibc, and this is {here}: there is nothing to build"
        )
    missing = [tool for tool in ("cc", "c++", "meson", "ninja", "pkg-config") if not shutil.which(tool)]
    if missing:
        raise BuildError(
            f"not found: {', '.join(missing)}; on Debian or Ubuntu, tools/wheel.sh installs what is missing"
        )
    build = os.path.join(ROOT, "build-wheel" if machine == platform.machine() else f"build-wheel-{machine}")
    options = [
        "-Dbuildtype=release",
        "-Dtests=disabled",
        f"-Dcuda={_setting(settings, 'cuda', 'auto')}",
        f"-Dgpu_archs={_setting(settings, 'gpu-archs', gpus[machine])}",
        "-Dpython=disabled",
    ]
    if machine != platform.machine():
        options += ["--cross-file", os.path.join(ROOT, ".deps/arm64/deps.ini"), "--cross-file", "tools/aarch64.ini"]
    again = ["--reconfigure"] if os.path.exists(os.path.join(build, "build.ninja")) else []
    _run("meson", "setup", *again, build, *options)
    _run("meson", "compile", "-C", build)
    return build


def _machine(elf: bytes) -> str:
    number = int.from_bytes(elf[18:20], "little")
    if number not in MACHINES:
        raise BuildError(f"the build is for machine {number} of ELF; Shunt runs on x86-64 and aarch64")
    return MACHINES[number][0]


def _tool(name: str, machine: str) -> str:
    """Of binutils or the compiler, for files of this machine."""
    if machine == platform.machine():
        return name
    return f"{machine}-linux-gnu-{name.replace('cc', 'gcc')}"


def _strip(path: str, folder: str) -> str:
    stripped = os.path.join(folder, os.path.basename(path))
    with open(path, "rb") as file:
        machine = _machine(file.read(20))
    _run(_tool("strip", machine), "-o", stripped, path)
    return stripped


def _installed(build: str, folder: str) -> dict[str, tuple[bytes, bool]]:
    """Place in the package: content, and whether it is a program."""
    found: dict[str, tuple[bytes, bool]] = {}
    for source, target in json.loads(_run("meson", "introspect", "--installed", build, capture=True)).items():
        for pattern, place in INSTALLED:
            match = re.search(pattern, target)
            # A link is relative, or comes after the file that it stands for.
            if not match or not os.path.isabs(source) or match.expand(place) in found:
                continue
            with open(source, "rb") as file:
                is_elf = file.read(4) == b"\x7fELF"
            with open(_strip(source, folder) if is_elf else source, "rb") as file:
                found[match.expand(place)] = (file.read(), place.startswith("bin/"))
    described = "lib/pkgconfig/shunt.pc"
    for name, place in PLACES_OF_PC if described in found else ():
        text = re.sub(rf"^{name}=.*$", f"{name}={place}", found[described][0].decode(), flags=re.M)
        found[described] = (text.encode(), False)
    wanted = {"lib/libshunt.so", "lib/libshunt_api.so.0", "bin/shunt", "include/shunt/shunt.h"}
    if not wanted <= set(found):
        raise BuildError(
            f"{build} does not install {', '.join(sorted(wanted - set(found)))}: was it built with its tools?"
        )
    return found


def _by_name(folder: str, machine: str) -> bytes:
    """lib/shunt/libnccl.so, for programs that dlopen("libnccl.so"): what they look for there is libnccl.so.2's.

    A filter, not a need: auditwheel takes what a wheel needs and does not have for a mistake.
    """
    path = os.path.join(folder, "libnccl.so")
    options = ["-shared", "-nostdlib", "-s", "-Wl,-soname,libnccl.so", "-Wl,--filter=libnccl.so.2"]
    _run(_tool("cc", machine), *options, "-o", path, "-x", "c", "/dev/null")
    with open(path, "rb") as file:
        return file.read()


def _package() -> dict[str, tuple[bytes, bool]]:
    top = os.path.join(ROOT, "python", NAME)
    found: dict[str, tuple[bytes, bool]] = {}
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            if name.endswith((".py", ".pyi")) or name == "py.typed":
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    found[os.path.relpath(path, top)] = (file.read(), False)
    return found


def _platform(files: Mapping[str, tuple[bytes, bool]]) -> str:
    """manylinux_2_34_x86_64: the oldest glibc that has all that the compiled files ask for."""
    needed = 0
    for content, _ in files.values():
        if content[:4] == b"\x7fELF":
            versions = re.findall(rb"\0GLIBC_2\.(\d+)(?=[.\0])", content)
            needed = max([needed, *(int(version) for version in versions)])
    return f"manylinux_2_{max(needed, 17)}_{_machine(files['lib/libshunt.so'][0])}"


def _readme() -> str:
    with open(os.path.join(ROOT, "python", "README.md"), encoding="utf-8") as file:
        return file.read()


def _info(tag: str) -> dict[str, bytes]:
    with open(os.path.join(ROOT, "LICENSE"), "rb") as file:
        license_text = file.read()
    return {
        "METADATA": (METADATA.format(name=NAME, version=_version()) + _readme()).encode(),
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: build_libshunt\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        "entry_points.txt": ENTRY_POINTS.encode(),
        "licenses/LICENSE": license_text,
    }


def _write_wheel(path: str, files: Mapping[str, tuple[bytes, bool]], record: str) -> None:
    rows = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:

        def add(name: str, content: bytes, is_program: bool) -> None:
            entry = zipfile.ZipInfo(name)  # of 1980: equal files make equal wheels
            entry.external_attr = (0o100755 if is_program else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)

        for name, (content, is_program) in files.items():
            add(name, content, is_program)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
            rows.append(f"{name},sha256={digest},{len(content)}\n")
        add(record, "".join([*rows, f"{record},,\n"]).encode(), False)


def _build_alias(wheel_directory: str) -> str:
    files, top = {}, f"{NAME}_deep_ep-{_version()}"
    for place, content in _package().items():
        if place.startswith("alias/"):
            files[place.removeprefix("alias/")] = content
    metadata = METADATA.format(name=f"{NAME}-deep-ep", version=_version()).strip()
    about = {
        "METADATA": f"{metadata}\nRequires-Dist: {NAME}=={_version()}\n\nThe name deep_ep for {NAME}.deep_ep.\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: build_libshunt\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files.update({f"{top}.dist-info/{name}": (text.encode(), False) for name, text in about.items()})
    wheel = f"{top}-py3-none-any.whl"
    _write_wheel(os.path.join(wheel_directory, wheel), files, f"{top}.dist-info/RECORD")
    return wheel


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    if _setting(config_settings, "deep-ep", "false") == "true":
        return _build_alias(wheel_directory)
    build = _build(config_settings)
    with tempfile.TemporaryDirectory() as folder:
        built = _installed(build, folder)
        machine = _machine(built["lib/libshunt.so"][0])
        built["lib/shunt/libnccl.so"] = (_by_name(folder, machine), False)
    # `shunt run` puts lib/shunt into LD_LIBRARY_PATH, for programs that are linked with it.
    built["lib/shunt/libshunt_api.so.0"] = built["lib/libshunt_api.so.0"]
    built["lib/shunt/bin/ncclras"] = (NCCLRAS.encode(), True)
    built.update({place: (text.encode(), False) for place, text in SCRIPTS.items()})
    tag = f"py3-none-{_platform(built)}"
    files = {f"{NAME}/{place}": built[place] for place in sorted(built)}
    files.update({f"{NAME}/{place}": content for place, content in _package().items()})
    top = f"{NAME}-{_version()}"
    files.update({f"{top}.dist-info/{name}": (content, False) for name, content in _info(tag).items()})
    wheel = f"{top}-{tag}.whl"
    _write_wheel(os.path.join(wheel_directory, wheel), files, f"{top}.dist-info/RECORD")
    return wheel


def _sources() -> list[str]:
    """What git has or would take; in an sdist, what is there."""
    if os.path.exists(os.path.join(ROOT, ".git")):
        return sorted(_run("git", "ls-files", "-coz", "--exclude-standard", capture=True).strip("\0").split("\0"))
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in (".deps", "__pycache__") and not name.startswith("build")]
        names = [name for name in names if name not in ("PKG-INFO", ".commit")]
        found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return sorted(found)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    top = f"{NAME}-{_version()}"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        commit = _run("sh", os.path.join(ROOT, "tools/commit.sh"), ROOT, capture=True)
        _add(archive, f"{top}/.commit", commit.encode(), False)
        for name in _sources():
            path = os.path.join(ROOT, name)
            if not os.path.isfile(path):
                continue
            with open(path, "rb") as file:
                _add(archive, f"{top}/{name}", file.read(), os.access(path, os.X_OK))
        _add(archive, f"{top}/PKG-INFO", (METADATA.format(name=NAME, version=_version()) + _readme()).encode(), False)
    name = f"{top}.tar.gz"
    with open(os.path.join(sdist_directory, name), "wb") as file:
        file.write(gzip.compress(packed.getvalue(), mtime=0))
    return name


def _add(archive: tarfile.TarFile, name: str, content: bytes, is_program: bool) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755 if is_program else 0o644
    archive.addfile(entry, io.BytesIO(content))


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    if _setting(config_settings, "build-dir", "") or _setting(config_settings, "deep-ep", "false") == "true":
        return []
    return [name for name, tool in (("meson>=1.0", "meson"), ("ninja", "ninja")) if not shutil.which(tool)]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    return []


def main() -> int:
    """build_libshunt.py DIRECTORY [NAME=VALUE...]: writes the wheel and the sdist, and prints their names.

    build_libshunt.py --dist-info DIRECTORY: writes what describes the package, for an installation by Meson."""
    if len(sys.argv) == 3 and sys.argv[1] == "--dist-info":
        for name in DIST_INFO:
            with open(os.path.join(sys.argv[2], name), "wb") as described:
                described.write(_info("")[name])
        return 0
    if len(sys.argv) < 2 or not all("=" in argument for argument in sys.argv[2:]):
        print(main.__doc__, file=sys.stderr)
        return 2
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    settings = dict(argument.split("=", 1) for argument in sys.argv[2:])
    try:
        for name in (build_wheel(folder, settings), build_sdist(folder)):
            print(os.path.join(folder, name))
    except BuildError as error:
        print(f"build_libshunt.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
