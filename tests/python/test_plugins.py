# SPDX-License-Identifier: MIT
"""Algorithms of a program's own from Python. What compilers for GPUs hand out has stand-ins here, since the sim runs
no machine code of GPUs; tests/gpu/plugins.py has the real ones."""

import contextlib
import ctypes
import io
import os
import random
import struct
import tempfile
import unittest
from typing import Any
from unittest import mock

import libshunt
from helper import Case, Rank, in_child, on_ranks, run_python
from libshunt import _images, _lib, _nccl, _nvrtc, _plugins

WHOLE = ctypes.sizeof(_lib.PluginCall)


def cubin(**kernels: list[int]) -> bytes:
    """As much of a cubin as tells its kernels, and the bytes of their parameters."""
    names, datas = [".shstrtab", *(f".nv.info.{name}" for name in kernels)], [b""]
    for sizes in kernels.values():
        info = struct.pack("<BBH", 3, 0x19, 0)
        for i, size in reversed(list(enumerate(sizes))):
            info += struct.pack("<BBHIHHI", 4, 0x17, 12, 0, i, 0, size << 18 | 0x1F000)
        datas.append(info)
    datas[0] = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    at, rows = 0x40, b""
    for name, data in zip(names, datas, strict=True):
        rows += struct.pack("<IIQQQQ24x", datas[0].index(name.encode() + b"\0"), 1, 0, 0, at, len(data))
        at += len(data)
    head = b"\x7fELF\2\1" + bytes(12) + struct.pack("<H", 190) + bytes(20) + struct.pack("<Q10x", at)
    head += struct.pack("<HHH", 64, len(names), 0)
    return head.ljust(0x40, b"\0") + b"".join(datas) + rows


class Registry:
    """Stands for the library: what is registered is in `plugin`."""

    def __init__(self, answer: int = 0, why: bytes = b"") -> None:
        self.answer, self.why = answer, why

    def shunt_plugin_register(self, plugin: Any, why: Any, nbytes: int) -> int:
        self.plugin = _lib.Plugin.from_buffer_copy(plugin._obj)
        why.value = self.why
        return self.answer

    def words(self) -> list[int]:
        return [self.plugin.params[i] for i in range(self.plugin.nparams)]

    def register(self, *what: Any, **how: Any) -> Any:
        with mock.patch.object(_lib, "library", return_value=self), mock.patch.object(_plugins._plans, "warn_of_used"):
            return libshunt.algorithm(*what, **how)


class Compiled:
    """Stands for what compilers hand out: cuda.core (code), Triton (asm), CuPy (file_path; code and options)."""

    def __init__(self, **members: object) -> None:
        self.__dict__.update(members)


