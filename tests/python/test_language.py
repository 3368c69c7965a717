# SPDX-License-Identifier: MIT
"""
Programs of programs/: each method with each of its options is proved for 2, 3, 4 and 8 ranks, and gives right values
on the sim for 3, with whole and with short chunks. And what is wrong with a program is said with its line.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from typing import Any

from libshunt import language as L
from libshunt.language.fusion import fuse
from libshunt.language.ops import NOP, Op, Place, Slice
from programs import loops, memory, packets, ports, switches
from programs.common import Builder

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = (memory, packets, ports, switches, loops)
PROGRAMS: list[Builder] = [build for module in MODULES for build in module.PROGRAMS]


def line() -> int:
    """That of the caller."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


class Programs(unittest.TestCase):
    def test_values(self) -> None:
        for build in PROGRAMS:
            for ranks in (2, 3, 4, 8):
                program = build(ranks)
                with self.subTest(program.name, ranks=ranks):
                    report = program.verify()
                    self.assertEqual((report["name"], report["ranks"]), (program.name, ranks))
                    if ranks == 3:
                        self.assertGreaterEqual(len(program.run([9216, 732])), 2)  # 3072 bytes a rank fill all chunks

    def test_methods(self) -> None:
        """All public methods of ranks, channels and semaphores, and all keywords, are used by some program."""
        used: dict[str, set[str]] = {}
        for module in MODULES:
            for node in ast.walk(ast.parse(inspect.getsource(module))):
                if isinstance(node, ast.Call):
                    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                    used.setdefault(name, set()).update(keyword.arg or "" for keyword in node.keywords)
        for kind in (L.Rank, L.MemoryChannel, L.PortChannel, L.SwitchChannel, L.SwitchChannelRankView, L.Semaphore):
            for name, _ in inspect.getmembers(kind, inspect.isfunction):
                former = name.endswith("_packet")
                if not name.startswith("_") and not former:
                    self.assertIn(name, used, f"{kind.__name__}.{name}")
        for keyword in inspect.signature(L.CollectiveProgram).parameters:
            if keyword not in ("name", "collective", "num_ranks", "nranks_per_node", "dtypes"):
                self.assertIn(keyword, used["CollectiveProgram"])

    def test_operations(self) -> None:
        """All that plans know come of some program, and all operators."""
        names, operators = set(), set()

        def look(ops: list[dict[str, Any]]) -> None:
            for op in ops:
                names.add(op["name"])
                operators.add(op.get("reduce_op", "sum"))
                look(op.get("ops", []))

        for build in PROGRAMS:
            for gpu in build(4).plan()["gpus"]:
                for block in gpu["threadblocks"]:
                    look(block["ops"])
        self.assertEqual(names, {word.value for word in L.Instruction})
        self.assertEqual(operators, {word.value for word in L.ReduceOperationType})

    def test_same_bytes(self) -> None:
        """Whatever the order of sets and dictionaries, and however often it is asked for."""
        script = (
            "from programs import memory, packets, ports, switches, loops\n"
            "import hashlib\n"
            "text = ''.join(b(4).to_json() for m in (memory, packets, ports, switches, loops) for b in m.PROGRAMS)\n"
            "print(hashlib.sha256(text.encode()).hexdigest())\n"
        )
        path = os.pathsep.join([HERE, os.environ["PYTHONPATH"]])
        outs = {
            subprocess.run(
                [sys.executable, "-c", script],
                env=dict(os.environ, PYTHONHASHSEED=seed, PYTHONPATH=path),
                check=True,
                capture_output=True,
            ).stdout
            for seed in ("0", "1", "77")
        }
        self.assertEqual(len(outs), 1)
        program = memory.allgather_get(2)
        self.assertEqual(program.to_json(), program.to_json())
        self.assertEqual(program.to_json(), memory.allgather_get(2).to_json())


