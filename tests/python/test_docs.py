# SPDX-License-Identifier: MIT
"""
The examples of docs/dsl.md run, one after the other, and its picture is what they draw. With an argument it writes the
picture: PYTHONPATH=python SHUNT_LIB=build/src/libshunt.so python3 tests/python/test_docs.py write
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import unittest
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PICTURE = os.path.join(ROOT, "docs", "dsl", "gather2.svg")


def examples() -> dict[str, Any]:
    """Runs them all; returns their names. Lines of errors are those of the page."""
    path = os.path.join(ROOT, "docs", "dsl.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    names: dict[str, Any] = {}
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        above = text.count("\n", 0, block.start(1))
        exec(compile("\n" * above + block[1], path, "exec"), names)
    return names


class Docs(unittest.TestCase):
    def test_examples(self) -> None:
        here = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                names = examples()
                self.assertTrue(os.listdir("plans"))
            finally:
                os.chdir(here)
        with open(PICTURE, encoding="utf-8") as file:
            self.assertEqual(file.read(), names["picture"], f"{PICTURE}: write it again, as this file says")


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        os.chdir(tempfile.mkdtemp())
        picture = examples()["picture"]
        with open(PICTURE, "w", encoding="utf-8") as file:
            file.write(picture)
    else:
        unittest.main()