class Images(Case):
    def test_what_compilers_hand_out(self) -> None:
        image = cubin(mine=[WHOLE])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mine.cubin")
            with open(path, "wb") as file:
                file.write(image)
            for value in (
                image,
                bytearray(image),
                path,
                Compiled(code=image, name="x"),
                Compiled(asm={"cubin": image, "ptx": "x"}),
                Compiled(file_path=path),
            ):
                self.assertEqual(_images.image(value), image)
        self.assertEqual(_images.image(".entry a(\n)"), b".entry a(\n)\0")
        for value, said in (
            (7, "cubin is 7: it is bytes, a file, or an object whose"),
            (b"", "cubin is b''"),
            ("/no/such.cubin", "cannot read cubin /no/such.cubin: No such file"),
            (Compiled(asm={"ptx": "x"}), "it is bytes, a file"),
        ):
            with self.assertRaisesRegex(libshunt.Error, said):
                _images.image(value)

    def test_kernels(self) -> None:
        self.assertEqual(_images.kernels(cubin(a=[8, 8, 4], b=[])), {"a": [8, 8, 4], "b": []})
        ptx = (  # as of NVRTC and of Triton
            ".visible .entry a(\n.param .u64 .ptr .global .align 1 x,\n.param .align 8 .b8 y[312],\n.param .f32 z\n)"
            ".entry b()\n.entry c\n{ ld.param.u64 %r, [x]; }"
        )
        self.assertEqual(_images.kernels(ptx.encode()), {"a": [8, 312, 4], "b": [], "c": []})
        for broken in (b"", b"\x7fELF", cubin(a=[8])[:90], b"\x50\xed\x55\xba" + bytes(60), b"\xff\xfe"):
            self.assertEqual(_images.kernels(broken), {})

    def test_any_bytes(self) -> None:
        """Some bytes of an image are others, or its end is missing: what is wrong is said in one line."""
        chance = random.Random(38)
        seeds = (
            cubin(a=[8, 8, 4], bb=[WHOLE]),
            b".version 9.0\n.target sm_90\n.visible .entry a(.param .u64 x, .param .align 8 .b8 y[312])\n{ ret; }",
        )
        said: set[str] = set()
        for turn in range(6000):
            data = bytearray(seeds[turn % 2])
            for _ in range(chance.randrange(4)):
                at = chance.randrange(chance.choice((0x40, len(data))))
                data[at] = chance.choice((0, 10, 0x7F, 0xFF, chance.randrange(256)))
            del data[len(data) if chance.randrange(3) else chance.randrange(1, len(data)) :]
            try:
                name, sizes = _images.kernel_of(bytes(data), chance.choice((None, "a")))
                _images.parameters(None, sizes, name, 1 << 20)
            except libshunt.Error as error:
                self.assertNotIn("\n", str(error))
                said.add(str(error).split(":")[0].split(" has ")[0])
        self.assertLessEqual({"kernel is missing", 'kernel is "a"', "kernel a"}, said)

    def test_one_kernel_needs_no_name(self) -> None:
        registry = Registry()
        said = {"dtypes": "float32", "name": "mine"}
        self.assertEqual(registry.register("allreduce", cubin=cubin(only=[WHOLE]), **said), "mine")
        self.assertEqual(registry.plugin.launch.symbol, b"only")
        for image, kernel, error in (
            (cubin(a=[WHOLE], b=[WHOLE]), None, "kernel is missing: the image has a, b"),
            (cubin(a=[WHOLE], b=[WHOLE]), "c", 'kernel is "c": it is one of the image\'s: a, b'),
            (b"\x50\xed\x55\xba", None, "kernels that only CUDA can name"),
        ):
            with self.assertRaisesRegex(libshunt.Error, error):
                registry.register("allreduce", cubin=image, kernel=kernel, **said)

    def test_parameters_of_foreign_kernels(self) -> None:
        registry = Registry()
        said = {"dtypes": ["bfloat16"], "name": "mine", "sizes": (0, 1 << 20)}
        image = cubin(k=[8, 8, 8, 8, 8, 4, 4, 8])
        names = ["send", "recv", "scratch2", "scratch+1", "signals+7", "rank", "count", "null"]
        registry.register("allreduce", cubin=image, params=names, **said)
        call = _lib.PluginCall
        self.assertEqual(
            registry.words(),
            [
                call.send.offset,
                call.recv.offset,
                call.scratch.offset + 16,
                call.scratch.offset | 1 << 12 | 1 << 15,
                call.signals.offset | 7 << 12 | 1 << 15,
                call.rank.offset,
                call.count.offset,
                call.reserved.offset,
            ],
        )
        for params, more, error in (
            (None, {}, r"bytes, and not struct shunt_plugin_call, of \d+: name them by params="),
            (names[:7], {}, "params has 7 names, and kernel k has 8 parameters"),
            ([*names[:4], "rank", *names[5:]], {}, "takes 8 bytes where params has rank, of 4 bytes: name another"),
            (names, {"sizes": (0, 1 << 40)}, "takes 4 bytes where params has count, of 8 bytes: say sizes= up to"),
            ([*names[:7], "abi"], {}, 'one of params is "abi": it is one of rank, nranks, '),
            ([*names[:7], "scratch"], {}, 'one of params is "scratch"'),
            ([*names[:7], "scratch8"], {}, 'one of params is "scratch8"'),
            ([*names[:7], 8], {}, "one of params is 8: it is a str, not int"),
            ("send", {}, 'params is "send": it is a list of names'),
        ):
            with self.assertRaisesRegex(libshunt.Error, error):
                registry.register("allreduce", cubin=image, params=params, **{**said, **more})
        # An image that does not tell is the driver's to check.
        registry.register("allreduce", cubin=b"\x50\xed\x55\xba", kernel="k", params=["send"], **said)
        self.assertEqual(registry.words(), [call.send.offset])


