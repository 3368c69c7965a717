# SPDX-License-Identifier: MIT
"""A program as one writes it for MSCCL++: its imports, names in both their homes, arguments, the plan on stdout."""

import argparse

import mscclpp
import mscclpp.language
from mscclpp.language import *  # noqa: F403
from mscclpp.language.channel import BufferType, MemoryChannel, SwitchChannel, SyncType
from mscclpp.language.collectives import AllReduce
from mscclpp.language.general import JSON
from mscclpp.language.internal.types import ReduceOperationType
from mscclpp.language.program import CollectiveProgram
from mscclpp.language.rank import Rank
from mscclpp.language.utils import AlgoSpec


def allreduce(spec: AlgoSpec) -> CollectiveProgram:
    assert mscclpp.AlgoSpec is mscclpp.language.AlgoSpec is AlgoSpec
    ranks = spec.world_size
    with CollectiveProgram.from_spec(spec) as program:
        switch = SwitchChannel(rank_list=list(range(ranks)), buffer_type=BufferType.input)
        channels = {}
        for rank in range(ranks):
            for peer in range(ranks):
                if peer != rank:
                    channels[peer, rank] = MemoryChannel(peer, rank)
        for step in range(2):
            for rank in range(ranks):
                for peer in range(ranks):
                    if peer != rank:
                        channels[peer, rank].signal(tb=0, relaxed=True, data_sync=SyncType.before)
                for peer in range(ranks):
                    if peer != rank:
                        channels[peer, rank].wait(tb=0, relaxed=True, data_sync=SyncType.after)
                if step == 0:
                    own = Rank(rank).get_input_buffer()[rank : rank + 1]
                    view = switch.at_rank(rank)
                    view.reduce(buffer_offset=rank, size=1, dst_chunk=own, tb=0, reduce_op=ReduceOperationType.sum)
                    view.broadcast(src_chunk=own, buffer_offset=rank, size=1, tb=0)
        print(JSON())
    return program


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", type=str)
    parser.add_argument("--num_gpus", type=int)
    args = parser.parse_args()
    allreduce(
        AlgoSpec(
            name=args.name,
            collective=AllReduce(args.num_gpus, 1, True),
            nranks_per_node=args.num_gpus,
            world_size=args.num_gpus,
            in_place=True,
            instances=2,
            protocol="Simple",
        )
    )
