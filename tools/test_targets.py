#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_targets.py [--names] [--sources] BUILD [SUITE...] [--but BUILD:SUITE,...]...: what ninja must build for the tests of these suites,
a path a line; --sources: and all that is not of tests/. --names: the tests' names instead. Without a suite that is all of them. --but: none that
are in these suites of that build, but for those in suite proof here. Tests in suite long are left out, unless "long" is among the suites.

A test needs the targets that it depends on, those whose files or folders its command or environment names, and the names by which
programs find the library.
"""

import argparse
import json
import os
import sys


def introspect(build, what):
    with open(os.path.join(build, "meson-info", "intro-%s.json" % what), encoding="utf-8") as f:
        return json.load(f)


def suites_of(test):
    """Without the project's name in front of each."""
    return {suite.rpartition(":")[2] for suite in test["suite"]}


def needed(test, targets, build):
    """The files of the targets that a test needs. A folder that the build is in is no reason for all of them."""
    here = os.path.abspath(build) + "/"
    texts = [text for text in test["cmd"] + list(test["env"].values()) if not here.startswith(text.rstrip("/") + "/")]
    folders = tuple(text.rstrip("/") + "/" for text in texts if text.startswith("/"))
    for target in targets:
        named = any(file.startswith(folders) or any(file in text for text in texts) for file in target["filename"])
        soname = target["name"].startswith("libnccl.so")
        if named or soname or target["id"] in test["depends"]:
            yield from target["filename"]


def names(build, suites):
    every = "long" in suites
    wanted = set(suites) - {"long"}
    for test in introspect(build, "tests"):
        of = suites_of(test)
        if (of & wanted or not wanted) and (every or "long" not in of):
            yield test["name"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--sources", action="store_true")
    parser.add_argument("--but", action="append", default=[])
    parser.add_argument("build")
    parser.add_argument("suites", nargs="*")
    args = parser.parse_intermixed_args()
    chosen = set(names(args.build, args.suites))
    proofs = set(names(args.build, ["proof"]))
    for other in args.but:
        build, _, suites = other.partition(":")
        chosen.difference_update(set(names(build, suites.split(","))) - proofs)
    if args.names:
        print(*sorted(chosen), sep="\n")
        return 0 if chosen else 1
    targets = introspect(args.build, "targets")
    files = set()
    for test in introspect(args.build, "tests"):
        if test["name"] in chosen:
            files.update(needed(test, targets, args.build))
    if args.sources:
        for target in targets:
            if os.path.relpath(os.path.dirname(target["defined_in"])).split(os.sep)[0] != "tests":
                files.update(target["filename"])
    for file in sorted(files):
        print(os.path.relpath(file, args.build))
    return 0 if files else 1


if __name__ == "__main__":
    sys.exit(main())
