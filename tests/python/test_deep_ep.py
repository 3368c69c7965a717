# SPDX-License-Identifier: MIT
"""libshunt.deep_ep with a stand-in for PyTorch: ranks are threads, on the sim."""

from __future__ import annotations

import gc
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from helper import LIMIT_S, Case, in_child, run_python, variable

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "stand_ins"))
sys.path.insert(0, os.path.join(os.environ["TEST_SOURCE"], "python", "libshunt", "alias"))
import deep_ep
import libshunt
import torch
import torch.distributed as dist
from deep_ep.utils import EventHandle, EventOverlap
from libshunt.deep_ep import _call
from programs import deep_ep_callers as callers

PROGRAMS_OVER_HOSTS = ["vllm_high_throughput", "megatron_fused_a2a", "captured_normal", "sglang_low_latency",
                       "two_buffers"]  # fmt: skip
BF16, I32, I64, F32 = torch.bfloat16, torch.int32, torch.int64, torch.float32


def on_ranks(nranks: int, body: Callable[[callers.Job], None]) -> None:
    """Calls body with each rank of a new group, on threads. Raises what one raised, and lets the others be."""
    ended: queue.Queue[BaseException | None] = queue.Queue()

    def one(rank: int) -> None:
        try:
            torch.cuda.set_device(rank)
            group = dist.Group(rank, nranks, None, dist.FileStore(folder))
            body(callers.Job(group, group.gather))
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    with tempfile.TemporaryDirectory() as folder:
        for rank in range(nranks):
            threading.Thread(target=one, args=(rank,), daemon=True).start()
        for _ in range(nranks):
            error = ended.get(timeout=LIMIT_S)
            if error is not None:
                raise error


class Callers(Case):
    def test_programs(self) -> None:
        for program in callers.PROGRAMS:
            with self.subTest(program.__name__):
                on_ranks(3, program)

    def test_the_script_for_gpus(self) -> None:
        """Processes, under `shunt run --deep-ep`, each on a host of its own."""
        source = variable("TEST_SOURCE")
        paths = [os.path.join(source, "python"), os.path.join(source, "tests", "python", "stand_ins")]
        with tempfile.TemporaryDirectory() as folder:
            env = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), STAND_IN_STORE=folder, WORLD_SIZE="2")
            env.pop("LD_LIBRARY_PATH", None)
            command = [
                sys.executable,
                os.path.join(source, "tests", "gpu", "deep_ep_callers.py"),
                "--shunt",
                os.path.join(variable("TEST_BUILD"), "tools", "shunt"),
                "--hosts",
                *PROGRAMS_OVER_HOSTS,
            ]
            env |= {"SHUNT_NCCL_LIB": "none", "NCCL_SOCKET_IFNAME": "lo"}
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        lines = "".join(rf"{name}: ok, ok .*\n" for name in PROGRAMS_OVER_HOSTS)
        self.assertRegex(done.stdout, rf"^{lines}deep_ep_callers.py: all right\n$", done.stderr)


