# SPDX-License-Identifier: MIT
"""MSCCL++'s run-time API: groups, compiled programs, executors, collections and selectors, on the sim."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable
from typing import Any

from helper import in_child
from libshunt import Error, compat

compat.enable()
import mscclpp  # noqa: E402
from mscclpp import _bootstrap  # noqa: E402

SHUNT = os.path.join(os.environ["TEST_BUILD"], "tools", "shunt")
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
LIMIT_S = 100


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(ranks: int, program: str, *args: str) -> list[tuple[int, str, str]]:
    """Status, stdout and stderr of each rank."""
    command = [
        SHUNT,
        "run",
        "--mscclpp",
        "--device",
        "sim",
        "--",
        sys.executable,
        os.path.join(PROGRAMS, program),
        *args,
    ]
    env = dict(os.environ, WORLD_SIZE=str(ranks))
    started = [
        subprocess.Popen(command, env=dict(env, RANK=str(r)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for r in range(ranks)
    ]
    outs = [one.communicate(timeout=LIMIT_S) for one in started]
    return [(one.returncode, out, err) for one, (out, err) in zip(started, outs, strict=True)]


def on_threads(*bodies: Callable[[], Any]) -> list[Any]:
    """What each returns, or the exception that it raised."""
    results: list[Any] = [None] * len(bodies)

    def one(i: int) -> None:
        try:
            results[i] = bodies[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    return results


class Api(unittest.TestCase):
    def test_group(self) -> None:
        for ranks in (2, 3):
            with tempfile.TemporaryDirectory() as folder:
                for status, out, err in run_ranks(ranks, "mscclpp_comm.py", str(free_port()), folder):
                    self.assertEqual(status, 0, err)
                    self.assertIn("all is well", out)

    def test_nccl_calls(self) -> None:
        """The selector's plan runs, and it is asked once; with a wrong one, or without any, calls go on."""
        for how, says in (
            ("selector", "3 calls by mine, asked 1"),
            ("registry", "3 calls by mine, asked 1"),
            ("wrong", "3 calls by mine, asked 0"),
            ("reset", "3 calls by (?!mine)"),
        ):
            with self.subTest(how), tempfile.TemporaryDirectory() as folder:
                for status, out, err in run_ranks(2, "mscclpp_nccl_api.py", os.path.join(folder, "id"), how):
                    self.assertEqual(status, 0, err)
                    self.assertRegex(out, says)
                    self.assertEqual("a selector has no rank: it differs from rank to rank" in err, how == "wrong")

    def test_buffers(self) -> None:
        buffer = mscclpp.RawGpuBuffer(64)
        buffer.write(bytes(range(64)))
        capsule = buffer.to_dlpack(data_type="torch.float16", shape=[4, 8])
        self.assertIn('capsule object "dltensor"', repr(capsule))
        del buffer  # the capsule keeps the memory
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        managed = get(capsule, b"dltensor")
        (data,) = struct.unpack("P", ctypes.string_at(managed, 8))
        self.assertEqual(ctypes.string_at(data, 64), bytes(range(64)))
        with self.assertRaisesRegex(Error, "needs more than the buffer's 64 bytes"):
            mscclpp.RawGpuBuffer(64).to_dlpack("torch.float32", [17])
        with self.assertRaisesRegex(Error, "there is no data type torch.complex64"):
            mscclpp.RawGpuBuffer(64).to_dlpack("torch.complex64")
        array = mscclpp.GpuBuffer((3, 5), dtype="float32")
        self.assertEqual((array.nbytes, array.data.ptr), (60, array.data_ptr()))
        with self.assertRaises(ValueError):
            mscclpp.GpuBuffer(0)

    def test_compile(self) -> None:
        from mscclpp.language import AlgoSpec, AllReduce, CollectiveProgram, MemoryChannel

        def stuck(spec: Any) -> CollectiveProgram:
            with CollectiveProgram.from_spec(spec) as program:
                for rank in range(2):
                    channel = MemoryChannel(1 - rank, rank)
                    channel.wait(0)
                    channel.signal(0)
            return program

        spec = AlgoSpec("stuck", AllReduce(2, 1, True), 2, 2, True, 1, "Simple")
        with self.assertRaisesRegex(RuntimeError, r"test_mscclpp_api.py:\d+: stuck: .*waits in a cycle"):
            mscclpp.compile(stuck, spec, 0)
        with self.assertRaisesRegex(Error, "returned None, expected its CollectiveProgram"):
            mscclpp.compile(lambda spec: None, spec, 0)
        with self.assertRaises(ValueError):
            mscclpp.compile(None, spec, 0)
        with self.assertRaisesRegex(Error, "cannot read the plan /none.json: No such file"):
            mscclpp.ExecutionPlan("/none.json", 0)


