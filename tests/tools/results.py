#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""results.py TOOLS/RESULTS.PY: blocks of a page follow from the data, and what does not is found."""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile

RESULTS = os.path.abspath(sys.argv[1])
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("results", RESULTS)
results = importlib.util.module_from_spec(spec)
spec.loader.exec_module(results)
DATA = {
    "date": "2026-01-02",
    "commit": "1234567",
    "nccl": "2.28.9",
    "machine": {"gpus": 2, "gpu": "NVIDIA H100"},
    "entries": [
        {
            "step": "beside NCCL/all_reduce/graph/2",
            "ranks": 2,
            "what": "times",
            "columns": ["bytes", "mode", "place", "path", "us", "us of nccl", "us of nccl:reg"],
            "rows": [
                [1024, "graph", "out", "oneshot", 2.5, 5, 4],
                [1 << 30, "graph", "out", "simple", 3000, 3250.5, 4500],
            ],
        },
        {
            "step": "steps",
            "what": "steps of a model:",
            "command": "torchrun x.py",
            "columns": ["", "Shunt", "NCCL"],
            "rows": [["DDP", [88.5, 88.25], 90], ["FSDP2", [94, "nccl"], None]],
        },
    ],
}
PAGE = """# Page
Times are ours, in `30 s` and
```
shunt bench: 12 GB/s
```
<!-- results: beside run 2 1K 1G -->
<!-- /results -->
<!-- results: table run steps -->
<!-- /results -->
<!-- results: grid run bytes beside NCCL/*/graph/2
{us} ({us of nccl}) -->
<!-- /results -->
<!-- results: share run::steps::DDP::NCCL
a call: run::steps::DDP::Shunt.1 all_reduce 2 8M
-->
<!-- /results -->
<!-- results: say
It takes {run::steps::DDP::Shunt.0} ms, {min run::beside NCCL/all_reduce/graph/2::*::us} to {max run::beside NCCL/all_reduce/graph/2::*::us} us.
-->
<!-- /results -->
<!-- results: list -->
<!-- /results -->
"""
failures = 0


def check(name, good, *more):
    global failures
    print("%s %s" % ("ok" if good else "not ok", name))
    if not good:
        failures += 1
        print(*more, sep="\n")


class Root:
    def __init__(self, folder, name):
        self.dir = os.path.join(folder, name)
        os.makedirs(os.path.join(self.dir, "docs", "results"))
        self.write("docs/results/run.json", json.dumps(DATA))
        self.write("README.md", "# Shunt\n")
        self.write("docs/page.md", PAGE)

    def write(self, path, text):
        with open(os.path.join(self.dir, path), "w", encoding="utf-8") as f:
            f.write(text)

    def read(self, path):
        with open(os.path.join(self.dir, path), encoding="utf-8") as f:
            return f.read()

    def run(self, *args):
        os.chdir(self.dir)
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            status = results.main(list(args))
        return status, text.getvalue()


def good(folder):
    r = Root(folder, "good")
    status, text = r.run("--check")
    check(
        "check_finds_what_is_out_of_date",
        status == 1 and "docs/page.md is out of date: tools/results.py writes it" in text,
        text,
    )
    check("check_writes_nothing", r.read("docs/page.md") == PAGE)
    status, text = r.run()
    page = r.read("docs/page.md")
    check("written", status == 0 and "wrote docs/page.md" in text, text)
    for what in (
        "| path | 1K | 1G |",
        "| simple | | 3000 (3250) |",
        "times. A cell is `{us} ({us of nccl})`.",
        "| all_reduce | 2.5 (5, 4) | 3000 (3250, 4500) |",
        "| DDP | 88.5 88.25 | 90 |",
        "| FSDP2 | 94* | |",
        "`torchrun x.py`",
        "2026-01-02, 2 H100, NCCL 2.28.9, commit 1234567 ([data](results/run.json)): steps of a model.",
        "It takes 88.5 ms, 2.5 to 3000 us.",
        "| a call | 8M | 88.25 | 95 | 106 % |",
        "| [run](results/run.json) | tools/measure.sh | 2 H100 | 2.28.9 | 1234567 |",
    ):
        check("page_has " + what, what in page, page)
    status, text = r.run("--check")
    check("then_all_is_well", (status, text) == (0, ""), text)
    r.write("docs/results/run.json", json.dumps(DATA).replace("88.5", "77.5"))
    status, text = r.run("--check")
    check("other_data_is_noticed", status == 1 and "docs/page.md is out of date" in text, text)


