# SPDX-License-Identifier: MIT
"""
The functions of shunt/ep.h. A call's struct is packed into bytes of its own, so threads need no lock: a function lets
other threads of Python run while it reads them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from ctypes import byref, c_int32, c_uint64, c_void_p
from typing import Any

from libshunt import _arguments, _fork, _lib

# Fields in C's order, by struct's letters; a test compares them with the header.
FORMATS = {
    "shunt_ep_shape": "NiiiiiiiQ",
    "shunt_ep_config": "NPPiiiIQQiQ",
    "shunt_ep_layout": "NPPiiiPPPP",
    "shunt_ep_notify": "NPPPPiiiPPPi",
    "shunt_ep_dispatch": "NPPPPPqPiqqPPiiiiiiPPPPP",
    "shunt_ep_combine": "NPPPPPiiiiiiPPPPP",
    "shunt_ep_ll_dispatch": "NPIiPPiiiiiPPPPPPPPi",
    "shunt_ep_ll_combine": "NPIiiiiiiPPPPPPPPi",
}
_PACKERS = {name: struct.Struct(f"@{codes}0P") for name, codes in FORMATS.items()}

ID_BYTES = 128
MASKS = 1  # a flag of a group
SEND, RECEIVE = 1, 2
MOST_RANKS, MOST_TOPK, MOST_EXPERTS, MOST_TOKENS, MOST_HIDDEN = 64, 16, 32767, 1024, 16384
_MOST_LOCAL = 8  # ranks of a host
MOST_BLOCKS, MOST_ALIGNMENT = 64, 1 << 16
# Of rows as wide as there may be, for so many blocks: with shorter rows there is room for more.
_WIDEST_BYTES, _WIDEST_BLOCKS = 2 * MOST_HIDDEN, 24

_CREATE = {
    errno.EOPNOTSUPP: "the ranks of a host must be joined by NVLink, at most 8 of them, and 64 in all",
    errno.EPROTO: "the ranks' values differ",
    errno.ETIMEDOUT: "a rank did not come within SHUNT_EP_TIMEOUT",
}
_WHY = {
    errno.EBUSY: "the stream is being captured: pass num_worst_tokens, so that nothing waits for counts",
    errno.ENOSPC: "the Buffer's memory does not hold rows of this size: get_nvl_buffer_size_hint() says how much does",
    errno.EDEADLK: "two low latency calls of its kind were sent and not received, and no more may be under way",
}


def _pack(name: str, *values: Any) -> bytes:
    packer = _PACKERS[name]
    return packer.pack(packer.size, *values)


def _bytes(
    nranks: int, hidden: int, element_bytes: int, tokens: int, blocks: int, one_host: bool, masks: bool = False
) -> tuple[int, int]:
    _arguments.integer("num_ranks", nranks, 1, MOST_RANKS)
    most = [0, 0]
    # With a host for each rank calls need the most, or on one host: that is so for any number of hosts in between.
    for hosts in (0,) if one_host else (nranks,) if nranks > _MOST_LOCAL else (0, nranks):
        found = c_uint64(), c_uint64()
        shape = _pack("shunt_ep_shape", nranks, 0, hidden, element_bytes, tokens, blocks, hosts, masks * MASKS)
        result = _lib.library(private=True).shunt_ep_bytes(shape, byref(found[0]), byref(found[1]))
        _lib.check(result, "shunt_ep_bytes")
        most = [max(pair) for pair in zip(most, (one.value for one in found), strict=True)]
    return most[0], most[1]


def normal_bytes(
    nranks: int, hidden_bytes: int = _WIDEST_BYTES, blocks: int = _WIDEST_BLOCKS, one_host: bool = False
) -> int:
    """Memory for calls of normal mode; without sizes, as much as can be of use."""
    return _bytes(nranks, hidden_bytes, 1, 0, min(blocks, MOST_BLOCKS), one_host)[0]


def low_latency_bytes(
    nranks: int, tokens: int = MOST_TOKENS, hidden: int = MOST_HIDDEN, one_host: bool = False, masks: bool = False
) -> int:
    """The same for low latency calls."""
    return _bytes(nranks, hidden, 2, tokens, 0, one_host, masks)[1]


def host() -> Any:
    """
    Processes with the same answer are on one host (docs/decisions/012.md). The library decides that by itself; None:
    not known here.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read()
        names = tuple(os.environ.get(name, "") for name in ("SHUNT_HOSTID", "NCCL_HOSTID", "MSCCLPP_HOSTID"))
        return boot, os.stat("/proc/self/ns/net").st_ino, os.getuid(), names
    except OSError:
        return None


