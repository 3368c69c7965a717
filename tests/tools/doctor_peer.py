#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""doctor_peer.py HOW: prints its pid, and has the socket that `shunt doctor --pid` asks.

drip: answers a byte a second, for ever. full: takes no connection, and its queue is full.
old: as a process of an earlier version, which reads no request. newer: as one of a later version.
exec: answers once, and becomes another program. die: ends when it is asked. deaf: closes each connection. reused: another process has its number at the second look. many: has 1,000 communicators.
silent: a call stands, and the first look does not get the device's progress.
ended: rank 1 of two in this process has ended the communicator at the second look.
squat: another user's process, under a name of root's. escape: texts that a terminal would obey.
between: all calls are done at each look, and there are three more at the second one.
creation: the host waits in a creation since a time that its clocks tell to some nanoseconds. young: since nine seconds.
"""

import json
import os
import socket
import sys
import time


def dump(form, *keys, state="running", **device):
    op = {"seq": 6, "number": 6, "kind": "allreduce", "count": 1000, "dtype": "float32", "op": "sum"}
    op |= {"path": "oneshot", "stream": "0x1", "time_ns": 5 * 10**9, "captured": False, "state": state}
    row = {"rank": 0, "nranks": 2, "device": 0, "state": "ready", "calls": 6, "collectives": 6, "captured_calls": 0}
    comms = [{"id": key[:8], "key": key, **row, **device, "operations": [op]} for key in keys]
    for i, comm in enumerate(comms):
        comm["rank"] = keys[:i].count(keys[i])
    head = {"shunt_dump": form, "version": "9.8.7", "host": "node7", "pid": os.getpid(), "pid_namespace": 0}
    head |= {"program": "train", "time_ns": 19 * 10**9, "communicators": comms}
    return json.dumps(head | ({"reason": "asked"} if form > 1 else {})).encode()


def main():
    namespace = os.stat("/proc/self/ns/pid").st_ino
    uid = 0 if sys.argv[1] == "squat" else os.geteuid()
    name = f"\0shunt-doctor-{uid}-{namespace}-{os.getpid()}"
    end = time.monotonic() + 120
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen(0)
        queued = []
        try:
            while sys.argv[1] == "full":
                queued.append(socket.socket(socket.AF_UNIX))
                queued[-1].setblocking(False)
                queued[-1].connect(name)
        except BlockingIOError:
            pass
        print(os.getpid(), flush=True)
        listener.settimeout(120)
        if sys.argv[1] == "die":
            listener.accept()[0].recv(1)
            os._exit(0)  # at once: an interpreter that ends may live longer than the command looks
        while sys.argv[1] == "deaf":
            listener.accept()[0].close()
        progress = {"last": 6, "captured": False, "eager": 6, "replays": 0, "running": True}
        counter = {"op": "allreduce", "path": "oneshot", "reason": "", "bytes": 4000}
        answers = {
            "old": [dump(1, "aaaaaaaa01")],
            "newer": [dump(99, "aaaaaaaa01")],
            "reused": [dump(3, "aaaaaaaa01"), dump(3, "bbbbbbbb01")],
            "silent": [dump(3, "aaaaaaaa01", unresponsive=True), dump(3, "aaaaaaaa01", progress=progress)],
            "between": [
                dump(3, "aaaaaaaa01", "aaaaaaaa01", state="finished", counters=[counter | {"calls": n}]) for n in (6, 9)
            ],
            "creation": [dump(3, "aaaaaaaa01", phase="creation", phase_time_ns=5 * 10**9 + i) for i in (-1, 1)],
            "young": [dump(3, "aaaaaaaa01", phase="creation", phase_time_ns=10 * 10**9)],
            "ended": [dump(3, "aaaaaaaa01", "aaaaaaaa01"), dump(3, "aaaaaaaa01")],
            "squat": [dump(3, "aaaaaaaa01")],
            "exec": [dump(3, "aaaaaaaa01")],
            "escape": [dump(3, "a\x1b[31m\na", error="\x1b[31mE\n", state="\x1b[2J", reason="\x07")],
            "many": [dump(3, *[f"{i:08x}01" for i in range(1000)])],
        }.get(sys.argv[1], [])
        for i in range(100 if answers else 0):
            with listener.accept()[0] as client:
                if sys.argv[1] != "old":
                    client.recv(256)
                client.sendall(answers[i % len(answers)])
            if sys.argv[1] == "exec":
                os.execvp("sleep", ["sleep", "100"])
        if sys.argv[1] == "drip":
            connection = listener.accept()[0]
        while time.monotonic() < end:
            if sys.argv[1] == "drip":
                connection.send(b" ")
            time.sleep(1)  # pause: poll


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        pass
