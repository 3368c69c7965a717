#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""coverage.py BUILD [LIST]: coverage of src/ by the programs of a build with -Db_coverage=true, by folder and in all.

LIST, if given, gets a line for each file with the lines that never ran. A line counts as run if it ran in any object
that contains
it. Threads of the sim increment the same counters without synchronization, so a count may have any value except 0.
gcovr fails
on negative counts, so this script reads gcov's own output.
"""
import collections
import json
import os
import subprocess
import sys


def notes(build):
    for folder, _, names in os.walk(build):
        for name in names:
            if name.endswith(".gcno"):
                yield os.path.join(folder, name)


def reports(build, gcov):
    files = sorted(notes(build))
    for start in range(0, len(files), 20):
        done = subprocess.run([gcov, "--json-format", "--stdout"] + files[start:start + 20], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, cwd=build, check=True)
        for line in done.stdout.splitlines():
            if line.startswith(b"{"):
                yield json.loads(line)


def collect(build, source, gcov):
    """{file under src: {line: run}}"""
    lines = collections.defaultdict(dict)
    root = os.path.join(source, "src") + os.sep
    for report in reports(build, gcov):
        for file in report["files"]:
            path = os.path.realpath(os.path.join(report["current_working_directory"], file["file"]))
            if not path.startswith(root):
                continue
            of_file = lines[path[len(root):]]
            for line in file["lines"]:
                of_file[line["line_number"]] = of_file.get(line["line_number"], False) or line["count"] != 0
    return lines


def ranges(numbers):
    texts = []
    for n in sorted(numbers):
        if texts and texts[-1][1] == n - 1:
            texts[-1][1] = n
        else:
            texts.append([n, n])
    return " ".join("%d" % a if a == b else "%d-%d" % (a, b) for a, b in texts)


def main(argv):
    build = os.path.realpath(argv[1])
    source = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
    lines = collect(build, source, os.environ.get("GCOV", "gcov"))
    if not lines:
        print("coverage: nothing of src/ in %s; set it up with -Db_coverage=true and run its tests" % build, file=sys.stderr)
        return 1
    if len(argv) > 2:
        with open(argv[2], "w") as out:
            for file, of_file in sorted(lines.items()):
                missed = [n for n, run in of_file.items() if not run]
                out.write("src/%s %d of %d: %s\n" % (file, len(of_file) - len(missed), len(of_file), ranges(missed)))
    folders = collections.Counter()
    run = collections.Counter()
    for file, of_file in lines.items():
        folder = os.path.dirname(file)
        for key in (folder, ""):
            folders[key] += len(of_file)
            run[key] += sum(of_file.values())
    for folder in sorted(folders):
        if folder:
            print("src/%-10s %5.1f %% of %5d lines" % (folder, 100 * run[folder] / folders[folder], folders[folder]))
    percent = 100 * run[""] / folders[""]
    print("coverage: %.1f %% of lines of src/" % percent)
    least = float(os.environ.get("COVERAGE_LEAST", "85"))
    if percent < least:
        print("coverage: %.1f %% is less than the %.0f %% that are asked for" % (percent, least), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
