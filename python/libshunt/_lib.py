# SPDX-License-Identifier: MIT
"""Where libshunt.so is, its functions with their types, and which process-wide library is in use.

Loading the library is what puts Shunt in NCCL's place: its SONAME is libnccl.so.2. So it is loaded when it is asked
for, and never by an import.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shlex
import sys
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_size_t,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)

from libshunt import _fork, _loader

# That of the project; a test compares them.
__version__ = "0.2.0"

_HERE = os.path.dirname(os.path.abspath(__file__))
# A function that only libshunt.so exports, by which it is known whatever its file is called.
_MARK = "shunt_version"


class Error(RuntimeError):
    """What Shunt cannot do, in one line that says what to do about it."""


def library_path() -> str:
    """The libshunt.so of this package, or the file that SHUNT_LIB names."""
    given = os.environ.get("SHUNT_LIB")
    if given:
        if not os.path.isfile(given):
            raise Error(f'SHUNT_LIB is "{given}", which is not a file: unset it, or name a libshunt.so')
        return os.path.realpath(given)
    path = os.path.join(_HERE, "lib", "libshunt.so")
    if not os.path.isfile(path):
        raise Error(
            f"{path} is not there: this is a source tree, or a broken installation; "
            "set SHUNT_LIB to a libshunt.so, or install the wheel again"
        )
    return os.path.realpath(path)  # meson install leaves a link there


class CounterRow(Structure):
    _fields_ = (
        ("op", c_char_p),
        ("path", c_char_p),
        ("reason", c_char_p),
        ("calls", c_uint64),
        ("bytes", c_uint64),
    )


class CommInfo(Structure):
    _fields_ = (
        ("size", c_size_t),
        ("rank", c_int),
        ("nranks", c_int),
        ("device", c_int),
        ("error", c_int),
        ("state", c_char_p),
        ("id", c_char * 40),
        ("reason", c_char * 160),
        ("memory", c_uint64),
        ("plans", c_uint64),
        ("selector", c_int),
        ("hosts", c_int),
        ("network", c_char_p),
    )


class AlgoInfo(Structure):
    _fields_ = (("size", c_size_t), ("collective", c_char_p), ("name", c_char_p), ("description", c_char_p))


class PlanInfo(Structure):
    _fields_ = (
        ("size", c_size_t),
        ("name", c_char * 128),
        ("source", c_char * 256),
        ("collective", c_char_p),
        ("nranks", c_int),
        ("ranks_per_node", c_int),
        ("min_bytes", c_uint64),
        ("max_bytes", c_uint64),
        ("hash", c_uint64),
        ("dtypes", c_uint32),
        ("priority", c_int32),
        ("automatic", c_int),
        ("in_place", c_int),
    )


class PlanRequest(Structure):
    _fields_ = (
        ("size", c_size_t),
        ("collective", c_char_p),
        ("nranks", c_int),
        ("ranks_per_node", c_int),
        ("bytes", c_uint64),
        ("dtype", c_int),
        ("redop", c_int),
        ("plans", POINTER(c_char_p)),
        ("nplans", c_size_t),
    )


class DeviceIdentity(Structure):
    _fields_ = (
        ("size", c_size_t),
        ("name", c_char * 64),
        ("cc", c_uint32),
        ("driver", c_uint32),
        ("multicast", c_uint32),
    )


class PluginCall(Structure):
    """Of include/shunt/plugin.h, as the structs below; a test compares the layouts."""

    _fields_ = (
        ("size", c_uint32),
        ("abi", c_uint32),
        ("rank", c_uint32),
        ("nranks", c_uint32),
        ("dtype", c_uint32),
        ("redop", c_uint32),
        ("root", c_uint32),
        ("flags", c_uint32),
        ("send", c_void_p),
        ("recv", c_void_p),
        ("count", c_uint64),
        ("bytes", c_uint64),
        ("scalar", c_uint64),
        ("op", c_uint64),
        ("scratch", c_void_p * 8),
        ("scratch_bytes", c_uint64),
        ("signals", c_void_p * 8),
        ("epoch", c_void_p),
        ("abort", c_void_p),
        ("limit_ns", c_void_p),
        ("fault", c_void_p),
        ("progress", c_void_p),
        ("host", c_void_p),
        ("reserved", c_uint64 * 6),
    )


class PluginHost(Structure):
    _fields_ = (
        ("size", c_size_t),
        ("copy", ctypes.CFUNCTYPE(c_int, POINTER(PluginCall), c_void_p, c_void_p, c_uint64, c_void_p)),
        ("barrier", ctypes.CFUNCTYPE(c_int, POINTER(PluginCall), c_void_p)),
    )


class PluginLaunch(Structure):
    _fields_ = (
        ("symbol", c_char_p),
        ("blocks", c_uint32),
        ("threads", c_uint32),
        ("shared_bytes", c_uint32),
        ("cluster", c_uint32),
    )


PluginEnqueue = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(PluginCall), c_void_p)


class Plugin(Structure):
    _fields_ = (
        ("size", c_uint32),
        ("abi", c_uint32),
        ("name", c_char_p),
        ("doc", c_char_p),
        ("collectives", c_char_p),
        ("dtypes", c_uint64),
        ("redops", c_uint64),
        ("min_bytes", c_uint64),
        ("max_bytes", c_uint64),
        ("scratch_bytes", c_uint64),
        ("min_ranks", c_uint32),
        ("max_ranks", c_uint32),
        ("min_cc", c_uint32),
        ("flags", c_uint32),
        ("image", c_void_p),
        ("image_bytes", c_uint64),
        ("launch", PluginLaunch),
        ("sim", c_void_p),
        ("supports", c_void_p),
        ("geometry", c_void_p),
        ("enqueue", PluginEnqueue),
        ("arg", c_void_p),
        ("identity", c_uint64),
        ("drop", c_void_p),
        ("params", POINTER(c_uint16)),
        ("nparams", c_uint64),
    )


class Numerics(Structure):
    _fields_ = (("size", c_size_t), ("e4m3b15", c_int), ("accumulate", c_int))


# The result is an address: ctypes would never free a string that a callback returns.
Selector = ctypes.CFUNCTYPE(c_void_p, c_void_p, POINTER(PlanRequest))

# name: (result, arguments). Those of include/shunt that this package calls.
_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "shunt_version": (c_char_p, ()),
    "shunt_real_nccl_path": (c_char_p, ()),
    "shunt_counters": (c_int, (c_void_p, POINTER(CounterRow), c_size_t, POINTER(c_size_t))),
    "shunt_path_of": (c_int, (c_void_p, c_char_p, c_size_t, c_int, c_int, POINTER(c_char_p))),
    "shunt_comm_list": (c_int, (POINTER(c_void_p), c_size_t, POINTER(c_size_t))),
    "shunt_comm_describe": (c_int, (c_void_p, POINTER(CommInfo))),
    "shunt_dump": (c_int, (c_char_p, c_char_p, c_size_t)),
    "shunt_algo_at": (c_int, (c_size_t, POINTER(AlgoInfo))),
    "shunt_algo_force": (c_int, (c_char_p,)),
    "shunt_comm_numerics": (c_int, (c_void_p, POINTER(Numerics))),
    "shunt_redop_create": (c_int, (c_void_p, c_int, c_int, POINTER(Numerics), POINTER(c_int))),
    "shunt_plan_register": (c_int, (c_char_p, c_char_p, c_size_t, c_char_p, c_size_t)),
    "shunt_plan_unregister": (c_int, (c_char_p,)),
    "shunt_plan_at": (c_int, (c_size_t, POINTER(PlanInfo))),
    "shunt_plan_verify": (c_int, (c_char_p, c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_size_t))),
    "shunt_plan_set_selector": (None, (c_void_p, c_void_p)),
    "shunt_plan_end_selector": (c_int, (c_void_p, c_void_p)),
    "shunt_plan_forget_answers": (None, ()),
    "shunt_ep_id": (c_int, (c_void_p,)),
    "shunt_ep_bytes": (c_int, (c_char_p, POINTER(c_uint64), POINTER(c_uint64))),
    "shunt_ep_create": (c_int, (c_char_p, POINTER(c_void_p))),
    "shunt_ep_destroy": (c_int, (c_void_p, c_int)),
    "shunt_ep_error": (c_int, (c_void_p, c_char_p, c_size_t)),
    "shunt_ep_mask": (c_int, (c_void_p, c_int, c_int, c_void_p)),
    "shunt_ep_masks": (c_int, (c_void_p, c_void_p, c_void_p)),
    "shunt_ep_masks_clear": (c_int, (c_void_p, c_void_p)),
    "shunt_ep_barrier": (c_int, (c_void_p, c_void_p)),
    "shunt_ep_hosts": (c_int, (c_void_p,)),
    "shunt_ep_layout": (c_int, (c_void_p, c_char_p)),
    "shunt_ep_notify": (c_int, (c_void_p, c_char_p, POINTER(c_uint64))),
    "shunt_ep_counts": (c_int, (c_void_p, c_uint64, POINTER(c_int32), POINTER(c_int32))),
    "shunt_ep_dispatch": (c_int, (c_void_p, c_char_p)),
    "shunt_ep_combine": (c_int, (c_void_p, c_char_p)),
    "shunt_ep_ll_dispatch": (c_int, (c_void_p, c_char_p)),
    "shunt_ep_ll_combine": (c_int, (c_void_p, c_char_p)),
    "shunt_plugin_register": (c_int, (POINTER(Plugin), c_char_p, c_size_t)),
    "shunt_plugin_unregister": (c_int, (c_char_p,)),
    "shunt_plugin_end": (c_int, (c_void_p,)),
    "shunt_device_kind": (c_char_p, ()),
    "shunt_device_identify": (c_int, (c_int, POINTER(DeviceIdentity))),
    "shunt_device_count": (c_int, (POINTER(c_int),)),
    "shunt_device_set": (c_int, (c_int,)),
    "shunt_malloc": (c_int, (POINTER(c_void_p), c_size_t)),
    "shunt_free": (c_int, (c_void_p,)),
    "shunt_memcpy": (c_int, (c_void_p, c_void_p, c_size_t)),
    "shunt_torch_alloc": (c_void_p, (c_size_t, c_int, c_void_p)),
    "shunt_torch_free": (None, (c_void_p, c_size_t, c_int, c_void_p)),
    "shunt_stream_create": (c_int, (POINTER(c_void_p),)),
    "shunt_stream_synchronize": (c_int, (c_void_p,)),
    "shunt_stream_destroy": (c_int, (c_void_p,)),
}

_lock = _fork.Lock()
_library: ctypes.CDLL | None = None
_is_in_front = False  # once it was so it stays so: what is bound stays bound


def run_command() -> str:
    """The command that starts this very program with Shunt in front of NCCL."""
    program = [sys.executable or "python3", *sys.orig_argv[1:]]
    return shlex.join(["shunt", "run", "--", *program])


def _explain(path: str, error: OSError) -> str:
    text = str(error)
    if "GLIBC_" in text:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or "another C library"
        return (
            f"{path} was built for a newer C library than this machine's ({libc}): {text}; "
            "build the package here, from its sdist or a checkout (tools/wheel.sh)"
        )
    return f"cannot load {path}: {text}"


def _open(path: str, mode: int) -> ctypes.CDLL:
    # Looked at before it is loaded, because loading runs its code.
    with open(path, "rb") as file:
        data = file.read()
    if _MARK.encode() not in data:
        raise Error(
            f"{path} is no libshunt.so: it has no function {_MARK}; unset SHUNT_LIB, or install the wheel again"
        )
    with open("/proc/self/exe", "rb") as file:
        ours = file.read(20)
    # Magic number, class, byte order; and the machine, of which the loader says only that there is no such file.
    if data[:6] != ours[:6] or data[18:20] != ours[18:20]:
        raise Error(
            f"{path} is for another machine than this Python: wheels are for x86-64 or aarch64 Linux with glibc; "
            "install the one for this machine, or build it here, from the sdist or a checkout (tools/wheel.sh)"
        )
    try:
        library = ctypes.CDLL(path, mode=mode)
    except OSError as error:
        raise Error(_explain(path, error)) from None
    return _declare(library, path)


def _declare(library: ctypes.CDLL, path: str) -> ctypes.CDLL:
    library.shunt_version.restype = c_char_p
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            version = (library.shunt_version() or b"?").decode()
            raise Error(
                f"{path} is Shunt {version}, and has no {name}: this package is {__version__}; "
                "let both be of one version, or unset SHUNT_LIB"
            ) from None
        function.restype = result
        function.argtypes = arguments
    return library


def loaded() -> str | None:
    """The path of the Shunt that this process has loaded, in whatever way; two are an error."""
    paths = _loader.providers(_MARK)
    # libshunt_api.so.0 has the functions, too, but not NCCL's.
    paths = [path for path in paths if _loader.defines(path, "ncclAllReduce")]
    if len(paths) > 1:
        raise Error(
            f"two libraries of Shunt are in this process, {paths[0]} and {paths[1]}: "
            "let LD_PRELOAD, SHUNT_LIB and this package name the same file"
        )
    return paths[0] if paths else None


def library(private: bool = False) -> ctypes.CDLL:
    """The library of this process, loaded if it is not there yet.

    private: it need not answer the calls of others, so it may come after an NCCL. Else a library that would come too
    late is an Error with the command that would work.
    """
    global _library, _is_in_front
    with _lock:
        if _library is not None and (private or _is_in_front):
            return _library
        path = loaded()
        if path is None:
            path = library_path()
            if not private:
                _refuse_late(path)
            mode = ctypes.RTLD_LOCAL if private else ctypes.RTLD_GLOBAL
            _library = _open(path, mode | os.RTLD_NOW)
        elif _library is None:
            wanted = library_path() if os.environ.get("SHUNT_LIB") else path
            if os.path.realpath(wanted) != os.path.realpath(path):
                raise Error(
                    f"{path} is loaded already, and SHUNT_LIB is {wanted}: "
                    "let LD_PRELOAD and SHUNT_LIB name the same file"
                )
            _library = _open(path, ctypes.DEFAULT_MODE | os.RTLD_NOW)
        elif not private:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL | os.RTLD_NOW)
        if not private:
            _refuse_bound(path)
            _is_in_front = True
        assert _library is not None
        return _library


def _refuse_late(path: str) -> None:
    other = _loader.loaded_nccl()
    if other:
        by = _loader.needed_by(os.path.basename(other))
        raise Error(
            f"{other} is loaded already{f', for {by}' if by else ''}, so Shunt comes too late: call libshunt.enable() "
            f"before the import that loads it, or start the program by: {run_command()}"
        )


def _refuse_bound(path: str) -> None:
    for user in _loader.users():
        if user.answered_by is not None and not _loader.same_file(user.answered_by, path):
            raise Error(
                f"{user.library} calls NCCL in {user.answered_by}, not in {path}: call libshunt.enable() "
                f"before the import that loads it, or start the program by: {run_command()}"
            )


def text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def check(result: int, what: str) -> None:
    """Raises an Error for a negative errno."""
    if result:
        raise Error(f"{what}: {os.strerror(-result)}")


def not_found(result: int) -> bool:
    return result == -errno.ENOENT
