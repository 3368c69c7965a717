# SPDX-License-Identifier: MIT
"""
The backend for torchcomms, in front of a stand-in for torchcomms and PyTorch. Ranks are processes of the sim, which run
this file with the name of a case.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "stand_ins"))

from helper import LIMIT_S, Case, run_python, write_entry_points  # noqa: E402

RANKS = 3
CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def expect(got: object, wanted: object, what: str = "") -> None:
    if got != wanted:
        raise AssertionError(f"{what}: {got}, expected {wanted}")


def new_comm(name: str = "main", store: Any = None, **hints: str) -> Any:
    import torch
    import torchcomms

    return torchcomms.new_comm("shunt", torch.device("cuda"), name=name, store=store, hints=hints)


def tensors_of(kind: Any) -> Callable[..., Any]:
    import torch

    return lambda *values: torch.tensor(list(values), kind)


@case
def every_type() -> None:
    """Each collective, with each type; numbers that all types hold exactly."""
    import torch

    comm = new_comm()
    me, n = comm.get_rank(), comm.get_size()
    expect(
        (n, comm.get_name(), comm.get_backend(), comm.get_backend_impl().get_backend_name()),
        (
            3,
            "main",
        )
        + 2 * ("shunt",),
    )
    import torchcomms

    op = torchcomms.ReduceOp
    for kind in torch.DTYPES.values():
        t = tensors_of(kind)
        names = str(kind)

        x = t(me + 1, 2)
        expect(comm.all_reduce(x, op.SUM, False).is_completed(), True)
        torch.cuda.synchronize()
        expect(x.tolist(), [6, 6], names)
        for operator, wanted in ((op.MAX, 3), (op.MIN, 1), (op.PRODUCT, 6), (op.AVG, 2)):
            x = t(me + 1)
            comm.all_reduce(x, operator, False)
            torch.cuda.synchronize()
            expect(x.tolist(), [wanted], f"{names} {operator.type}")
        x = t(me + 1)
        comm.reduce(x, 1, op.SUM, False)
        torch.cuda.synchronize()
        expect(x.tolist(), [6 if me == 1 else me + 1], f"{names} reduce")

        x = t(me, me)
        comm.broadcast(x, 2, False)
        torch.cuda.synchronize()
        expect(x.tolist(), [2, 2], f"{names} broadcast")

        outs = [t(0, 0) for _ in range(n)]
        comm.all_gather(outs, t(me, 1), False)
        torch.cuda.synchronize()
        expect([out.tolist() for out in outs], [[0, 1], [1, 1], [2, 1]], f"{names} all_gather")
        outs = [t(*[0] * (rank + 1)) for rank in range(n)]
        comm.all_gather_v(outs, t(*[me + 4] * (me + 1)), False)
        torch.cuda.synchronize()
        expect([out.tolist() for out in outs], [[4], [5, 5], [6, 6, 6]], f"{names} all_gather_v")
        out = t(*[0] * 6)
        comm.all_gather_single(out, t(me, 7), False)
        torch.cuda.synchronize()
        expect(out.tolist(), [0, 7, 1, 7, 2, 7], f"{names} all_gather_single")

        out = t(0)
        comm.reduce_scatter(out, [t(1), t(2), t(me)], op.SUM, False)
        torch.cuda.synchronize()
        expect(out.tolist(), [[3], [6], [3]][me], f"{names} reduce_scatter")
        out = t(*[0] * (me + 1))
        comm.reduce_scatter_v(out, [t(1), t(2, 1), t(1, me, 2)], op.SUM, False)
        torch.cuda.synchronize()
        expect(out.tolist(), [[3], [6, 3], [3, 3, 6]][me], f"{names} reduce_scatter_v")
        out = t(0)
        comm.reduce_scatter_single(out, t(1, 2, me), op.SUM, False)
        torch.cuda.synchronize()
        expect(out.tolist(), [[3], [6], [3]][me], f"{names} reduce_scatter_single")

        out = t(*[0] * 3)
        comm.all_to_all_single(out, t(me, me + 1, me + 2), False)
        torch.cuda.synchronize()
        expect(out.tolist(), [me, me + 1, me + 2], f"{names} all_to_all_single")
        outs = [t(0) for _ in range(n)]
        comm.all_to_all(outs, [t(me), t(me + 1), t(me + 2)], False)
        torch.cuda.synchronize()
        expect([out.item() for out in outs], [me, me + 1, me + 2], f"{names} all_to_all")

        out = t(0, 0)
        comm.scatter(out, [t(1, 4), t(2, 5), t(3, 6)] if me == 1 else [], 1, False)
        torch.cuda.synchronize()
        expect(out.tolist(), [me + 1, me + 4], f"{names} scatter")
        outs = [t(0, 0) for _ in range(n)] if me == 2 else []
        comm.gather(outs, t(me, 3), 2, False)
        torch.cuda.synchronize()
        expect([out.tolist() for out in outs], [[0, 3], [1, 3], [2, 3]] if me == 2 else [], f"{names} gather")
        x = t(me)
        if me == 0:
            comm.send(t(5), 2, False)
        elif me == 2:
            comm.recv(x, 0, False)
        torch.cuda.synchronize()
        expect(x.item(), [0, 1, 5][me], f"{names} send")
    comm.finalize()


@case
def rows_of_uneven_sizes() -> None:
    """Rank r sends s + 1 rows to rank s; a row has two elements."""
    import torch

    comm = new_comm()
    me, n = comm.get_rank(), comm.get_size()
    rows = [rank + 1 for rank in range(n)]
    source = torch.tensor([[10 * me + to] * 2 for to in range(n) for _ in range(rows[to])])
    out = torch.empty((n * rows[me] + 1, 2))  # one row more, which nobody writes
    out.buffer.write(bytes(out.numel() * 4))
    comm.all_to_all_v_single(out, source, [rows[me]] * n, rows, False)
    torch.cuda.synchronize()
    expect(out.tolist(), [[10 * frm + me] * 2 for frm in range(n) for _ in range(rows[me])] + [[0, 0]])
    comm.finalize()


@case
def factors() -> None:
    """Pre-multiplied sums scale, by numbers and by elements of device memory."""
    import torch
    import torchcomms

    comm = new_comm()
    me = comm.get_rank()
    for kind in torch.DTYPES.values():
        t = tensors_of(kind)
        for factor in (2, t(2)) if "float" in str(kind) else (2,):
            x = t(me + 1)
            comm.all_reduce(x, torchcomms.ReduceOp.PREMUL_SUM(factor), False)
            torch.cuda.synchronize()
            expect(x.tolist(), [12], f"{kind} times {factor}")
    scaled = torchcomms.ReduceOp.PREMUL_SUM(0.5)
    out = torch.empty(1)
    comm.reduce_scatter(out, [torch.tensor([4.0])] * 3, scaled, False)
    torch.cuda.synchronize()
    expect(out.tolist(), [6.0])
    comm.finalize()


@case
def asynchronous() -> None:
    """On a stream of the communicator's, behind what the current stream has, and waited for by it."""
    import torch
    import torchcomms

    comm = new_comm(own_stream="1")
    current = torch.cuda.current_stream()
    x = torch.ones(1 << 16)
    current.log.clear()
    comm.all_reduce(x, torchcomms.ReduceOp.SUM, False)
    work = comm.all_reduce(x, torchcomms.ReduceOp.SUM, True)
    (own,) = x.used_by
    expect(own.cuda_stream == current.cuda_stream, False)
    expect([what for what, _ in current.log], ["record"])
    expect([what for what, _ in own.log], ["wait", "record"])
    expect(own.log[0][1] is current.log[0][1], True)
    work.wait()
    expect(current.log[-1], ("wait", own.log[-1][1]))
    comm.all_reduce(x, torchcomms.ReduceOp.SUM, False)
    torch.cuda.synchronize()
    expect(set(x.tolist()), {27.0})
    works = [comm.barrier(True), comm.all_gather_single(torch.empty(3), torch.ones(1), True)]
    for work in works:
        work.wait()
    part = comm.split([0, 1, 2], "part")
    part.all_reduce(x, torchcomms.ReduceOp.SUM, True).wait()
    expect(len(x.used_by), 2 if part.get_options().hints == {"own_stream": "1"} else 0)
    part.finalize()
    comm.finalize()