def new_id() -> bytes:
    made = ctypes.create_string_buffer(ID_BYTES)
    _lib.check(_lib.library(private=True).shunt_ep_id(made), "shunt_ep_id")
    return made.raw


def _fail(name: str, handle: int, result: int) -> None:
    text = ctypes.create_string_buffer(512)
    broken = _lib.library(private=True).shunt_ep_error(handle, text, len(text))
    if broken and text.value:
        raise _lib.Error(f"{name}: the group is broken: {_lib.text(text.value)}")
    if broken:
        raise _lib.Error(f"{name}: the Buffer was destroyed, or made by the parent of this process")
    raise _lib.Error(f"{name}: {_WHY.get(-result, os.strerror(-result))}; Shunt's log says more")


class Group:
    """A group of ranks. It lasts until end()."""

    def __init__(
        self, unique_id: bytes, nranks: int, rank: int, device: int, masks: bool, normal: int, low_latency: int
    ) -> None:
        library = self._library = _lib.library(private=True)
        handle = c_void_p()
        kept = ctypes.create_string_buffer(unique_id, ID_BYTES)
        values = 0, ctypes.addressof(kept), nranks, rank, device, MASKS * masks, normal, low_latency, 0, 0
        config = _pack("shunt_ep_config", *values)
        result = library.shunt_ep_create(config, byref(handle))
        if result:
            why = _CREATE.get(-result, os.strerror(-result))
            raise _lib.Error(f"a group of {nranks} ranks was not made: {why}; Shunt's log has the reason")
        self.handle = handle.value or 0
        self.hosts = int(library.shunt_ep_hosts(handle))
        self.layout = self._call("shunt_ep_layout")
        self.dispatch = self._call("shunt_ep_dispatch")
        self.combine = self._call("shunt_ep_combine")
        self.ll_dispatch = self._call("shunt_ep_ll_dispatch")
        self.ll_combine = self._call("shunt_ep_ll_combine")
        self.mask = self._plain("shunt_ep_mask")
        self.masks = self._plain("shunt_ep_masks")
        self.masks_clear = self._plain("shunt_ep_masks_clear")
        self.barrier = self._plain("shunt_ep_barrier")

    def _call(self, name: str) -> Callable[..., None]:
        """A function that takes the fields behind the struct's size."""
        function, packer, handle = getattr(self._library, name), _PACKERS[name], self.handle
        pack, size = packer.pack, packer.size

        def call(*values: Any) -> None:
            result = function(handle, pack(size, *values))
            if result:
                _fail(name, handle, result)

        return call

    def notify(self, local: int, *values: Any) -> tuple[int, list[int]]:
        """If the last value, `counts`, is 1: waits, and returns how many rows come, and how many to each expert."""
        ticket, rows, counts = c_uint64(), c_int32(), (c_int32 * local)()
        result = self._library.shunt_ep_notify(self.handle, _pack("shunt_ep_notify", *values), byref(ticket))
        if result:
            _fail("shunt_ep_notify", self.handle, result)
        if not values[-1]:
            return 0, []
        result = self._library.shunt_ep_counts(self.handle, ticket, byref(rows), counts)
        if result:
            _fail("shunt_ep_counts", self.handle, result)
        return rows.value, list(counts)

    def _plain(self, name: str) -> Callable[..., None]:
        function, handle = getattr(self._library, name), self.handle

        def call(*values: Any) -> None:
            result = function(handle, *values)
            if result:
                _fail(name, handle, result)

        return call


def end(handle: int, abort: bool, generation: int) -> None:
    """Ends a group. generation: of the process that made it, since a forked child has none."""
    if generation == _fork.generation():
        _lib.library(private=True).shunt_ep_destroy(handle, int(abort))
