#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""
plugins.py [-n RANKS] [CASE...]: all-reduces of a program's own on GPUs, by libshunt.algorithm: kernels by NVRTC, as a
cubin, as PTX, by cuda.core, CuPy, Triton and numba, and a function that enqueues CuPy's kernels. Each is right for
several sizes, eagerly and in replays of a graph, NVRTC's in 1,000. `example` measures the example plug-in beside
Shunt's own oneshot, in turns in one process: 1,000 calls in graphs a turn, and the ratio of the medians. Two ranks by
default, which may share a GPU (SHUNT_MULTI_RANK_GPU=1). The end of each case is one line; what is not installed is
skipped by name. Ends after a minute at most. Exit 77: no GPU. SHUNT_DEVICE=sim plugins.py nvrtc tries the program
itself.
"""

import argparse
import array
import importlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from ctypes import byref, c_void_p, create_string_buffer

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "python"))
os.environ.setdefault("SHUNT_LIB", os.path.join(ROOT, "build", "src", "libshunt.so"))
os.environ.setdefault("SHUNT_MULTI_RANK_GPU", "1")
os.environ.setdefault("SHUNT_NCCL_LIB", "none")  # which would refuse ranks that share a GPU
os.environ.setdefault("SHUNT_TIMEOUT", "20")
EXAMPLE = os.path.join(os.path.dirname(os.path.dirname(os.environ["SHUNT_LIB"])), "plugins", "allreduce_oneshot.so")

import libshunt
from libshunt import _images, _lib, _nccl, _nvrtc, _plugins

LIMIT_S = 55
COUNTS = (1, 3, 1000, 4096, 65536)
REPLAYS = {"nvrtc": 1000}  # others: 50, since ranks that share a GPU take turns
MOST = 1 << 18  # bytes
FITS = {"dtypes": ["float32"], "sizes": (0, MOST), "scratch": 16 * MOST}

# docs/plugins.md's, for any number of ranks. Of CUDA C alone, so that all compilers of it take the text.
with open(os.path.join(ROOT, "docs", "plugins.md"), encoding="utf-8") as file:
    (KERNEL,) = re.findall(r'^KERNEL = r"""(.*?my_allreduce.*?)"""$', file.read(), re.DOTALL | re.MULTILINE)
KERNEL = KERNEL.replace("my_allreduce", "add")
BLOCKS, THREADS = 16, 256
LAUNCH = {"blocks": BLOCKS, "threads": THREADS}


class Skip(Exception):
    pass


def need(name):
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise Skip(f"no {name} ({type(error).__name__}: {' '.join(str(error).split())[:80]})") from None


def with_old_numpy(call):
    """numba gives functions of NumPy a meaning in kernels, also some that NumPy has dropped; no kernel here calls one."""
    numpy = need("numpy")
    for _ in range(32):
        try:
            return call()
        except AttributeError as error:
            dropped = re.search(r"numpy' has no attribute '(\w+)'", str(error))
            if not dropped or hasattr(numpy, dropped[1]):
                raise
            setattr(numpy, dropped[1], lambda *_: None)
    raise Skip("numba names too many functions that this NumPy lacks")


# ---- the cases: each registers an algorithm of its name


def nvrtc():
    libshunt.algorithm("allreduce", name="nvrtc", source=KERNEL, kernel="add", **LAUNCH, **FITS)


def compiled(arch):
    return _nvrtc.compile_for_gpu("add.cu", KERNEL, "add", arch, [], _nvrtc.include_path())[0]


def cubin():
    libshunt.algorithm("allreduce", name="cubin", cubin=compiled(_plugins._arch()), kernel="add", **LAUNCH, **FITS)


def ptx():
    arch = "compute_" + _plugins._arch()[len("sm_") :]
    libshunt.algorithm("allreduce", name="ptx", cubin=compiled(arch), **LAUNCH, **FITS)


def cuda_core():
    try:
        core = importlib.import_module("cuda.core")
        program = core.Program
    except Exception:
        core = need("cuda.core.experimental")
        program = core.Program
    options = core.ProgramOptions(std="c++17", arch=_plugins._arch(), include_path=_nvrtc.include_path())
    code = program(KERNEL, "c++", options).compile("cubin")
    libshunt.algorithm("allreduce", name="cuda_core", cubin=code, kernel="add", **LAUNCH, **FITS)


def cupy_source():
    cupy = need("cupy")
    raw = cupy.RawModule(code=KERNEL, options=("--std=c++17",))
    libshunt.algorithm("allreduce", name="cupy_source", source=raw, kernel="add", **LAUNCH, **FITS)


def cupy_function():
    cupy = need("cupy")
    cupy.cuda.Device(DEVICE).use()
    two = cupy.zeros((2, 8), cupy.float32)
    cupy.add.reduce(two, axis=0, out=two[0])  # compiled now, and not while ranks wait
    cupy.cuda.runtime.deviceSynchronize()

    @libshunt.algorithm("allreduce", name="cupy_function", **FITS)
    def function(call, stream):
        nbytes = call.send.nbytes
        for rank in range(call.nranks):
            call.copy(call.scratch(rank).address + call.rank * nbytes, call.send, nbytes)
        call.barrier()
        with cupy.cuda.ExternalStream(stream):
            boxes = cupy.asarray(call.scratch(call.rank))[: call.nranks * nbytes].view(cupy.float32)
            cupy.add.reduce(boxes.reshape(call.nranks, call.count), axis=0, out=cupy.asarray(call.recv))
        call.barrier()


def triton_kernel():
    triton = need("triton")
    tl = need("triton.language")
    if RANKS != 2:
        raise Skip("its kernel is for 2 ranks")
    globals().update(triton=triton, tl=tl)

    @triton.jit
    def pair(send, recv, mine, theirs, my_signals, their_signals, epoch, abort, rank, n, BLOCK: tl.constexpr,
             HALF: tl.constexpr):  # fmt: skip
        block = tl.program_id(0)
        call = tl.load(epoch + block) + 1
        half = (call % 2) * HALF
        for first in range(block * BLOCK, n, tl.num_programs(0) * BLOCK):
            at = first + tl.arange(0, BLOCK)
            tl.store(theirs + half + at, tl.load(send + at, mask=at < n), mask=at < n)
        tl.debug_barrier()
        tl.atomic_xchg(their_signals + rank * 64 + block, call, sem="release", scope="sys")
        seen = tl.atomic_add(my_signals + (1 - rank) * 64 + block, 0, sem="acquire", scope="sys")
        gone = tl.load(abort, volatile=True)
        while (seen < call) & (gone == 0):
            seen = tl.atomic_add(my_signals + (1 - rank) * 64 + block, 0, sem="acquire", scope="sys")
            gone = tl.load(abort, volatile=True)
        tl.debug_barrier()
        for first in range(block * BLOCK, n, tl.num_programs(0) * BLOCK):
            at = first + tl.arange(0, BLOCK)
            y = tl.load(mine + half + at, mask=at < n, volatile=True)
            tl.store(recv + at, tl.load(send + at, mask=at < n) + y, mask=at < n)
        tl.debug_barrier()
        tl.store(epoch + block, call)

    kinds = {"send": "*fp32", "recv": "*fp32", "mine": "*fp32", "theirs": "*fp32", "my_signals": "*i64"}
    kinds |= {"their_signals": "*i64", "epoch": "*i64", "abort": "*i32", "rank": "i32", "n": "i32"}
    kinds |= {"BLOCK": "constexpr", "HALF": "constexpr"}
    constants = {"BLOCK": MOST // 4 // 64, "HALF": 2 * MOST // 4}
    source = triton.compiler.ASTSource(fn=pair, signature=kinds, constexprs=constants)
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", int(_plugins._arch()[3:]), 32)
    made = triton.compile(source, target=target, options={"num_warps": 4})
    params = ["send", "recv", "scratch+0", "scratch+1", "signals+0", "signals+1", "epoch", "abort", "rank", "count"]
    (sizes,) = _images.kernels(made.asm["cubin"]).values()
    params += ["null"] * (len(sizes) - len(params))  # Triton's own scratch, of which this kernel has none
    libshunt.algorithm("allreduce", name="triton_kernel", cubin=made, params=params, blocks=64, threads=4 * 32,
                       shared=made.metadata.shared, **FITS)  # fmt: skip


def numba_kernel():
    """Writes only the number of ranks: numba has no loads and stores with an order between GPUs."""
    cuda, types = need("numba.cuda"), need("numba.types")
    if RANKS != 2:
        raise Skip("its kernel is for 2 ranks")

    def fill(recv, count, nranks):
        first = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        for i in range(first, count, cuda.blockDim.x * cuda.gridDim.x):
            recv[i] = nranks

    signature = types.void(types.CPointer(types.float32), types.uint64, types.uint32)
    arch = _plugins._arch()[len("sm_") :]
    cc = int(arch[:-1]), int(arch[-1])
    text, _ = with_old_numpy(lambda: cuda.compile(fill, signature, device=False, abi="numba", cc=cc))
    params = ["recv", "count", "nranks"]
    libshunt.algorithm("allreduce", name="numba_kernel", cubin=text, params=params, **LAUNCH, **FITS)


def example():
    if not os.path.exists(EXAMPLE):
        raise Skip(f"there is no {EXAMPLE}: SHUNT_LIB is src/libshunt.so of a build")
    why = create_string_buffer(1024)
    if _lib.library(private=True).shunt_plugin_load(EXAMPLE.encode(), why, len(why)):
        raise AssertionError(_lib.text(why.value))


CASES = {case.__name__: case for case in (
    nvrtc, cubin, ptx, cuda_core, cupy_source, cupy_function, triton_kernel, numba_kernel, example
)}  # fmt: skip


# ---- a rank


def wanted(case, count):
    """Element i of rank r is r + 1 + i mod 7; numba's kernel writes the number of ranks."""
    if case == "numba_kernel":
        return array.array("f", [RANKS]) * count
    return array.array("f", [RANKS * (RANKS + 1) // 2 + RANKS * (i % 7) for i in range(count)])


class Calls:
    """All-reduces of a rank."""

    def __init__(self, case, nccl, comm, stream):
        self.case, self.nccl, self.comm, self.stream = case, nccl, comm, stream
        mine = array.array("f", [RANK + 1 + i % 7 for i in range(COUNTS[-1])])
        self.send, self.recv = _nccl.Buffer(4 * len(mine)), _nccl.Buffer(4 * len(mine))
        self.send.write(mine.tobytes())

    def call(self, count):
        self.nccl.AllReduce(self.send.address, self.recv.address, count, 7, 0, self.comm, self.stream.handle)

    def check(self, count, what):
        self.stream.synchronize()
        if array.array("f", self.recv.read(4 * count)) != wanted(self.case, count):
            raise AssertionError(f"{self.case}: wrong values of {count} elements {what}")
        self.recv.write(bytes(4 * count))

    def graph(self, count, calls):
        graph = c_void_p()
        library = _lib.library(private=True)
        _lib.check(library.shunt_capture_begin(c_void_p(self.stream.handle)), "capture")
        for _ in range(calls):
            self.call(count)
        _lib.check(library.shunt_capture_end(c_void_p(self.stream.handle), byref(graph)), "capture")
        return graph

    def replay(self, graph, times):
        """Seconds of each."""
        library = _lib.library(private=True)
        begin = time.monotonic()
        for _ in range(times):
            _lib.check(library.shunt_graph_launch(graph, c_void_p(self.stream.handle)), "replay")
        self.stream.synchronize()
        return (time.monotonic() - begin) / times

    def takes(self, path, count):
        there = libshunt.path("allreduce", count, "float32", comm=self.comm)
        if there != path:
            raise AssertionError(f"{path} is not taken, but {there}")


def run(case, calls):
    with libshunt.force(f"allreduce:0-:{case}"):
        calls.takes(case, COUNTS[-1])
        for count in COUNTS:
            calls.call(count)
            calls.check(count, "eagerly")
        graph = calls.graph(4096, 1)
        replays = REPLAYS.get(case, 50)
        took = calls.replay(graph, replays)
        calls.check(4096, f"after {replays} replays")
        calls.call(4096)
        calls.check(4096, "eagerly after a graph")
        _lib.check(_lib.library(private=True).shunt_graph_destroy(graph), "graph")
    if RANK == 0:
        print(f"OK {case}: {len(COUNTS)} sizes, {replays} replays of 4096 elements ({took * 1e6:.1f} us each)")


def compare(case, calls):
    for count in (256, 512, 1024, 2048, 4096, 8192, 16384, 32768):
        graphs, times = {}, {"allreduce_oneshot": [], "oneshot": []}
        for path in times:
            with libshunt.force(f"allreduce:0-:{path}"):
                calls.takes(path, count)
                calls.call(count)
                calls.check(count, "eagerly")
                graphs[path] = calls.graph(count, 20)
        for turn in range(14):
            for path, took in times.items():
                each = calls.replay(graphs[path], 50) / 20 * 1e6
                if turn > 1:
                    took.append(each)
                calls.check(count, f"after 1,000 calls of {path}")
        theirs, ours = (statistics.median(took) for took in times.values())
        for graph in graphs.values():
            _lib.check(_lib.library(private=True).shunt_graph_destroy(graph), "graph")
        if RANK == 0:
            print(f"OK {case}: {4 * count:6} bytes, {theirs:.2f} us, oneshot {ours:.2f} us, ratio {theirs / ours:.3f}")


def rank_main(path, cases):
    there, failed = [], []
    _nccl.device_set(DEVICE)
    for case in cases:
        try:
            CASES[case]()
            there.append(case)
        except Exception as error:  # on all ranks alike: the others go on
            skips = isinstance(error, Skip) or "no NVRTC is here" in str(error)
            failed += [] if skips else [case]
            if RANK == 0:
                said = error if skips else f"{type(error).__name__}: {error}"
                print(f"{'SKIP' if skips else 'FAIL'} {case}: {said}", flush=True)
    nccl, stream = _nccl.Nccl(), _nccl.Stream()
    if RANK == 0:
        with open(path + ".new", "wb") as file:
            file.write(nccl.unique_id())
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.01)  # pause: poll
    with open(path, "rb") as file:
        comm = nccl.init_rank(RANKS, file.read(), RANK)
    for case in there:
        (compare if case == "example" else run)(case, Calls(case, nccl, comm, stream))
        sys.stdout.flush()
    nccl.CommDestroy(comm)
    sys.exit(3 if failed else 0)  # the others ran


def gpus():
    try:
        return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())
    except OSError:
        return 0