@case
def below_process_groups() -> None:
    """As init_process_group("cuda:shunt") makes it. Nobody waits for some works, and all are destroyed without Python's
    lock; what a future or a later call of the stream sees is right."""
    import torch
    import torchcomms

    comm = new_comm()
    group = torchcomms._BackendWrapper(comm)
    me, op = comm.get_rank(), torchcomms.ReduceOp
    current = torch.cuda.current_stream()
    for async_op in False, True:
        x = torch.ones(1 << 10)
        current.log.clear()
        work = group.allreduce([x], op.SUM, async_op)
        # The operation is on the stream on which the future was recorded, so it comes before the future.
        expect((x.used_by, [what for what, _ in current.log], work.future.stream is current), ([], ["record"], True))
        work.future.synchronize()
        expect(set(x.tolist()), {3})
        work.wait()
        del work
        group.allreduce([x], op.SUM, async_op)  # nobody holds its work
        torch.cuda.synchronize()
        expect(set(x.tolist()), {9})
    y = torch.tensor([float(me)])
    if me == 0:
        group.send([y], 2)
    elif me == 2:
        group.recv([y], 0).wait()
    group.barrier()
    expect(y.tolist(), [[0], [1], [0]][me])  # the barrier waits on the host
    part = group.split([1, 0], "part") if me != 2 else group.split([], "part")
    if part:
        expect(str(part.get_comm().get_device()), str(comm.get_device()))
        part.allreduce([y], op.SUM, True)
        torch.cuda.synchronize()
        expect(y.tolist(), [1])
        part.shutdown()
    group.shutdown()


