#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Programs that others wrote for the real libibverbs, on the library of tests: clients.py LIBRARY programs|pyverbs

ibv_devinfo and ibv_rc_pingpong of Debian's ibverbs-utils, and the writes, sends, reads and atomics of
perftest, each for a few rounds between two hosts of the fabric that are processes here. They find each other over
loopback, in a network namespace of this test where it may make one. pyverbs: the tests of its own that Debian's
python3-pyverbs brings, on InfiniBand and on Ethernet; what the library lacks (datagrams, memory windows) they skip. The
exit status is 77, with the name of what is missing, where something is not installed.
"""
import contextlib
import ctypes
import fcntl
import gzip
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

LIMIT = 120  # seconds for a program
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
ETHERNET = "mlx0 link=roce mtu=1024"
PYVERBS_PYTHON, PYVERBS_TESTS = "/usr/bin/python3", "/usr/share/doc/rdma-core/tests"
PYVERBS_MODULES = "addr atomic cq cq_events device fork mr pd qp relaxed_ordering".split()
PYVERBS_LEAST = 35  # of these tests pass, at least; rdma-core 44 has 38


def own_network():
    """Nobody outside can reach the servers, which listen on all addresses; and no port is taken."""
    flags = CLONE_NEWNET | (0 if os.geteuid() == 0 else CLONE_NEWUSER)
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        return False
    with socket.socket() as s:
        request = fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
        up = struct.unpack("16sh14x", request)[1] | IFF_UP
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", up))
    return True


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def listening(port):
    for name in ("/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"):
        with open(name, encoding="ascii") as table:
            for line in table:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].split(":")[1], 16) == port:
                    return True
    return False


# perftest measures the clock of the CPU behind the data's way, and gives no report if the machine stood still meanwhile.
UNCLOCKED = "Correlation coefficient"


class Machine:
    def __init__(self, library, folder):
        self.folder = folder
        self.env = dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(library), LC_ALL="C")
        self.env["FAKE_IBV_FABRIC"] = os.path.join(folder, "fabric")
        self.count = 0

    def run(self, command, **env):
        done = self.start(command, **env)
        if done.returncode:
            sys.exit("%s ended with %d:\n%s%s" % (" ".join(command), done.returncode, done.stdout, done.stderr))
        return done.stdout

    def start(self, command, **env):
        return subprocess.run(
            command, env=dict(self.env, **env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT
        )

    def pair(self, command, expect, **env):
        """A server on one host, a client on the other; both print what is expected, a regular expression."""
        for _ in range(5):
            status, out, told = self.try_pair(command, **env)
            if UNCLOCKED not in out + told:
                break
        for who, text in (("client", out), ("server", told)):
            if any(status) or not re.search(expect, text):
                sys.exit("%s (statuses %s): the %s printed:\n%s" % (" ".join(command), status, who, text))
        print("ok: %s %s" % (" ".join(command), env.get("FAKE_IBV_DEVICES", "")))

    def try_pair(self, command, **env):
        """The statuses of the client and the server, and what they printed."""
        port = free_port()
        command = command + ["-p", str(port)]
        self.count += 1
        with open(os.path.join(self.folder, "server.%d" % self.count), "w+", encoding="utf-8") as log:
            server = subprocess.Popen(
                command,
                env=dict(self.env, FAKE_IBV_HOST="server", **env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                end = time.monotonic() + LIMIT
                while server.poll() is None and not listening(port) and time.monotonic() < end:
                    time.sleep(0.02)  # pause: poll
                client = self.start(command + ["127.0.0.1"], FAKE_IBV_HOST="client", **env)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.wait(5 if client.returncode else LIMIT)
            finally:
                if server.poll() is None:
                    server.kill()
                    server.wait()
                log.seek(0)
                told = log.read()
        return (client.returncode, server.returncode), client.stdout + client.stderr, told


def devinfo(machine):
    out = machine.run(["ibv_devinfo", "-v"], FAKE_IBV_DEVICES="ib0; eth0 link=roce mtu=1024 atomic=none ports=2")
    for expect in (
        r"hca_id:\s+ib0",
        r"hca_id:\s+eth0",
        r"link_layer:\s+InfiniBand",
        r"link_layer:\s+Ethernet",
        r"active_mtu:\s+1024",
        r"ATOMIC_NONE",
        r"ATOMIC_HCA",
        r"GID\[  3\]:\s+::ffff:10\.[\d.]+, RoCE v2",
        r"port:\s+2",
    ):
        if not re.search(expect, out):
            sys.exit("ibv_devinfo -v does not say %s:\n%s" % (expect, out))
    print("ok: ibv_devinfo -v")


def programs(machine):
    names = ["ibv_devinfo", "ibv_rc_pingpong", "ib_write_bw", "ib_write_lat", "ib_send_lat", "ib_send_bw", "ib_read_lat"]
    for name in names + ["ib_atomic_lat", "ib_atomic_bw"]:
        if not shutil.which(name):
            print("no %s here (Debian's ibverbs-utils and perftest)" % name)
            sys.exit(77)
    if not own_network():
        print("no network namespace: the servers listen on this machine's addresses")
    devinfo(machine)
    pingpong = ["ibv_rc_pingpong", "-n", "100", "-c"]
    machine.pair(pingpong, r"100 iters in")
    machine.pair(pingpong + ["-e"], r"100 iters in")
    machine.pair(pingpong + ["-g", "3", "-m", "1024"], r"100 iters in", FAKE_IBV_DEVICES=ETHERNET)
    # In the middle: of the last acknowledgement nobody asks again when its sender has ended.
    faults = os.path.join(machine.folder, "faults")
    with open(faults, "w", encoding="ascii") as script:
        for at in range(50, 250, 20):
            script.write("at=%d link=client:mlx0 action=drop 2\n" % at)
    fabric = os.path.join(machine.folder, "lossy")
    machine.pair(
        pingpong,
        r"100 iters in",
        FAKE_IBV_FABRIC=fabric,
        FAKE_IBV_FAULTS=faults,
        FAKE_IBV_TIMEOUT_MIN_MS="20",
        FAKE_IBV_PIECE_US="5",
        FAKE_IBV_LATE_READ_US="100",
    )
    row = r"(?m)^ *%d +%d +[\d.]"
    for program in ("ib_write_bw", "ib_send_bw"):
        machine.pair([program, "-n", "50", "-s", "20000"], row % (20000, 50))
    for program in ("ib_write_lat", "ib_send_lat"):
        machine.pair([program, "-n", "50", "-s", "8"], row % (8, 50))
    machine.pair(["ib_send_bw", "-n", "50", "-s", "4096", "-e"], row % (4096, 50))
    machine.pair(["ib_write_bw", "-n", "50", "-s", "4096", "-q", "4"], row % (4096, 200))
    machine.pair(["ib_write_bw", "-n", "50", "-s", "4096", "-x", "3"], row % (4096, 50), FAKE_IBV_DEVICES=ETHERNET)
    # The server only lends its memory, and prints no row.
    machine.pair(["ib_read_lat", "-n", "50", "-s", "8"], r"RDMA_Read Latency Test")
    machine.pair(["ib_atomic_lat", "-n", "50"], r"Atomic FETCH_AND_ADD Latency Test")
    machine.pair(["ib_atomic_lat", "-n", "50", "-A", "CMP_AND_SWAP"], r"Atomic CMP_AND_SWAP Latency Test")
    machine.pair(["ib_atomic_bw", "-n", "50"], r"Atomic FETCH_AND_ADD BW Test")


def pyverbs(machine):
    try:
        subprocess.run([PYVERBS_PYTHON, "-c", "import pyverbs.device"], check=True, stderr=subprocess.DEVNULL)
        names = os.listdir(PYVERBS_TESTS)
    except (OSError, subprocess.CalledProcessError):
        print("no pyverbs with its tests here (Debian's python3-pyverbs)")
        sys.exit(77)
    folder = os.path.join(machine.folder, "tests")
    os.mkdir(folder)
    for name in names:
        path = os.path.join(PYVERBS_TESTS, name)
        with gzip.open(path) if name.endswith(".gz") else open(path, "rb") as source:
            with open(os.path.join(folder, re.sub(r"\.gz$", "", name)), "wb") as copy:
                copy.write(source.read())
    command = [PYVERBS_PYTHON, os.path.join(folder, "run_tests.py"), "-v", "--dev", "mlx0"]
    for devices in ("mlx0", ETHERNET):
        done = subprocess.run(
            command + ["tests.test_" + module for module in PYVERBS_MODULES],
            env=dict(machine.env, FAKE_IBV_DEVICES=devices),
            cwd=machine.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        passed = len(re.findall(r"(?m)(?:\.\.\. |^)ok$", done.stderr))
        if done.returncode or passed < PYVERBS_LEAST:
            sys.exit("%d of pyverbs' tests pass on %s:\n%s%s" % (passed, devices, done.stdout, done.stderr))
        print("ok: %d of pyverbs' tests on %s" % (passed, devices))


def main():
    library, what = os.path.abspath(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        {"programs": programs, "pyverbs": pyverbs}[what](Machine(library, folder))


if __name__ == "__main__":
    main()
