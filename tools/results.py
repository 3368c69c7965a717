#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the tables and sentences about measurements in README.md and docs/, from docs/results/*.json.

A generated block stands between two comments. The first one says what it is made of:

  <!-- results: table FILE STEP -->             the table of a step, with where it comes from
  <!-- results: tables FILE STEP... -->         the same, of steps, without that
  <!-- results: grid FILE COLUMN STEP           one table of steps: a column for each value of COLUMN, a row for the
  ... -->                                       cells before the values. The text of a cell has {NAME} for a value.
                                                STEP may have a * for text without a /, which begins its rows
  <!-- results: beside FILE RANKS SIZE... -->   our time beside NCCL's, for each collective
  <!-- results: list -->                        a line for each file
  <!-- results: share LINK                      the share of the link that calls reach. LINK names the cell
  ... -->                                       with its GB/s. A line is TEXT: CELL COLLECTIVE RANKS SIZE
  <!-- results: say                             text with {CELL} for a cell, and {min CELL} or {max CELL} of
  ... -->                                       a column
  <!-- /results -->

A CELL is FILE::STEP::ROW::COLUMN; ROW is * for a column. COLUMN.0 is the first figure of a cell that has several.

--check writes nothing. It tells what is out of date, a link to a file that is not there, and a figure outside of
blocks with a unit of time or rate, or such as "2 times as fast": nobody could tell when it was measured, or on what.
Settings, and what programs print, stand in code spans and code blocks, where figures are free.
"""

import glob
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = "docs/results"
BLOCK = re.compile(r"(<!-- results: (.*?)-->\n)(.*?)(<!-- /results -->)", re.S)
UNITS = (
    r"(?:µs|us|ns|ms|s|sec|seconds?|milliseconds?|microseconds?|nanoseconds?|min|minutes?|hours?"
    r"|[GMTK]i?B/s|[GMT]bit/s|[TG]FLOP/s)"
)
AMOUNT = r"\d[\d.,]*(?:(?: to |–|-| and | or )\d[\d.,]*)?"
FIGURE = re.compile(
    r"(?<![\w.#/])%s(?: |-)?%s(?![\w/])"
    r"|%s times (?:as (?:fast|long|slow|quick)|faster|slower|longer|quicker)"
    r"|%s ?%% (?:less time|more time|faster|slower|longer)" % (AMOUNT, UNITS, AMOUNT, AMOUNT)
)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
KEYS = {"date": str, "machine": dict, "nccl": str, "entries": list}


class Wrong(Exception):
    pass


class Data:
    """The files of docs/results, read when they are named."""

    def __init__(self, folder):
        self.folder, self.files = folder, {}

    def names(self):
        return sorted(os.path.basename(path)[:-5] for path in glob.glob(os.path.join(self.folder, "*.json")))

    def file(self, name):
        if name not in self.files:
            path = os.path.join(self.folder, name + ".json")
            if not os.path.exists(path):
                raise Wrong("there is no %s.json" % name)
            with open(path, encoding="utf-8") as f:
                try:
                    self.files[name] = json.load(f)
                except ValueError as e:
                    raise Wrong("%s.json: %s" % (name, e)) from None
        return self.files[name]

    def entry(self, name, step):
        for entry in self.file(name)["entries"]:
            if entry["step"] == step:
                return entry
        raise Wrong("%s.json has no step %s" % (name, step))

    def check(self, name):
        """What is wrong with a file, as a list."""
        data, wrong = self.file(name), []
        for key, kind in KEYS.items():
            if not isinstance(data.get(key), kind):
                wrong.append("%s is not there, or is no %s" % (key, kind.__name__))
        if not isinstance(data.get("commit"), str) and not isinstance(data.get("commits"), list):
            wrong.append("neither commit nor commits is there")
        steps = [entry.get("step") for entry in data.get("entries", [])]
        wrong += ["step %s is there twice" % step for step in sorted(set(s for s in steps if steps.count(s) > 1))]
        for entry in data.get("entries", []):
            for row in entry.get("rows", []):
                if len(row) != len(entry.get("columns", [])):
                    wrong.append(
                        "%s: a row of %d cells for %d columns: %s"
                        % (entry.get("step"), len(row), len(entry.get("columns", [])), row[:2])
                    )
        return wrong


def number(value):
    """As it was measured: no digit more or less."""
    return "%.0f" % value if isinstance(value, float) and value >= 1e5 else str(value)


def rounded(value):
    """To three digits."""
    digits = 2 if value < 10 else 1 if value < 100 else 0
    text = "%.*f" % (digits, value)
    return text.rstrip("0").rstrip(".") if digits else text


def shown(cell):
    if cell is None:
        return ""
    if isinstance(cell, list):
        return " ".join(number(v) for v in cell if v != "nccl") + ("*" if "nccl" in cell else "")
    return str(cell) if not isinstance(cell, float) else number(cell)


def markdown(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(shown(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [re.sub(r"\|  (?=\|)", "| ", line) for line in lines]


def source(data, name, entry=None):
    d = data.file(name)
    m = d["machine"]
    commits = [entry["commit"]] if entry and entry.get("commit") else d.get("commits") or [d.get("commit")]
    where = "%d %s" % (m["gpus"], m["gpu"].replace("NVIDIA ", "")) if m["gpus"] else m["gpu"]
    nccl = "NCCL " + d["nccl"] if d["nccl"] != "none" else "without NCCL"
    commit = ", commit " + ", ".join(commits) if any(commits) else ""
    return "%s, %s, %s%s ([data](@RESULTS/%s.json))" % (d["date"], where, nccl, commit, name)


def size_text(n):
    for shift, unit in ((30, "G"), (20, "M"), (10, "K")):
        if isinstance(n, int) and n >= 1 << shift and n % (1 << shift) == 0:
            return "%d%s" % (n >> shift, unit)
    return str(n)


def size_bytes(text):
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(found.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[found.group(2)]


def beside_rows(data, name, ranks):
    """{collective: {size: [us, us of NCCL, us of NCCL with registered buffers]}}, graphs."""
    rows = {}
    for entry in data.file(name)["entries"]:
        if not entry["step"].startswith("beside NCCL") or str(entry.get("ranks")) != ranks:
            continue
        if entry.get("cell"):
            for row in entry["rows"]:
                rows[row[0]] = {size: cell for size, cell in zip(entry["columns"][1:], row[1:])}
        elif "/graph/" in entry["step"] and entry.get("rows"):
            at = [entry["columns"].index(c) for c in ("us", "us of nccl", "us of nccl:reg")]
            collective = entry["step"].split("/")[1]
            rows[collective] = {size_text(row[0]): [row[i] for i in at] for row in entry["rows"]}
    if not rows:
        raise Wrong("%s.json has no times beside NCCL of %s ranks" % (name, ranks))
    return rows


def view_table(data, name, *step):
    entry = data.entry(name, " ".join(step))
    lines = ["%s: %s." % (source(data, name, entry), entry["what"].rstrip(".:"))]
    if entry.get("command") and "`" not in entry["what"]:
        lines.append("`%s`" % entry["command"])
    return lines + [""] + markdown(entry["columns"], entry["rows"])


def value_text(value):
    return rounded(value) if isinstance(value, float) else shown(value)


def grid(data, head, cell):
    """A table in which the values of one column are columns. Columns that have one value in all rows are left out."""
    name, key, step = head.split(" ", 2)
    pattern = re.compile("([^/]*)".join(re.escape(part) for part in step.split("*")))
    entries = [(m, e) for e in data.file(name)["entries"] for m in [pattern.fullmatch(e["step"])] if m]
    if not entries:
        raise Wrong("%s.json has no step %s" % (name, step))
    columns = entries[0][1]["columns"]
    values = re.findall(r"\{([^{}]+)\}", cell)
    missing = [column for column in [key, *values] if column not in columns]
    if missing:
        raise Wrong("%s: there is no column %s" % (step, missing[0]))
    front = [i for i, column in enumerate(columns[: min(map(columns.index, values))]) if column != key]
    rows, across = {}, []
    for match, entry in entries:
        for row in entry["rows"]:
            at = size_text(row[columns.index(key)])
            across += [] if at in across else [at]
            text = re.sub(r"\{([^{}]+)\}", lambda m, row=row: value_text(row[columns.index(m.group(1))]), cell.strip())
            rows.setdefault(match.groups() + tuple(row[i] for i in front), {})[at] = text
    if all(re.fullmatch(r"\d+[KMG]?", at) for at in across):
        across.sort(key=size_bytes)
    heads = [""] * pattern.groups + [columns[i] for i in front]
    kept = [i for i in range(len(heads)) if len({row[i] for row in rows}) > 1]
    entry = entries[0][1]
    lines = ["%s: %s. A cell is `%s`." % (source(data, name, entry), entry["what"].rstrip(".:"), cell.strip())]
    if entry.get("command") and "`" not in entry["what"]:
        lines.append("`%s`" % entry["command"])
    table = [[row[i] for i in kept] + [cells.get(at, "") for at in across] for row, cells in rows.items()]
    return lines + [""] + markdown([heads[i] for i in kept] + across, table)


def view_tables(data, name, *steps):
    lines = []
    for step in steps:
        entry = data.entry(name, step)
        lines += ([""] if lines else []) + markdown(entry["columns"], entry["rows"])
    return lines


def view_beside(data, name, ranks, *sizes):
    rows = beside_rows(data, name, ranks)
    first = next(entry for entry in data.file(name)["entries"] if entry["step"].startswith("beside NCCL"))
    table = []
    for collective, cells in rows.items():
        row = [collective]
        for size in sizes:
            cell = cells.get(size)
            row.append("%s (%s, %s)" % tuple(rounded(v) for v in cell) if cell else "")
        table.append(row)
    text = "Microseconds, and in brackets those of NCCL and of NCCL with registered buffers: %s."
    return [text % source(data, name, first), ""] + markdown(["", *sizes], table)


def view_list(data):
    rows = []
    for name in reversed(data.names()):
        d = data.file(name)
        m = d["machine"]
        gpus = "%d %s" % (m["gpus"], m["gpu"].replace("NVIDIA ", "")) if m["gpus"] else m["gpu"]
        rows.append(
            [
                "[%s](@RESULTS/%s.json)" % (name, name),
                d.get("title", "tools/measure.sh"),
                gpus,
                d["nccl"],
                ", ".join(d.get("commits") or [d.get("commit") or ""]),
            ]
        )
    return markdown(["file", "what", "GPUs", "NCCL", "commits"], rows)


def lookup(data, path):
    """The cells that FILE::STEP::ROW::COLUMN names."""
    parts = path.split("::")
    if len(parts) != 4:
        raise Wrong("{%s} is not FILE::STEP::ROW::COLUMN" % path)
    entry, row_name, column = data.entry(parts[0], parts[1]), parts[2], parts[3]
    index = None
    if column not in entry["columns"] and re.search(r"\.\d$", column):
        column, index = column[:-2], int(column[-1])
    if column not in entry["columns"]:
        raise Wrong("{%s}: there is no column %s" % (path, column))
    cells = [row[entry["columns"].index(column)] for row in entry["rows"] if row_name in ("*", str(row[0]))]
    if not cells:
        raise Wrong("{%s}: there is no row %s" % (path, row_name))
    return cells if index is None else [cell[index] for cell in cells]


def say(data, template):
    def one(match):
        how, path = match.group(1), match.group(2)
        cells = lookup(data, path)
        if how:
            return number((min if how == "min" else max)(cells))
        if len(cells) != 1:
            raise Wrong("{%s} is %d cells" % (path, len(cells)))
        return shown(cells[0])

    return re.sub(r"\{(?:(min|max) )?([^{}]+)\}", one, template.strip()).split("\n")


def bus_factor(collective, ranks):
    """Of bandwidth, as nccl-tests count it."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter") else 1