class Looks(unittest.TestCase):
    def test_show_and_svg(self) -> None:
        program = memory.allgather_put(2)
        self.assertIn("signal to rank 1", program.show(rank=0, block=0))
        self.assertNotIn("rank 1:", program.show(rank=0))
        for picture in (program.svg(), program._repr_svg_(), program.svg(rank=1, all_blocks=True)):
            self.assertTrue(picture.startswith("<svg") or picture.startswith("<?xml"), picture[:80])

    def test_explain(self) -> None:
        program = memory.alltoall(2)
        self.assertRegex(
            program.explain([1024, 1 << 20]), r"1024 +alltoall +\(plan, alltoall's plan\)\n +1048576 +(?!alltoall)"
        )
        self.assertRegex(memory.allgather_put(2).explain(), "allgather_put")
        with self.assertRaisesRegex(L.ProgramError, '^allgather_put: --dtype: there is no "x"; it takes [^\n]*$'):
            memory.allgather_put(2).explain(dtype="x")

    def test_sources(self) -> None:
        """Operations name the lines of the program they come from, fused ones all of them."""
        with L.CollectiveProgram("sources", L.AllReduce(2, 1, True), 2, protocol="LL") as program:
            scratch = L.Buffer(0, 3)
            rank = L.Rank(0)
            first = line() + 1
            rank.reduce(rank.get_input_buffer()[0:1], [scratch[0:1]], tb=0, packet=True)
            rank.copy_packets(scratch[1:2], rank.get_input_buffer()[0:1], tb=0)
        (op,) = program.plan()["gpus"][0]["threadblocks"][0]["ops"]
        self.assertEqual(op["src"], f"test_language.py:{first},{first + 1}")
        (op,) = program.plan(sources=False)["gpus"][0]["threadblocks"][0]["ops"]
        self.assertNotIn("src", op)
        self.assertEqual(json.loads(program.to_json())["gpus"][0]["threadblocks"][0]["ops"][0]["name"], "recpkt")


class Tune(unittest.TestCase):
    def test_choices(self) -> None:
        """Every size is in one choice, and its plan does what it is for; what is wrong does not take part."""

        def build(instances: int, threads: int) -> L.CollectiveProgram:
            with L.CollectiveProgram(
                "tuned", L.AllGather(2, 1, True), 2, instances=instances, num_threads_per_block=threads
            ) as program:
                channels = {rank: L.MemoryChannel(1 - rank, rank) for rank in range(2)}
                for step in range(2):
                    for rank, channel in channels.items():
                        channel.signal(0)
                        channel.wait(0)
                        if step == 0:
                            there = L.Rank(1 - rank).get_output_buffer()[rank : rank + 1]
                            channel.put(there, L.Rank(rank).get_output_buffer()[rank : rank + 1], tb=0)
            return program

        sizes = [1024, 4096, 16384]
        space = {"instances": [1, 2, 0], "threads": [64, 128]}
        choices = L.tune(build, space, sizes, device="sim", graph=False)
        self.assertEqual(sorted(size for choice in choices for size in choice.microseconds), sizes)
        self.assertEqual((choices[0].min_message_size, choices[-1].max_message_size), (1024, 16384))
        for one, other in itertools.pairwise(choices):
            self.assertEqual(one.max_message_size + 1, other.min_message_size)
        with tempfile.TemporaryDirectory() as folder:
            for choice in choices:
                self.assertIn(choice.point["instances"], (1, 2))
                with open(choice.write(folder), encoding="utf-8") as file:
                    self.assertEqual(json.load(file)["min_message_size"], choice.min_message_size)
                runs = choice.program.run(choice.min_message_size)
                self.assertIn(f"<tr><td>{choice.min_message_size}</td><td>in</td><td>", runs._repr_html_())
        self.assertIn("<tr><td>1024</td><td>", choices._repr_html_())
        self.assertIn(f"<td>instances={choices[0].point['instances']}, threads=", choices._repr_html_())
        self.assertIn("<tr><td>ok</td><td>True</td></tr>", choices[0].program.verify()._repr_html_())
        with self.assertRaisesRegex(L.ProgramError, "instances is 0"):
            L.tune(build, {"instances": [0], "threads": [64]}, sizes)
        with self.assertRaisesRegex(L.ProgramError, "without sizes"):
            L.tune(build, space, [])


