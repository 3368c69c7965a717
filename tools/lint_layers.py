#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fails where a folder of src/ reaches one that stands above it.

tools/lint_layers.py reads the includes; tools/lint_layers.py BUILD reads the symbols of a build's objects, too.

The layers, lowest first, are those of src/meson.build. A layer reaches itself, those before it, and include/. src/floors.txt
has the order of the folders inside a layer, and says what a row means. Files that call in a circle stand in one folder, and
docs/architecture.md has the reason, in the table under "Circles that stay". Code of the product includes nothing of tests/,
and src/ nothing of tools/. No symbol of src/ is weak. No two files of src/ have one name. There are no exceptions.
"""
import json
import os
import re
import subprocess
import sys

FLOORS = "src/floors.txt"
CIRCLES = "docs/architecture.md"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
WEAK = re.compile(r"__attribute__\s*\(\(\s*weak\s*[,)]|#pragma\s+weak")
# Exports that a client may take from elsewhere, as NCCL's are: they reach nobody.
EXPORTS = re.compile(r"weak,\s*alias|\.weak\s+nccl")


class Order:
    """The layers of a source tree and the floors of each: who may reach whom."""

    def __init__(self, layers, rows):
        self.layers = layers
        self.rows = rows  # layer -> [floor], a floor is [folder or file]

    @staticmethod
    def read():
        with open("src/meson.build", encoding="utf-8") as build:
            layers = re.findall(r"^subdir\('(\w+)'\)$", build.read(), re.M)
        rows = {}
        with open(FLOORS, encoding="utf-8") as floors:
            for line in floors:
                if line.strip() and not line.startswith("#"):
                    layer, _, row = line.partition(":")
                    rows[layer.strip()] = [floor.split() for floor in row.split("<")]
        return Order(layers, rows)

    def place(self, path):
        """(number of the layer, number of the floor, folder or file) of a path below src/, or None"""
        parts = path.split("/")
        if parts[0] not in self.layers or len(parts) < 2:
            return None
        floors = self.rows.get(parts[0], [["."]])
        named = {item: number for number, floor in enumerate(floors) for item in floor}
        below = parts[1:]
        for length in range(len(below), 0, -1):
            item = "/".join(below[:length])
            if item in named:
                return self.layers.index(parts[0]), named[item], item
        return self.layers.index(parts[0]), named.get(".", 0), "."

    def problem(self, path, target):
        """Why the one may not reach the other, or None; paths below src/."""
        here, there = self.place(path), self.place(target)
        if here is None or there is None or here == there:
            return None
        if there[0] > here[0]:
            return "%s stands above %s" % (self.layers[there[0]], self.layers[here[0]])
        if there[0] == here[0] and there[1] > here[1]:
            return "%s stands above %s in %s" % (there[2], here[2], self.layers[here[0]])
        if there[0] == here[0] and there[1] == here[1]:
            return "%s and %s of %s are on one floor" % (here[2], there[2], self.layers[here[0]])
        return None

    def table(self):
        """What is wrong with the tables themselves."""
        found = []
        folders = sorted(name for name in os.listdir("src") if os.path.isdir(os.path.join("src", name)))
        found += ["src/%s: no layer of src/meson.build" % name for name in folders if name not in self.layers]
        paths = {}
        for path in sorted(sources("src")):
            paths.setdefault(os.path.basename(path), []).append(path)
        # A debugger's or a compiler's "NAME:200" says which.
        found += ["%s: %s has that name, too" % (same[1], same[0]) for same in paths.values() if len(same) > 1]
        for layer in self.layers:
            if layer not in self.rows and any(os.path.isdir(os.path.join("src", layer, name)) for name in os.listdir(os.path.join("src", layer))):
                found.append("%s: no row has the folders of %s" % (FLOORS, layer))
        for layer, floors in sorted(self.rows.items()):
            items = [item for floor in floors for item in floor]
            for item in items:
                if items.count(item) > 1 or not os.path.exists(os.path.join("src", layer, item)):
                    found.append("%s: %s: %s is not there, or stands there twice" % (FLOORS, layer, item))
            for path in sorted(sources(os.path.join("src", layer))):
                if self.place(path[4:])[2] == "." and ("." not in items or len(path.split("/")) > 3):
                    found.append("%s: %s: no floor has %s" % (FLOORS, layer, path))
        return found


def sources(top):
    for folder, _, names in os.walk(top):
        for name in names:
            if re.search(r"\.(c|h|cc|cu|S|def|in)$", name):
                yield os.path.join(folder, name)


def includes(order):
    found = []
    for path in sorted(list(sources("src")) + list(sources("tools")) + list(sources("include"))):
        with open(path, encoding="utf-8") as source:
            text = source.read()
        top = path.split("/")[0]
        for match in INCLUDE.finditer(text):
            target = match.group(1)
            problem = None
            if target.startswith(("tests/", "../")):
                problem = "the product includes nothing of tests/, and no path goes up"
            elif top == "src" and target.startswith("tools/"):
                problem = "src/ includes nothing of tools/"
            elif top == "src":
                problem = order.problem(path[4:], target)
            if problem:
                line = text.count("\n", 0, match.start()) + 1
                found.append("%s:%d: includes %s: %s" % (path, line, target, problem))
        if top == "src":
            for number, line in enumerate(text.split("\n"), 1):
                if WEAK.search(line) and not EXPORTS.search(line):
                    found.append("%s:%d: a weak symbol: pass what is above as an argument" % (path, number))
    return found


def objects(build, layers):
    """{source below src/: (symbols that it has, symbols that it wants)} of the libraries of a build"""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as commands:
        entries = json.load(commands)
    paths = {}
    for entry in entries:
        source = os.path.normpath(os.path.join(entry["directory"], entry["file"])).rpartition("/src/")[2]
        output = os.path.join(entry["directory"], entry.get("output", ""))
        if source.split("/")[0] in layers and entry.get("output", "").startswith("src/") and os.path.isfile(output):
            paths[output] = source
    result = {source: (set(), set()) for source in paths.values()}
    # -P: the form that POSIX gives it, "FILE: NAME KIND ...", which is that of every nm.
    names = subprocess.run(["nm", "-A", "-P", *paths], check=True, capture_output=True, text=True).stdout if paths else ""
    for line in names.splitlines():
        output, _, symbol = line.rpartition(": ")
        name, kind = symbol.split()[:2]
        if kind in "TDBRC":
            result[paths[output]][0].add(name)
        elif kind == "U":
            result[paths[output]][1].add(name)
    return result


def calls(files):
    """{file: {file that it calls: one of the symbols}}; a symbol that several files have does not count."""
    owners = {}
    for path, (has, _) in files.items():
        for name in has:
            owners.setdefault(name, []).append(path)
    owner = {name: paths[0] for name, paths in owners.items() if len(paths) == 1}
    return {path: {owner[name]: name for name in sorted(wants) if name in owner and owner[name] != path}
            for path, (_, wants) in files.items()}


def circles(graph):
    """The sets of nodes that reach each other, of two or more."""
    def reach(start):
        seen, left = set(), [start]
        while left:
            for node in graph.get(left.pop(), ()):
                if node not in seen:
                    seen.add(node)
                    left.append(node)
        return seen
    reached = {node: reach(node) for node in graph}
    found = {frozenset(other for other in reached[node] if node in reached[other]) for node in graph if node in reached[node]}
    return sorted((sorted(circle) for circle in found if len(circle) > 1), key=lambda circle: (-len(circle), circle))


def circles_that_stay():
    """{folder below src/: its files that may call in a circle}: the first two columns of the table in docs/architecture.md"""
    stay, section = {}, ""
    with open(CIRCLES, encoding="utf-8") as page:
        for line in page:
            if line.startswith("#"):
                section = line.strip("# \n")
            elif section == "Circles that stay" and line.startswith("| `src/"):
                cells = [re.findall(r"`([^`]+)`", cell) for cell in line.split("|")]
                stay.setdefault(cells[1][0][4:], []).append(set(cells[2]))
    return stay


def symbols(order, build):
    files = objects(build, order.layers)
    if len(files) < 100:
        return ["%s: %d objects of src/: is it built?" % (build, len(files))]
    found = []
    graph = calls(files)
    for path, targets in sorted(graph.items()):
        for target, name in sorted(targets.items()):
            problem = order.problem(path, target)
            if problem:
                found.append("src/%s: calls %s of src/%s: %s" % (path, name, target, problem))
    stay = circles_that_stay()
    for circle in circles(graph):
        folder = os.path.dirname(circle[0])
        names = {os.path.basename(path) for path in circle}
        if any(os.path.dirname(path) != folder for path in circle):
            found.append("%d files in several folders call in a circle: %s" % (len(circle), " ".join(circle)))
        elif not any(names <= row for row in stay.get(folder, ())):
            found.append("src/%s: %d files call in a circle, and %s has no reason: %s" % (folder, len(circle), CIRCLES, " ".join(sorted(names))))
    return found


def main():
    order = Order.read()
    found = order.table() + includes(order)
    if len(sys.argv) > 1:
        found += symbols(order, sys.argv[1])
    print("".join(line + "\n" for line in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.argv[1:] = [os.path.abspath(path) for path in sys.argv[1:]]
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    sys.exit(main())
