# SPDX-License-Identifier: MIT
"""
A rank that uses MSCCL++'s run-time API: a group by rank 0's address, programs that are compiled and executed, a plan in
a file, Shunt's own algorithms. The environment is torchrun's; the arguments are rank 0's port and a folder.
"""

import os
import struct
import sys

import mscclpp
import mscclpp.ext
import mscclpp.utils
from libshunt import _lib
from mscclpp.language import AlgoSpec, AllGather, AllReduce, CollectiveProgram, MemoryChannel, Rank, SyncType

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
COUNT = 4096 * SIZE


def everywhere(channels, ranks):
    for rank in range(ranks):
        for peer in range(ranks):
            if peer != rank:
                channels[rank, peer].signal(0, data_sync=SyncType.before)
        for peer in range(ranks):
            if peer != rank:
                channels[rank, peer].wait(0, data_sync=SyncType.after)


def allreduce(spec, by_reading=True):
    n = spec.world_size
    with CollectiveProgram.from_spec(spec) as program:
        channels = {(r, p): MemoryChannel(p, r) for r in range(n) for p in range(n) if p != r}
        everywhere(channels, n)
        for rank in range(n):
            own = Rank(rank).get_input_buffer()[rank : rank + 1]
            others = [p for p in range(n) if p != rank]
            for peer in others:
                channels[rank, peer].reduce(own, [Rank(peer).get_input_buffer()[rank : rank + 1]], tb=0)
            for peer in others:
                channels[rank, peer].put(Rank(peer).get_input_buffer()[rank : rank + 1], own, tb=0)
        everywhere(channels, n)
    return program


def allgather(spec):
    n = spec.world_size
    with CollectiveProgram.from_spec(spec) as program:
        channels = {(r, p): MemoryChannel(p, r) for r in range(n) for p in range(n) if p != r}
        everywhere(channels, n)
        for rank in range(n):
            own = Rank(rank).get_output_buffer()[rank : rank + 1]
            for peer in range(n):
                if peer != rank:
                    channels[rank, peer].put(Rank(peer).get_output_buffer()[rank : rank + 1], own, tb=0)
        everywhere(channels, n)
    return program


def spec(name, collective, **more):
    return AlgoSpec(
        name=name,
        collective=collective,
        nranks_per_node=SIZE,
        world_size=SIZE,
        in_place=True,
        instances=2,
        protocol="Simple",
        tags={"mine": 1},
        **more,
    )


def group(port):
    return mscclpp.CommGroup(interfaceIpPortTrio=f"lo:127.0.0.1:{port}", rank=RANK, size=SIZE)


def synchronize():
    """What torch.cuda.synchronize() would do."""
    assert _lib.library(private=True).shunt_stream_synchronize(None) == 0


def fill(buffer, factor):
    buffer.write(struct.pack(f"{COUNT}f", *(factor * (RANK + 1) + i % 7 for i in range(COUNT))))


def check_sum(buffer, factor):
    synchronize()
    found = struct.unpack(f"{COUNT}f", buffer.read())
    total = factor * SIZE * (SIZE + 1) // 2
    assert all(value == total + SIZE * (i % 7) for i, value in enumerate(found)), found[:8]


def run(algorithm, comm, buffer, **more):
    return algorithm.execute(
        comm=comm.communicator,
        input_buffer=buffer.data(),
        output_buffer=buffer.data(),
        input_size=buffer.bytes(),
        output_size=buffer.bytes(),
        stream=0,
        **{"dtype": mscclpp.DataType.float32, **more},
    )


