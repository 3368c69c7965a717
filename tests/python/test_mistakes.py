# SPDX-License-Identifier: MIT
"""
Wrong programs: one sentence, with the file and line of the call. Each function is a program with one mistake, in the
line that has the comment "here"; the expression is what must be said.
"""

from __future__ import annotations

import inspect
import sys
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from libshunt import language
from libshunt.language import (
    JSON,
    AllGather,
    AllReduce,
    Buffer,
    BufferType,
    Chunk,
    Collective,
    CollectiveProgram,
    LoopIterationContext,
    MemoryChannel,
    PortChannel,
    ProgramError,
    Rank,
    ReduceOperationType,
    Semaphore,
    SwitchChannel,
    ThreadBlockGroup,
)

Mistake = Callable[[], object]
MISTAKES: list[tuple[str, Mistake]] = []


def says(expression: str) -> Callable[[Mistake], Mistake]:
    def add(mistake: Mistake) -> Mistake:
        MISTAKES.append((expression, mistake))
        return mistake

    return add


def opened(protocol: str = "Simple", ranks: int = 2) -> CollectiveProgram:
    return CollectiveProgram("mistake", AllReduce(ranks, 1, True), ranks, protocol=protocol)


# What a program is.


@says("AllReduce is for 8 ranks, and the program for 4")
def collective_of_more_ranks() -> None:
    CollectiveProgram("mistake", AllReduce(8, 1, True), 4)  # here


@says("AllGather is for 2 ranks, and the program for 4")
def collective_of_fewer_ranks() -> None:
    CollectiveProgram("mistake", AllGather(2, 1, True), 4)  # here


@says("protocol is 'LL128', expected 'Simple' or 'LL'")
def protocol() -> None:
    opened("LL128")
    CollectiveProgram("mistake", AllReduce(2), 2, protocol="LL128")


@says("num_threads_per_block is 2048, expected 1 to 1024")
def threads() -> None:
    CollectiveProgram("mistake", AllReduce(2), 2, num_threads_per_block=2048)  # here


@says("instances is 0, expected 1 or more")
def instances() -> None:
    CollectiveProgram("mistake", AllReduce(2), 2, instances=0)  # here


@says("buffer_alignment is 24, expected a multiple of 16")
def alignment() -> None:
    CollectiveProgram("mistake", AllReduce(2), 2, buffer_alignment=24)  # here


@says("min_message_size is 2048, more than max_message_size, 1024")
def sizes() -> None:
    CollectiveProgram("mistake", AllReduce(2), 2, min_message_size=2048, max_message_size=1024)  # here


@says("name is None, expected the plan's name")
def name() -> None:
    CollectiveProgram(None, AllReduce(2), 2)  # type: ignore[arg-type]  # here


@says("collective is 'allreduce', expected one such as AllReduce")
def collective() -> None:
    CollectiveProgram("mistake", "allreduce", 2)  # type: ignore[arg-type]  # here


@says("Mine does not say which chunks a rank has")
def collective_without_buffers() -> None:
    class Mine(Collective):
        pass

    CollectiveProgram("mistake", Mine(2), 2)  # here


# What is open.


@says("no program is open")
def no_program() -> None:
    Rank(0)  # here


@says("no program is open")
def json_afterwards() -> None:
    with opened():
        pass
    JSON()  # here


@says("program 'second' begins while 'mistake' is open")
def program_in_a_program() -> None:
    with opened(), CollectiveProgram("second", AllReduce(2), 2):  # here
        pass


@says(r"MemoryChannel\(1, 0\) was made in program 'mistake', and 'second' is open")
def channel_of_another_program() -> None:
    with opened():
        channel = MemoryChannel(1, 0)
    with CollectiveProgram("second", AllReduce(2), 2):
        channel.signal(tb=0)  # here


@says("dst_chunk, input.0:1. of rank 1, is of program 'mistake', and 'second' is open")
def chunk_of_another_program() -> None:
    with opened():
        chunk = Rank(1).get_input_buffer()[0:1]
    with CollectiveProgram("second", AllReduce(2), 2):
        MemoryChannel(1, 0).put(chunk, Rank(0).get_input_buffer()[0:1], tb=0)  # here


@says("a loop in a loop")
def loop_in_a_loop() -> None:
    with opened(), LoopIterationContext(1024, 1), LoopIterationContext(1024, 1):  # here
        pass


@says("a loop is open: the plan is complete only after it")
def json_in_a_loop() -> None:
    with opened(), LoopIterationContext(1024, 1):
        JSON()  # here


# Ranks, chunks, thread blocks.


@says("rank is 2, expected 0 to 1: the program has 2 ranks")
def rank() -> None:
    with opened():
        Rank(2)  # here


@says("rank is -1, expected 0 to 1")
def negative_rank() -> None:
    with opened():
        Buffer(-1, 1)  # here


