# SPDX-License-Identifier: MIT
"""
A rank that offers a program to NCCL's calls: a builder, a selector, and then NCCL's all-reduce as a framework calls it.
The environment is torchrun's; the arguments are a file for the unique id, and what the selector does.
"""

import os
import sys
import time

import mscclpp
import mscclpp.ext
from libshunt import _comms, _nccl
from mscclpp.language import AllReduce
from mscclpp_comm import COUNT, RANK, SIZE, allreduce, check_sum, fill, spec

asked = []


def selector(algorithms, request):
    asked.append(request.message_size)
    if request.collective != "allreduce" or request.message_size < 8192:
        return None
    return algorithms["allreduce"]["mine"]


def wrong_selector(algorithms, request):
    return algorithms["allreduce"]["mine"] if request.rank == 0 else None


def unique_id(nccl, path):
    if RANK == 0:
        with open(path + ".new", "wb") as file:
            file.write(nccl.unique_id())
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.01)  # pause: poll
    with open(path, "rb") as file:
        return file.read()


def main(path, how):
    _nccl.device_set(RANK)
    algorithm = mscclpp.compile(algo=allreduce, algo_spec=spec("mine", AllReduce(SIZE, 1, True)), rank=RANK)
    builder = mscclpp.AlgorithmCollectionBuilder()
    assert builder is mscclpp.ext.AlgorithmCollectionBuilder()
    if how == "registry":
        registry = mscclpp.ExecutionPlanRegistry.get_instance()
        registry.register_plan(algorithm)
        registry.set_selector(selector)
    else:
        builder.add_algorithm_builder(algorithm)
        builder.set_fallback_algorithm_selector(lambda algorithms, request: None)
        builder.set_algorithm_selector(wrong_selector if how == "wrong" else selector)
    assert [one.name for one in builder.build()] == ["mine"]
    if how == "reset":
        mscclpp.AlgorithmCollectionBuilder.reset()
        assert len(mscclpp.AlgorithmCollectionBuilder().build()) == 0
    nccl = _nccl.Nccl()
    comm = nccl.init_rank(SIZE, unique_id(nccl, path), RANK)
    buffer = mscclpp.RawGpuBuffer(4 * COUNT)
    for _ in range(3):
        fill(buffer, 1)
        nccl.AllReduce(buffer.data(), buffer.data(), COUNT, 7, 0, comm, None)
        check_sum(buffer, 1)
    (row,) = _comms.describe(comm).counts
    print(f"rank {RANK}: {row.calls} calls by {row.path}, asked {len(asked)}")
    nccl.CommDestroy(comm)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
