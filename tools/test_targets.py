#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_targets.py BUILD SUITE...: what ninja must build for the tests of these suites, a path a line. With "long"
among them that includes their tests in suite long.

A test needs the targets that it depends on, those whose files or folders its command or environment names, and the names by which
programs find the library.
"""

import json
import os
import subprocess
import sys


def introspect(build, what):
    return json.loads(subprocess.run(["meson", "introspect", what, build], stdout=subprocess.PIPE, check=True).stdout)


def suites_of(test):
    """Without the project's name in front of each."""
    return {suite.rpartition(":")[2] for suite in test["suite"]}


def needed(test, targets):
    """The files of the targets that a test needs."""
    texts = test["cmd"] + list(test["env"].values())
    folders = tuple(text.rstrip("/") + "/" for text in texts if text.startswith("/"))
    for target in targets:
        named = any(file.startswith(folders) or any(file in text for text in texts) for file in target["filename"])
        soname = target["name"].startswith("libnccl.so")
        if named or soname or target["id"] in test["depends"]:
            yield from target["filename"]


def main(argv):
    build, suites = argv[1], set(argv[2:])
    targets = introspect(build, "--targets")
    every = "long" in suites
    suites.discard("long")
    files = set()
    for test in introspect(build, "--tests"):
        of = suites_of(test)
        if of & suites and (every or "long" not in of):
            files.update(needed(test, targets))
    for file in sorted(files):
        print(os.path.relpath(file, build))
    return 0 if files else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