class DefaultAlgos(unittest.TestCase):
    def test_values(self) -> None:
        from mscclpp import default_algos
        from mscclpp.language import AlgoSpec, AllGather, AllReduce, ReduceScatter

        for build, collective in (
            (default_algos.allgather_multi_nodes, AllGather),
            (default_algos.allreduce_multi_nodes, AllReduce),
            (default_algos.reducescatter_multi_nodes, ReduceScatter),
        ):
            for ranks, node, size, inplace in ((2, 1, 1, True), (4, 2, 2, False), (4, 4, 1, True), (8, 2, 1, False)):
                spec = AlgoSpec(
                    name="hosts",
                    collective=collective(ranks, 1, inplace),
                    nranks_per_node=node,
                    world_size=ranks,
                    in_place=inplace,
                    instances=1,
                    protocol="LL",
                    auto_sync=False,
                    reuse_resources=True,
                    use_double_scratch_buffer=True,
                )
                with self.subTest(build.__name__, ranks=ranks, node=node):
                    program = build(spec, thread_block_group_size=size)
                    program.verify()
                    program.run(1920 * ranks)
            with self.assertRaisesRegex(ValueError, "protocol is 'Simple', expected 'LL'"):
                build(AlgoSpec("hosts", collective(2), 2, 2, False, 1, "Simple"))

    def test_install(self) -> None:
        """The default plans are in the cache and are taken; other plans there stay."""

        def install(cache: str, *arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "mscclpp", *arguments]
            path = os.pathsep.join([compat._HERE, os.environ["PYTHONPATH"]])
            env = dict(os.environ, SHUNT_CACHE_DIR=cache, PYTHONPATH=path)
            return subprocess.run(command, capture_output=True, text=True, env=env, timeout=LIMIT_S)

        with tempfile.TemporaryDirectory() as cache:
            folder = os.path.join(cache, "default")
            os.mkdir(folder)
            with open(os.path.join(folder, "mine.json"), "w", encoding="utf-8") as file:
                file.write("{}")
            done = install(cache, "--install")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"4 plans are in {folder}: ", done.stdout)
            plans = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name != "mine.json"]
            self.assertEqual(len(plans), 4)
            subprocess.run([SHUNT, "plan", "check", *plans], check=True, capture_output=True, timeout=LIMIT_S)
            for hosts, size, name in (("2", "4K", "2nodes_1K_64K"), ("4", "1M", "4nodes_128K_2M")):
                said = subprocess.run(
                    [SHUNT, "info", "select", "--standalone", "--hosts", hosts, "--local", "8", size],
                    capture_output=True,
                    text=True,
                    env=dict(os.environ, SHUNT_CACHE_DIR=cache),
                    timeout=LIMIT_S,
                ).stdout
                self.assertIn(f"allreduce_{name}  (plan, {folder}/", said)
            self.assertIn("4 plans were removed", install(cache, "--uninstall").stdout)
            self.assertEqual(os.listdir(folder), ["mine.json"])
            done = install(os.path.join(folder, "mine.json"), "--install")
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
            self.assertRegex(
                done.stderr, "^mscclpp: cannot write .*mine.json.*: Not a directory: SHUNT_CACHE_DIR names"
            )
            self.assertEqual(install(cache).returncode, 2)

    def test_small_names(self) -> None:
        self.assertTrue(os.path.isfile(os.path.join(mscclpp.get_lib(), "libshunt.so")))
        self.assertTrue(os.path.isfile(os.path.join(mscclpp.get_include(), "shunt", "shunt.h")))
        self.assertFalse(mscclpp.is_bulk_supported())
        self.assertEqual(mscclpp.ErrorCode.Timeout.name, "Timeout")
        mscclpp.npkit.init(0)
        mscclpp.npkit.shutdown()
        with self.assertRaisesRegex(AttributeError, "Shunt's mscclpp has no Fifo"):
            _ = mscclpp.Fifo


