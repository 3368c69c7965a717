# SPDX-License-Identifier: MIT
"""libshunt.torch with a stand-in for PyTorch, whose groups make communicators on the sim."""

import os
import sys
import threading
import unittest
import unittest.mock
from typing import Any

from helper import Case, Rank, on_ranks, run_python

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "stand_ins"))
import libshunt
import libshunt.torch as shunt_torch
import torch
import torch.distributed as dist

lock = threading.Lock()


class Torch(Case):
    def test_stats_and_paths_of_a_group(self) -> None:
        def body(me: Rank) -> None:
            for backend in dist.Backend(me.comm), dist.OldBackend(0):
                group = dist.Group(me.rank, me.nranks, backend)
                with lock:  # the default group is the process's
                    dist.group.WORLD = group
                    self.assertEqual(shunt_torch.comm(group).handle, me.comm)
                    self.assertEqual(shunt_torch.comm().handle, me.comm)
                    self.assertEqual(shunt_torch.path("allreduce", 256), "oneshot")
                    x = torch.Tensor(256, torch.DTYPES["float8e4m3"])
                    self.assertEqual(shunt_torch.path("all_reduce", x, group=group), "oneshot")
                    self.assertEqual(shunt_torch.path("all_gather_into_tensor", x), "pairwise")
            me.all_reduce(1024)
            self.assertEqual([count.calls for count in shunt_torch.stats(group)[0].counts], [1])

        try:
            on_ranks(2, body)
        finally:
            dist.group.WORLD = None

    def test_groups_that_cannot_be_told(self) -> None:
        old = dist.OldBackend(0)

        with self.assertRaisesRegex(libshunt.Error, "there is no process group: call torch.distributed"):
            shunt_torch.stats()

        def body(me: Rank) -> None:
            if me.rank:
                return
            dist.group.WORLD = dist.Group(1, 3, old)
            with self.assertRaisesRegex(libshunt.Error, "no communicator of rank 1 of 3 exists yet.*device_id"):
                shunt_torch.stats()
            with self.assertRaisesRegex(libshunt.Error, "no backend for cpu: No backend type"):
                shunt_torch.comm(device="cpu")
            second = me.nccl.init_rank(1, me.nccl.unique_id(), 0)
            third = me.nccl.init_rank(1, me.nccl.unique_id(), 0)
            dist.group.WORLD = dist.Group(0, 1, old)
            with self.assertRaisesRegex(libshunt.Error, "2 communicators are of rank 0 of 1.*0.0.stand_in"):
                shunt_torch.stats()
            for comm in second, third:
                me.nccl.CommDestroy(comm)

        try:
            on_ranks(2, body)
        finally:
            dist.group.WORLD = None

    def with_pool(self, backend: Any, **options: Any) -> Any:
        dist.group.WORLD = dist.Group(0, 1, backend)
        self.addCleanup(setattr, dist.group, "WORLD", None)
        pool = shunt_torch.pool(**options)
        with pool:
            self.assertEqual(torch.cuda.using, [pool.pool])
        self.assertEqual(torch.cuda.using, [])
        with pool:
            pass
        pool.close()
        pool.close()
        return pool.pool

    def test_zero_copy_takes_two_lines(self) -> None:
        backend = dist.Backend(0)
        pool = self.with_pool(backend)
        self.assertEqual(backend.calls, [("register", pool, True), ("deregister", pool)])

    def test_a_pool_from_before_the_group_has_windows(self) -> None:
        def body(me: Rank) -> list[str]:
            torch.cuda.set_device(me.rank)
            group = dist.Group(me.rank, me.nranks, dist.Backend(me.comm))
            pool = shunt_torch.pool(group)
            with pool:
                x = torch.ones(5000)
            with lock:  # the default group is the process's
                dist.group.WORLD = group
                pool.register()
            for total in 2.0, 4.0:  # in the window, and after its end
                me.nccl.AllReduce(x.data_ptr(), x.data_ptr(), x.numel(), 7, 0, me.comm, me.stream.handle)
                me.stream.synchronize()
                self.assertEqual(x.tolist()[::4999], [total, total])
                pool.close()
            pool.pool.empty_cache()
            return [count.path for count in libshunt.stats(me.comm)[0].counts]

        self.addCleanup(setattr, dist.group, "WORLD", None)
        with libshunt.force("allreduce:0-:direct"):
            for in_window, staged in on_ranks(2, body):
                self.assertEqual(in_window, "direct")
                self.assertNotEqual(staged, "direct")

    def test_the_functions_of_the_allocator(self) -> None:
        library = libshunt._lib.library(private=True)
        library.shunt_device_set(1)
        at = library.shunt_torch_alloc(0, 2, None)
        self.assertTrue(at)
        self.assertIsNone(library.shunt_torch_alloc(1, 99, None))  # no such device: PyTorch says out of memory
        library.shunt_torch_free(at, 0, 2, None)
        library.shunt_torch_free(None, 0, 0, None)

    def test_memory_pools_of_older_versions(self) -> None:
        backend = dist.OldBackend(0)
        with self.assertRaisesRegex(libshunt.Error, "torch 0.0.stand_in registers no symmetric memory"):
            self.with_pool(backend)
        torch.cuda.using.clear()
        pool = self.with_pool(backend, symm=False)
        self.assertEqual(backend.calls, [("register", pool), ("deregister", pool)])
        backend.register_mem_pool = None  # type: ignore[assignment,method-assign]
        with self.assertRaisesRegex(libshunt.Error, "torch 0.0.stand_in has no register_mem_pool"):
            self.with_pool(backend)
        torch.cuda.using.clear()
        for owner, name in (torch.cuda.memory, "CUDAPluggableAllocator"), (torch._Cuda, "MemPool"):
            with (
                unittest.mock.patch.object(owner, name, None),
                unittest.mock.patch.object(shunt_torch, "_allocators", []),
                self.assertRaisesRegex(libshunt.Error, f"torch 0.0.stand_in has no {name}"),
            ):
                shunt_torch.pool()

    def test_an_exception_registers_nothing(self) -> None:
        backend = dist.Backend(0)
        dist.group.WORLD = dist.Group(0, 1, backend)
        self.addCleanup(setattr, dist.group, "WORLD", None)
        with self.assertRaises(ZeroDivisionError), shunt_torch.pool():
            raise ZeroDivisionError
        torch.cuda.using.clear()
        self.assertEqual(backend.calls, [])

    def test_without_pytorch(self) -> None:
        run = run_python("import libshunt\nlibshunt.torch\nprint('imported')\nlibshunt.torch.stats()")
        self.assertEqual(run.stdout, "imported\n")
        self.assert_one_line(run.stderr, "Error: PyTorch cannot be imported: ")


if __name__ == "__main__":
    unittest.main()
