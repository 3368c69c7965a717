# SPDX-License-Identifier: MIT
"""
The examples of docs/dsl.md, docs/python.md, docs/batch-invariance.md and docs/plugins*.md run, one after the other,
and their pictures are what they draw. A block of text after an example is what it prints, where "…" stands for
anything. What comes after "In a program that trains" runs on two ranks, with a stand-in for PyTorch. With the
argument "write" the file writes the pictures: PYTHONPATH=python SHUNT_LIB=build/src/libshunt.so python3
tests/python/test_docs.py write
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import unittest
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

    def test_algorithms_of_ones_own(self) -> None:
        for page in "plugins.md", "plugins_mscclpp.md":
            with self.subTest(page=page), folder() as made:
                self.run_train(page, made)

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
    else:
        unittest.main()
