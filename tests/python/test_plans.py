# SPDX-License-Identifier: MIT
"""Plans and selectors from Python, on the sim: ranks are threads, or interpreters of their own."""

import contextlib
import io
import json
import os
import subprocess
import tempfile
import threading
import unittest
import warnings
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import libshunt
from helper import Case, Rank, in_child, on_ranks, run_python
from libshunt import _fork, _loader, _names, _nccl

COMMAND = libshunt.command_path()


def new_plan(name: str, shape: str = "oneshot-ll", collective: str = "all_reduce") -> str:
    """The text of a plan for two ranks, for all sizes that its shape admits."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        subprocess.run([COMMAND, "plan", "new", collective, shape, "-n", "2", "-o", path], check=True)
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
    plan["name"] = name
    return json.dumps(plan)


PLAN = new_plan("from_text")


class Program:
    """As a program of a language for plans."""

    name = "program"

    def to_json(self) -> str:
        return json.dumps(dict(json.loads(PLAN), name="from_program"))


class Forks(Case):
    """A child that a data loader forks while other threads are anywhere in the package."""

    def selects(self) -> None:
        libshunt.select(lambda call: None)
        self.assertEqual(libshunt.plan(PLAN), "from_text")
        with libshunt.force("allreduce:0-inf:oneshot"):
            self.assertEqual(libshunt.communicators(), [])
        libshunt.select(None)

    def test_locks_of_other_threads_are_free_in_a_child(self) -> None:
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with contextlib.ExitStack() as stack:
                for lock in _fork._locks:
                    stack.enter_context(lock)
                held.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        try:
            self.assertEqual(in_child(self.selects), 0)
            self.assertTrue(all(lock._lock.locked() for lock in _fork._locks))
        finally:
            done.set()
            thread.join()
        self.assertGreaterEqual(len(_fork._locks), 3)
        self.selects()

    def test_a_fork_waits_for_a_look_at_the_loader(self) -> None:
        """The loader has a lock of its own, which it holds while it calls back, and which nobody frees in a child."""
        inside, end = threading.Event(), threading.Event()
        make = _loader._Image

        def image(*what: object) -> object:
            inside.set()
            end.wait()
            return make(*what)

        os.register_at_fork(before=end.set)  # runs ahead of the package's, which was there first
        thread = threading.Thread(target=_loader.needed_by, args=("libnone",))
        with mock.patch.object(_loader, "_Image", image):
            thread.start()
            inside.wait()
            status = in_child(lambda: _loader.needed_by("libnone"))
        thread.join()
        self.assertEqual(status, 0)

    def test_a_lock_of_the_thread_that_forks(self) -> None:
        """As in a handler of a signal: the block ends in both processes."""
        lock, before = _fork.Lock(), _fork.generation()

        def child() -> None:
            self.assertEqual(_fork.generation(), before + 1)
            self.assertEqual(in_child(lambda: self.assertEqual(_fork.generation(), before + 2)), 0)

        lock.__enter__()
        self.assertEqual(in_child(lambda: lock.__exit__(None, None, None)), 0)
        lock.__exit__(None, None, None)
        self.assertFalse(lock._lock.locked())
        self.assertEqual(in_child(child), 0)
        _fork._locks.remove(lock)


class Plans(Case):
    def setUp(self) -> None:
        self.addCleanup(libshunt.select, None)
        for plan in libshunt.plans():
            libshunt.unregister(plan.name)

    def test_sources(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mine.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(dict(json.loads(PLAN), name="from_file"), file)
            self.assertEqual(libshunt.plan(path), "from_file")
            self.assertEqual(libshunt.plan(os.fsencode(PLAN)), "from_text")
            self.assertEqual(libshunt.plan(dict(json.loads(PLAN), name="from_dict")), "from_dict")
            self.assertEqual(libshunt.plan(Program()), "from_program")
            self.assertEqual(libshunt.plan(PLAN), "from_text")  # the same again changes nothing
            found = libshunt.plans()
        self.assertEqual([plan.name for plan in found], ["from_file", "from_text", "from_dict", "from_program"])
        self.assertEqual(found[0].source, path)
        self.assertEqual(found[3].source, "program")
        self.assertEqual((found[1].collective, found[1].nranks, found[1].automatic), ("allreduce", 2, True))
        self.assertEqual(found[1].dtypes, _names.DTYPES)
        self.assertEqual(len(found[1].hash), 16)
        libshunt.unregister("from_dict")
        self.assertEqual(len(libshunt.plans()), 3)
        with self.assertRaisesRegex(libshunt.Error, 'no plan "from_dict"'):
            libshunt.unregister("from_dict")

    def test_wrong_plans_say_where(self) -> None:
        plan = json.loads(PLAN)
        plan["gpus"][0]["threadblocks"][0]["ops"][0]["name"] = "nothing"
        with self.assertRaisesRegex(libshunt.Error, "rank 0, block 0, operation 0"):
            libshunt.plan(plan)
        self.assertFalse(libshunt.verify(plan))
        self.assertIn("operation 0", libshunt.verify(plan).error)
        with self.assertRaisesRegex(libshunt.Error, "cannot read the plan /no/such/file: No such file"):
            libshunt.plan("/no/such/file")
        with self.assertRaisesRegex(libshunt.Error, "a dict or a program with to_json.., not int"):
            libshunt.plan(7)  # type: ignore[arg-type]
        self.assertEqual(libshunt.plans(), [])

    def test_verifying_registers_nothing(self) -> None:
        report = libshunt.verify(PLAN)
        self.assertTrue(report)
        self.assertEqual((report.values["name"], report.values["ranks"]), ("from_text", 2))
        self.assertEqual(libshunt.plans(), [])

    def test_a_plan_takes_calls(self) -> None:
        libshunt.plan(PLAN)

        def body(me: Rank) -> tuple[str, list[libshunt.Count]]:
            me.all_reduce(4096)
            comm = libshunt.describe(me.comm)
            self.assertEqual((comm.state, comm.plans, comm.rank, comm.error), ("ready", 1, me.rank, 0))
            return libshunt.path("all_reduce", 1024, "float32", "sum", me.comm), list(comm.counts)

        for path, counts in on_ranks(2, body):
            self.assertEqual(path, "from_text")
            self.assertEqual(counts, [libshunt.Count("allreduce", "from_text", "", 1, 4096)])

    def test_a_plan_that_comes_late_is_told(self) -> None:
        def body(me: Rank) -> None:
            me.all_reduce(4096)
            if me.rank == 0:
                with self.assertWarnsRegex(UserWarning, "plan from_text comes after the first use of communicator"):
                    libshunt.plan(PLAN)
                with self.assertWarnsRegex(UserWarning, "selector <lambda> comes after .* of 2 ranks"):
                    libshunt.select(lambda call: None)

        on_ranks(2, body)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            libshunt.plan(Program())  # no communicator is there any more


class Selectors(Case):
    def setUp(self) -> None:
        self.addCleanup(libshunt.select, None)
        for plan in libshunt.plans():
            libshunt.unregister(plan.name)

    def test_it_decides_between_plan_native_and_algorithm(self) -> None:
        libshunt.plan(PLAN)
        calls: list[libshunt.Call] = []

        @libshunt.select
        def choose(call: libshunt.Call) -> "str | libshunt.Plan | None":
            calls.append(call)
            if call.bytes == 4096:
                return libshunt.plans()[0]
            return "twoshot@8x256" if call.bytes == 8192 else "native"

        def body(me: Rank) -> dict[str, int]:
            for _ in range(3):
                for nbytes in (1024, 4096, 8192):
                    me.all_reduce(nbytes)
            return {count.path: count.calls for count in libshunt.stats(me.comm)[0].counts}

        for counts in on_ranks(2, body):
            self.assertEqual(counts, {"oneshot": 3, "from_text": 3, "twoshot": 3})
        # Each rank has asked once for each of three distinct calls.
        self.assertEqual(libshunt.asked(), 6)
        self.assertEqual(sorted({call.bytes for call in calls}), [1024, 4096, 8192])
        self.assertEqual(calls[0].plans, ("from_text",))
        self.assertEqual((calls[0].collective, calls[0].nranks, calls[0].dtype, calls[0].redop),
                         ("allreduce", 2, "float32", "sum"))  # fmt: skip

    def test_forgetting_asks_again(self) -> None:
        answer = "simple"
        libshunt.select(lambda call: answer)

        def body(me: Rank) -> list[str]:
            nonlocal answer
            paths = [libshunt.path("allreduce", 256, comm=me.comm)]
            answer = "twoshot"
            paths.append(libshunt.path("allreduce", 256, comm=me.comm))
            libshunt.forget()
            paths.append(libshunt.path("allreduce", 256, comm=me.comm))
            return paths

        self.assertEqual(on_ranks(1, lambda me: libshunt.path("allreduce", 256, comm=me.comm)), ["local"])
        results = on_ranks(2, lambda me: body(me) if me.rank == 0 else None)
        self.assertEqual(results[0], ["simple", "simple", "twoshot"])

    def wrong(self, selector: libshunt._plans.Choose) -> str:
        """What a wrong selector costs: its calls go on, and this stands on stderr."""
        libshunt.select(selector)
        said = io.StringIO()

        def body(me: Rank) -> dict[str, int]:
            for nbytes in (1024, 2048, 4096):
                me.all_reduce(nbytes)
            return {count.path: count.calls for count in libshunt.stats(me.comm)[0].counts}

        with contextlib.redirect_stderr(said):
            for counts in on_ranks(2, body):
                self.assertEqual(counts, {"oneshot": 3})
        return said.getvalue()

    def test_an_exception_costs_one_line(self) -> None:
        def raising(call: libshunt.Call) -> None:
            raise ValueError(f"not {call.collective}")

        self.assert_one_line(self.wrong(raising), "libshunt: the selector raising raised ValueError: not allreduce",
                             "test_plans.py:", "go on without its answer")  # fmt: skip
        self.assertEqual(self.wrong(raising).count("\n"), 1)

    def test_nonsense_costs_one_line(self) -> None:
        self.assertEqual(self.wrong(lambda call: 7).count("returned 7, which is no name of a path and not None"), 1)  # type: ignore[arg-type, return-value]

    def test_a_wrong_name_costs_one_line(self) -> None:
        code = (
            "import libshunt\nfrom helper import on_ranks\nlibshunt.select(lambda call: 'no_such_path')\n"
            "def body(me):\n    [me.all_reduce(n) for n in (1024, 2048, 4096)]\n"
            "    return [c.path for c in libshunt.describe(me.comm).counts]\n"
            "print(on_ranks(2, body))"
        )
        run = run_python(code)
        self.assertEqual(run.stdout, "[['oneshot'], ['oneshot']]\n", run.stderr)
        self.assert_one_line(run.stderr, 'the selector wants "no_such_path" for allreduce', "shunt info -a")

    def test_no_function_is_refused(self) -> None:
        with self.assertRaisesRegex(libshunt.Error, "a selector is a function"):
            libshunt.select("oneshot")  # type: ignore[arg-type]

    def test_it_may_go_with_the_interpreter(self) -> None:
        """Communicators live when it ends, one call runs, and exit handlers call NCCL after the selector has ended."""
        code = """