def share(data, link, text):
    best = lookup(data, link)[0]
    rows = []
    for line in text.strip().split("\n"):
        what, _, rest = line.strip().partition(": ")
        path, collective, ranks, size = rest.rsplit(" ", 3)
        us = lookup(data, path)[0]
        rate = size_bytes(size) * bus_factor(collective, int(ranks)) / us / 1e3
        rows.append([what, size, us, "%.0f" % rate, "%.0f %%" % (100 * rate / best)])
    file, _, how, _ = link.split("::")
    text = "The link carries %s GB/s for a GPU in each direction (%s: %s)." % (number(best), how, source(data, file))
    return [text, ""] + markdown(["", "size", "us", "GB/s", "share"], rows)


TEXTS = {"grid": grid, "share": share}
VIEWS = {"table": view_table, "tables": view_tables, "beside": view_beside, "list": view_list}


def generate(data, spec, folder):
    """The lines of a block, for a page in folder."""
    kind, _, rest = spec.strip().partition("\n" if spec.startswith("say\n") else " ")
    if kind == "say":
        lines = say(data, rest)
    elif kind in TEXTS or kind in VIEWS:
        try:
            lines = TEXTS[kind](data, *rest.split("\n", 1)) if kind in TEXTS else VIEWS[kind](data, *rest.split())
        except (TypeError, ValueError):
            raise Wrong("%s: wrong number of words" % spec.strip()) from None
    else:
        raise Wrong("there is no view %s: there are say, %s" % (kind, ", ".join([*TEXTS, *VIEWS])))
    return "\n".join(lines).replace("@RESULTS", os.path.relpath(RESULTS, folder or "."))