class Passes(unittest.TestCase):
    """What fusion and synchronization must not do."""

    def names(self, program: L.CollectiveProgram, rank: int = 0, block: int = 0) -> list[str]:
        return [op["name"] for op in program.plan()["gpus"][rank]["threadblocks"][block]["ops"]]

    def block(self, write: Callable[[Any], None], **options: Any) -> list[dict[str, Any]]:
        """The operations of a block in which these calls stand; rank 0's, of two ranks."""

        class Names:
            pass

        with L.CollectiveProgram("block", L.AllReduce(2, 2), 2, protocol="LL", **options) as program:
            names: Any = Names()
            names.rank, names.scratch, names.there = L.Rank(0), L.Buffer(0, 8), L.Buffer(1, 8)
            names.source, names.out = names.rank.get_input_buffer(), names.rank.get_output_buffer()
            names.peer = L.Rank(1).get_output_buffer()
            names.near, names.other, names.port = L.MemoryChannel(1, 0), L.MemoryChannel(1, 0), L.PortChannel(1, 0)
            write(names)
        program.pairs = type(program.pairs)()  # not what these are about
        ops: list[dict[str, Any]] = program.plan()["gpus"][0]["threadblocks"][0]["ops"]
        return ops

    def test_what_becomes_one(self) -> None:
        def signals(n: Any) -> None:
            for channel in (n.other, n.near):
                channel.signal(0, L.SyncType.before)
            for channel in (n.other, n.near):
                channel.wait(0, L.SyncType.after, relaxed=True)

        def gets(n: Any) -> None:
            n.near.get(n.out[0:1], n.peer[0:1], tb=0)
            n.other.get(n.out[1:2], n.peer[1:2], tb=0)

        def puts(n: Any) -> None:
            for i in range(3):
                n.port.put_with_signal(n.peer[i : i + 1], n.source[i : i + 1], tb=0)
            n.port.flush(0, L.SyncType.none)
            n.port.flush(0, L.SyncType.after)

        def sums(n: Any) -> None:
            n.rank.reduce(n.source[0:1], [n.source[1:2]], tb=0, dst_chunk=n.out[0:1])
            n.rank.reduce(n.source[0:1], [n.source[2:3], n.source[3:4]], tb=0, dst_chunk=n.out[0:1])
            n.near.put(n.peer[0:1], n.out[0:1], tb=0)
            n.other.put(n.peer[1:2], n.out[0:1], tb=0)

        def packets(n: Any) -> None:
            n.rank.reduce(n.source[0:1], [n.scratch[0:1]], tb=0, dst_chunk=n.out[0:1], packet=True)
            n.rank.reduce(n.source[0:1], [n.scratch[1:2]], tb=0, dst_chunk=n.out[0:1], packet=True)
            n.rank.copy_packets(n.scratch[2:3], n.out[0:1], tb=0)
            n.near.put_packets(n.there[0:1], n.out[0:1], tb=0)
            n.near.read_put_packets(n.there[1:2], n.scratch[2:3], tb=0)

        def barriers(n: Any) -> None:
            for blocks in ([0], [0, 1], [0]):
                n.rank.barrier(blocks)

        for write, names, sizes in (
            (signals, ["nop", "signal", "rlxwait", "nop"], {"signal": (0, 0), "rlxwait": (0, 0)}),
            (gets, ["get"], {"get": (2, 2)}),
            (puts, ["pws", "flush", "nop"], {"pws": (3, 3)}),
            (sums, ["res"], {"res": (4, 3)}),
            (packets, ["recspkt"], {"recspkt": (3, 4)}),
            (barriers, ["barrier"], {}),
        ):
            with self.subTest(write.__name__):
                ops = self.block(write)
                self.assertEqual([op["name"] for op in ops], names)
                for op in ops:
                    if op["name"] in sizes:
                        slices = (len(op.get("src_buff", [])), len(op.get("dst_buff", [])))
                        self.assertEqual(slices, sizes[op["name"]])
                    if "signal" in op["name"] or "wait" in op["name"]:
                        self.assertEqual(op["channel_ids"], [0, 1])
                whole = self.block(write, instr_fusion=False, auto_sync=False)
                self.assertGreater(len([op for op in whole if op["name"] != "nop"]), len(sizes) - 1)

    def test_what_stays_apart(self) -> None:
        def sizes(n: Any) -> None:
            n.near.put(n.peer[0:1], n.source[0:1], tb=0)
            n.near.put(n.peer[1:3], n.source[1:3], tb=0)

        def kinds(n: Any) -> None:
            n.near.put(n.peer[0:1], n.source[0:1], tb=0)
            n.port.put(n.peer[1:2], n.source[1:2], tb=0)

        def twice(n: Any) -> None:
            n.near.signal(0, L.SyncType.none)
            n.near.signal(0, L.SyncType.none)

        def strengths(n: Any) -> None:
            n.near.signal(0, L.SyncType.none)
            n.other.signal(0, L.SyncType.none, relaxed=True)

        def operators(n: Any) -> None:
            n.rank.reduce(n.source[0:1], [n.source[1:2]], tb=0, op=L.ReduceOperationType.max)
            n.rank.reduce(n.source[0:1], [n.source[2:3]], tb=0, op=L.ReduceOperationType.min)

        def groups(n: Any) -> None:
            n.near.put(n.peer[0:1], n.source[0:1], tb_group=L.ThreadBlockGroup([0, 1]))
            n.near.put(n.peer[1:2], n.source[1:2], tb=0)

        def over_ports(n: Any) -> None:
            n.rank.reduce(n.source[0:1], [n.source[1:2]], tb=0)
            n.port.put(n.peer[1:2], n.source[0:1], tb=0)

        for write, names in (
            (sizes, ["put", "put"]),
            (kinds, ["put", "put"]),
            (twice, ["signal", "signal"]),
            (strengths, ["signal", "rlxsignal"]),
            (operators, ["re", "nop", "re"]),
            (groups, ["put", "put"]),
            (over_ports, ["re", "nop", "put"]),
        ):
            with self.subTest(write.__name__):
                self.assertEqual([op["name"] for op in self.block(write)], names)

    def test_puts_of_two_buffers_stay_apart(self) -> None:
        with L.CollectiveProgram("two", L.AllReduce(2, 1), 2) as program:
            channel = L.MemoryChannel(1, 0)
            there = L.Rank(1).get_output_buffer()
            channel.put(there[0:1], L.Rank(0).get_input_buffer()[0:1], tb=0)
            channel.put(there[1:2], L.Rank(0).get_output_buffer()[0:1], tb=0)
        self.assertEqual(self.names(program), ["put", "put"])

    def test_result_that_is_kept_elsewhere_is_stored(self) -> None:
        with L.CollectiveProgram("kept", L.AllReduce(2, 1, True), 2) as program:
            scratch = L.Buffer(0, 1)
            switch = L.SwitchChannel([0, 1], L.BufferType.input)
            switch.at_rank(0).reduce(0, 1, scratch[0:1], 0)
            switch.at_rank(0).broadcast(scratch[0:1], 0, 1, 0)
        self.assertEqual(self.names(program), ["glre", "nop", "gstore"])

    def test_operand_that_was_written_is_read_again(self) -> None:
        with L.CollectiveProgram("again", L.AllReduce(2, 1, True), 2) as program:
            rank = L.Rank(0)
            buffer = rank.get_input_buffer()
            rank.reduce(buffer[0:1], [buffer[1:2]], tb=0)
            rank.reduce(buffer[0:1], [buffer[0:1]], tb=0)
        self.assertEqual(self.names(program), ["re", "nop", "re"])

    def test_every_conflict_is_seen(self) -> None:
        """The second of two conflicts of an operation, the plain operand of a reduction of packets, switch channels."""
        with L.CollectiveProgram("seen", L.AllReduce(2, 2), 2, protocol="LL") as program:
            rank, scratch = L.Rank(0), L.Buffer(0, 1)
            source, out = rank.get_input_buffer(), rank.get_output_buffer()
            rank.copy(out[0:1], source[0:1], tb=0)
            rank.copy(out[1:2], out[0:1], tb=0)  # reads what was written
            rank.copy(out[0:1], source[1:2], tb=0)  # writes what was read
            rank.reduce(out[0:1], [scratch[0:1]], tb=0, dst_chunk=out[3:4], packet=True)
            L.SwitchChannel([0, 1], L.BufferType.output).at_rank(0).broadcast(out[3:4], 2, 1, 0)
            rank.copy(source[0:1], out[2:3], tb=0)
        self.assertEqual(
            self.names(program), ["copy", "nop", "copy", "nop", "copy", "nop", "repkt", "nop", "gstore", "nop", "copy"]
        )

    def test_loop_that_ends_synchronized(self) -> None:
        piece = Slice(Place.LOCAL, L.BufferType.input, 0, 1)
        copy = Op(L.Instruction.copy, (piece,), (piece,))
        signal = Op(L.Instruction.signal, ids=(0,), sync=L.SyncType.both)
        loop = Op(L.Instruction.pipeline, body=(copy, NOP))
        (first, _), (_, second) = fuse([signal, loop]), fuse([loop, signal])
        self.assertEqual((first.sync, second.sync), (L.SyncType.both, L.SyncType.after))

    def test_instances_move_both_results(self) -> None:
        program = packets.allreduce_copies(2)
        ops = program.plan()["gpus"][0]["threadblocks"][1]["ops"]
        (op,) = [op for op in ops if op["name"] == "recspkt"]
        self.assertEqual([piece["index"] for piece in op["dst_buff"]], [1, 3, 3])


if __name__ == "__main__":
    unittest.main()
