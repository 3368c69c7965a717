# SPDX-License-Identifier: MIT
"""What the tests of the Python package share: other interpreters, and ranks that are threads, on the sim."""

import os
import signal
import subprocess
import sys
import threading
import traceback
import unittest
import warnings
from collections.abc import Callable
from typing import Any

import build_libshunt
from libshunt import _nccl

LIMIT_S = 100


def run_python(code: str, *arguments: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Runs a program in an interpreter of its own. A variable that is None is unset."""
    env = dict(os.environ)
    # Meson's, with which the loader finds Shunt under NCCL's name.
    env.pop("LD_LIBRARY_PATH", None)
    for name, value in variables.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=LIMIT_S)


def write_entry_points(folder: str) -> None:
    """What other packages find of this one, as its wheel has it, for interpreters with the folder in PYTHONPATH."""
    made = os.path.join(folder, "libshunt-0.dist-info")
    os.mkdir(made)
    for name, text in (
        ("entry_points.txt", build_libshunt.ENTRY_POINTS),
        ("METADATA", "Metadata-Version: 2.1\nName: libshunt\nVersion: 0\n"),
    ):
        with open(os.path.join(made, name), "w", encoding="utf-8") as file:
            file.write(text)


class Rank:
    """One rank of a communicator; a thread of this process."""

    def __init__(self, nccl: _nccl.Nccl, rank: int, nranks: int, unique_id: bytes) -> None:
        _nccl.device_set(rank)
        self.nccl, self.rank, self.nranks = nccl, rank, nranks
        self.stream = _nccl.Stream()
        self.comm = nccl.init_rank(nranks, unique_id, rank)

    def all_reduce(self, nbytes: int) -> None:
        buffer = _nccl.Buffer(nbytes)
        self.nccl.AllReduce(buffer.address, buffer.address, nbytes // 4, 7, 0, self.comm, self.stream.handle)
        self.stream.synchronize()
        buffer.free()

    def end(self) -> None:
        self.nccl.CommDestroy(self.comm)
        self.stream.destroy()


def on_ranks(nranks: int, body: Callable[[Rank], Any]) -> list[Any]:
    """Calls body with each rank of a new communicator, on threads; its results by rank. Raises what one raised."""
    nccl = _nccl.Nccl()
    unique_id = nccl.unique_id()
    results: list[Any] = [None] * nranks
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            me = Rank(nccl, rank, nranks, unique_id)
            results[rank] = body(me)
            me.end()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise AssertionError(f"ranks that are still there after {LIMIT_S} s")
    return results


def in_child(body: Callable[[], None]) -> int:
    """Calls body in a forked child, which has no end of Python's; the exit status, 0 if it raised nothing."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a process with threads forks: that is what is tried
        child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            body()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def variable(name: str) -> str:
    return os.environ[name]


class Case(unittest.TestCase):
    def assert_one_line(self, text: str, *parts: str) -> None:
        """One line of the text has all these parts, and no other line has the first of them."""
        lines = [line for line in text.splitlines() if parts[0] in line]
        self.assertEqual(len(lines), 1, text)
        for part in parts:
            self.assertIn(part, lines[0])
