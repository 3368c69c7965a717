# SPDX-License-Identifier: MIT
"""Programs over port channels: put, signal, flush and their combinations."""

from __future__ import annotations

from libshunt.language import AllGather, AllToAll, CollectiveProgram, PortChannel, Rank, SyncType

from .common import Builder, Mesh, mesh, peers


def _synchronize(n: int, channels: Mesh[PortChannel]) -> None:
    for rank in range(n):
        for peer in peers(n, rank):
            channels[rank, peer].signal(0, SyncType.before)
        for peer in peers(n, rank):
            channels[rank, peer].wait(0, data_sync=SyncType.after)


def _send(how: str) -> Builder:
    def build(n: int) -> CollectiveProgram:
        with CollectiveProgram(f"port_{how}", AllToAll(n, 1), n) as program:
            channels = mesh(n, PortChannel)
            _synchronize(n, channels)
            for rank in range(n):
                this = Rank(rank)
                source = this.get_input_buffer()
                this.copy(this.get_output_buffer()[rank : rank + 1], source[rank : rank + 1], tb=0)
                for peer in peers(n, rank):
                    channel = channels[rank, peer]
                    target, chunk = Rank(peer).get_output_buffer()[rank : rank + 1], source[peer : peer + 1]
                    if how == "signal_and_flush":
                        channel.put_with_signal_and_flush(target, chunk, tb=0)
                    elif how == "signal":
                        channel.put_with_signal(target, chunk, tb=0)
                    else:
                        channel.put(target, chunk, tb=0)
                        channel.signal(tb=0)
                if how != "signal_and_flush":
                    for peer in peers(n, rank):
                        channels[rank, peer].flush(tb=0, data_sync=SyncType.after)
                for peer in peers(n, rank):
                    channels[rank, peer].wait(tb=0)
        return program

    return build


def port_instances(n: int) -> CollectiveProgram:
    with CollectiveProgram("port_instances", AllGather(n, 1, True), n, instances=3) as program:
        channels = mesh(n, PortChannel)
        _synchronize(n, channels)
        for rank in range(n):
            own = Rank(rank).get_output_buffer()[rank : rank + 1]
            for peer in peers(n, rank):
                channels[rank, peer].put_with_signal(Rank(peer).get_output_buffer()[rank : rank + 1], own, tb=0)
            for peer in peers(n, rank):
                channels[rank, peer].flush(0)
            for peer in peers(n, rank):
                channels[rank, peer].wait(0)
    return program


PROGRAMS: list[Builder] = [_send("put"), _send("signal"), _send("signal_and_flush"), port_instances]
