#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""doctor_peer.py drip|full|die: prints its pid, and has the socket that `shunt doctor --pid` asks.

drip: answers a byte a second, for ever. full: takes no connection, and its queue is full.
die: ends when it is asked.
"""
import os
import socket
import sys
import time


def main():
    namespace = os.stat("/proc/self/ns/pid").st_ino
    name = "\0shunt-doctor-%d-%d-%d" % (os.geteuid(), namespace, os.getpid())
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
            return
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
