#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fails where a folder of src/ includes one that stands above it, or reaches upward by a weak symbol.

The layers, lowest first, are those of src/meson.build; a folder includes itself, those before it, and include/. Code of
the product includes nothing of tests/, and src/ nothing of tools/. There are no exceptions.
"""
import os
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
WEAK = re.compile(r"__attribute__\s*\(\(\s*weak\s*[,)]|#pragma\s+weak")
# Exports that a client may take from elsewhere, as NCCL's are: they reach nobody.
EXPORTS = re.compile(r"weak,\s*alias|\.weak\s+nccl")


def sources(top):
    for folder, _, names in os.walk(top):
        for name in names:
            if re.search(r"\.(c|h|cc|cu|S|def|in)$", name):
                yield os.path.join(folder, name)


def main():
    with open("src/meson.build", encoding="utf-8") as build:
        layers = re.findall(r"^subdir\('(\w+)'\)$", build.read(), re.M)
    found = 0
    for path in sorted(list(sources("src")) + list(sources("tools")) + list(sources("include"))):
        with open(path, encoding="utf-8") as source:
            text = source.read()
        parts = path.split(os.sep)
        for match in INCLUDE.finditer(text):
            target = match.group(1)
            line = text.count("\n", 0, match.start()) + 1
            problem = None
            if target.startswith(("tests/", "../")):
                problem = "the product includes nothing of tests/, and no path goes up"
            elif parts[0] == "src" and target.startswith("tools/"):
                problem = "src/ includes nothing of tools/"
            elif parts[0] == "src" and target.split("/")[0] in layers:
                if layers.index(target.split("/")[0]) > layers.index(parts[1]):
                    problem = "%s stands above %s" % (target.split("/")[0], parts[1])
            if problem:
                print("%s:%d: includes %s: %s" % (path, line, target, problem))
                found += 1
        if parts[0] == "src":
            for number, line in enumerate(text.split("\n"), 1):
                if WEAK.search(line) and not EXPORTS.search(line):
                    print("%s:%d: a weak symbol: pass what is above as an argument" % (path, number))
                    found += 1
    folders = sorted(name for name in os.listdir("src") if os.path.isdir(os.path.join("src", name)))
    for name in folders:
        if name not in layers:
            print("src/%s: no layer of src/meson.build" % name)
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    sys.exit(main())