import atexit, os, sys, threading
ranks = [None, None]
@atexit.register  # before libshunt's own, so it runs after that
def late():
    print([libshunt.path("allreduce", n, comm=ranks[0].comm) for n in (256, 512)], libshunt.asked(), flush=True)

import libshunt
from libshunt import _nccl
from helper import Rank
nccl = _nccl.Nccl()
unique_id = nccl.unique_id()
libshunt.select(lambda call: "simple")
def one(rank):
    ranks[rank] = Rank(nccl, rank, 2, unique_id)
    ranks[rank].all_reduce(1024)
threads = [threading.Thread(target=one, args=(r,)) for r in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
print(libshunt.asked(), flush=True)
"""
        for ending in "", "sys.exit(3)", "raise SystemExit(3)", "os.kill(os.getpid(), 15)", "os._exit(3)":
            with self.subTest(ending=ending):
                run = run_python(code + ending)
                self.assertEqual(run.returncode, {"": 0, "os.kill(os.getpid(), 15)": -15}.get(ending, 3), run.stderr)
                lines = run.stdout.splitlines()
                self.assertEqual(lines[0], "2")
                if ending in ("", "sys.exit(3)", "raise SystemExit(3)"):
                    self.assertEqual(lines[1:], ["['simple', 'oneshot'] 2"])
                    self.assert_one_line(run.stderr, "the selector has been ended")

    def test_processes(self) -> None:
        """The same among interpreters, which find each other by a unique id in a file."""
        code = """
import os, sys, time
import libshunt
from helper import Rank
from libshunt import _nccl
rank, path = int(sys.argv[1]), sys.argv[2]
libshunt.plan(sys.argv[3])
libshunt.select(lambda call: {4096: "from_text", 8192: "twoshot@8x256"}.get(call.bytes, "native"))
nccl = _nccl.Nccl()
if rank == 0:
    with open(path + ".new", "wb") as file:
        file.write(nccl.unique_id())
    os.rename(path + ".new", path)
while not os.path.exists(path):
    time.sleep(0.01)  # pause: poll
me = Rank(nccl, rank, 2, open(path, "rb").read())
for nbytes in (1024, 4096, 8192) * 2:
    me.all_reduce(nbytes)
print({c.path: c.calls for c in libshunt.describe().counts}, libshunt.asked())
"""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "id")
            with ThreadPoolExecutor() as pool:
                runs = list(pool.map(lambda rank: run_python(code, str(rank), path, PLAN), range(2)))
        for run in runs:
            self.assertEqual(run.stdout, "{'oneshot': 2, 'from_text': 2, 'twoshot': 2} 3\n", run.stderr)


class Communicators(Case):
    def test_force(self) -> None:
        def body(me: Rank) -> list[str]:
            if me.rank:
                return []
            paths = [libshunt.path("allreduce", 256, comm=me.comm)]
            with libshunt.force("allreduce:0-:simple"):
                paths.append(libshunt.path("allreduce", 256, comm=me.comm))
                with libshunt.force("allreduce:0-:twoshot"):
                    paths.append(libshunt.path("allreduce", 256, comm=me.comm))
                paths.append(libshunt.path("allreduce", 256, comm=me.comm))
            paths.append(libshunt.path("allreduce", 256, comm=me.comm))
            with self.assertRaisesRegex(libshunt.Error, '"allreduce:oneshot" cannot be used'):
                libshunt.force("allreduce:oneshot").__enter__()
            return paths

        self.assertEqual(on_ranks(2, body)[0], ["oneshot", "simple", "twoshot", "simple", "oneshot"])

    def test_wrong_questions(self) -> None:
        with self.assertRaisesRegex(libshunt.Error, "there is no communicator yet"):
            libshunt.path("allreduce", 1)
        with self.assertRaisesRegex(libshunt.Error, "knows no communicator 0x10"):
            libshunt.describe(16)

        def body(me: Rank) -> None:
            with self.assertRaisesRegex(libshunt.Error, 'no data type "float7": it is one of int8'):
                libshunt.path("allreduce", 1, "float7", comm=me.comm)
            with self.assertRaisesRegex(libshunt.Error, 'no operation "allsum"'):
                libshunt.path("allsum", 1, comm=me.comm)
            with self.assertRaisesRegex(libshunt.Error, 'no operator "xor"'):
                libshunt.path("allreduce", 1, "int8", "xor", comm=me.comm)

        on_ranks(1, body)

    def test_names_are_those_of_the_library(self) -> None:
        source = os.path.join(os.environ["TEST_SOURCE"], "src", "base")
        for file, names in ("dtypes.def", _names.DTYPES), ("ops.def", (*_names.REDOPS, "premulsum")):
            with open(os.path.join(source, file), encoding="utf-8") as rows:
                lines = rows.readlines()
            fields = [line.split("ROW(")[1].split(", ") for line in lines if line.startswith("\tROW(")]
            self.assertEqual(tuple(row[2].strip('"') for row in fields), names)
            if file == "dtypes.def":
                self.assertEqual(tuple(int(row[6]) for row in fields), _names.DTYPE_BYTES)
                formats = [line.split(", ")[2].strip('"') for line in lines if line.startswith("\tFORMAT(")]
                self.assertEqual(tuple(formats), _names.FORMATS)

    def test_numbers_that_nccl_lacks(self) -> None:
        def body(me: Rank) -> bytes:
            libshunt.numerics(me.comm, e4m3b15=True)
            x, y = _nccl.Buffer(2), _nccl.Buffer(2)
            x.write(bytes([0x78, 0x08]))  # 1 and 2 ** -14
            y.write(bytes([0x68, 0x04]))  # 1/4 and 2 ** -15, as float8 e4m3b15
            for at in x, y:
                me.nccl.AllReduce(at.address, at.address, 2, 1, 0, me.comm, me.stream.handle)
            op = libshunt.redop("sum", "float16", me.comm, accumulate="own")
            me.nccl.AllReduce(x.address, y.address, 1, 6, op, me.comm, me.stream.handle)
            me.stream.synchronize()
            me.nccl.RedOpDestroy(op, me.comm)
            with self.assertRaisesRegex(libshunt.Error, "want different numbers"):
                libshunt.numerics(me.comm, accumulate=("own", "fp16")[me.rank])
            with self.assertRaisesRegex(libshunt.Error, "float16 has no such numbers .*e4m3b15 stands for uint8"):
                libshunt.redop("sum", "float16", me.comm, e4m3b15=True)
            return x.read()

        # The largest number is 1.875; 2 ** -13.
        self.assertEqual(on_ranks(2, body), [bytes([0x7F, 0x10])] * 2)

    def test_tables_of_notebooks(self) -> None:
        wrong = libshunt.verify('{"name": "<b>"}')
        self.assertIn("<tr><td>ok</td><td>False</td></tr>", wrong._repr_html_())
        self.assertNotIn("<b>", wrong._repr_html_())
        self.assertIn("<th>collective</th>", libshunt.algorithms()._repr_html_())
        self.assertIn("<td>active</td>", libshunt.status()._repr_html_())
        self.assertEqual([name for name in dir(libshunt) if name in ("Any", "importlib")], [])
        self.assertIn("torch", dir(libshunt))

    def test_algorithms(self) -> None:
        names = [row.name for row in libshunt.algorithms("allreduce")]
        self.assertIn("twoshot", names)
        self.assertGreater(len(libshunt.algorithms()), len(names))
        self.assertTrue(all(row.description for row in libshunt.algorithms()))

    def test_stats_are_a_table(self) -> None:
        def body(me: Rank) -> str:
            me.all_reduce(4096)
            return str(libshunt.stats(me.comm))

        for rank, text in enumerate(on_ranks(2, body)):
            self.assertRegex(
                text, rf"^communicator [0-9a-f]{{8}} rank {rank} of 2: ready\n  allreduce +oneshot +1 calls"
            )
        self.assertEqual(str(libshunt.stats()), "no communicators")

    def test_dump(self) -> None:
        def body(me: Rank) -> str:
            me.all_reduce(4096)
            return libshunt.dump(folder) if me.rank == 0 else ""  # the other one may have ended

        with tempfile.TemporaryDirectory() as folder:
            path = on_ranks(2, body)[0]
            with open(path, encoding="utf-8") as file:
                self.assertIn(len(json.load(file)["communicators"]), (1, 2))
            run = subprocess.run([COMMAND, "doctor", "dumps", folder], capture_output=True, text=True)
            self.assertIn(run.returncode, (0, 1), run.stderr)
        with self.assertRaisesRegex(libshunt.Error, "cannot write a dump into /no/such/folder: No such file"):
            libshunt.dump("/no/such/folder")


if __name__ == "__main__":
    unittest.main()
