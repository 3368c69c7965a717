# SPDX-License-Identifier: MIT
"""NCCL's functions in libshunt.so, and memory and streams that work on GPUs and on the sim."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_size_t, c_void_p
from types import TracebackType
from typing import Any

from libshunt import _lib

SUCCESS, IN_PROGRESS = 0, 7


class UniqueId(Structure):
    _fields_ = (("internal", c_char * 128),)


_ADDRESSES = (c_void_p, c_void_p, c_size_t, c_int)
_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "GetVersion": (POINTER(c_int),),
    "GetUniqueId": (POINTER(UniqueId),),
    "CommInitRank": (POINTER(c_void_p), c_int, UniqueId, c_int),
    "CommSplit": (c_void_p, c_int, c_int, POINTER(c_void_p), c_void_p),
    "CommDestroy": (c_void_p,),
    "CommAbort": (c_void_p,),
    "CommGetAsyncError": (c_void_p, POINTER(c_int)),
    "GroupStart": (),
    "GroupEnd": (),
    "AllReduce": (*_ADDRESSES, c_int, c_void_p, c_void_p),
    "Reduce": (*_ADDRESSES, c_int, c_int, c_void_p, c_void_p),
    "Broadcast": (*_ADDRESSES, c_int, c_void_p, c_void_p),
    "AllGather": (*_ADDRESSES, c_void_p, c_void_p),
    "ReduceScatter": (*_ADDRESSES, c_int, c_void_p, c_void_p),
    "AlltoAll": (*_ADDRESSES, c_void_p, c_void_p),
    "Gather": (*_ADDRESSES, c_int, c_void_p, c_void_p),
    "Scatter": (*_ADDRESSES, c_int, c_void_p, c_void_p),
    "Send": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "Recv": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "RedOpCreatePreMulSum": (POINTER(c_int), c_void_p, c_int, c_int, c_void_p),
    "RedOpDestroy": (c_int, c_void_p),
}


class Nccl:
    """nccl.AllReduce(...) calls ncclAllReduce, and raises what it reports."""

    def __init__(self) -> None:
        library = _lib.library(private=True)
        self._error = library.ncclGetErrorString
        self._error.restype, self._error.argtypes = c_char_p, (c_int,)
        self._last = library.ncclGetLastError
        self._last.restype, self._last.argtypes = c_char_p, (c_void_p,)
        self._functions: dict[str, Any] = {}
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, "nccl" + name)
            function.restype, function.argtypes = c_int, arguments
            self._functions[name] = function

    def __getattr__(self, name: str) -> Any:
        function = self.__dict__["_functions"].get(name)
        if function is None:
            raise AttributeError(name)

        def call(*arguments: object) -> None:
            result = function(*arguments)
            if result not in (SUCCESS, IN_PROGRESS):
                last = _lib.text(self._last(None))
                raise _lib.Error(f"nccl{name}: {_lib.text(self._error(result))}{': ' + last if last else ''}")

        self.__dict__[name] = call
        return call

    def unique_id(self) -> bytes:
        unique_id = UniqueId()
        self.GetUniqueId(byref(unique_id))
        return bytes(unique_id)

    def init_rank(self, nranks: int, unique_id: bytes, rank: int) -> int:
        """The handle of a new communicator; collective."""
        comm = c_void_p()
        self.CommInitRank(byref(comm), nranks, UniqueId.from_buffer_copy(unique_id), rank)
        return comm.value or 0

    def split(self, comm: int, color: int, key: int) -> int | None:
        """The handle of this rank's part; None for the colour -1."""
        child = c_void_p()
        self.CommSplit(comm, color, key, byref(child), None)
        return child.value


def device_set(device: int) -> None:
    """Makes a device current for this thread, for the memory and the streams below."""
    _lib.check(_lib.library(private=True).shunt_device_set(device), f"device {device}")


def device_kind() -> str:
    """ "cuda" or "sim"; opens the device layer."""
    return _lib.text(_lib.library(private=True).shunt_device_kind())


class Buffer:
    """Memory of the current device."""

    def __init__(self, nbytes: int) -> None:
        self._library = _lib.library(private=True)
        self.nbytes = nbytes
        address = c_void_p()
        _lib.check(self._library.shunt_malloc(byref(address), nbytes), f"{nbytes} bytes of device memory")
        self.address = address.value or 0

    def data_ptr(self) -> int:
        return self.address

    def write(self, data: bytes, offset: int = 0) -> None:
        _lib.check(self._library.shunt_memcpy(self.address + offset, data, len(data)), "copying to the device")

    def read(self, nbytes: int | None = None, offset: int = 0) -> bytes:
        data = ctypes.create_string_buffer(self.nbytes - offset if nbytes is None else nbytes)
        _lib.check(self._library.shunt_memcpy(data, self.address + offset, len(data)), "copying from the device")
        return data.raw

    def free(self) -> None:
        address, self.address = self.address, 0
        if address:
            _lib.check(self._library.shunt_free(address), "freeing device memory")


class Stream:
    """A stream of the current device."""

    def __init__(self) -> None:
        self._library = _lib.library(private=True)
        handle = c_void_p()
        _lib.check(self._library.shunt_stream_create(byref(handle)), "making a stream")
        self.handle = handle.value or 0

    def synchronize(self) -> None:
        """Reports errors of the work before it."""
        _lib.check(self._library.shunt_stream_synchronize(self.handle), "waiting for a stream")

    def destroy(self) -> None:
        handle, self.handle = self.handle, 0
        if handle:
            _lib.check(self._library.shunt_stream_destroy(handle), "ending a stream")

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()
