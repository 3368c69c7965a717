# SPDX-License-Identifier: MIT
"""
The examples of docs/dsl.md, docs/python.md, docs/batch-invariance.md and docs/plugins*.md run, one after the other,
and their pictures are what they draw. A block of text after an example is what it prints, where "…" stands for
anything. What comes after "In a program that trains" runs on two ranks, with a stand-in for PyTorch. What other
packages compile is registered on the sim, with stand-ins for those that cannot do so here, which are named. With the
argument "write" the file writes the pictures: PYTHONPATH=python SHUNT_LIB=build/src/libshunt.so python3
tests/python/test_docs.py write
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import os
import re
import subprocess
import sys
import tempfile
import unittest
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from helper import write_entry_points

HERE = os.path.dirname(os.path.abspath(__file__))
DOCS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "docs")
PICTURES = {"dsl.md": "dsl/gather2.svg", "python.md": "python/my_allreduce.svg"}
TRAINS = "## In a program that trains"
LIMIT_S = 100


@dataclass
class Example:
    path: str
    line: int
    code: str
    prints: str | None


def examples(page: str, trains: bool = False) -> list[Example]:
    """Those of a page: of the program that trains, or the others."""
    path = os.path.join(DOCS, page)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    split = text.find(TRAINS)
    split = len(text) if split < 0 else split
    found = []
    for block in re.finditer(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", text, re.DOTALL | re.MULTILINE):
        if (block.start() >= split) == trains:
            found.append(Example(path, text.count("\n", 0, block.start(1)), block[1], block[2]))
    return found


def run(example: Example, names: dict[str, Any], compare: bool) -> None:
    """Lines of errors are those of the page."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile("\n" * example.line + example.code, example.path, "exec"), names)
    # The page calls the file of an example as a reader would, and counts its lines from the example's first.
    text = re.sub(
        re.escape(os.path.basename(example.path)) + r":(\d+)",
        lambda at: f"my_allreduce.py:{int(at[1]) - example.line}",
        said.getvalue(),
    )
    pattern = re.escape(example.prints or "").replace("…", ".*")
    if compare and not re.fullmatch(pattern, text):
        raise AssertionError(f"{example.path}:{example.line}: prints\n{text}\nnot\n{example.prints}")


@contextlib.contextmanager
def folder() -> Iterator[str]:
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as made:
        os.chdir(made)
        try:
            yield made
        finally:
            os.chdir(here)


def picture_of(page: str) -> str:
    names: dict[str, Any] = {}
    for example in examples(page):
        run(example, names, compare=True)
    picture: str = names["picture"]
    return picture


def train(page: str) -> None:
    """One rank of the page's program; rank 0 prints what the page says."""
    sys.path.insert(0, os.path.join(HERE, "stand_ins"))
    names: dict[str, Any] = {}
    for example in examples(page, trains=True):
        run(example, names, compare=os.environ["RANK"] == "0")


LEAVES, COUNT = 8, 1024


def leaf(number: int) -> array[float]:
    """Of the tree, with magnitudes that make the order of a sum visible."""
    return array("f", [((number * 37 + k * 101) % 97 - 48) / 7 * 10.0 ** ((number + k) % 5) for k in range(COUNT)])


def rounded_sum(a: array[float], b: array[float]) -> array[float]:
    return array("f", [x + y for x, y in zip(a, b, strict=True)])


def upper_sum(nodes: list[array[float]]) -> array[float]:
    while len(nodes) > 1:
        nodes = [rounded_sum(a, b) for a, b in zip(nodes[::2], nodes[1::2], strict=True)]
    return nodes[0]


def check(status: int) -> None:
    if status:
        sys.exit(f"status {status}")


