# SPDX-License-Identifier: MIT
"""CUDA C as machine code: by NVRTC for GPUs, and by the machine's C++ compiler for the sim."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

from libshunt import _command
from libshunt._lib import Error

_SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
_NO_PROGRAM = "no NVRTC is here ({}): pip install nvidia-cuda-nvrtc, set CUDA_HOME to a CUDA toolkit, or give cubin="
# A kernel for include/shunt/kernel.h, and the function of it that the sim runs, which has no name outside of its file.
_KERNEL = r"\bSHUNT_PLUGIN_KERNEL\s*\(\s*{}\s*\)"
_SIM = """
extern "C" void shunt_python_sim(const struct shunt_sim_ops *ops, const struct shunt_plugin_call *call)
{{
	{}_sim(ops, call);
}}
"""
_loaded: list[ctypes.CDLL] = []
_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "CreateProgram": (POINTER(c_void_p), c_char_p, c_char_p, c_int, POINTER(c_char_p), POINTER(c_char_p)),
    "AddNameExpression": (c_void_p, c_char_p),
    "CompileProgram": (c_void_p, c_int, POINTER(c_char_p)),
    "GetLoweredName": (c_void_p, c_char_p, POINTER(c_char_p)),
    "GetProgramLogSize": (c_void_p, POINTER(c_size_t)),
    "GetProgramLog": (c_void_p, c_char_p),
    "GetCUBINSize": (c_void_p, POINTER(c_size_t)),
    "GetCUBIN": (c_void_p, c_char_p),
    "GetPTXSize": (c_void_p, POINTER(c_size_t)),
    "GetPTX": (c_void_p, c_char_p),
    "GetNumSupportedArchs": (POINTER(c_int),),
    "GetSupportedArchs": (POINTER(c_int),),
    "DestroyProgram": (POINTER(c_void_p),),
}


def _found(toolkit: str, wheel: str) -> Iterator[str]:
    """Files of CUDA: in NVIDIA's wheels, then in a toolkit. The patterns are relative to a toolkit and to a wheel."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        spec = None
    patterns = [os.path.join(folder, "*", wheel) for folder in (spec and spec.submodule_search_locations) or ()]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            patterns.append(os.path.join(os.environ[variable], toolkit))
    for pattern in (*patterns, os.path.join("/usr/local/cuda", toolkit)):
        yield from sorted(glob.glob(pattern), reverse=True)


def _open() -> Any:
    why = ""
    for path in (*_SONAMES, *_found("lib*/libnvrtc.so.*", "lib/libnvrtc.so.*")):
        try:
            library = ctypes.CDLL(path)
            for name, arguments in _FUNCTIONS.items():
                function = getattr(library, "nvrtc" + name)
                function.restype, function.argtypes = c_int, arguments
            library.nvrtcGetErrorString.restype = c_char_p
            return library
        except (OSError, AttributeError) as error:
            why = why or str(error)
    raise Error(_NO_PROGRAM.format(why))


def _first_error(log: str, kernel: str) -> str:
    """Of a compiler's output one line: the first error, and how many more there are."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line)] or lines or ["no reason was given"]
    # In NVRTC's own file, which takes the kernel by its name.
    errors = [line for line in errors if "__nv_name_map" not in line] or [f"it has no kernel {kernel}"]
    return errors[0] + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else "")


class _Program:
    def __init__(self, nvrtc: Any, label: str, source: str) -> None:
        self._nvrtc = nvrtc
        self.handle = c_void_p()
        self.call("CreateProgram", byref(self.handle), source.encode(), label.encode(), 0, None, None)

    def call(self, name: str, *arguments: object) -> None:
        result = getattr(self._nvrtc, "nvrtc" + name)(*arguments)
        if result:
            raise Error(f"nvrtc{name}: {(self._nvrtc.nvrtcGetErrorString(result) or b'?').decode()}")

    def bytes(self, what: str) -> bytes:
        size = c_size_t()
        self.call(f"Get{what}Size", self.handle, byref(size))
        made = ctypes.create_string_buffer(size.value)
        self.call(f"Get{what}", self.handle, made)
        return made.raw

    def end(self) -> None:
        self._nvrtc.nvrtcDestroyProgram(byref(self.handle))


def compile_for_gpu(
    label: str, source: str, kernel: str, arch: str, options: Sequence[str], include: str
) -> tuple[bytes, str]:
    """
    Machine code for the architecture ("sm_90"), and the kernel's name in it. An architecture that NVRTC does not know
    yet gets PTX for its newest one, of which the driver makes machine code.
    """
    nvrtc = _open()
    count = c_int()
    nvrtc.nvrtcGetNumSupportedArchs(byref(count))
    known = (c_int * max(1, count.value))()
    nvrtc.nvrtcGetSupportedArchs(known)
    number = re.fullmatch(r"sm_(\d+)", arch)
    if number and count.value and int(number[1]) > max(known):
        arch = f"compute_{max(known)}"
    program = _Program(nvrtc, label, source)
    try:
        program.call("AddNameExpression", program.handle, kernel.encode())
        folders = [include, *(os.path.dirname(path) for path in _found("include/cuda_fp16.h", "include/cuda_fp16.h"))]
        said = [f"--gpu-architecture={arch}", "--std=c++17", *(f"--include-path={one}" for one in folders), *options]
        if nvrtc.nvrtcCompileProgram(
            program.handle, len(said), (c_char_p * len(said))(*(one.encode() for one in said))
        ):
            log = program.bytes("ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise Error(f"the source of {label} does not compile for {arch}: {_first_error(log, kernel)}")
        lowered = c_char_p()
        program.call("GetLoweredName", program.handle, kernel.encode(), byref(lowered))
        name = (lowered.value or b"").decode()  # before the program ends, whose text it is
        return program.bytes("PTX" if arch.startswith("compute_") else "CUBIN"), name
    finally:
        program.end()


def is_counted(source: str, kernel: str) -> bool:
    """The kernel is one for include/shunt/kernel.h."""
    return re.search(_KERNEL.format(re.escape(kernel)), source) is not None


def compile_for_sim(label: str, source: str, kernel: str, options: Sequence[str], include: str) -> int:
    """
    The address of the kernel's function, in a library that stays loaded. Of the options only those are taken that all
    compilers know.
    """
    if not is_counted(source, kernel):
        raise Error(f"{label} has no SHUNT_PLUGIN_KERNEL({kernel}), and the sim runs no other kernels")
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or shutil.which("g++") or ""]
    if not compiler[0]:
        raise Error(f"{label} is to run on the sim, and there is no C++ compiler: install g++, or set CXX to one")
    with tempfile.TemporaryDirectory() as folder:
        path, made = os.path.join(folder, "source.cc"), os.path.join(folder, "source.so")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#line 1 {json.dumps(label)}\n{source}{_SIM.format(kernel)}")
        common = [one for one in options if one.startswith(("-D", "-I", "-U"))]
        command = [*compiler, "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{include}", *common, path, "-o", made]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if run.returncode:
            raise Error(f"the source of {label} does not compile for the sim: {_first_error(run.stderr, kernel)}")
        library = ctypes.CDLL(made)
    _loaded.append(library)
    return ctypes.cast(library.shunt_python_sim, c_void_p).value or 0


def include_path() -> str:
    """The folder of the headers, which the command knows."""
    run = subprocess.run([_command.command_path(), "path", "include"], capture_output=True, text=True)
    if run.returncode:
        raise Error(f"the headers of Shunt are not here: {run.stderr.strip()}")
    return run.stdout.strip()