def main():
    global RANK, RANKS, DEVICE
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--id")
    parser.add_argument("cases", nargs="*", default=[])
    said = parser.parse_args()
    for case in said.cases:
        if case not in CASES:
            parser.error(f"there is no case {case}: {', '.join(CASES)}")
    RANKS = said.n
    cases = said.cases or list(CASES)
    if said.rank is not None:
        RANK = said.rank
        signal.alarm(LIMIT_S)
        DEVICE = RANK % (gpus() or RANKS)
        rank_main(said.id, cases)
        return 0
    if os.environ.setdefault("SHUNT_DEVICE", "cuda") == "cuda" and not gpus():
        print("SKIP plugins: no GPU")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, os.path.abspath(__file__), "-n", str(RANKS), "--id", os.path.join(folder, "id")]
        ranks = [subprocess.Popen([*command, "--rank", str(rank), *cases]) for rank in range(RANKS)]
        end = time.monotonic() + LIMIT_S
        codes = [None] * RANKS
        while None in codes and time.monotonic() < end and all(code in (None, 0, 3) for code in codes):
            codes = [rank.poll() for rank in ranks]
            time.sleep(0.05)  # pause: poll
        for rank in ranks:
            rank.kill()
        codes = [rank.wait() for rank in ranks]
    if any(codes):
        print(f"FAIL plugins: ranks ended with {codes} (-9: killed after another one's error, or after {LIMIT_S} s)")
        return 1
    print("OK plugins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
