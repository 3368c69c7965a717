# SPDX-License-Identifier: MIT
"""Algorithms of the program's own: kernels, and functions that enqueue (include/shunt/plugin.h)."""

from __future__ import annotations

import atexit
import ctypes
import errno
import hashlib
import inspect
import os
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from libshunt import _arguments, _callbacks, _images, _lib, _names, _nccl, _nvrtc, _plans
from libshunt._lib import Error

MOST_RANKS = 8
_MOST_SCRATCH = 256 << 20
_ABI = 1
_IN_PLACE, _ALIGNED, _CAPTURED = 1, 2, 4
_COUNTED = 1
_EPOCHS, _SIGNALS = 64, 64

# Parts of `count` elements in the buffers of a rank: "1", or "n": one for each rank.
_PARTS = {
    "allreduce": "11",
    "reduce": "11",
    "broadcast": "11",
    "allgather": "1n",
    "reducescatter": "n1",
    "alltoall": "nn",
    "gather": "1n",
    "scatter": "n1",
}
_REDUCES = ("allreduce", "reduce", "reducescatter")
# How the array interface calls elements. It has no word for the last three, so programs see their bits.
_TYPES = ("|i1", "|u1", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<i2", "|u1", "|u1")


class Array:
    """
    Device memory of a call, as CuPy, numba, PyTorch and Triton take it. bfloat16 counts as int16 in the array
    interface, and float8 as uint8: view() them. Taking one waits for no stream.
    """

    __slots__ = ("address", "dtype", "shape")

    def __init__(self, address: int | None, dtype: str, shape: tuple[int, ...]) -> None:
        self.address, self.dtype, self.shape = address or 0, dtype, shape

    def data_ptr(self) -> int:
        return self.address

    @property
    def nbytes(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count * _names.DTYPE_BYTES[_names.DTYPES.index(self.dtype)]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": _TYPES[_names.DTYPES.index(self.dtype)],
            "data": (self.address if self.nbytes else 0, False),
            "version": 3,
            "strides": None,
            "stream": None,
        }

    def __repr__(self) -> str:
        return f"Array({self.address:#x}, {self.dtype}, {self.shape})"


class AlgorithmCall:
    """
    What a function that enqueues gets: a call of NCCL's. All is the same on all ranks but `rank`, the addresses,
    in_place and aligned. bytes(call) is struct shunt_plugin_call, the parameter of kernels for include/shunt/kernel.h.
    """

    __slots__ = ("_library", "_raw", "_stream", "collective")

    def __init__(self, library: Any, collective: str, stream: int) -> None:
        """library: the library's struct, which is there until the function returns; the rest stays."""
        self._library, self._stream, self.collective = library, stream, collective
        self._raw = _lib.PluginCall.from_buffer_copy(library.contents)

    def __bytes__(self) -> bytes:
        return bytes(self._raw)

    def _buffer(self, address: int | None, side: int) -> Array:
        parts = self._raw.nranks if _PARTS[self.collective][side] == "n" else 1
        return Array(address, self.dtype, (self._raw.count * parts if address else 0,))

    @property
    def rank(self) -> int:
        return int(self._raw.rank)

    @property
    def nranks(self) -> int:
        return int(self._raw.nranks)

    @property
    def root(self) -> int:
        return int(self._raw.root)

    @property
    def dtype(self) -> str:
        return _names.dtype_name(self._raw.dtype)

    @property
    def redop(self) -> str:
        return _names.redop_name(self._raw.redop)

    @property
    def scalar(self) -> int:
        """Of a pre-multiplied sum, its bits."""
        return int(self._raw.scalar)

    @property
    def count(self) -> int:
        """As NCCL's function takes it."""
        return int(self._raw.count)

    @property
    def bytes(self) -> int:
        """Of the message, as in rules of SHUNT_ALGO."""
        return int(self._raw.bytes)

    @property
    def in_place(self) -> bool:
        return bool(self._raw.flags & _IN_PLACE)

    @property
    def aligned(self) -> bool:
        """Both buffers and the bytes are multiples of 16."""
        return bool(self._raw.flags & _ALIGNED)

    @property
    def captured(self) -> bool:
        """The call becomes part of a graph."""
        return bool(self._raw.flags & _CAPTURED)

    @property
    def send(self) -> Array:
        return self._buffer(self._raw.send, 0)

    @property
    def recv(self) -> Array:
        return self._buffer(self._raw.recv, 1)

    @property
    def scratch_bytes(self) -> int:
        return int(self._raw.scratch_bytes)

    def _rank(self, rank: object) -> int:
        return _arguments.integer("rank", rank, 0, self._raw.nranks - 1)

    def scratch(self, rank: int) -> Array:
        """A rank's scratch, as mapped here; zeroed once, then the algorithm's own."""
        return Array(self._raw.scratch[self._rank(rank)], "uint8", (self._raw.scratch_bytes,))

    def signals(self, rank: int) -> Array:
        """A rank's words, of which row r is for rank r to write; zeroed once."""
        return Array(self._raw.signals[self._rank(rank)], "uint64", (MOST_RANKS, _SIGNALS))

    @property
    def epoch(self) -> Array:
        """Words of this rank, which kernels count up, so that graphs replay."""
        return Array(self._raw.epoch, "uint64", (_EPOCHS,))

    @property
    def abort(self) -> Array:
        """Not 0: kernels are to return now."""
        return Array(self._raw.abort, "uint32", (1,))

    def _host(self) -> Any:
        if self._library is None:
            raise Error("the call has been enqueued: copy() and barrier() are for the function that gets it")
        return ctypes.cast(self._raw.host, ctypes.POINTER(_lib.PluginHost)).contents

    def copy(self, to: Address, source: Address, nbytes: int) -> None:
        """Enqueues a copy of bytes between memory of this rank, its scratch and that of the others."""
        most = _arguments.MOST_BYTES
        addresses = [
            value.address if isinstance(value, Array) else _arguments.integer(what, value, 0, most)
            for what, value in (("to", to), ("source", source))
        ]
        nbytes = _arguments.integer("nbytes", nbytes, 0, most)
        _lib.check(self._host().copy(self._library, *addresses, nbytes, self._stream), "enqueuing a copy")

    def barrier(self) -> None:
        """What the stream does after it sees all that the ranks' streams did before theirs."""
        _lib.check(self._host().barrier(self._library, self._stream), "enqueuing a barrier")

    def _end(self) -> None:
        self._library = None


Address: TypeAlias = "Array | int"
Enqueue: TypeAlias = "Callable[[AlgorithmCall, int], object]"

# Of functions that the library may call, until it has been told that the interpreter ends.
_functions: list[_Function] = []


class _Function(_callbacks.Callback):
    """A function of the program that enqueues."""

    what = "algorithm"
    outcome = "the communicator is broken"

    def __init__(self, function: Enqueue, name: str, collective: str) -> None:
        super().__init__(function, name)
        self.collective = collective
        self.callback = _lib.PluginEnqueue(self._enqueue)
        self.address = ctypes.cast(self.callback, ctypes.c_void_p).value
        _functions.append(self)

    def _enqueue(self, arg: object, call: Any, stream: int | None) -> int:
        made = None
        try:
            made = AlgorithmCall(call, self.collective, stream or 0)
            self.function(made, stream or 0)
            return 0
        except BaseException as error:
            self.raised(error)
            return -errno.EIO
        finally:
            if made is not None:
                made._end()


def _identity(*parts: object) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        try:
            data = part if isinstance(part, bytes) else str(part).encode(errors="replace")
        except Exception:  # its own
            _arguments.wrong("identity", part, "a value that str() takes")
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")


def _source_of(function: Any) -> object:
    """The function's text; of one without a text its code, which is equal for equal versions of Python."""
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return _code_of(code) if code else type(function).__qualname__


def _code_of(code: types.CodeType) -> str:
    inner = [_code_of(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return repr((code.co_code, code.co_names, inner))


def _redop_number(value: object) -> int:
    return len(_names.REDOPS) if value == "premulsum" else _names.redop_number(value)


def _mask(what: str, value: object, names: tuple[str, ...], number: Callable[[object], int]) -> int:
    if value is None:
        return (1 << len(names)) - 1
    if isinstance(value, str) or not isinstance(value, Iterable):
        value = [value]
    mask = 0
    for one in value:
        mask |= 1 << number(one)
    if not mask:
        _arguments.wrong(what, value, f"one or more of {', '.join(names)}")
    return mask


def _pair(what: str, value: object, low: int, high: int) -> tuple[int, int]:
    numbers = _arguments.integers(what, value, low, high)
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        _arguments.wrong(what, value, "the least and the most")
    return numbers[0], numbers[1]


def _source_text(value: Any, name: str) -> tuple[str, str, list[str]]:
    """A label, the text and options of CUDA C: a text, a file, or CuPy's RawModule or RawKernel."""
    code = getattr(value, "code", None)
    if isinstance(code, str):
        return f"{name}.cu", code, [str(one) for one in getattr(value, "options", None) or ()]
    if _images.is_file(value):
        label = os.path.basename(_arguments.path("source", value))
        return label, _images.read("source", value).decode(errors="replace"), []
    return f"{name}.cu", _arguments.text("source", value, "CUDA C, a file with it, or CuPy's RawModule"), []


# ---- registration ----


def _name(value: object) -> str:
    text = _arguments.text("name", value)
    if not re.fullmatch(r"[a-z0-9_]{1,31}", text):
        _arguments.wrong("name", text, "1 to 31 of a-z, 0-9 and _")
    return text


def _register(plugin: _lib.Plugin, name: str, doc: str, depth: int = 2) -> None:
    why = ctypes.create_string_buffer(1024)
    plugin.name, plugin.doc = name.encode(), (doc.split("\n")[0].strip() or f"the program's {name}").encode()
    result = _lib.library(private=True).shunt_plugin_register(ctypes.byref(plugin), why, len(why))
    if result == -errno.EEXIST:
        raise Error(f"the name {name} is taken: give another, or libshunt.unregister() what has it")
    if result:
        raise Error(f"algorithm {name} was not registered: {_lib.text(why.value) or os.strerror(-result)}")
    _plans.warn_of_used(0, f"algorithm {name}", depth)


def _arch() -> str:
    """Of this machine's GPUs, which are of one kind."""
    identity = _lib.DeviceIdentity(size=ctypes.sizeof(_lib.DeviceIdentity))
    _lib.check(_lib.library(private=True).shunt_device_identify(0, ctypes.byref(identity)), "asking for the GPU's kind")
    return f"sm_{identity.cc}"


def _compile(
    plugin: _lib.Plugin, named: str, source: Any, kernel: str, options: Sequence[str], arch: str | None
) -> bytes:
    """The image for GPUs; on the sim none, and the plug-in gets its function. The plug-in gets the kernel's name."""
    label, text, said = _source_text(source, named)
    said += [_arguments.text("one of options", one) for one in options]
    include = _nvrtc.include_path()
    plugin.flags = _COUNTED if _nvrtc.is_counted(text, kernel) else 0
    if _nccl.device_kind() == "sim" and arch is None:
        plugin.sim = _nvrtc.compile_for_sim(label, text, kernel, said, include)
        plugin.identity = _identity(plugin.identity, text, kernel, *said)
        return b""
    image, symbol = _nvrtc.compile_for_gpu(label, text, kernel, arch or _arch(), said, include)
    plugin.launch.symbol = symbol.encode()
    return image


def algorithm(
    collective: str,
    function: Any = None,
    *,
    name: str | None = None,
    doc: str = "",
    dtypes: Any = None,
    redops: Any = "sum",
    sizes: tuple[int, int] = (0, (1 << 64) - 1),
    ranks: tuple[int, int] = (2, MOST_RANKS),
    scratch: int = 0,
    min_cc: int = 0,
    identity: object = "",
    source: Any = None,
    cubin: Any = None,
    kernel: str | None = None,
    blocks: int = 1,
    threads: int = 512,
    shared: int = 0,
    cluster: int = 0,
    params: Iterable[str] | None = None,
    options: Sequence[str] = (),
    arch: str | None = None,
) -> Any:
    """Registers an algorithm of the program's own. Calls take it where SHUNT_ALGO, a tuning file, a selector or
    force() names it, and nowhere else. To be called alike on all ranks, before communicators are used.

    As a decorator, or with `function`: the function gets an AlgorithmCall and a stream, and enqueues what it likes; it
    must neither wait nor call NCCL. What it raises is one line on stderr, and breaks the communicator.

    source: CUDA C with the kernel, a text or a file; NVRTC compiles it for the GPU, and the machine's C++ compiler for
    the sim. cubin: what another compiler made. A kernel has one parameter, struct shunt_plugin_call, or those that
    params names. The result is the name.

    dtypes, redops: what it takes; dtypes must be given where elements are reduced. sizes: the least and the most bytes
    of the message, as in SHUNT_ALGO. scratch: bytes of each rank. identity: what else must be the same on all ranks,
    such as a constant that the function reads.
    """
    forms = (("a function", function), ("source", source), ("cubin", cubin))
    given = [form for form, value in forms if value is not None]
    if len(given) > 1:
        raise Error(f"an algorithm is a function, source or cubin, and here are {' and '.join(given)}")
    if isinstance(collective, str):
        collective = collective.lower().replace("_", "")  # as libshunt.path() takes it
    _arguments.word("collective", collective, tuple(_PARTS))
    _arguments.text("doc", doc)
    if dtypes is None and collective in _REDUCES:
        raise Error(f'dtypes is missing: say which elements the {collective} reduces, such as ["bfloat16"]')
    plugin = _lib.Plugin(size=ctypes.sizeof(_lib.Plugin), abi=_ABI, collectives=collective.encode())
    plugin.dtypes = _mask("dtypes", dtypes, _names.DTYPES, _names.dtype_number)
    plugin.redops = _mask("redops", redops, _names.REDOPS, _redop_number)
    plugin.min_bytes, plugin.max_bytes = _pair("sizes", sizes, 0, (1 << 64) - 1)
    plugin.min_ranks, plugin.max_ranks = _pair("ranks", ranks, 2, MOST_RANKS)
    plugin.scratch_bytes = _arguments.integer("scratch", scratch, 0, _MOST_SCRATCH)
    plugin.min_cc = _arguments.integer("min_cc", min_cc, 0, 9999)
    plugin.identity = _identity(identity)
    if source is None and cubin is None:
        if params is not None or kernel is not None:
            raise Error(f"{'params' if params is not None else 'kernel'} is for kernels: give source= or cubin=")

        def decorate(made: Any) -> Any:
            if not callable(made) or isinstance(made, type):
                wanted = "a function that gets a libshunt.AlgorithmCall and a stream"
                raise Error(f"an algorithm is {wanted}, not {_arguments.shown(made)}")
            named = _name(getattr(made, "__name__", None) if name is None else name)
            enqueues = _Function(made, named, collective)
            plugin.enqueue, plugin.arg = enqueues.callback, enqueues.address
            plugin.identity = _identity(plugin.identity, _source_of(made))
            _register(plugin, named, doc or inspect.getdoc(made) or "", 2 if function is None else 3)
            return made

        return decorate if function is None else decorate(function)
    named = _name(kernel if name is None else name)
    plugin.launch.blocks = _arguments.integer("blocks", blocks, 1, 1 << 16)
    plugin.launch.threads = _arguments.integer("threads", threads, 1, 1024)
    plugin.launch.shared_bytes = _arguments.integer("shared", shared, 0, 1 << 20)
    plugin.launch.cluster = _arguments.integer("cluster", cluster, 0, 16)
    if source is None:
        image, symbol = _images.image(cubin), None if kernel is None else _arguments.text("kernel", kernel)
    else:
        image = _compile(plugin, named, source, _arguments.text("kernel", kernel, "its name"), options, arch)
        symbol = _lib.text(plugin.launch.symbol)
    if image:
        symbol, parameters = _images.kernel_of(image, symbol)
        words = _images.parameters(params, parameters, symbol, plugin.max_bytes)
        plugin.params, plugin.nparams = (ctypes.c_uint16 * len(words))(*words), len(words)
        plugin.image, plugin.image_bytes = ctypes.cast(ctypes.c_char_p(image), ctypes.c_void_p), len(image)
        plugin.launch.symbol = symbol.encode()
    elif params is not None:
        raise Error(f"params is for GPUs, and this is the sim, where {named} gets struct shunt_plugin_call")
    _register(plugin, named, doc)
    return named


@atexit.register
def _end_all() -> None:
    """Before the interpreter goes: calls that are still given to a function fail."""
    for function in _functions:
        _lib.library(private=True).shunt_plugin_end(function.address)