def main(port, folder):
    algorithm = mscclpp.compile(algo=allreduce, algo_spec=spec("mine", AllReduce(SIZE, 1, True)), rank=RANK)
    assert algorithm.is_dsl_algorithm() and algorithm.tags == {"mine": 1} and algorithm.collective == "allreduce"
    comm, other = group(port), group(port)
    assert (comm.my_rank, comm.nranks, comm.nranks_per_node) == (RANK, SIZE, SIZE)
    comm.barrier()
    executor = mscclpp.Executor(comm.communicator)
    buffer = mscclpp.RawGpuBuffer(4 * COUNT)

    # Compiled, on two groups at once.
    for step in range(2):
        for one in (comm, other):
            fill(buffer, step + 1)
            assert run(algorithm, one, buffer, executor=executor, op=mscclpp.ReduceOp.SUM) == 0
            check_sum(buffer, step + 1)

    # Compiled when the group has been used already; of the same name, and for an all-gather.
    later = mscclpp.compile(allreduce, spec("mine", AllReduce(SIZE, 1, True), num_threads_per_block=64), RANK)
    fill(buffer, 5)
    run(later, comm, buffer)
    check_sum(buffer, 5)
    gather = mscclpp.compile(allgather, spec("gather", AllGather(SIZE, 1, True)), RANK)
    part = 4 * COUNT // SIZE
    fill(buffer, 3)
    mine = buffer.read()[RANK * part : (RANK + 1) * part]
    gather.execute(
        comm.communicator, buffer.data() + RANK * part, buffer.data(), part, 4 * COUNT, mscclpp.DataType.float32
    )
    synchronize()
    assert comm.bootstrap.all_gather(mine) == [buffer.read()[r * part : (r + 1) * part] for r in range(SIZE)]

    # The executor, with a plan in a file.
    path = os.path.join(folder, f"plan-{RANK}.json")
    with open(path, "w") as file:
        file.write(allreduce(spec("filed", AllReduce(SIZE, 1, True))).to_json())
    plan = mscclpp.ExecutionPlan(path, RANK)
    assert (plan.name, plan.collective, plan.min_message_size) == ("filed", "allreduce", 0)
    fill(buffer, 7)
    executor.execute(
        RANK,
        buffer.data(),
        buffer.data(),
        4 * COUNT,
        4 * COUNT,
        mscclpp.DataType.float32,
        plan,
        0,
        mscclpp.PacketType.LL8,
    )
    check_sum(buffer, 7)

    # Shunt's algorithms, under MSCCL++'s names, and with a geometry.
    defaults = mscclpp.ext.AlgorithmCollectionBuilder().build_default_algorithms(buffer.data(), buffer.bytes(), RANK)
    for name in ("default_allreduce_nvls_packet", "default_allreduce_packet", "default_allreduce_rsag"):
        (default,) = [one for one in defaults.get_by_collective("allreduce") if one.name == name]
        for geometry in ({}, {"nblocks": 2, "nthreads_per_block": 128}):
            fill(buffer, 2)
            run(default, comm, buffer, op=mscclpp.ReduceOp.SUM, **geometry)
            check_sum(buffer, 2)

    # 1/4 of each rank with bias 15; 256 + 1 + 1: 258, or 256 in bfloat16 itself, in the order of ranks, not of a plan.
    bf16, b15 = mscclpp.DataType.bfloat16, mscclpp.DataType.float8_e4m3b15

    def summed(one, bits, dtype, **more):
        buffer.write(bits[RANK > 0].to_bytes(2, "little") * (buffer.bytes() // 2))
        run(one, comm, buffer, dtype=dtype, op=mscclpp.ReduceOp.SUM, **more)
        synchronize()
        return int.from_bytes(buffer.read()[:2], "little")

    for one in (algorithm, default):
        for accum_dtype in (None, mscclpp.DataType.float16):
            quarters = summed(one, [0x6868, 0x6868], b15, accum_dtype=accum_dtype)
            assert quarters == {2: 0x7070, 3: 0x7474}[SIZE], (one.name, quarters)
        assert summed(one, [0x4380, 0x3F80], bf16) == {2: 0x4380, 3: 0x4381}[SIZE], one.name
        own = summed(one, [0x4380, 0x3F80], bf16, accum_dtype=bf16)
        assert own == 0x4380 or (one is algorithm and own == 0x4381), (one.name, own)

    # What cannot be done is said.
    for wrong, says in (
        (
            lambda: run(algorithm, comm, buffer, accum_dtype=mscclpp.DataType.float16),
            "accum_dtype is float16, for elements of float32: it is None, AUTO, float32",
        ),
        (lambda: run(algorithm, comm, buffer, op=mscclpp.ReduceOp.MIN), "mine computes sum, not min"),
        (
            lambda: mscclpp.compile_native("k", "k.cu"),
            "k.cu: kernels for MSCCL++'s channels do not run here: write the kernel over for libshunt.algorithm()",
        ),
        (lambda: mscclpp.PortChannel, "Shunt's mscclpp has no PortChannel"),
        (lambda: algorithm.set_message_size_range(0, 1), "the sizes of a plan"),
    ):
        try:
            wrong()
        except (RuntimeError, TypeError, AttributeError) as error:
            assert says in str(error), error
        else:
            raise AssertionError(says)
    comm.barrier()
    print(f"rank {RANK}: all is well")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