def pages():
    found = ["README.md"] + sorted(glob.glob("docs/**/*.md", recursive=True))
    return [path for path in found if os.path.exists(path)]


def update(data, path, problems):
    """The page as it is, and with its blocks made anew."""
    with open(path, encoding="utf-8") as f:
        text = f.read()

    def one(match):
        try:
            return match.group(1) + generate(data, match.group(2), os.path.dirname(path)) + "\n" + match.group(4)
        except Wrong as e:
            problems.append("%s: %s" % (path, e))
            return match.group(0)

    made = BLOCK.sub(one, text)
    if not text.count("<!-- results:") == text.count("<!-- /results -->") == len(BLOCK.findall(text)):
        problems.append("%s: a block of results has no end, or no start" % path)
    return text, made


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def stray_figures(path, text):
    """Figures outside blocks, code spans and code blocks."""
    text = re.sub(r"^ *(```|~~~).*?^ *\1", blank, BLOCK.sub(blank, text), flags=re.S | re.M)
    text = re.sub(r"(`+)(?!`)[^`]*?\1", blank, text)
    what = (
        "%s:%d: %s is a figure that was measured, or a setting: the one belongs into a block of results, "
        "the other into `code`"
    )
    return [what % (path, text.count("\n", 0, m.start()) + 1, m.group(0).strip()) for m in FIGURE.finditer(text)]


def dead_links(path, text):
    found = []
    for link in LINK.findall(re.sub(r"^ *(```|~~~).*?^ *\1", blank, text, flags=re.S | re.M)):
        if not re.match(r"[a-z]+:", link) and not os.path.exists(os.path.join(os.path.dirname(path), link)):
            found.append("%s: there is no %s" % (path, link))
    return found


def main(argv):
    if argv not in ([], ["--check"]):
        print("usage: tools/results.py [--check]", file=sys.stderr)
        return 2
    data, problems = Data(RESULTS), []
    for name in data.names():
        try:
            problems += ["%s/%s.json: %s" % (RESULTS, name, text) for text in data.check(name)]
        except Wrong as e:
            problems.append(str(e))
    if not problems:
        files, links = {}, {}
        for path in pages():
            text, made = update(data, path, problems)
            files[path] = (text, made)
            problems += stray_figures(path, made)
            links[path] = made
        for path, (old, new) in files.items():
            if old != new and argv:
                problems.append("%s is out of date: tools/results.py writes it" % path)
            elif old != new:
                with open(path, "w", encoding="utf-8") as f:
                    f.write(new)
                print("wrote " + path)
        for path, text in links.items():
            problems += dead_links(path, text)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