@case
def devices_and_options_of_parts() -> None:
    """A part has its parent's device, and the options of the call, in torchcomms' eyes; so has a part of a part."""
    from datetime import timedelta

    import torch
    import torchcomms

    for device in torch.device("cuda"), torch.device("cuda", int(os.environ["RANK"])):
        comm = torchcomms.new_comm("shunt", device, name="main", hints={"a": "b"})
        part = comm.split([2, 1, 0], "part", hints={"c": "d"}, timeout=timedelta(seconds=7))
        again = part.split([0, 1, 2], "again")
        for one, hints, seconds in (comm, {"a": "b"}, 600), (part, {"c": "d"}, 7), (again, {}, 600):
            expect(one.get_device() is device, True, one.get_name())
            expect((one.get_options().hints, one.get_options().timeout.seconds), (hints, seconds), one.get_name())
            expect(one.get_backend_impl()._timeout.seconds, seconds)
        expect((part.get_rank(), again.get_rank()), (2 - comm.get_rank(),) * 2)
        x = torch.ones(1)
        again.all_reduce(x, torchcomms.ReduceOp.SUM, False)
        torch.cuda.synchronize()
        expect(x.item(), 3)
        for one in again, part, comm:
            one.finalize()


@case
def several_communicators() -> None:
    """At once, by split and anew, also of one name; each with its own ranks."""
    import libshunt
    import torch
    import torch.distributed
    import torchcomms

    store = torch.distributed.FileStore(os.environ["STAND_IN_STORE"])
    world, other = new_comm(), new_comm("other", store)
    me = world.get_rank()
    part = world.split([2, 0], "ends") if me != 1 else world.split([], "ends")
    expect(part is None, me == 1)
    x, y, z = torch.ones(1), torch.ones(1), torch.tensor([float(me + 1)])
    for _ in range(2):
        world.all_reduce(x, torchcomms.ReduceOp.SUM, False)
        if part:
            part.all_reduce(z, torchcomms.ReduceOp.SUM, False)
        other.all_reduce(y, torchcomms.ReduceOp.SUM, False)
    torch.cuda.synchronize()
    expect((x.item(), y.item(), z.item()), (9, 9, 2 if me == 1 else 8))
    if part:
        expect((part.get_rank(), part.get_size(), part.get_name()), (1 if me == 0 else 0, 2, "ends"))
        z = torch.tensor([float(me)])
        part.broadcast(z, 0, False)  # rank 2's
        torch.cuda.synchronize()
        expect(z.item(), 2)
        comm = libshunt.describe(part.get_backend_impl().handle())
        expect((comm.nranks, {count.op for count in comm.counts}), (2, {"allreduce", "broadcast"}))
        part.finalize()
    other.finalize()
    again = new_comm("other", store)
    again.all_reduce(y, torchcomms.ReduceOp.SUM, False)
    torch.cuda.synchronize()
    expect(y.item(), 27)
    again.finalize()
    world.finalize()