@says("dst_rank is 7, expected 0 to 1")
def channel_rank() -> None:
    with opened():
        PortChannel(7, 0)  # here


@says("rank is 'zero', expected a whole number")
def rank_that_is_none() -> None:
    with opened():
        Semaphore("zero", 0)  # type: ignore[arg-type]  # here


@says("rank_list.1. is 2, expected 0 to 1")
def switch_rank() -> None:
    with opened():
        SwitchChannel([0, 2], BufferType.input)  # here


@says("rank_list has a rank twice")
def switch_rank_twice() -> None:
    with opened():
        SwitchChannel([0, 0], BufferType.input)  # here


@says("rank is 1, expected one of the channel's: .0.")
def no_member() -> None:
    with opened():
        SwitchChannel([0], BufferType.input).at_rank(1)  # here


@says("a slice goes from 1 to 3: the input buffer of rank 0 has 2 chunks")
def slice_beyond() -> None:
    with opened():
        Rank(0).get_input_buffer()[1:3]  # here


@says("the slice's start is -1, expected 0 or more")
def slice_from_the_end() -> None:
    with opened():
        Rank(0).get_input_buffer()[-1:]  # here


@says("chunks are taken by slices, such as buffer.0:0.1.")
def one_chunk() -> None:
    with opened():
        Rank(0).get_input_buffer()[0]  # type: ignore[index]  # here


@says("src_chunk is input.5:6. of rank 0, which has 2 chunks")
def chunk_beyond() -> None:
    with opened():
        rank = Rank(0)
        rank.copy(rank.get_input_buffer()[0:1], Chunk(0, BufferType.input, 5, 1), tb=0)  # here


@says("src_chunk is input.1:1. of rank 0, expected one chunk or more")
def empty_chunk() -> None:
    with opened():
        rank = Rank(0)
        rank.copy(rank.get_input_buffer()[0:1], rank.get_input_buffer()[1:1], tb=0)  # here


@says("dst_chunk is input.0:2. of rank 1: 2 chunks, expected 1 as in the others")
def sizes_differ() -> None:
    with opened():
        MemoryChannel(1, 0).put(Rank(1).get_input_buffer()[:], Rank(0).get_input_buffer()[0:1], tb=0)  # here


@says("src_chunk is input.0:1. of rank 1, expected chunks of rank 0")
def source_of_the_peer() -> None:
    with opened():
        MemoryChannel(1, 0).put(Rank(1).get_input_buffer()[0:1], Rank(1).get_input_buffer()[0:1], tb=0)  # here


@says("other_chunks is empty")
def nothing_to_reduce() -> None:
    with opened():
        Rank(0).reduce(Rank(0).get_input_buffer()[0:1], [], tb=0)  # here


@says("reduce_op is 'sum', expected one of ReduceOperationType.sum")
def operator() -> None:
    with opened():
        chunk = Rank(0).get_input_buffer()[0:1]
        Rank(0).reduce(chunk, [chunk], tb=0, reduce_op="sum")  # type: ignore[arg-type]  # here


@says("tb is 1024, expected 0 to 1023")
def block() -> None:
    with opened():
        MemoryChannel(1, 0).signal(tb=1024)  # here


@says("tb is -1, expected 0 to 1023")
def negative_block() -> None:
    with opened():
        Rank(0).barrier([0, -1])  # here


@says("neither tb nor tb_group is given")
def no_block() -> None:
    with opened():
        Rank(0).copy(Rank(0).get_input_buffer()[0:1], Rank(0).get_input_buffer()[1:2])  # here


@says("a thread-block group has a block twice: .1, 1.")
def block_twice() -> None:
    with opened():
        ThreadBlockGroup([1, 1])  # here


@says("a barrier without thread blocks")
def empty_barrier() -> None:
    with opened():
        Rank(0).barrier([])  # here


@says("buffer_offset 1 and size 2 end at chunk 3: the input buffer of rank 0 has 2 chunks")
def switch_offset() -> None:
    with opened():
        switch = SwitchChannel([0, 1], BufferType.input)
        switch.broadcast(0, Rank(0).get_input_buffer()[0:2], 1, 2, 0)  # here


@says("unit is 1000 bytes, expected a multiple of buffer_alignment, 16")
def window() -> None:
    with opened(), LoopIterationContext(1000, 1):  # here
        pass


@says("num_chunks is 0, expected 1 to 65536")
def no_window() -> None:
    with opened(), LoopIterationContext(1024, 0):  # here
        pass


# Packets.


@says("packets are for protocol 'LL', and program 'mistake' has 'Simple'")
def packets_of_simple() -> None:
    with opened():
        scratch = Buffer(0, 1)
        Rank(0).copy_packets(scratch[0:1], Rank(0).get_input_buffer()[0:1], tb=0)  # here


