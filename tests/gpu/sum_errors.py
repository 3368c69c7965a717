#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""sum_errors.py [RANKS]: the error of sums in each accumulator (docs/numbers.md), on GPUs or the sim, in one process.

  PYTHONPATH=python SHUNT_LIB=build/src/libshunt.so SHUNT_NCCL_LIB=none SHUNT_DEVICE=sim tests/gpu/sum_errors.py 8

Each rank has 32768 normally distributed numbers of standard deviation 1/8, rounded to the type. For each format: the
largest and the mean error against the exact sum of the rounded inputs, in units of the result's standard deviation; how
many results differ from those of fp32; and a checksum of the results, which is the same on all devices.
"""
import ctypes
import random
import statistics
import sys
import threading
import zlib

import libshunt
from libshunt import _names, _nccl

COUNT = 32768
FORMATS = [
    (dtype, e4m3b15, accumulate)
    for dtype, e4m3b15 in (("float16", 0), ("bfloat16", 0), ("float8e4m3", 0), ("float8e5m2", 0), ("uint8", 1))
    for accumulate in ("fp32", "fp16", "own")
    if (dtype, accumulate) not in (("bfloat16", "fp16"), ("float16", "fp16"))
]
# Bits of exponent and mantissa, and the bias.
SHAPES = {"float16": (5, 10, 15), "bfloat16": (8, 7, 127), "float8e4m3": (4, 3, 7), "float8e5m2": (5, 2, 15), "uint8": (4, 3, 15)}


def table(dtype):
    """The value of every bit pattern that is a number."""
    exponents, mantissas, bias = SHAPES[dtype]
    values = {}
    for bits in range(1 << (1 + exponents + mantissas)):
        exponent, mantissa = bits >> mantissas & ((1 << exponents) - 1), bits & ((1 << mantissas) - 1)
        if exponent == (1 << exponents) - 1 and not (dtype == "uint8" or (dtype == "float8e4m3" and mantissa < 7)):
            continue
        size = (mantissa / (1 << mantissas) + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)
        values[bits] = -size if bits >> (exponents + mantissas) else size
    return values


def main():
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    nccl = _nccl.Nccl()
    unique_id = nccl.unique_id()
    inputs, results, errors = {}, [{} for _ in range(ranks)], []
    values = {dtype: table(dtype) for dtype in SHAPES}
    seeded = random.Random(1)
    for dtype in SHAPES:
        most = 1.8 / ranks if dtype == "uint8" else 1e9
        # Any pattern near to a random number will do: patterns of one sign are in the order of their values.
        half = 1 << (sum(SHAPES[dtype][:2]))
        order = sorted((bits for bits, value in values[dtype].items() if bits < half and value <= most), key=values[dtype].get)
        sizes = [values[dtype][bits] for bits in order]
        inputs[dtype] = []
        for _ in range(ranks):
            picked = []
            for _ in range(COUNT):
                wanted = abs(seeded.gauss(0, 0.125))
                low, high = 0, len(order)
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if sizes[middle] <= wanted else (low, middle)
                picked.append(order[low] + half * (seeded.random() < 0.5))
            inputs[dtype].append(picked)

    def one(rank):
        try:
            _nccl.device_set(rank)
            stream, comm = _nccl.Stream(), nccl.init_rank(ranks, unique_id, rank)
            for dtype, e4m3b15, accumulate in FORMATS:
                number = _names.dtype_number(dtype)
                width = _names.DTYPE_BYTES[number]
                buffer = _nccl.Buffer(COUNT * width)
                buffer.write(b"".join(bits.to_bytes(width, "little") for bits in inputs[dtype][rank]))
                op = libshunt.redop("sum", dtype, comm, e4m3b15=bool(e4m3b15), accumulate=accumulate)
                nccl.AllReduce(buffer.address, buffer.address, COUNT, number, op, comm, stream.handle)
                stream.synchronize()
                results[rank][dtype, accumulate] = buffer.read()
                buffer.free()
            nccl.CommDestroy(comm)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    print(f"# {ranks} ranks on {_nccl.device_kind()}, {COUNT} sums")
    print("| elements | accumulated in | largest error | mean error | other than fp32's | checksum |\n|---|---|---|---|---|---|")
    for dtype, e4m3b15, accumulate in FORMATS:
        data = results[0][dtype, accumulate]
        assert all(result[dtype, accumulate] == data for result in results), "ranks differ"
        width, known = _names.DTYPE_BYTES[_names.dtype_number(dtype)], values[dtype]
        got = [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]
        exact = [sum(known[inputs[dtype][rank][i]] for rank in range(ranks)) for i in range(COUNT)]
        unit = statistics.pstdev(exact)
        off = [abs(known[bits] - value) / unit for bits, value in zip(got, exact, strict=True)]
        plain = results[0][dtype, "fp32"]
        other = sum(data[i : i + width] != plain[i : i + width] for i in range(0, len(data), width))
        print(
            f"| {'e4m3b15' if e4m3b15 else dtype} | {accumulate} | {max(off):.2g} | {statistics.mean(off):.2g} "
            f"| {100 * other / COUNT:.1f} % | `{zlib.crc32(data):08x}` |"
        )


main()