def refused(call: Callable[[], object], part: str) -> None:
    import libshunt

    try:
        call()
    except libshunt.Error as error:
        if part not in str(error) or "\n" in str(error):
            raise AssertionError(f"{error}, expected {part}") from None
        return
    raise AssertionError(f"expected: {part}")


@case
def mistakes() -> None:
    """Each is one line before anything is enqueued, so that the communicator goes on."""
    import torch
    import torchcomms

    op = torchcomms.ReduceOp
    early = op.PREMUL_SUM(3)  # the backend has not been loaded yet
    comm = new_comm()
    x, three = torch.ones(1), torch.ones(3)
    refused(lambda: comm.all_reduce(x, early, False), "factor of this PREMUL_SUM is not known")
    refused(lambda: comm.all_reduce(x, op.BXOR, False), "NCCL has no operator BXOR: use one of SUM")
    refused(
        lambda: comm.all_reduce(x, op.PREMUL_SUM(torch.tensor([1], torch.DTYPES["int32"])), False),
        "the factor must be one element of torch.float32",
    )
    refused(lambda: comm.broadcast(x, 3, False), "there is no rank 3 in main, which has 3")
    refused(lambda: comm.all_gather([x, x], x, False), "2 tensors for 3 ranks")
    refused(lambda: comm.all_gather([x, x, three], x, False), "has 3 elements, expected 1")
    refused(lambda: comm.all_gather_single(x, x, False), "1 elements are not 3 times 1")
    refused(lambda: comm.all_to_all_single(x, x, False), "the same multiple of the 3 ranks")
    refused(lambda: comm.all_to_all_v_single(x, three, [1, 1, 1], [1, 1, 1], False), "output_split_sizes [1, 1, 1]")
    other = torch.ones(3, torch.DTYPES["int32"])
    refused(lambda: comm.all_gather_single(other, x, False), "all must be of one type")
    three.contiguous = False
    refused(lambda: comm.all_reduce(three, op.SUM, False), "pass tensor.contiguous()")
    x.device = torch.device("cpu")
    refused(lambda: comm.all_reduce(x, op.SUM, False), "a tensor is on cpu")
    refused(lambda: comm.split([0, 0], "twice"), "no list of different ranks from 0 to 2")
    refused(lambda: comm.split([(comm.get_rank() + 1) % 3], "others"), "passes an empty list")
    y = torch.ones(1)
    comm.all_reduce(y, op.SUM, False)
    torch.cuda.synchronize()
    expect(y.item(), 3)
    refused(lambda: comm.split([0, 1, 2], "odd", hints={"own_stream": "yes"}), 'the hint own_stream is "yes"')
    part = comm.split([0, 1, 2], "even")  # an init that failed has left nothing to it
    expect(part.get_size(), 3)
    part.finalize()
    comm.finalize()
    refused(comm.finalize, "finalized already")
    refused(lambda: comm.all_reduce(y, op.SUM, False), "finalized already")