class FakeNvrtc:
    """Stands for NVRTC 13 of GPUs up to 10.3."""

    def __init__(self) -> None:
        self.options: list[str] = []
        self.result, self.log = 0, b""

    def nvrtcCreateProgram(self, program: Any, source: bytes, label: bytes, *headers: object) -> int:
        self.source, self.label = source, label
        program._obj.value = 7
        return 0

    def nvrtcAddNameExpression(self, program: Any, name: bytes) -> int:
        self.kernel = name
        return 0

    def nvrtcCompileProgram(self, program: Any, count: int, options: Any) -> int:
        self.options = [option.decode() for option in options]
        return self.result

    def nvrtcGetNumSupportedArchs(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvrtcGetSupportedArchs(self, known: Any) -> int:
        known[0], known[1] = 90, 103
        return 0

    def nvrtcGetLoweredName(self, program: Any, name: bytes, lowered: Any) -> int:
        lowered._obj.value = b"_Z" + name
        return 0

    def nvrtcDestroyProgram(self, program: Any) -> int:
        self.ended = program._obj.value == 7
        return 0

    def nvrtcGetErrorString(self, result: int) -> bytes:
        return b"NVRTC_ERROR_%d" % result

    def __getattr__(self, name: str) -> Any:
        made = {"CUBIN": cubin(_Zk=[WHOLE]), "PTX": b".entry _Zk()\0", "ProgramLog": self.log + b"\0"}
        what = name[len("nvrtcGet") :].removesuffix("Size")

        def get(program: object, into: Any) -> int:
            if name.endswith("Size"):
                into._obj.value = len(made[what])
            else:
                into.raw = made[what]
            return 0

        return get


class Nvrtc(Case):
    def compile(self, fake: FakeNvrtc, arch: str, *options: str) -> tuple[bytes, str]:
        with mock.patch.object(_nvrtc, "_open", return_value=fake):
            return _nvrtc.compile_for_gpu("a.cu", "text", "k", arch, options, "/headers")

    def test_what_it_is_asked(self) -> None:
        for arch, asked, made in (
            ("sm_90", "sm_90", cubin(_Zk=[WHOLE])),
            ("sm_120", "compute_103", b".entry _Zk()\0"),  # newer than NVRTC: the driver compiles
            ("sm_90a", "sm_90a", cubin(_Zk=[WHOLE])),
            ("compute_80", "compute_80", b".entry _Zk()\0"),
        ):
            fake = FakeNvrtc()
            self.assertEqual(self.compile(fake, arch, "-DX=1"), (made, "_Zk"))
            self.assertEqual((fake.source, fake.label, fake.kernel, fake.ended), (b"text", b"a.cu", b"k", True))
            self.assertEqual(fake.options[0], f"--gpu-architecture={asked}")
            self.assertIn("--include-path=/headers", fake.options)
            self.assertEqual(fake.options[-1], "-DX=1")

    def test_a_source_that_does_not_compile(self) -> None:
        fake = FakeNvrtc()
        fake.result, fake.log = 6, b"a.cu(3): error: that\n"
        with self.assertRaisesRegex(
            libshunt.Error, r"^the source of a.cu does not compile for sm_90: a.cu\(3\): error"
        ):
            self.compile(fake, "sm_90")
        self.assertTrue(fake.ended)
        with (
            mock.patch.object(fake, "nvrtcAddNameExpression", return_value=3),
            self.assertRaisesRegex(libshunt.Error, "^nvrtcAddNameExpression: NVRTC_ERROR_3$"),
        ):
            self.compile(fake, "sm_90")

    def test_it_is_not_here(self) -> None:
        with (
            mock.patch.object(_nvrtc, "_SONAMES", ("libnvrtc_none.so",)),
            mock.patch.object(_nvrtc, "_found", return_value=()),
            self.assertRaisesRegex(libshunt.Error, r"no NVRTC is here \(libnvrtc_none.so.*\): pip install .* cubin="),
        ):
            _nvrtc.compile_for_gpu("a.cu", "", "k", "sm_90", [], "")

    def test_errors_are_one_line(self) -> None:
        log = 'a.cu(3): error: identifier "x" is undefined\n  y = x;\na.cu(4): error: that\n\n2 errors detected\n'
        self.assertEqual(_nvrtc._first_error(log, "k"), 'a.cu(3): error: identifier "x" is undefined (and 1 more)')
        log = '__nv_name_map(2): error: identifier "k" is undefined\n'
        self.assertEqual(_nvrtc._first_error(log, "k"), "it has no kernel k")
        self.assertEqual(_nvrtc._first_error("", "k"), "no reason was given")

    def test_the_example_compiles(self) -> None:
        source = os.path.join(os.environ["TEST_SOURCE"], "plugins", "allreduce_oneshot.cu")
        try:
            _nvrtc._open()
        except libshunt.Error as error:
            self.skipTest(str(error))
        with open(source, encoding="utf-8") as file:
            text, include = file.read(), _nvrtc.include_path()
        image, name = _nvrtc.compile_for_gpu(source, text, "allreduce_oneshot", "sm_90", [], include)
        self.assertEqual((_images.kernels(image), name), ({"allreduce_oneshot": [WHOLE]}, "allreduce_oneshot"))

    def test_it_is_found_in_wheels_and_toolkits(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            paths = [
                os.path.join(folder, *parts, "libnvrtc.so.13") for parts in (("nvidia", "cu13", "lib"), ("lib64",))
            ]
            for path in paths:
                os.makedirs(os.path.dirname(path))
                with open(path, "wb"):
                    pass
            spec = Compiled(submodule_search_locations=[os.path.join(folder, "nvidia")])
            with (
                mock.patch.object(_nvrtc.importlib.util, "find_spec", return_value=spec),
                mock.patch.dict(os.environ, CUDA_HOME=folder),
            ):
                found = list(_nvrtc._found("lib*/libnvrtc.so.*", "lib/libnvrtc.so.*"))
        self.assertEqual(found[:2], paths)


class Arguments(Case):
    def test_mistakes(self) -> None:
        def enqueue(call: object, stream: int) -> None:
            pass

        for what, how, error in (
            (["allsum"], {}, 'collective is "allsum": it is one of allreduce, reduce'),
            (["send"], {}, 'collective is "send"'),
            ([7], {}, "collective is 7"),
            (
                ["allreduce"],
                {},
                r"dtypes is missing: say which elements the allreduce reduces, such as \[\"bfloat16\"\]",
            ),
            (["allreduce"], {"dtypes": ["float7"]}, 'no data type "float7"'),
            (["allreduce"], {"dtypes": []}, r"dtypes is \[\]: it is one or more of int8"),
            (["allreduce"], {"dtypes": "float32", "redops": "xor"}, 'no operator "xor"'),
            (["allgather"], {"sizes": (4, 2)}, r"sizes is \(4, 2\): it is the least and the most"),
            (["allgather"], {"sizes": 4}, "sizes is 4: it is the least and the most"),
            (["allgather"], {"sizes": (0, 1 << 64)}, "one of sizes is"),
            (["allgather"], {"ranks": (1, 8)}, "one of ranks is 1: it is from 2 to 8"),
            (["allgather"], {"scratch": 1 << 29}, "scratch is 536870912: it is from 0 to"),
            (["allgather"], {"name": "My"}, 'name is "My": it is 1 to 31 of a-z, 0-9 and _'),
            (["allgather"], {"name": "a" * 32}, "name is "),
            (["allgather"], {"kernel": "k"}, "kernel is for kernels: give source= or cubin="),
            (["allgather"], {"params": ["send"]}, "params is for kernels"),
            (["allgather"], {"source": "a\n", "cubin": b"a"}, "source or cubin, and here are source and cubin"),
            (["allgather", enqueue], {"source": "a\n"}, "here are a function and source"),
            (["allgather", 7], {}, "an algorithm is a function that gets a libshunt.AlgorithmCall and a stream, not 7"),
            (["allgather", Case], {}, "an algorithm is a function"),
            (["allgather"], {"source": "a\n"}, "name is None"),
            (["allgather"], {"source": "a\n", "name": "a"}, "kernel is None: it is its name"),
            (["allgather"], {"source": "/no/such.cu", "kernel": "a"}, "cannot read source /no/such.cu"),
            (["allgather"], {"source": 7, "kernel": "a"}, "source is 7: it is CUDA C, a file with it, or CuPy's"),
            (["allgather"], {"cubin": b"x", "kernel": "a", "blocks": 0}, "blocks is 0"),
            (["allgather"], {"cubin": b"x", "kernel": "a", "threads": 2048}, "threads is 2048"),
        ):
            with self.subTest(what=what, how=how), self.assertRaisesRegex(libshunt.Error, error):
                made = Registry().register(*what, **how)
                made(enqueue)

    def test_what_the_library_refuses(self) -> None:
        for answer, why, error in (
            (-22, b"threads is 33", "algorithm a was not registered: threads is 33"),
            (-12, b"", "algorithm a was not registered: Cannot allocate memory"),
            (-17, b"", r"the name a is taken: give another, or libshunt.unregister\(\)"),
        ):
            with self.assertRaisesRegex(libshunt.Error, error):
                Registry(answer, why).register("allgather", lambda call, stream: None, name="a")

    def test_identity(self) -> None:
        def one(call: object, stream: int) -> None:
            """As two."""

        def two(call: object, stream: int) -> None:
            """As one."""

        registry = Registry()
        seen = []
        for function, identity in (one, ""), (one, ""), (two, ""), (one, 7), (one, 8):
            self.assertIs(registry.register("allgather", function, name="a", identity=identity), function)
            seen.append(registry.plugin.identity)
        self.assertEqual(seen[0], seen[1])
        self.assertEqual(len(set(seen)), 4)
        self.assertEqual(registry.plugin.doc, b"As two.")
        # Without a text: what it does, which no address and no line changes.
        made = []
        for text in (
            "f = lambda c, s: (lambda: 1)()",
            "\n\nf = lambda c, s: (lambda: 1)()",
            "f = lambda c, s: (lambda: 2)()",
        ):
            names: dict[str, Any] = {}
            exec(text, names)
            registry.register("all_gather", names["f"], name="a")
            made.append(registry.plugin.identity)
        self.assertEqual(made[0], made[1])
        self.assertNotEqual(made[0], made[2])
        self.assertEqual(registry.plugin.collectives, b"allgather")
        registry.register("allreduce", names["f"], name="a", dtypes="int8", redops=["max", "premulsum"])
        self.assertEqual((registry.plugin.dtypes, registry.plugin.redops), (1, 1 << 2 | 1 << 5))

    def test_arrays(self) -> None:
        array = libshunt.Array(0x1000, "float32", (3, 2))
        self.assertEqual(array.__cuda_array_interface__["data"], (0x1000, False))
        self.assertEqual((array.nbytes, array.data_ptr(), array.shape), (24, 0x1000, (3, 2)))
        for dtype, typestr, nbytes in ("float16", "<f2", 2), ("bfloat16", "<i2", 2), ("float8e4m3", "|u1", 1):
            array = libshunt.Array(0x1000, dtype, (1,))
            self.assertEqual((array.__cuda_array_interface__["typestr"], array.nbytes), (typestr, nbytes))
            self.assertIsNone(array.__cuda_array_interface__["stream"])
        self.assertEqual(libshunt.Array(0x1000, "int8", (0,)).__cuda_array_interface__["data"], (0, False))


# Whose library also tells the layout of the structs.
SUM = r"""
#include <shunt/kernel.h>

extern "C" const uint64_t layout[] = {sizeof(shunt_plugin_call), offsetof(shunt_plugin_call, root),
	offsetof(shunt_plugin_call, recv), offsetof(shunt_plugin_call, scratch), offsetof(shunt_plugin_call, signals),
	offsetof(shunt_plugin_call, fault), offsetof(shunt_plugin_call, host), offsetof(shunt_plugin_call, reserved),
	sizeof(shunt_plugin), offsetof(shunt_plugin, max_bytes), offsetof(shunt_plugin, image),
	offsetof(shunt_plugin, launch.cluster), offsetof(shunt_plugin, arg), offsetof(shunt_plugin, params),
	sizeof(shunt_plugin_host), offsetof(shunt_plugin_host, barrier)};

SHUNT_PLUGIN_KERNEL(sum)
{
	const uint64_t first = shunt_k_bid() * shunt_k_ntid() + shunt_k_tid(), step = shunt_k_nbid() * shunt_k_ntid();
	const uint64_t half = epoch % 2 * (call.scratch_bytes / 2);

	for (uint32_t rank = 0; rank < call.nranks; rank++)
		for (uint64_t i = first; i < call.count; i += step)
			((int *)(call.scratch[rank] + half))[call.rank * call.count + i] = ((const int *)call.send)[i];
	if (!shunt_k_barrier(call))
		return;
	for (uint64_t i = first; i < call.count; i += step) {
		int sum = 0;
		for (uint32_t rank = 0; rank < call.nranks; rank++)
			sum += ((const int *)(call.scratch[call.rank] + half))[rank * call.count + i];
		((int *)call.recv)[i] = sum;
	}
}
"""


def gather(call: libshunt.AlgorithmCall, stream: int) -> None:
    """All-gather by copies."""
    for rank in range(call.nranks):
        call.copy(call.scratch(rank).address + call.rank * call.send.nbytes, call.send, call.send.nbytes)
    call.barrier()
    call.copy(call.recv, call.scratch(call.rank), call.recv.nbytes)
    call.barrier()


class Calls(Case):
    """Real calls, on the sim."""

    def setUp(self) -> None:
        self.addCleanup(libshunt.select, None)
        self.names: list[str] = []
        self.addCleanup(lambda: [libshunt.unregister(name) for name in self.names])

    def register(self, name: str, *what: Any, **how: Any) -> Any:
        made = libshunt.algorithm(*what, name=name, **how)
        self.names.append(name)
        return made

    def calls(self, me: Rank, collective: str, counts: tuple[int, ...]) -> dict[str, int]:
        """Calls of int32, of which element i of rank r is 10 * i + r + 1; how many took which path."""
        for count in counts:
            send, recv = _nccl.Buffer(4 * count), _nccl.Buffer(4 * count * me.nranks)
            send.write(struct.pack(f"<{count}i", *(10 * i + me.rank + 1 for i in range(count))))
            at = (send.address, recv.address, count, 2)
            if collective == "allreduce":
                me.nccl.AllReduce(*at, 0, me.comm, me.stream.handle)
                n = me.nranks
                wanted = [10 * n * i + n * (n + 1) // 2 for i in range(count)]
            else:
                me.nccl.AllGather(*at, me.comm, me.stream.handle)
                wanted = [10 * i + rank + 1 for rank in range(me.nranks) for i in range(count)]
            me.stream.synchronize()
            self.assertEqual(list(struct.unpack(f"<{len(wanted)}i", recv.read(4 * len(wanted)))), wanted)
            send.free()
            recv.free()
        return {count.path: count.calls for count in libshunt.describe(me.comm).counts}

    def test_a_kernel(self) -> None:
        how = {"dtypes": "int32", "sizes": (0, 4096), "scratch": 1 << 16, "threads": 64}
        self.register("mine", "allreduce", source=SUM, kernel="sum", blocks=2, doc="of a test", **how)
        layout = (ctypes.c_uint64 * 16).in_dll(_nvrtc._loaded[-1], "layout")
        call, plugin, launch = _lib.PluginCall, _lib.Plugin, _lib.PluginLaunch
        self.assertEqual(
            list(layout),
            [WHOLE, call.root.offset, call.recv.offset, call.scratch.offset, call.signals.offset, call.fault.offset,
             call.host.offset, call.reserved.offset, ctypes.sizeof(plugin), plugin.max_bytes.offset,
             plugin.image.offset, plugin.launch.offset + launch.cluster.offset, plugin.arg.offset,
             plugin.params.offset, ctypes.sizeof(_lib.PluginHost), _lib.PluginHost.barrier.offset],
        )  # fmt: skip
        self.assertIn(libshunt.Algorithm("allreduce", "mine", "of a test"), libshunt.algorithms())
        with self.assertRaisesRegex(libshunt.Error, "the name mine is taken"):
            libshunt.algorithm("allgather", gather, name="mine")
        with libshunt.force("allreduce:0-:mine"):
            for paths in on_ranks(3, lambda me: self.calls(me, "allreduce", (1, 7, 1000, 1024, 1025))):
                self.assertEqual(paths.pop("mine"), 4)
                self.assertEqual(list(paths.values()), [1])  # what it does not take goes on without it

    def test_the_librarys_checks_of_parameters(self) -> None:
        """Of those that the package does not let through."""
        registry = Registry()
        image = cubin(k=[8, 8])
        registry.register("allgather", name="foreign", cubin=image, params=["send", "scratch+7"])
        library, why = _lib.library(private=True), ctypes.create_string_buffer(200)
        call = _lib.PluginCall
        for word, count, says in (
            (WHOLE, 2, f"params[1] is {WHOLE:#x}, expected the offset of a field"),
            (call.send.offset | 1 << 15, 2, "params[1] is 0x8020"),
            (call.scratch.offset | 1 << 12, 2, "params[1] is 0x1050"),
            (2, 2, "params[1] is 0x2"),
            (0, 65, "nparams is 65, expected at most 64, and only with image"),
            (call.rank.offset, 2, ""),
        ):
            registry.plugin.params[1], registry.plugin.nparams = word, count
            result = library.shunt_plugin_register(ctypes.byref(registry.plugin), why, len(why))
            self.assertEqual((result, says in why.value.decode()), (-22 if says else 0, True), why.value)
        libshunt.unregister("foreign")

    def test_a_function_and_a_selector(self) -> None:
        asked: list[libshunt.Call] = []
        seen: dict[int, libshunt.AlgorithmCall] = {}

        def enqueues(call: libshunt.AlgorithmCall, stream: int) -> None:
            gather(call, stream)
            seen[call.rank] = call

        self.register("gather", "all_gather", enqueues, sizes=(0, 4096), scratch=1 << 16)
        libshunt.select(lambda call: asked.append(call) or "gather")
        for paths in on_ranks(2, lambda me: self.calls(me, "allgather", (1, 33, 1000))):
            self.assertEqual(paths, {"gather": 3})
        self.assertEqual({call.collective for call in asked}, {"allgather"})
        call = seen[1]
        self.assertEqual((call.rank, call.nranks, call.count, call.bytes, call.dtype), (1, 2, 1000, 4000, "int32"))
        self.assertEqual((call.send.shape, call.recv.shape, call.recv.nbytes), ((1000,), (2000,), 8000))
        self.assertEqual((call.in_place, call.captured, call.aligned, call.redop), (False, False, True, "sum"))
        self.assertEqual(
            (call.scratch_bytes, call.scratch(0).shape, call.signals(1).shape), (1 << 16, (1 << 16,), (8, 64))
        )
        self.assertEqual((call.epoch.nbytes, call.abort.nbytes, len(bytes(call))), (512, 4, WHOLE))
        self.assertNotEqual(call.scratch(0).address, call.scratch(1).address)
        with self.assertRaisesRegex(libshunt.Error, "rank is 2: it is from 0 to 1"):
            call.scratch(2)
        for late in (lambda: call.copy(call.recv, call.send, 1), call.barrier):
            with self.assertRaisesRegex(libshunt.Error, "the call has been enqueued"):
                late()

    def test_a_function_that_raises(self) -> None:
        def raising(call: libshunt.AlgorithmCall, stream: int) -> None:
            raise ValueError(f"not\n{call.collective}")

        self.register("raises", "allgather", raising)
        said = io.StringIO()

        def body(me: Rank) -> None:
            with self.assertRaisesRegex(libshunt.Error, "ncclAllGather"):
                self.calls(me, "allgather", (1,))
            self.assertLess(libshunt.describe(me.comm).error, 0)
            with self.assertRaisesRegex(libshunt.Error, "ncclAllGather"):
                self.calls(me, "allgather", (1,))

        with contextlib.redirect_stderr(said), libshunt.force("allgather:0-:raises"):
            on_ranks(2, body)
        first = "the algorithm raises raised ValueError: not allgather"
        self.assert_one_line(said.getvalue(), first, "test_plugins.py:", "the communicator is broken")
        self.assertEqual(said.getvalue().count("\n"), 1)

    def test_a_wrong_copy(self) -> None:
        def wrong(call: libshunt.AlgorithmCall, stream: int) -> None:
            call.copy(call.recv, -1, 4)

        self.register("wrong", "allgather", wrong)
        said = io.StringIO()

        def body(me: Rank) -> None:
            with self.assertRaises(libshunt.Error):
                self.calls(me, "allgather", (1,))

        with contextlib.redirect_stderr(said), libshunt.force("allgather:0-:wrong"):
            on_ranks(2, body)
        self.assert_one_line(
            said.getvalue(), "source is -1: it is from 0 to", "the algorithm wrong raised", "test_plugins.py:"
        )

    def test_one_that_comes_late_and_goes(self) -> None:
        def body(me: Rank) -> dict[str, int]:
            self.calls(me, "allgather", (1,))
            if me.rank == 0:
                with self.assertWarnsRegex(UserWarning, "algorithm late comes after the first use") as warned:
                    libshunt.algorithm("allgather", gather, name="late", scratch=1 << 16)
                self.assertEqual(warned.filename, __file__)
                libshunt.unregister("late")
            return self.calls(me, "allgather", (1,))

        for paths in on_ranks(2, body):
            self.assertNotIn("late", paths)
        with self.assertRaisesRegex(libshunt.Error, 'no plan "late", and no such algorithm'):
            libshunt.unregister("late")

    def test_a_forked_child(self) -> None:
        self.register("parents", "allgather", gather, scratch=1 << 16)

        def child() -> None:
            self.assertIn("parents", [row.name for row in libshunt.algorithms()])
            libshunt.algorithm("allgather", gather, name="childs", scratch=1 << 16)
            with libshunt.force("allgather:0-:parents"):
                libshunt.unregister("parents")
            _plugins._end_all()

        self.assertEqual(in_child(child), 0)
        self.assertNotIn("childs", [row.name for row in libshunt.algorithms()])
        with libshunt.force("allgather:0-:parents"):
            for paths in on_ranks(2, lambda me: self.calls(me, "allgather", (5,))):
                self.assertEqual(paths, {"parents": 1})

    def test_it_may_go_with_the_interpreter(self) -> None:
        """Communicators live when it ends, and exit handlers call NCCL after the function has ended."""
        code = """
import atexit, threading
ranks = [None, None]
@atexit.register  # before libshunt's own, so it runs after that
def late():
    try:
        both("AllGather")
    except libshunt.Error as error:
        print("late", str(error).split(":")[0], flush=True)

import libshunt
from libshunt import _nccl
from helper import Rank
from test_plugins import gather
nccl = _nccl.Nccl()
unique_id = nccl.unique_id()
libshunt.algorithm("allgather", gather, name="gather", scratch=1 << 16)
libshunt.select(lambda call: "gather")
def one(rank):
    ranks[rank] = Rank(nccl, rank, 2, unique_id)
def both(what):
    nccl.GroupStart()
    for me in ranks:
        _nccl.device_set(me.rank)
        nccl.AllGather(*me.buffers, 4, 2, me.comm, me.stream.handle)
    nccl.GroupEnd()
threads = [threading.Thread(target=one, args=(r,)) for r in range(2)]
[t.start() for t in threads]; [t.join() for t in threads]
for me in ranks:
    _nccl.device_set(me.rank)
    me.kept = [_nccl.Buffer(64) for _ in range(2)]
    me.buffers = [buffer.address for buffer in me.kept]
both("AllGather")
for me in ranks:
    _nccl.device_set(me.rank)
    me.stream.synchronize()
print(libshunt.describe(ranks[0].comm).counts[0].path, flush=True)
"""
        run = run_python(code)
        self.assertEqual(run.stdout.splitlines()[:2], ["gather", "late ncclGroupEnd"], run.stderr)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("plug-in gather: its enqueue has been ended by the program", run.stderr)


if __name__ == "__main__":
    unittest.main()