def tree(ranks: int) -> None:
    """Prints the sums of an all-reduce and of a reduce-scatter, by all ranks, whose inputs are nodes of the tree."""
    lib = ctypes.CDLL(os.environ["SHUNT_LIB"])
    size_t, pointers = ctypes.c_size_t, ctypes.c_void_p * ranks
    comms, buffers, streams = pointers(), pointers(), pointers()
    path = ctypes.c_char_p()
    check(lib.ncclCommInitAll(comms, ranks, None))
    for r in range(ranks):
        check(lib.shunt_device_set(r))
        check(lib.shunt_malloc(ctypes.byref(buffers, r * 8), size_t(4 * COUNT)))
        check(lib.shunt_stream_create(ctypes.byref(streams, r * 8)))
    for kind, plan in ("allreduce", "tree_sum"), ("reducescatter", "tree_scatter"):
        part = COUNT if kind == "allreduce" else COUNT // ranks
        for r in range(ranks):
            check(lib.shunt_device_set(r))
            node = upper_sum([leaf(i) for i in range(r * LEAVES // ranks, (r + 1) * LEAVES // ranks)]).tobytes()
            check(lib.shunt_memcpy(ctypes.c_void_p(buffers[r]), node, size_t(len(node))))
        check(lib.ncclGroupStart())
        for r in range(ranks):
            at = ctypes.c_void_p(buffers[r])
            to = ctypes.c_void_p((buffers[r] or 0) + (0 if kind == "allreduce" else 4 * part * r))
            call = lib.ncclAllReduce if kind == "allreduce" else lib.ncclReduceScatter
            check(call(at, to, size_t(part), 7, 0, ctypes.c_void_p(comms[r]), ctypes.c_void_p(streams[r])))
        check(lib.ncclGroupEnd())
        check(lib.shunt_path_of(ctypes.c_void_p(comms[0]), kind.encode(), size_t(part), 7, 0, ctypes.byref(path)))
        if ranks > 2 and path.value != f"{plan}_{ranks}".encode():
            sys.exit(f"{kind}: by {path.value!r}, not by the plan")
        sums = b""
        for r in range(ranks):
            check(lib.shunt_device_set(r))
            check(lib.shunt_stream_synchronize(ctypes.c_void_p(streams[r])))
            got = ctypes.create_string_buffer(4 * COUNT)
            check(lib.shunt_memcpy(got, ctypes.c_void_p(buffers[r]), size_t(4 * COUNT)))
            if kind == "allreduce" and sums not in (b"", got.raw):
                sys.exit(f"rank {r} has another sum")
            sums = got.raw if kind == "allreduce" else sums + got.raw[4 * part * r : 4 * part * (r + 1)]
        print(sums.hex())


def compilers(include: str) -> dict[str, Any]:
    """What the examples of other compilers use."""
    from test_plugins import WHOLE, Compiled, cubin

    sizes = [8] * 7 + [4, 8, 8, 8]  # as params of the page's Triton kernel
    metadata = Compiled(name="pair", num_warps=4, shared=0)
    names: dict[str, Any] = {
        "torch": Compiled(float32="float32"),
        "kernel": Compiled(warmup=lambda *_, grid: Compiled(asm={"cubin": cubin(pair=sizes)}, metadata=metadata)),
    }

    def cuda_core() -> dict[str, Any]:
        core = importlib.import_module("cuda.core")
        options = core.ProgramOptions(std="c++17", arch="sm_90", include_path=include)
        core.Program("", "c++", options).compile("cubin")
        return {"cuda": sys.modules["cuda"], "options": options}

    def cupy() -> dict[str, Any]:
        return {"cupy": importlib.import_module("cupy")}

    def numba() -> dict[str, Any]:
        cuda, types = importlib.import_module("numba.cuda"), importlib.import_module("numba.types")

        def function(send: Any, recv: Any, count: int) -> None:
            for i in range(cuda.grid(1), count, cuda.gridsize(1)):
                recv[i] = 2 * send[i]

        signature = types.void(*[types.CPointer(types.float32)] * 2, types.uint64)
        cuda.compile(function, signature, device=False, abi="numba", cc=(9, 0))
        return {"numba": sys.modules["numba"], "function": function, "signature": signature}

    made = Compiled(compile=lambda form: Compiled(code=cubin(my_allreduce=[WHOLE])))
    core = Compiled(core=Compiled(Program=lambda *_: made))
    ptx = ".version 9.0\n.target sm_90\n.visible .entry f(.param .u64 a, .param .u64 b, .param .u64 c) { ret; }"
    for real, stand_in in (
        (cuda_core, {"cuda": core, "options": None}),
        (cupy, {"cupy": Compiled(RawModule=Compiled)}),
        (
            numba,
            {"numba": Compiled(cuda=Compiled(compile=lambda *_, **how: (ptx, how))), "function": 0, "signature": 0},
        ),
    ):
        try:
            names.update(real())
        except Exception as error:  # not installed, or it lacks a part of CUDA
            print(f"a stand-in for {real.__name__}: {type(error).__name__}: {error}".split("\n")[0])
            names.update(stand_in)
    return names


class Docs(unittest.TestCase):
    def check_picture(self, page: str) -> None:
        with open(os.path.join(DOCS, PICTURES[page]), encoding="utf-8") as file:
            self.assertEqual(file.read(), picture_of(page), f"{PICTURES[page]}: write it again, as this file says")

    def test_examples_of_the_language(self) -> None:
        with folder():
            self.check_picture("dsl.md")
            self.assertTrue(os.listdir("plans"))

    def test_examples_of_the_package(self) -> None:
        with folder() as made:
            self.check_picture("python.md")
            self.run_train("python.md", made)

    def test_examples_of_batch_invariance(self) -> None:
        with folder() as made:
            for example in examples("batch-invariance.md"):
                run(example, {}, compare=True)
            self.run_train("batch-invariance.md", made)

    def test_tree_has_the_same_bits_for_any_number_of_ranks(self) -> None:
        whole = upper_sum([leaf(i) for i in range(LEAVES)])
        in_turn = leaf(0)
        for i in range(1, LEAVES):
            in_turn = rounded_sum(in_turn, leaf(i))
        self.assertNotEqual(whole, in_turn)  # another order shows in these values
        with folder() as made:
            run(examples("batch-invariance.md")[0], {}, compare=True)
            for ranks in 2, 4, 8:
                with self.subTest(ranks=ranks):
                    env = dict(os.environ, SHUNT_PLAN_DIR=made, SHUNT_SIM_DEVICES="8")
                    command = [sys.executable, os.path.abspath(__file__), "tree", str(ranks)]
                    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(done.stdout.split(), [whole.tobytes().hex()] * 2)

    def test_algorithms_of_ones_own(self) -> None:
        for page in "plugins.md", "plugins_mscclpp.md":
            with self.subTest(page=page), folder() as made:
                self.run_train(page, made)

    def test_kernels_of_other_compilers(self) -> None:
        import libshunt
        from libshunt import _nvrtc

        with open(os.path.join(DOCS, "plugins.md"), encoding="utf-8") as file:
            text = file.read()
        (kernel,) = re.findall(r'^KERNEL = r"""(.*?)"""', text, re.DOTALL | re.MULTILINE)
        (block,) = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        names = compilers(_nvrtc.include_path())
        names.update(KERNEL=kernel, libshunt=libshunt)
        exec(compile(block, "plugins.md", "exec"), names)
        there = {row.name: row.collective for row in libshunt.algorithms()}
        for name in "abcd":
            self.assertEqual(there[name], "allreduce")
            libshunt.unregister(name)

    def run_train(self, page: str, made: str) -> None:
        env = dict(os.environ, WORLD_SIZE="2", STAND_IN_STORE=made)
        env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")  # the stand-in opens no port
        write_entry_points(made)
        env["PYTHONPATH"] = os.pathsep.join([made, env["PYTHONPATH"]])
        env.pop("LD_LIBRARY_PATH", None)  # Meson's, with which the loader finds Shunt under NCCL's name
        ranks = [
            subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "train", page],
                env=dict(env, RANK=str(rank), LOCAL_RANK=str(rank)),
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            said = [rank.communicate(timeout=LIMIT_S)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], "\n".join(said))


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        for page, name in PICTURES.items():
            with folder():
                picture = picture_of(page)
            with open(os.path.join(DOCS, name), "w", encoding="utf-8") as file:
                file.write(picture)
    elif sys.argv[1:2] == ["train"]:
        train(sys.argv[2])
    elif sys.argv[1:2] == ["tree"]:
        tree(int(sys.argv[2]))
    else:
        unittest.main()