class Arguments(Case):
    def refused(self, call: Callable[[], object], *parts: str) -> None:
        """A ValueError of one line, with the name, what came, and what should have come."""
        with self.assertRaises(ValueError) as caught:
            call()
        self.assertIsInstance(caught.exception, libshunt.Error)
        text = str(caught.exception)
        self.assertNotIn("\n", text)
        for part in parts:
            self.assertIn(part, text)

    def test_tensors(self) -> None:
        def body(job: callers.Job) -> None:
            buffer = callers.low_latency_buffer(job, 4, 128, explicitly_destroy=True)
            x, idx = torch.zeros((2, 128), BF16), torch.zeros((2, 2), I64)

            def dispatch(**changed: Any) -> Callable[[], object]:
                arguments = {"x": x, "topk_idx": idx, "num_max_dispatch_tokens_per_rank": 4, "num_experts": 2}
                return lambda: buffer.low_latency_dispatch(**{**arguments, **changed})

            wide = torch.zeros((128, 2), BF16).transpose(0, 1)
            self.refused(dispatch(x=torch.zeros((2, 128), F32)), "x is torch.float32 [2, 128]",
                         "it is torch.bfloat16 [any, any], contiguous, on cuda:0")  # fmt: skip
            self.refused(dispatch(x=wide), "x is torch.bfloat16 [2, 128] with strides (1, 2)", "contiguous")
            self.refused(dispatch(x=torch.zeros((2, 128), BF16, "cpu")), "on cpu: it is", "on cuda:0")
            self.refused(dispatch(x=torch.zeros(128, BF16)), "x is torch.bfloat16 [128]")
            self.refused(dispatch(x=[[1.0]]), "x is [[1.0]]: it is a tensor, not list")
            self.refused(dispatch(x=torch.zeros((2, 64), BF16)), "x.shape[1] is 64: it is a multiple of 128")
            self.refused(dispatch(topk_idx=torch.zeros((2, 2), I32)), "topk_idx is torch.int32", "it is torch.int64")
            self.refused(dispatch(topk_idx=torch.zeros((3, 2), I64)), "topk_idx is torch.int64 [3, 2]", "[2, any]")
            self.refused(dispatch(topk_idx=torch.zeros((2, 17), I64)), "topk_idx.shape[1] is 17: it is from 1 to 16")
            self.refused(dispatch(num_experts="2"), 'num_experts is "2": it is an int, not str')
            self.refused(dispatch(num_max_dispatch_tokens_per_rank=1), "is 1: it is at least x.shape[0], which is 2")
            self.refused(dispatch(num_max_dispatch_tokens_per_rank=1000), "num_rdma_bytes is", "it is at least",
                         "for 1000 tokens of 128 elements")  # fmt: skip
            self.refused(dispatch(use_ue8m0=True), "use_ue8m0 is True: it is for calls with use_fp8 and round_scale")
            self.refused(dispatch(async_finish=True, return_recv_hook=True), "async_finish is True: it is False")
            self.refused(dispatch(cumulative_local_expert_recv_stats=torch.zeros(3, I32)),
                         "cumulative_local_expert_recv_stats is torch.int32 [3]", "[2]")  # fmt: skip
            self.refused(dispatch(dispatch_wait_recv_cost_stats=torch.zeros((1, 1), I64)), "[1, 1]", "int64 [1]")
            with self.assertRaisesRegex(TypeError, "use_nvfp4"):
                dispatch(use_nvfp4=True)()
            rows, _, handle, _, _ = dispatch(use_fp8=False)()
            out, weights = torch.zeros((2, 128), BF16), torch.zeros((2, 2))

            def combine(**changed: Any) -> Callable[[], object]:
                arguments = {"x": rows, "topk_idx": idx, "topk_weights": weights, "handle": handle, "out": out}
                return lambda: buffer.low_latency_combine(**{**arguments, **changed})

            self.refused(combine(handle=tuple(handle)), "handle is a tuple: it is the very object")
            self.refused(combine(x=torch.zeros((2, 4, 64), BF16)), "x is torch.bfloat16 [2, 4, 64]", "[2, 4, 128]")
            self.refused(combine(topk_weights=torch.zeros((2, 1))), "topk_weights is torch.float32 [2, 1]", "[2, 2]")
            self.refused(combine(out=torch.zeros((3, 128), BF16)), "out is torch.bfloat16 [3, 128]", "[2, 128]")
            with self.assertRaisesRegex(TypeError, "overlap"):
                combine(overlap=True)()
            combine()()
            other = callers.low_latency_buffer(job, 4, 128, explicitly_destroy=True)
            self.refused(lambda: other.low_latency_combine(rows, idx, weights, handle), "handle is of another Buffer")
            self.refused(lambda: buffer.low_latency_query_mask_buffer(torch.zeros(1, I32)), "enable_shrink is False")
            buffer.destroy()
            with self.assertRaisesRegex(libshunt.Error, "shunt_ep_ll_dispatch: the Buffer was destroyed"):
                dispatch()()
            buffer.destroy()
            other.destroy()

        on_ranks(1, body)

    def test_tensors_of_normal_mode(self) -> None:
        def body(job: callers.Job) -> None:
            buffer = deep_ep.Buffer(job.group, 1 << 20, explicitly_destroy=True)
            x, idx, weights = torch.zeros((2, 64), BF16), torch.zeros((2, 2), I64), torch.zeros((2, 2))
            per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, 2)
            layout = {"num_tokens_per_rank": per_rank, "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert}

            def dispatch(x: Any = x, **changed: Any) -> Callable[[], Any]:
                return lambda: buffer.dispatch(x, **{**layout, "topk_idx": idx, "topk_weights": weights, **changed})

            self.refused(lambda: buffer.get_dispatch_layout(weights, 2), "topk_idx is torch.float32", "torch.int64")
            self.refused(dispatch(x=torch.zeros(64, BF16)), "x is torch.bfloat16 [64]", "any type [any, any]")
            self.refused(dispatch(num_tokens_per_rank=None), "num_tokens_per_rank is None: it is a tensor")
            self.refused(dispatch(is_token_in_rank=torch.zeros((2, 1), I32)), "is_token_in_rank is torch.int32 [2, 1]")
            self.refused(dispatch(topk_weights=torch.zeros((2, 3))), "topk_weights is torch.float32 [2, 3]", "[2, 2]")
            self.refused(dispatch(topk_idx=None), "topk_idx is None: it is a tensor for calls with topk_weights")
            self.refused(dispatch(expert_alignment=0), "expert_alignment is 0: it is from 1 to")
            self.refused(dispatch(config=20), "config is 20: it is a Config, not int")
            self.refused(
                dispatch((x, torch.zeros((2, 1), I64))), "x[1] is torch.int64", "float32 or torch.int32 [2, any]"
            )
            self.refused(
                dispatch(allocate_on_comm_stream=True), "allocate_on_comm_stream is True: it is for calls with"
            )
            rows, _, _, counts, handle, _ = dispatch()()
            self.assertEqual((rows.shape, counts), ((2, 64), [4, 0]))
            self.refused(dispatch(handle=handle), "topk_idx is", "None, as topk_weights is, for calls with a handle")
            again = {"topk_idx": None, "topk_weights": None, "handle": handle}
            self.refused(dispatch(torch.zeros((3, 64), BF16), **again), "x.shape[0] is 3: it is 2")
            self.refused(lambda: buffer.combine(rows, handle[:5]), "handle is", "the tuple of six")
            self.refused(lambda: buffer.combine(torch.zeros((1, 64), BF16), handle), "x is", "[2, any]")
            self.refused(lambda: buffer.combine(torch.zeros((2, 64), I32), handle), "torch.float16 or torch.float32 or")
            self.refused(lambda: buffer.combine(rows, handle, bias=weights), "bias is torch.float32 [2, 2]", "[2, 64]")
            other = deep_ep.Buffer(job.group, 0, explicitly_destroy=True)
            self.refused(lambda: other.combine(rows, handle), "handle is of another Buffer")
            self.refused(lambda: other.dispatch(x, **layout), "num_nvl_bytes is 0: it is what Config.get_nvl")
            with (
                self.assertRaisesRegex(libshunt.Error, "the stream is being captured: pass num_worst_tokens"),
                torch.cuda.graph(torch.cuda.CUDAGraph(), stream=buffer.get_comm_stream()),
            ):
                dispatch()()
            buffer.destroy()
            other.destroy()

        on_ranks(1, body)

    def test_without_a_group(self) -> None:
        Buffer = deep_ep.Buffer
        self.refused(lambda: Buffer(None), "group is None, and so is comm")
        self.refused(lambda: Buffer.set_num_sms(3), "new_num_sms is 3: it is an even number")
        self.refused(lambda: Buffer.get_dispatch_config(9), "num_ranks is 9: it is up to 8, or one of 16, 24")
        self.refused(lambda: Buffer.get_low_latency_rdma_size_hint(4, 128, 65, 65), "num_ranks is 65")
        self.refused(lambda: deep_ep.Config(20, -1), "num_max_nvl_chunked_send_tokens is -1")
        self.refused(lambda: EventOverlap().current_stream_wait(), "event is None: a call returns")
        config = Buffer.get_combine_config(3)
        self.assertEqual((config.num_sms, config.num_max_nvl_chunked_send_tokens), (Buffer.num_sms, 9))
        names = {"num_sms": 24, "num_max_nvl_chunked_send_tokens": 8, "num_max_nvl_chunked_recv_tokens": 256,
                 "num_max_rdma_chunked_send_tokens": 16, "num_max_rdma_chunked_recv_tokens": 128}  # fmt: skip
        self.assertLess(0, deep_ep.Config(**names).get_nvl_buffer_size_hint(2 * 7168, 8))
        self.assertEqual(deep_ep.Config(24, 8, 256).get_rdma_buffer_size_hint(2 * 7168, 8), 0)

    def test_ranks_that_differ(self) -> None:
        """All ranks get the same line, and nobody waits."""
        errors = []

        def body(job: callers.Job) -> None:
            for options in ({"num_nvl_bytes": 1 << 20 + job.rank}, {"enable_shrink": job.rank == 1},
                            {"num_rdma_bytes": -job.rank, "low_latency_mode": True}):  # fmt: skip
                try:
                    deep_ep.Buffer(job.group, **options)
                except ValueError as error:
                    errors.append(str(error))

        on_ranks(2, body)
        self.assertEqual(len(errors), 6)
        for part in ("num_nvl_bytes is 2097152 on rank 1, and 1048576 on rank 0", "enable_shrink is True on rank 1",
                     "num_rdma_bytes is -1"):  # fmt: skip
            self.assertEqual(sum(part in error for error in errors), 2, errors)

    def test_ranks_of_mpi(self) -> None:
        def body(job: callers.Job) -> None:
            comm = SimpleNamespace(Get_rank=lambda: job.rank, Get_size=lambda: job.n, allgather=job.gather)
            buffer = deep_ep.Buffer(None, 1 << 20, comm=comm)
            self.assertEqual((buffer.rank, buffer.group_size, buffer.group), (job.rank, job.n, comm))

        on_ranks(2, body)

    def test_destroy_must_be_asked_for(self) -> None:
        def body(job: callers.Job) -> None:
            buffer = callers.low_latency_buffer(job, 1, 128)
            self.refused(buffer.destroy, "explicitly_destroy is False")

        on_ranks(1, body)


class Lives(Case):
    def test_the_last_reference_ends_the_group(self) -> None:
        """There is no cycle of references that would keep it, and its number is no group's any more."""

        def body(job: callers.Job) -> None:
            buffer = callers.low_latency_buffer(job, 4, 128)
            barrier = buffer._group.barrier
            barrier(buffer.get_comm_stream().cuda_stream)
            del buffer
            with self.assertRaisesRegex(libshunt.Error, "shunt_ep_barrier: the Buffer was destroyed"):
                barrier(0)

        gc.disable()
        self.addCleanup(gc.enable)
        on_ranks(1, body)

    def test_a_forked_child_has_no_group(self) -> None:
        """It says so, and its end leaves the parent's alone."""

        def body(job: callers.Job) -> None:
            buffer = callers.low_latency_buffer(job, 4, 128)
            x, idx = torch.zeros((2, 128), BF16), torch.zeros((2, 2), I64)

            def child() -> None:
                with self.assertRaisesRegex(libshunt.Error, "or made by the parent of this process"):
                    buffer._group.barrier(0)
                buffer._end()

            self.assertEqual(in_child(child), 0)
            buffer.low_latency_dispatch(x, idx, 4, 2)
            torch.cuda.synchronize()

        on_ranks(1, body)

    def test_exits_without_destroy(self) -> None:
        """Of all ranks, in the middle of a hooked call."""
        code = (
            "import sys, os\n"
            f"sys.path.insert(0, {os.path.join(os.path.dirname(os.path.abspath(__file__)), 'stand_ins')!r})\n"
            "import libshunt.deep_ep as deep_ep, torch, torch.distributed as dist\n"
            "torch.cuda.set_device(int(os.environ['RANK']))\n"
            "dist.init_process_group('gloo')\n"
            "size = deep_ep.Buffer.get_low_latency_rdma_size_hint(4, 128, 2, 4)\n"
            "buffer = deep_ep.Buffer(dist.group.WORLD, 0, size, low_latency_mode=True, explicitly_destroy=True)\n"
            "x, idx = torch.zeros((2, 128), torch.bfloat16), torch.tensor([[0, 2], [1, 3]], torch.int64)\n"
            "call = buffer.low_latency_dispatch(x, idx, 4, 4, return_recv_hook=True)\n"
            "print('sent')\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            env = dict(os.environ, WORLD_SIZE="2", STAND_IN_STORE=folder)
            env.pop("LD_LIBRARY_PATH", None)
            ranks = [
                subprocess.Popen([sys.executable, "-c", code], env=dict(env, RANK=str(rank)), stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
                for rank in range(2)
            ]  # fmt: skip
            try:
                said = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
            finally:
                for rank in ranks:
                    rank.send_signal(signal.SIGKILL)
        self.assertEqual([(rank.returncode, said[i][0]) for i, rank in enumerate(ranks)], [(0, "sent\n")] * 2, said)


class Streams(Case):
    def test_calls_wait_for_streams_and_events(self) -> None:
        def body(job: callers.Job) -> None:
            buffer = callers.low_latency_buffer(job, 4, 128, explicitly_destroy=True)
            own, current = buffer.get_comm_stream(), torch.cuda.current_stream()
            self.assertEqual(own.priority, -1)
            x, idx = torch.zeros((2, 128), BF16), torch.zeros((2, 2), I64)

            def logs(**options: Any) -> tuple[Any, list[str], list[str]]:
                own.log.clear()
                current.log.clear()
                made = buffer.low_latency_dispatch(x, idx, 4, 2, **options)
                return made, [what for what, _ in own.log], [what for what, _ in current.log]

            made, ours, theirs = logs()
            self.assertEqual(
                (made[3].event, made[4], ours, theirs), (None, None, ["wait", "record"], ["record", "wait"])
            )
            made, ours, theirs = logs(async_finish=True)
            self.assertEqual((ours, theirs), (["wait", "record"], ["record"]))
            self.assertTrue(any(one is x for one in made[3].extra_tensors))
            with made[3](release_handle=True) as event:
                event.register_hook_after_wait(lambda: theirs.append("hook"))
            self.assertEqual((event.event, theirs[-1], current.log[-1][0]), (None, "hook", "wait"))
            made, ours, theirs = logs(return_recv_hook=True)
            self.assertEqual((made[3].event, ours, theirs), (None, [], []))
            made[4]()
            self.assertEqual((own.log, current.log), ([], []))
            with torch.cuda.stream(own):
                _, ours, _ = logs()
            self.assertEqual(ours, [])
            self.assertIs(deep_ep.Buffer.capture().event.event.stream, current)
            self.assertIs(EventHandle().event.stream, current)
            buffer.destroy()

        on_ranks(1, body)

    def test_cost_on_the_host(self) -> None:
        """Calls of functions, Python's and C's, without those that the stand-in makes itself."""

        def body(job: callers.Job) -> None:
            buffer = callers.low_latency_buffer(job, 4, 128, explicitly_destroy=True)
            x, idx, weights = torch.zeros((2, 128), BF16), torch.zeros((2, 2), I64), torch.zeros((2, 2))
            ours, count = os.path.dirname(deep_ep.Buffer.__init__.__code__.co_filename), [0]

            def note(frame: Any, event: str, arg: object) -> None:
                caller = frame.f_back if event == "call" else frame if event == "c_call" else None
                count[0] += caller is not None and caller.f_code.co_filename.startswith(ours)

            def counted(call: Callable[[], Any]) -> Any:
                call()
                count[0] = 0
                sys.setprofile(note)
                made = call()
                sys.setprofile(None)
                self.assertLess(count[0], 125)
                return made

            layout = counted(lambda: buffer.get_dispatch_layout(idx, 2))
            counted(lambda: buffer.dispatch(x, None, layout[0], None, layout[3], layout[2], idx, weights))
            made = counted(lambda: buffer.low_latency_dispatch(x, idx, 4, 2, use_fp8=False))
            counted(lambda: buffer.low_latency_combine(made[0], idx, weights, made[2]))
            buffer.destroy()

        on_ranks(1, body)


class Names(Case):
    def test_the_structs_are_those_of_the_header(self) -> None:
        path = os.path.join(variable("TEST_SOURCE"), "include", "shunt", "ep.h")
        with open(path, encoding="utf-8") as file:
            header = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        letters = {"size_t": "N", "int32_t": "i", "uint32_t": "I", "int64_t": "q", "uint64_t": "Q"}
        for name, codes in _call.FORMATS.items():
            found = ""
            block = re.search(rf"struct {name} \{{(.*?)\}};", header, re.S)
            assert block, name
            for field in filter(None, (line.strip() for line in block[1].split(";"))):
                base = field.removeprefix("const ").split()[0]
                for declared in field.split(","):
                    times = int(re.search(r"\[(\d+)\]", declared + "[1]")[1])  # type: ignore[index]
                    found += ("P" if "*" in declared else letters[base]) * times
            self.assertEqual(codes, found, name)

    def test_the_name_is_there_for_who_asks(self) -> None:
        here = os.path.dirname(os.path.abspath(__file__))
        ask = "import deep_ep; print(deep_ep.shunt, deep_ep.__version__, deep_ep.topk_idx_t)"
        said = "True 1.2.1 torch.int64\n"
        paths = os.pathsep.join([variable("PYTHONPATH"), os.path.join(here, "stand_ins")])
        run = run_python(ask, PYTHONPATH=paths)
        self.assertIn("ModuleNotFoundError: No module named 'deep_ep'", run.stderr)
        run = run_python("import importlib.util, os, libshunt\nlibshunt.deep_ep.install()\n"
                         "print(importlib.util.find_spec('deep_ep') is not None, 'alias' in os.environ['PYTHONPATH'])\n"
                         "from deep_ep.utils import EventHandle, EventOverlap\n"
                         "from deep_ep import Buffer, Config\n" + ask, PYTHONPATH=paths)  # fmt: skip
        self.assertEqual((run.stdout, run.stderr), ("True True\n" + said, ""))
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "deep_ep"))
            with open(os.path.join(folder, "deep_ep", "__init__.py"), "w", encoding="utf-8") as file:
                file.write("")
            paths = os.pathsep.join([folder, paths])
            run = run_python("import deep_ep, libshunt\nlibshunt.deep_ep.install()", PYTHONPATH=paths)
            self.assertIn(
                "ImportError: deep_ep is imported already: call libshunt.deep_ep.install() before", run.stderr
            )
            shunt = os.path.join(variable("TEST_BUILD"), "tools", "shunt")
            env = dict(os.environ, PYTHONPATH=paths)
            env.pop("LD_LIBRARY_PATH", None)
            done = subprocess.run([shunt, "run", "--deep-ep", "--", sys.executable, "-c", ask], env=env, text=True,
                                  capture_output=True, timeout=LIMIT_S)  # fmt: skip
            self.assertEqual(done.stdout, said, done.stderr)
            self.assert_one_line(done.stderr, "hides", os.path.join(folder, "deep_ep", "__init__.py"))

    def test_without_pytorch(self) -> None:
        run = run_python("import libshunt\nlibshunt.deep_ep")
        self.assert_one_line(run.stderr, "ModuleNotFoundError: No module named 'torch'")


if __name__ == "__main__":
    unittest.main()