def bad(folder):
    cases = (
        ("microseconds", "It takes 5 µs.", "docs/page.md:1: 5 µs is a figure"),
        ("range", "\nIt takes 2 to 3 ms.", "docs/page.md:2: 2 to 3 ms is a figure"),
        ("rate", "It moves 350 GB/s.", "350 GB/s is a figure"),
        ("seconds", "after 30 s, or", "30 s is a figure"),
        ("times", "2.5 times as fast", "2.5 times as fast is"),
        ("percent", "10 % faster", "10 % faster is"),
        ("minutes", "in 9 minutes", "9 minutes is"),
        ("no_file", "<!-- results: table none steps -->\n<!-- /results -->", "there is no none.json"),
        ("no_step", "<!-- results: table run none -->\n<!-- /results -->", "run.json has no step none"),
        ("no_view", "<!-- results: picture run -->\n<!-- /results -->", "there is no view picture"),
        ("words", "<!-- results: beside run -->\n<!-- /results -->", "wrong number of words"),
        ("no_cell", "<!-- results: grid run bytes steps -->\n<!-- /results -->", "wrong number of words"),
        ("no_steps", "<!-- results: grid run bytes none/*\n{us} -->\n<!-- /results -->", "run.json has no step none/*"),
        (
            "no_value",
            "<!-- results: grid run bytes steps\n{us} -->\n<!-- /results -->",
            "steps: there is no column bytes",
        ),
        (
            "no_ranks",
            "<!-- results: beside run 4 1K -->\n<!-- /results -->",
            "run.json has no times beside NCCL of 4 ranks",
        ),
        ("no_row", "<!-- results: say\n{run::steps::none::NCCL}\n-->\n<!-- /results -->", "there is no row none"),
        ("no_column", "<!-- results: say\n{run::steps::DDP::none}\n-->\n<!-- /results -->", "there is no column none"),
        ("path", "<!-- results: say\n{run::steps}\n-->\n<!-- /results -->", "is not FILE::STEP::ROW::COLUMN"),
        ("link", "[this](none.md#there)", "docs/page.md: there is no none.md"),
        ("no_end", "<!-- results: list -->\n", "a block of results has no end"),
    )
    r = Root(folder, "bad")
    for name, page, words in cases:
        r.write("docs/page.md", page)
        for args in ((), ("--check",)):
            status, text = r.run(*args)
            check("bad_%s%s" % (name, "".join(args)), status == 1 and words in text, text)
    for name, page in (
        ("hex", "commit 12ab5 s"),
        ("bytes", "from 1 KB to 1 GB, 28 MiB"),
        ("ranks", "2 to 8 ranks, 4 sizes"),
        ("multiple", "8 times in a row"),
        ("percent", "within 1 %"),
        ("links", "[this](page.md#there) [that](../README.md) [web](https://example.org/none) [here](#there)"),
    ):
        r.write("docs/page.md", page)
        status, text = r.run("--check")
        check("good_" + name, status == 0, text)
    for name, text_of, words in (
        ("json", "{", "run.json: "),
        ("keys", json.dumps({"date": "x"}), "machine is not there"),
        ("row", json.dumps(DATA).replace("[1024, ", "["), "a row of 6 cells for 7 columns"),
        ("twice", json.dumps(dict(DATA, entries=DATA["entries"][1:] * 2)), "step steps is there twice"),
    ):
        r.write("docs/results/run.json", text_of)
        status, text = r.run("--check")
        check("bad_data_" + name, status == 1 and words in text, text)
    done = subprocess.run([sys.executable, RESULTS, "--force"], stderr=subprocess.PIPE, text=True)
    check("bad_option", done.returncode == 2 and "usage: tools/results.py [--check]" in done.stderr, done.stderr)


with tempfile.TemporaryDirectory() as folder:
    good(folder)
    bad(folder)
sys.exit(1 if failures else 0)
