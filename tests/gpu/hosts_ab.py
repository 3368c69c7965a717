#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Shunt over tcp beside NCCL over sockets, between two "hosts" on one machine, in one run.

Each library is opened twice in this process, under another name of the host (SHUNT_HOSTID, NCCL_HOSTID), and each copy
has a rank, a thread. So the kernels of both ranks run side by side, which two processes' kernels on one GPU do not; the
data goes over loopback. With --devices 0,1 each host has a GPU of its own. Times are microseconds of an all-reduce, median of the rounds; the ratio is NCCL's time over
Shunt's. Without --nccl Shunt alone is measured, on the sim too (--device sim), where times mean nothing.
"""

import argparse
import ctypes as C
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time

DEEPBIND = 8


class Id(C.Structure):
    _fields_ = [("bytes", C.c_byte * 128)]


def check(result, what):
    if result:
        sys.exit(f"hosts_ab: {what}: {result}")


class Library:
    """Two copies of a library, each on a host of its own."""

    def __init__(self, name, path, folder, nccl_setting, settings):
        self.name = name
        self.copies = []
        for host in "ab":
            copy = os.path.join(folder, name, host, os.path.basename(path))
            os.makedirs(os.path.dirname(copy))
            shutil.copy(path, copy)
            os.environ.update(
                settings, NCCL_HOSTID="host-" + host, SHUNT_HOSTID="host-" + host, SHUNT_NCCL_LIB=nccl_setting
            )
            lib = C.CDLL(copy, mode=os.RTLD_NOW | DEEPBIND)
            lib.ncclCommInitRank.argtypes = [C.POINTER(C.c_void_p), C.c_int, Id, C.c_int]
            lib.ncclAllReduce.argtypes = [C.c_void_p, C.c_void_p, C.c_size_t, C.c_int, C.c_int, C.c_void_p, C.c_void_p]
            self.alone(lib)  # reads the variables now
            self.copies.append(lib)

    @staticmethod
    def alone(lib):
        unique, comm = Id(), C.c_void_p()
        check(lib.ncclGetUniqueId(C.byref(unique)), "ncclGetUniqueId")
        check(lib.ncclCommInitRank(C.byref(comm), 1, unique, 0), "ncclCommInitRank of one rank")
        check(lib.ncclCommDestroy(comm), "ncclCommDestroy")


class Device:
    """Memory and streams, by a copy of Shunt: on the sim its own, on a GPU any."""

    def __init__(self, lib):
        self.lib = lib

    def call(self, name, *args):
        check(getattr(self.lib, name)(*args), name)

    def pointer(self, name, *args):
        p = C.c_void_p()
        self.call(name, C.byref(p), *args)
        return p


def fill(device, at, count, value):
    host = (C.c_float * count)(*([value] * count))
    device.call("shunt_memcpy", at, host, C.c_size_t(4 * count))


def run(library, devices, options):
    """{bytes: [microseconds of a call in each round]}"""
    unique, synchronize = Id(), threading.Barrier(2)
    times, failed = {}, []
    check(library.copies[0].ncclGetUniqueId(C.byref(unique)), "ncclGetUniqueId")

    def rank(r):
        lib, device, comm = library.copies[r], devices[r], C.c_void_p()
        device.call("shunt_device_set", options.devices[r])
        check(lib.ncclCommInitRank(C.byref(comm), 2, unique, r), "ncclCommInitRank")
        stream = device.pointer("shunt_stream_create")
        most = max(options.sizes)
        send, recv = (device.pointer("shunt_malloc", C.c_size_t(most)) for _ in range(2))
        fill(device, send, most // 4, r + 1.0)
        for size in options.sizes:
            calls = options.calls if size <= 1 << 20 else max(options.calls // 10, 1)
            for i in range(options.rounds + 1):
                synchronize.wait()
                began = time.perf_counter()
                slept = 0.0
                for k in range(calls):
                    check(lib.ncclAllReduce(send, recv, size // 4, 7, 0, comm, stream), "ncclAllReduce")
                    if options.gap and k + 1 < calls:
                        device.call("shunt_stream_synchronize", stream)
                        begins = time.perf_counter()
                        synchronize.wait()
                        time.sleep(options.gap / 1e6)  # pause: middle
                        synchronize.wait()
                        slept += time.perf_counter() - begins
                device.call("shunt_stream_synchronize", stream)
                if r == 0 and i:
                    times.setdefault(size, []).append((time.perf_counter() - began - slept) / calls * 1e6)
            got = (C.c_float * (size // 4))()
            device.call("shunt_memcpy", got, recv, C.c_size_t(size))
            if any(v != 3.0 for v in got):
                failed.append(size)
        synchronize.wait()
        check(lib.ncclCommDestroy(comm), "ncclCommDestroy")

    def guarded(r):
        try:
            rank(r)
        except BaseException as e:  # the other rank would wait for ever
            print(e, file=sys.stderr, flush=True)
            os._exit(1)

    threads = [threading.Thread(target=guarded, args=(r,)) for r in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        sys.exit(f"hosts_ab: {library.name}: wrong sums of {failed} bytes")
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shunt", help="libshunt.so of a build")
    parser.add_argument("--nccl", help="libnccl.so.2")
    parser.add_argument("--device", default="cuda", choices=["cuda", "sim"])
    parser.add_argument(
        "--devices", type=lambda s: [int(x) for x in s.split(",")], default=[0, 0], help="the two hosts' GPUs (0,0)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable of NCCL's, such as NCCL_NSOCKS_PERTHREAD=4",
    )
    parser.add_argument(
        "--sizes",
        type=lambda s: [int(x) for x in s.split(",")],
        default=[8, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 1 << 20, 16 << 20, 64 << 20],
    )
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--gap",
        type=int,
        default=0,
        metavar="US",
        help="wait for each call, and then so long before the next one; not counted",
    )
    parser.add_argument("--json")
    options = parser.parse_args()
    os.environ.update(
        NCCL_IB_DISABLE="1",
        NCCL_SOCKET_IFNAME="lo",
        NCCL_NVLS_ENABLE="0",
        SHUNT_NET="tcp",
        SHUNT_DEVICE=options.device,
        SHUNT_STATS="0",
    )
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        libraries = [Library("shunt", options.shunt, folder, "none", {})]
        devices = [Device(lib) for lib in libraries[0].copies]
        if options.nccl:
            settings = dict(s.split("=", 1) for s in options.set)
            libraries.append(Library("nccl", options.nccl, folder, "", settings))
        for library in libraries:
            results[library.name] = run(library, devices, options)
    for size in options.sizes:
        us = {name: statistics.median(times[size]) for name, times in results.items()}
        ratio = f"   ratio {us['nccl'] / us['shunt']:5.2f}" if "nccl" in us else ""
        print(f"{size:>9} B " + "  ".join(f"{name} {t:10.1f} us" for name, t in us.items()) + ratio, flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out)
    sys.stdout.flush()
    os._exit(0)  # copies of one library end each other's threads in no good order


main()