class Torchcomms(Case):
    def run_case(self, name: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_entry_points(folder)
            env = dict(os.environ, WORLD_SIZE=str(RANKS), STAND_IN_STORE=folder, MASTER_ADDR="127.0.0.1")
            env["MASTER_PORT"] = "1"  # the stand-in opens no port
            env["PYTHONPATH"] = os.pathsep.join([folder, env["PYTHONPATH"]])
            env.pop("LD_LIBRARY_PATH", None)  # Meson's, with which the loader finds Shunt under NCCL's name
            ranks = [
                subprocess.Popen(
                    [sys.executable, os.path.abspath(__file__), "case", name],
                    env=dict(env, RANK=str(rank)),
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank in range(RANKS)
            ]
            try:
                said = [rank.communicate(timeout=LIMIT_S)[1] for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
            self.assertEqual([rank.returncode for rank in ranks], [0] * RANKS, "\n".join(said))

    def test_devices_that_are_none(self) -> None:
        code = """if True:
            import sys
            sys.path.insert(0, sys.argv[1])
            import libshunt.torchcomms, torch, torchcomms
            if sys.argv[3:]:
                torch.cuda.device_count = lambda: int(sys.argv[3])
            torchcomms.new_comm("shunt", torch.device(sys.argv[2]), name="main")
        """
        ranks = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        for arguments, parts in (
            (("cpu",), ('its device is "cpu", and the backend shunt is for GPUs', 'torch.device("cuda")')),
            (("meta:0",), ('its device is "meta:0"',)),
            (("cuda", "0"), ("PyTorch sees no GPU", "CUDA_VISIBLE_DEVICES")),
            (("cuda:0", "0"), ("PyTorch sees no GPU",)),
            (("cuda:2", "2"), ('there is no device "cuda:2": PyTorch sees 2 GPUs',)),
        ):
            with self.subTest(arguments):
                run = run_python(code, os.path.join(HERE, "stand_ins"), *arguments, **ranks)
                self.assert_one_line(run.stderr, "Error: communicator main: ", *parts)

    def test_ranks_that_cannot_be_told(self) -> None:
        code = "import sys; sys.path.insert(0, sys.argv[1]); import libshunt.torchcomms as t; print(t._rank_and_size())"
        stand_ins = os.path.join(HERE, "stand_ins")
        unset: dict[str, str | None] = {"RANK": None, "WORLD_SIZE": None}
        run = run_python(code, stand_ins, **unset)
        self.assert_one_line(run.stderr, "Error: neither TORCHCOMM_RANK and TORCHCOMM_SIZE nor", "torchrun")
        run = run_python(code, stand_ins, RANK="2", WORLD_SIZE="2")
        self.assert_one_line(run.stderr, "Error: RANK is 2 and WORLD_SIZE is 2: ranks count from 0 to 1")
        run = run_python(code, stand_ins, RANK="1", WORLD_SIZE="2", TORCHCOMM_RANK="3", TORCHCOMM_SIZE="4")
        self.assertEqual(run.stdout, "(3, 4)\n")

    def test_without_torchcomms(self) -> None:
        run = run_python("import libshunt\nlibshunt.torchcomms")
        self.assert_one_line(run.stderr, "Error: torchcomms cannot be imported: ", "download.pytorch.org")


for _name in CASES:
    setattr(Torchcomms, f"test_{_name}", lambda self, name=_name: self.run_case(name))


if __name__ == "__main__":
    if sys.argv[1:2] == ["case"]:
        CASES[sys.argv[2]]()
    else:
        unittest.main()
