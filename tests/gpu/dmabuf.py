#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Memory of a GPU that a NIC may have: what the driver's flag for it costs, and whether a dma-buf can be exported.

Allocates and maps memory as src/device/cuda/cuda_mem.c does, with gpuDirectRDMACapable and without, and prints the median of
the times, and the device memory that is gone. Then exports the flagged memory as a dma-buf. Exit status 1: the device
says that it has dma-bufs, and the export failed.
"""
import ctypes as C
import os
import statistics
import sys
import time

MIB = 1 << 20
BYTES = 32 * MIB
PINNED, POSIX_FD, DEVICE, READWRITE, DMABUF = 1, 1, 1, 3, 1
RDMA_OF_MAPPED, DMABUF_SUPPORTED = 110, 124

cu = C.CDLL("libcuda.so.1")


class Prop(C.Structure):
    _fields_ = [("type", C.c_int), ("handles", C.c_int), ("location", C.c_int), ("id", C.c_int), ("meta", C.c_void_p),
                ("compression", C.c_ubyte), ("rdma", C.c_ubyte), ("usage", C.c_ushort), ("reserved", C.c_ubyte * 4)]


class Access(C.Structure):
    _fields_ = [("location", C.c_int), ("id", C.c_int), ("flags", C.c_int)]


def call(name, *args):
    result = getattr(cu, name)(*args)
    if result:
        sys.exit(f"dmabuf: {name}: CUDA error {result}")


def attribute(which):
    value = C.c_int()
    return 0 if cu.cuDeviceGetAttribute(C.byref(value), which, 0) else value.value


def free_bytes():
    free, total = C.c_size_t(), C.c_size_t()
    call("cuMemGetInfo_v2", C.byref(free), C.byref(total))
    return free.value


def allocate(rdma):
    prop = Prop(type=PINNED, handles=POSIX_FD, location=DEVICE, id=0, rdma=rdma)
    handle, at = C.c_ulonglong(), C.c_ulonglong()
    access = Access(DEVICE, 0, READWRITE)
    call("cuMemCreate", C.byref(handle), C.c_size_t(BYTES), C.byref(prop), C.c_ulonglong(0))
    call("cuMemAddressReserve", C.byref(at), C.c_size_t(BYTES), C.c_size_t(0), C.c_ulonglong(0), C.c_ulonglong(0))
    call("cuMemMap", at, C.c_size_t(BYTES), C.c_size_t(0), handle, C.c_ulonglong(0))
    call("cuMemSetAccess", at, C.c_size_t(BYTES), C.byref(access), C.c_size_t(1))
    call("cuMemRelease", handle)
    return at


def release(at):
    call("cuMemUnmap", at, C.c_size_t(BYTES))
    call("cuMemAddressFree", at, C.c_size_t(BYTES))


def main():
    context = C.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", C.byref(context), 0)
    call("cuCtxSetCurrent", context)
    release(allocate(0))
    print(f"gpuDirectRDMACapable {attribute(RDMA_OF_MAPPED)}, dma-buf {attribute(DMABUF_SUPPORTED)}; {BYTES // MIB} MiB")
    for rdma in (0, 1) if attribute(RDMA_OF_MAPPED) else (0,):
        times, used = [], []
        for _ in range(15):
            before, began = free_bytes(), time.perf_counter()
            at = allocate(rdma)
            times.append(time.perf_counter() - began)
            used.append(before - free_bytes())
            release(at)
        print(f"flag {rdma}: {statistics.median(times) * 1e6:.0f} us, {statistics.median(used) / MIB:.1f} MiB")
    if not attribute(DMABUF_SUPPORTED):
        return
    at, fd = allocate(1), C.c_int(-1)
    began = time.perf_counter()
    result = cu.cuMemGetHandleForAddressRange(C.byref(fd), at, C.c_size_t(BYTES), DMABUF, C.c_ulonglong(0))
    took = (time.perf_counter() - began) * 1e6
    if result:
        sys.exit(f"dmabuf: cuMemGetHandleForAddressRange: CUDA error {result}")
    print(f"dma-buf: {os.readlink(f'/proc/self/fd/{fd.value}')}, {took:.0f} us")
    os.close(fd.value)


main()
