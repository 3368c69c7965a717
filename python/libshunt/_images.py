# SPDX-License-Identifier: MIT
"""Machine code of others: what compilers of Python hand out, and which kernels are in it."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from ctypes import sizeof
from typing import Any

from libshunt import _arguments
from libshunt._lib import Error, PluginCall

_CUBIN, _FATBIN = b"\x7fELF", b"\x50\xed\x55\xba"
# In a section .nv.info.KERNEL: an attribute of this number for each parameter, whose last word has the size.
_WITH_SIZE, _PARAMETER = 4, 0x17


def read(what: str, value: object) -> bytes:
    name = _arguments.path(what, value)
    try:
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise Error(f"cannot read {what} {_arguments.line(name)}: {error.strerror}") from None


def is_file(value: object) -> bool:
    """A path, or a text of one line."""
    return isinstance(value, os.PathLike) or (isinstance(value, str) and "\n" not in value)


def image(value: Any) -> bytes:
    """A cubin, a fatbin or PTX: bytes, PTX as a str, a file, or what cuda.core, Triton and CuPy have compiled."""
    asm, code, path = (getattr(value, name, None) for name in ("asm", "code", "file_path"))
    if isinstance(asm, dict) and isinstance(asm.get("cubin"), bytes):  # Triton's compiled kernel
        value = asm["cubin"]
    elif isinstance(code, (bytes, bytearray)):  # cuda.core's ObjectCode
        value = code
    elif isinstance(path, str):  # CuPy's RawModule(path=)
        value = read("cubin", path)
    elif is_file(value):
        value = read("cubin", value)
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)) or not len(value):
        _arguments.wrong("cubin", value, "bytes, a file, or an object whose .code or .asm has the bytes")
    made = bytes(value)
    return made if made[:4] in (_CUBIN, _FATBIN) else made.rstrip(b"\0") + b"\0"  # PTX is a text


def kernels(data: bytes) -> dict[str, list[int]]:
    """The kernels of a cubin or of PTX with the bytes of their parameters; of another image none is known."""
    try:
        if data[:4] == _CUBIN:
            return _of_cubin(data)
        if data[:4] != _FATBIN:
            return _of_ptx(data.decode())
    except (struct.error, ValueError, IndexError, OverflowError):
        pass  # the library or the driver says what is wrong with it
    return {}


def _of_cubin(data: bytes) -> dict[str, list[int]]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    found = {}
    for row in rows:
        at = rows[names][4] + row[0]
        name = data[at : data.index(b"\0", at)].decode()
        if name.startswith(".nv.info."):
            found[_arguments.line(name[len(".nv.info.") :])] = _parameters(data[row[4] : row[4] + row[5]])
    return found


def _parameters(info: bytes) -> list[int]:
    sizes, at = {}, 0
    while at < len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != _WITH_SIZE:
            continue
        if attribute == _PARAMETER:
            _, ordinal, _, word = struct.unpack_from("<IHHI", info, at)
            sizes[ordinal] = word >> 18
        at += length
    return [sizes[i] for i in sorted(sizes)]


def _of_ptx(text: str) -> dict[str, list[int]]:
    found = {}
    for name, parameters in re.findall(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?", text):
        kinds = [re.search(r"\.[usbf](\d+)\b[^\[]*(?:\[(\d+)\])?", one) for one in parameters.split(",")]
        found[name] = [int(kind[1]) // 8 * int(kind[2] or 1) for kind in kinds if kind]
    return found


# ---- the parameters of such kernels, from fields of struct shunt_plugin_call ----

# Fields that are no parameter of anybody.
_INNER = ("size", "abi", "op", "reserved")
_NULL = "null"  # 8 bytes of zeros
_AFTER, _STEP = 1 << 15, 12  # SHUNT_PLUGIN_PARAM_AFTER: an array's element of the rank that many after this one
_SHORT = ("count", "bytes", "scratch_bytes")  # may be passed in 32 bits where they fit


def _word(name: object) -> tuple[int, int]:
    """A parameter's word in struct shunt_plugin's params, and its bytes."""
    text = _arguments.text("one of params", name)
    match = re.fullmatch(r"(scratch|signals)(\+?)([0-7])", text)
    arrays = ("scratch", "signals")
    field = getattr(PluginCall, match[1] if match else "reserved" if text == _NULL else text, None)
    if field is None or text in (*_INNER, *arrays):
        fields = [one[0] for one in PluginCall._fields_ if one[0] not in (*_INNER, *arrays)]
        ranks = "scratch0 to scratch7 and signals0 to signals7 of a rank, scratch+0 to scratch+7 and signals+0 to "
        ranks += "signals+7 of the rank that many after this one"
        _arguments.wrong("one of params", text, f"one of {', '.join(fields)}, {_NULL}, {ranks}")
    if not match:
        return int(field.offset), 8 if text == _NULL else int(field.size)
    if match[2]:
        return int(field.offset) | int(match[3]) << _STEP | _AFTER, 8
    return int(field.offset) + 8 * int(match[3]), 8


def parameters(params: Iterable[str] | None, sizes: list[int] | None, kernel: str, most_bytes: int) -> list[int]:
    """The words of params, checked against the sizes that the image says (None: it says none)."""
    if params is None:
        whole = sizeof(PluginCall)
        if sizes is not None and sizes != [whole]:
            raise Error(
                f"kernel {kernel} has parameters of {sizes} bytes, and not struct shunt_plugin_call, of {whole}: name "
                'them by params=, such as ["send", "recv", "count"]'
            )
        return []
    if isinstance(params, str) or not isinstance(params, Iterable):
        _arguments.wrong("params", params, "a list of names")
    names = list(params)
    words = [_word(name) for name in names]
    if sizes is not None and len(sizes) != len(words):
        raise Error(f"params has {len(words)} names, and kernel {kernel} has {len(sizes)} parameters: {sizes} bytes")
    for name, (_, size), wanted in zip(names, words, sizes or (), strict=False):
        short = wanted == 4 and name in _SHORT
        if wanted == size or (short and most_bytes < 1 << 31):
            continue
        hint = f"say sizes= up to {(1 << 31) - 1} at most" if short else "name another field"
        raise Error(f"kernel {kernel} takes {wanted} bytes where params has {name}, of {size} bytes: {hint}")
    return [word for word, _ in words]


def kernel_of(data: bytes, name: str | None) -> tuple[str, list[int] | None]:
    """The name of the image's kernel, and the bytes of its parameters (None: not known)."""
    found = kernels(data)
    if name is None and len(found) == 1:
        name = next(iter(found))
    if name is None:
        raise Error(f"kernel is missing: the image has {', '.join(sorted(found)) or 'kernels that only CUDA can name'}")
    if found and name not in found:
        _arguments.wrong("kernel", name, f"one of the image's: {', '.join(sorted(found))}")
    return name, found.get(name)
