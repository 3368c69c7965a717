# SPDX-License-Identifier: MIT
"""What the dynamic loader says: which libraries this process has, and which of them answers a call of NCCL's.

A library's call goes through a word in its memory that the loader has filled in. That word is read here: no order of
searching is guessed at. A word that the loader has not filled in yet, because it does so at the first call, is resolved
as the loader will.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import struct
from collections.abc import Iterator
from ctypes import POINTER, Structure, c_char_p, c_int, c_size_t, c_uint16, c_uint32, c_uint64, c_ulong, c_void_p
from typing import Any

from libshunt import _fork

# One of them is in every program that uses NCCL.
NCCL_CALLS = ("ncclAllReduce", "ncclCommInitRankConfig", "ncclCommInitRank", "ncclGetUniqueId", "ncclGetVersion")

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ = 1, 2, 5, 6, 7, 8
_DT_STRSZ, _DT_SONAME, _DT_JMPREL, _DT_RELACOUNT = 10, 14, 23, 0x6FFFFFF9
_R_64, _R_GLOB_DAT, _R_JUMP_SLOT = 1, 6, 7
_RELA, _SYM = struct.Struct("<QQq"), struct.Struct("<IBBHQQ")
_RTLD_NOLOAD = getattr(os, "RTLD_NOLOAD", 4)


class _Header(Structure):
    _fields_ = (
        ("type", c_uint32),
        ("flags", c_uint32),
        ("offset", c_uint64),
        ("vaddr", c_uint64),
        ("paddr", c_uint64),
        ("filesz", c_uint64),
        ("memsz", c_uint64),
        ("align", c_uint64),
    )


class _Object(Structure):
    _fields_ = (("addr", c_ulong), ("name", c_char_p), ("headers", POINTER(_Header)), ("nheaders", c_uint16))


class _Symbol(Structure):
    _fields_ = (("file", c_char_p), ("base", c_void_p), ("name", c_char_p), ("address", c_void_p))


_Visit = ctypes.CFUNCTYPE(c_int, POINTER(_Object), c_size_t, c_void_p)
_libc = ctypes.CDLL(None)
_libc.dlsym.restype = c_void_p
_libc.dlsym.argtypes = (c_void_p, c_char_p)
_libc.dladdr.restype = c_int
_libc.dladdr.argtypes = (c_void_p, POINTER(_Symbol))


@dataclasses.dataclass(frozen=True)
class User:
    """A library or program that calls NCCL, and the file whose NCCL answers it (None: nobody does yet)."""

    library: str
    answered_by: str | None


class _Image:
    """A library in memory."""

    def __init__(self, base: int, name: str, headers: list[tuple[int, int, int]]) -> None:
        self.base = base
        self.name = name
        self.spans = [(base + at, base + at + size) for kind, at, size in headers if kind == _PT_LOAD]
        self.tags: dict[int, int] = {}
        self.needed: list[str] = []
        dynamic = [base + at for kind, at, _ in headers if kind == _PT_DYNAMIC]
        if dynamic and self.spans:
            self._read_dynamic(dynamic[0])

    def _read_dynamic(self, at: int) -> None:
        needed = []
        while True:
            tag, value = struct.unpack("<qQ", ctypes.string_at(at, 16))
            if tag == 0:
                break
            if tag == _DT_NEEDED:
                needed.append(value)
            else:
                self.tags[tag] = value
            at += 16
        for tag in (_DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_JMPREL):
            # Relocated by the loader, but for objects of the kernel.
            if tag in self.tags and self.tags[tag] < self.base:
                self.tags[tag] += self.base
        self.needed = [self.string(offset) for offset in needed]

    def string(self, offset: int) -> str:
        return ctypes.string_at(self.tags[_DT_STRTAB] + offset).decode("utf-8", "replace")

    @property
    def soname(self) -> str:
        return self.string(self.tags[_DT_SONAME]) if _DT_SONAME in self.tags and _DT_STRTAB in self.tags else ""

    def holds(self, address: int) -> bool:
        return any(low <= address < high for low, high in self.spans)

    def mentions(self, names: tuple[str, ...]) -> bool:
        if _DT_STRTAB not in self.tags or _DT_STRSZ not in self.tags:
            return False
        strings = ctypes.string_at(self.tags[_DT_STRTAB], self.tags[_DT_STRSZ])
        return any(b"\0" + name.encode() + b"\0" in strings for name in names)

    def _relocations(self) -> Iterator[tuple[int, int, int]]:
        """Address of the word, kind, and number of the symbol."""
        tables = []
        if _DT_RELA in self.tags:
            skipped = self.tags.get(_DT_RELACOUNT, 0) * _RELA.size
            tables.append((self.tags[_DT_RELA] + skipped, self.tags.get(_DT_RELASZ, 0) - skipped))
        if _DT_JMPREL in self.tags:
            tables.append((self.tags[_DT_JMPREL], self.tags.get(_DT_PLTRELSZ, 0)))
        for at, size in tables:
            if size > 0:
                for offset, info, _ in _RELA.iter_unpack(ctypes.string_at(at, size)):
                    if info & 0xFFFFFFFF in (_R_64, _R_GLOB_DAT, _R_JUMP_SLOT):
                        yield self.base + offset, info & 0xFFFFFFFF, info >> 32

    def calls(self, names: tuple[str, ...]) -> dict[str, tuple[int, bool]]:
        """Of each of these names that it does not define: the address in its word, and whether that is bound."""
        found: dict[str, tuple[int, bool]] = {}
        if _DT_SYMTAB not in self.tags:
            return found
        seen: dict[int, str | None] = {}
        for word, kind, number in self._relocations():
            if number not in seen:
                name, _, _, section, _, _ = _SYM.unpack(
                    ctypes.string_at(self.tags[_DT_SYMTAB] + number * _SYM.size, _SYM.size)
                )
                text = self.string(name) if number else ""
                seen[number] = text if text in names and section == 0 else None
            symbol = seen[number]
            if symbol is not None and symbol not in found:
                address = c_uint64.from_address(word).value
                # Before the first call the word leads back into the library itself.
                found[symbol] = (address, not (kind == _R_JUMP_SLOT and self.holds(address)))
        return found


# While the loader calls a function of Python, it holds a lock, and other threads of Python run. A child that is forked
# then would find the lock held for ever: a fork waits for the end of the visits.
_visiting = _fork.Awaited()


def _images() -> list[_Image]:
    images: list[_Image] = []

    def visit(info: Any, size: int, arg: object) -> int:
        item = info.contents
        headers = [(h.type, h.vaddr, h.memsz) for h in item.headers[: item.nheaders]]
        name = os.fsdecode(item.name or b"")
        images.append(_Image(item.addr, name or os.path.realpath("/proc/self/exe"), headers))
        return 0

    with _visiting:
        _libc.dl_iterate_phdr(_Visit(visit), None)
    return images


def _file_of(address: int) -> str | None:
    symbol = _Symbol()
    if not address or not _libc.dladdr(address, ctypes.byref(symbol)) or not symbol.file:
        return None
    return os.fsdecode(symbol.file)


def _handle(path: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(path, mode=_RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def _found_in(path: str, name: str) -> str | None:
    """The file of the symbol, as one finds it who has a handle of the library."""
    handle = _handle(path)
    return _file_of(_libc.dlsym(handle._handle, name.encode()) or 0) if handle else None


def same_file(a: str, b: str) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return a == b


def defines(path: str, name: str) -> bool:
    """True: the loaded library has the symbol itself."""
    found = _found_in(path, name)
    return found is not None and same_file(found, path)


def providers(name: str) -> list[str]:
    """The loaded libraries that define the symbol, oldest first."""
    return [image.name for image in _images()[1:] if image.mentions((name,)) and defines(image.name, name)]


def loaded_nccl() -> str | None:
    """What dlopen("libnccl.so.2") gives in this process without loading anything; None: it would load one."""
    return _found_in("libnccl.so.2", NCCL_CALLS[0])


def needed_by(name: str) -> str | None:
    """A loaded library that is linked with a library of this name."""
    for image in _images():
        if any(needed.split(".so")[0] == name.split(".so")[0] for needed in image.needed):
            return image.name
    return None


def users() -> list[User]:
    """Who in this process calls NCCL, and who answers. Libraries that are an NCCL themselves are left out."""
    found = []
    for image in _images():
        if image.soname.startswith("libnccl.so") or not image.mentions(NCCL_CALLS):
            continue
        calls = image.calls(NCCL_CALLS)
        name = next((name for name in NCCL_CALLS if name in calls), None)
        if name is None:
            continue
        address, bound = calls[name]
        answer = _file_of(address) if bound else _found_in_scope(image.name, name)
        found.append(User(image.name, answer))
    return found


def _found_in_scope(path: str, name: str) -> str | None:
    """Where the loader will find the symbol: in the scope of the process, then in that of the library."""
    return _file_of(_libc.dlsym(None, name.encode()) or 0) or _found_in(path, name)
