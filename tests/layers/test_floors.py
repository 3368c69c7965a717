# SPDX-License-Identifier: MIT
"""What tools/lint_layers.py says of small trees: an order that finds nothing would let everything pass."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools"))
import lint_layers  # noqa: E402


class Floors(unittest.TestCase):
    order = lint_layers.Order(["base", "shim"], {"shim": [["nccl"], [".", "state.h"], ["overlay", "standalone"], ["entry.c"]]})

    def problem(self, path, target):
        return self.order.problem(path, target) or ""

    def test_downward_is_right(self):
        for path, target in (("shim/entry.c", "shim/overlay/init.c"), ("shim/overlay/init.c", "shim/nccl/real.c"),
                             ("shim/overlay/a.c", "shim/overlay/b.c"), ("shim/life.c", "base/log.h"), ("shim/a.c", "shim/b.c"),
                             ("shim/overlay/init.c", "stdio.h")):
            self.assertEqual(self.problem(path, target), "")

    def test_upward_is_wrong(self):
        self.assertIn("shim stands above base", self.problem("base/log.c", "shim/life.h"))
        self.assertIn("overlay stands above nccl", self.problem("shim/nccl/real.c", "shim/overlay/init.h"))
        self.assertIn("entry.c stands above .", self.problem("shim/life.c", "shim/entry.c"))

    def test_sideward_is_wrong(self):
        self.assertIn("one floor", self.problem("shim/overlay/init.c", "shim/standalone/task.h"))
        self.assertIn("one floor", self.problem("shim/state.h", "shim/life.h"))

    def test_circles(self):
        graph = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": [], "e": ["f"], "f": ["e"]}
        self.assertEqual(lint_layers.circles(graph), [["a", "b", "c"], ["e", "f"]])

    def test_calls_of_symbols(self):
        files = {"a.c": ({"one"}, {"two", "twice", "libc"}), "b.c": ({"two", "twice"}, {"one"}), "c.c": ({"twice"}, set())}
        self.assertEqual(lint_layers.calls(files), {"a.c": {"b.c": "two"}, "b.c": {"a.c": "one"}, "c.c": {}})


if __name__ == "__main__":
    unittest.main()