class Bootstrap(unittest.TestCase):
    def group(self, ranks: int) -> list[Any]:
        boots = [mscclpp.TcpBootstrap(rank, ranks) for rank in range(ranks)]
        unique_id = boots[0].create_unique_id()
        self.assertEqual(on_threads(*(lambda b=b: b.initialize(unique_id) for b in boots)), [None] * ranks)
        for boot in boots:
            self.addCleanup(boot.close)
        return boots

    def test_messages(self) -> None:
        boots = self.group(3)
        self.assertEqual([boot.get_n_ranks_per_node() for boot in boots], [3, 3, 3])
        for _ in range(3):
            found = on_threads(*(lambda b=b: b.all_gather(bytes([b.get_rank()]) * b.get_rank()) for b in boots))
            self.assertEqual(found, [[b"", b"\1", b"\2\2"]] * 3)
        boots[1].send(b"first", 2, 5)
        boots[1].send(b"other", 2, 6)
        boots[1].send(b"second", 2, 5)
        self.assertEqual([boots[2].recv(1, tag) for tag in (6, 5, 5)], [b"other", b"first", b"second"])
        boots[1].send(b"self", 1, 0)
        self.assertEqual(boots[1].recv(1, 0), b"self")
        with self.assertRaisesRegex(Error, "rank 3: expected 0 to 2"):
            boots[0].recv(3, 0)

    def test_rank_that_leaves(self) -> None:
        """What it has sent arrives; who waits for more is told."""
        boots = self.group(3)
        boots[1].send(b"last", 2, 0)
        boots[1].close()
        self.assertEqual(boots[2].recv(1, 0), b"last")
        for one in (boots[0], boots[2]):
            with self.assertRaisesRegex(Error, "rank 1 of the group has left"):
                one.recv(1, 0)
        boots[0].close()
        with self.assertRaisesRegex(Error, "rank 0 of the group has left"):
            boots[2].barrier()

    def test_forked_child(self) -> None:
        """It has no copies of the sockets, is told so, and its end leaves the parent's group alone."""
        boots = self.group(2)
        sockets = [peer.socket for boot in boots for peer in boot._peers.values()]
        numbers = [one.fileno() for one in sockets]
        buffer = mscclpp.RawGpuBuffer(4096)

        def child() -> None:
            nonlocal buffer
            for number in numbers:
                with self.assertRaises(OSError):
                    os.fstat(number)
            for call in (lambda: boots[1].send(b"", 0, 0), lambda: boots[1].recv(0, 0), boots[0].barrier):
                with self.assertRaisesRegex(Error, "the group is that of the parent of this process"):
                    call()
            del buffer
            for boot in boots:
                boot.close()

        self.assertEqual(in_child(child), 0)
        boots[0].send(b"still", 1, 0)
        self.assertEqual(boots[1].recv(0, 0), b"still")

    def test_strangers(self) -> None:
        """They neither take a place nor hold anyone up."""
        boots = [mscclpp.TcpBootstrap(rank, 2) for rank in range(2)]
        unique_id = boots[0].create_unique_id()
        port = struct.unpack_from("<H", unique_id, 16)[0]
        host = unique_id[18:].decode()
        strangers = []
        for hello in (
            b"",
            b"GET / HTTP/1.1\r\n\r\n" * 8,
            _bootstrap._GREETING.pack(_bootstrap._MAGIC, bytes(16), 1, 2),
        ):
            stranger = socket.create_connection((host, port))
            stranger.sendall(hello)
            strangers.append(stranger)
        self.assertEqual(on_threads(*(lambda b=b: b.initialize(unique_id) for b in boots)), [None, None])
        for one in (*strangers, *boots):
            one.close()

    def test_what_does_not_fit(self) -> None:
        trio = f"lo:127.0.0.1:{free_port()}"
        first, second = mscclpp.TcpBootstrap(0, 2), mscclpp.TcpBootstrap(1, 3)
        limit, _bootstrap.FORM_S = _bootstrap.FORM_S, 1.0
        try:
            here, there = on_threads(lambda: first.initialize(trio), lambda: second.initialize(trio))
            self.assertRegex(str(there), "the group has 2 ranks, and rank 1 says 3")
            self.assertRegex(str(here), r"ranks \[1\] have not come within 1 s")
            with self.assertRaisesRegex(Error, "rank 0 of the group does not answer"):
                mscclpp.TcpBootstrap(1, 2).initialize(trio)
        finally:
            _bootstrap.FORM_S = limit
            first.close()
        for text in ("127.0.0.1:5", "lo:127.0.0.1:port", "lo:127.0.0.1:70000"):
            with self.assertRaisesRegex(Error, "is no INTERFACE:ADDRESS:PORT"):
                mscclpp.TcpBootstrap(0, 1).initialize(text)
        with self.assertRaisesRegex(Error, "rank 2 of 2 ranks"):
            mscclpp.TcpBootstrap(2, 2)
        with self.assertRaisesRegex(Error, r"CommGroup\(\) needs"):
            mscclpp.CommGroup()


if __name__ == "__main__":
    unittest.main()