@says("dst_chunk is input.0:1. of rank 1, expected chunks of scratch, where packets are")
def packets_of_input() -> None:
    with opened("LL"):
        MemoryChannel(1, 0).put_packets(Rank(1).get_input_buffer()[0:1], Rank(0).get_input_buffer()[0:1], tb=0)  # here


@says("packets are in scratch, and this channel is of the input buffers")
def packets_of_a_switch() -> None:
    with opened("LL"):
        scratch, switch = Buffer(0, 1), SwitchChannel([0, 1], BufferType.input)
        switch.broadcast_packets(0, scratch[0:1], 0, 1, 0)  # here


# Signals and waits, and what only the whole program shows.


@says("rank 0 gives 2 signals to rank 1 on memory channels, and rank 1 waits for 1 of rank 0")
def signal_without_wait() -> None:
    with opened() as program:
        MemoryChannel(0, 1).wait(tb=0)
        channel = MemoryChannel(1, 0)
        channel.signal(tb=0)
        channel.signal(tb=0)  # here
    program.to_json()


@says("rank 1 gives 0 signals to rank 0 on port channels, and rank 0 waits for 1 of rank 1")
def wait_without_signal() -> None:
    with opened():
        PortChannel(1, 0).wait(tb=0)  # here
        JSON()


@says("mistake: rank 0, block 0, operation 1 .wait, test_mistakes.py:[0-9]+.: waits in a cycle")
def deadlock() -> None:
    with opened() as program:
        for rank in range(2):
            channel = MemoryChannel(1 - rank, rank)
            channel.wait(0)  # here
            channel.signal(0)
    program.verify()


@says("mistake: rank 0, block 0, operation 1 .wait, test.*: waits for signal 1 on its memory channel 1")
def other_channel() -> None:
    with opened() as program:
        first, there = MemoryChannel(1, 0), MemoryChannel(0, 1)
        second, _ = MemoryChannel(1, 0), MemoryChannel(0, 1)
        second.wait(0)  # here
        first.signal(0)
        there.wait(0)
        there.signal(0)
    program.verify()


@says("mistake: .*wrong")
def half_of_the_message() -> None:
    with opened() as program:
        for rank in range(2):
            channel = MemoryChannel(1 - rank, rank)
            channel.signal(0)
            channel.wait(0)
            own = Rank(rank).get_input_buffer()[rank : rank + 1]
            channel.reduce(own, [Rank(1 - rank).get_input_buffer()[rank : rank + 1]], tb=0)
            channel.signal(0)
            channel.wait(0)
    program.run(4096)


def cell(wrong: bool) -> None:
    with CollectiveProgram("cell", AllReduce(2, 1, True), 2) as program:
        channel = MemoryChannel(1, 0)
        channel.signal(0)
        if wrong:
            Rank(7)
    program.verify()


class Mistakes(unittest.TestCase):
    def test_all(self) -> None:
        for expression, mistake in MISTAKES:
            with self.subTest(mistake.__name__):
                with self.assertRaisesRegex(ProgramError, expression) as caught:
                    mistake()
                lines, first = inspect.getsourcelines(mistake)
                here = [first + i for i, text in enumerate(lines) if text.rstrip().endswith("# here")]
                if here:
                    self.assertEqual(caught.exception.line, here[0])
                    self.assertRegex(str(caught.exception), rf"test_mistakes\.py:{here[0]}: ")
                self.assertNotIn("\n", str(caught.exception))

    def test_cells_of_notebooks(self) -> None:
        """IPython runs a cell under a file's name of its own; an error has the cell's number, also one of the proof."""

        class Shell:
            class compile:
                format_code_name = {"/tmp/k/77.py": ("Cell", "In[3]")}.get

        code = compile(inspect.getsource(cell), "/tmp/k/77.py", "exec")
        names: dict[str, Any] = dict(vars(language))
        exec(code, names)
        with mock.patch.dict(sys.modules, IPython=mock.Mock(get_ipython=lambda: Shell)):
            for wrong, place in ((True, "cell 3, line 6: "), (False, "cell 3, line 4: ")):
                with self.assertRaises(ProgramError) as caught:
                    names["cell"](wrong)
                self.assertTrue(str(caught.exception).startswith(place), caught.exception)
                self.assertNotIn("77.py", str(caught.exception))
        with self.assertRaisesRegex(ProgramError, "^/tmp/k/77.py:6: "):
            names["cell"](True)

    def test_program_is_closed(self) -> None:
        """An exception ends the program, and is not hidden."""
        with self.assertRaises(ZeroDivisionError), opened():
            raise ZeroDivisionError
        with opened():
            pass

    def test_errors_that_mscclpp_raises(self) -> None:
        """Programs that catch RuntimeError or ValueError catch these."""
        self.assertTrue(issubclass(ProgramError, RuntimeError) and issubclass(ProgramError, ValueError))
        self.assertEqual(ReduceOperationType("sum"), ReduceOperationType.sum)


if __name__ == "__main__":
    unittest.main()
