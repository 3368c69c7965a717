#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A thread that ends inside a group, as after an exception between ncclGroupStart and ncclGroupEnd, again and again:
descriptors and device memory are as before once its communicators are destroyed. One process, two ranks, without a
real NCCL; one GPU is enough:

SHUNT_NCCL_LIB=none SHUNT_MULTI_RANK_GPU=1 tests/gpu/thread_ends.py LIBSHUNT

SHUNT_DEVICE=sim: without a GPU."""

import ctypes
import os
import sys
import threading
import time

ROUNDS = 30
lib = ctypes.CDLL(sys.argv[1])
free, total, devices = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int()
assert lib.shunt_device_count(ctypes.byref(devices)) == 0
device_of = [0, min(1, devices.value - 1)]


def call(result):
    assert result == 0, result


def reduce(comm, buffers, stream):
    return lib.ncclAllReduce(buffers, buffers, ctypes.c_size_t(64), 7, 0, comm, stream)


def used():
    call(lib.shunt_device_set(0))
    call(lib.shunt_mem_info(ctypes.byref(free), ctypes.byref(total)))
    return total.value - free.value, len(os.listdir("/proc/self/fd"))


def one_round(abort):
    comms, buffers, streams = (ctypes.c_void_p * 2)(), [], []
    call(lib.ncclCommInitAll(comms, 2, (ctypes.c_int * 2)(*device_of)))
    for device in device_of:
        call(lib.shunt_device_set(device))
        buffers.append(ctypes.c_void_p())
        streams.append(ctypes.c_void_p())
        call(lib.shunt_malloc(ctypes.byref(buffers[-1]), ctypes.c_size_t(4096)))
        call(lib.shunt_stream_create(ctypes.byref(streams[-1])))
    handles = [ctypes.c_void_p(comm) for comm in comms]
    call(lib.ncclGroupStart())
    for args in zip(handles, buffers, streams, strict=True):
        call(reduce(*args))
    call(lib.ncclGroupEnd())
    for device, stream in zip(device_of, streams, strict=True):
        call(lib.shunt_device_set(device))
        call(lib.shunt_stream_synchronize(stream))

    def begin():
        call(lib.ncclGroupStart())
        call(reduce(handles[0], buffers[0], streams[0]))

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    for handle in handles:
        call(lib.ncclCommAbort(handle) if abort else lib.ncclCommDestroy(handle))
    for device, buffer, stream in zip(device_of, buffers, streams, strict=True):
        call(lib.shunt_device_set(device))
        call(lib.shunt_stream_destroy(stream))
        call(lib.shunt_free(buffer))


for abort in (False, True):
    one_round(abort)
    before = used()
    for _ in range(ROUNDS):
        one_round(abort)
    for _ in range(100):  # the thread by which the ranks met closes its sockets behind the last call
        after = used()
        if after[1] <= before[1]:
            break
        time.sleep(0.05)  # pause: poll
    how = "abort" if abort else "destroy"
    print(
        f"thread_ends: {how}: {before[0]} bytes, {before[1]} descriptors; after {ROUNDS} rounds {after[0]}, {after[1]}"
    )
    assert after[1] <= before[1] and after[0] <= before[0] + (1 << 20)
print("thread_ends: PASS")
