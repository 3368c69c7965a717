# SPDX-License-Identifier: MIT
"""The outcome of a command: PASSED or FAILED, one line, and the columns and rows of a table.

Each function gets the exit status, the output, and what the command wrote by --json, or None."""
import json
import re

PASSED, FAILED = "passed", "failed"


def last_line(status, text, _):
    lines = [line for line in text.splitlines() if line.strip()]
    return (PASSED if status == 0 else FAILED), (lines[-1].strip()[:200] if lines else "no output"), [], []


def conform_lines(status, text, report):
    found = re.findall(r"^\d+ passed, \d+ failed, \d+ skipped$", text, re.M)
    result, says, columns, rows = last_line(status, text, report)
    failed = re.findall(r"^(?:not ok|failed|FAIL)[: ].*$", text, re.M)
    return result, "; ".join(([found[-1]] if found else [says]) + failed[:3]), columns, rows


def torture_lines(status, text, report):
    found = re.findall(r"^\d+ ops, .*$", text, re.M)
    result, says, columns, rows = last_line(status, text, report)
    return result, found[-1] if found else says, columns, rows


def sanitizer_lines(status, text, report):
    found = re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): .*$", text, re.M)
    bad = [line for line in found if not re.search(r": 0 (errors|hazards)", line)]
    result, says, columns, rows = last_line(status, text, report)
    if not found or bad:
        result = FAILED
    says = "%d summaries, of which %d are not empty; %s" % (len(found), len(bad), (bad or found or [says])[0])
    return result, says, columns, rows


def bench_values(status, text, report):
    if not report or "results" not in report:
        return (FAILED,) + last_line(status, text, report)[1:]
    cells = [cell["libraries"][0] for cell in report["results"]]
    wrong = sum(cell["wrong"] or 0 for cell in cells)
    paths = sorted({cell["path"] for cell in cells})
    sizes = sorted({row["bytes"] for row in report["results"]})
    says = "%d rows of %d to %d B, %d wrong elements, by %s" % (len(cells), sizes[0], sizes[-1], wrong,
                                                                ", ".join(paths))
    return (PASSED if status == 0 and not wrong else FAILED), says, [], []


def bench_times(status, text, report):
    """A row for each size: our time and path, and the others' times."""
    if status or not report or not report.get("results"):
        return (FAILED,) + last_line(status, text, report)[1:]
    labels = [lib["label"] for lib in report["libraries"]]
    first = report["libraries"][0]["label"]
    columns = ["bytes", "mode", "place", "path", "us"] + ["us of " + label for label in labels[1:]]
    rows = []
    for row in report["results"]:
        cells = row["libraries"]
        times = [round(cell["time_us"], 3) for cell in cells]
        rows.append([row["bytes"], row["mode"], row["place"], cells[0]["path"]] + times)
    means = ", ".join("%s %.3f" % (m["of"], m["all"]) for m in report.get("geometric_means", []))
    wrong = sum(cell["wrong"] or 0 for row in report["results"] for cell in row["libraries"][:1])
    says = "geometric means of times over those of %s: %s" % (first, means) if means else "%d sizes" % len(rows)
    return (FAILED if wrong else PASSED), says, columns, rows


def ep_times(status, text, report):
    """A row for each size, half and way of calling: our time and its floor."""
    if not report or not report.get("results"):
        return (FAILED,) + last_line(status, text, report)[1:]
    columns = ["mode", "tokens", "call", "calls", "us", "p99", "floor"]
    rows = [[row["mode"], row["tokens"], row["call"], row["calls"]] +
            [round(row[key], 2) for key in ("time_us", "p99_us", "floor_us")] for row in report["results"]]
    wrong = sum(row["wrong"] or 0 for row in report["results"])
    says = "%d experts, top %d, rows of %d as %s; %d wrong" % (
        report["experts"], report["topk"], report["hidden"], report["form"], wrong)
    times = report["device"] == "cuda" and report["iters"] > 1
    return (FAILED if status or wrong else PASSED), says, columns if times else [], rows if times else []


def all_to_all_times(status, text, report):
    result, says, _, _ = last_line(status, text, report)
    rows = [[name, round(us, 2)] for name, us in (report or {}).items()]
    return result, says, ["call", "us"] if rows else [], rows


def init_times(status, text, report):
    if status or not report or not report.get("init"):
        return (FAILED,) + last_line(status, text, report)[1:]
    rows = [[row["library"], row["step"]] + [round(number, 1) for number in
                                             (row["time_us"], row["rounds_us"][0], row["memory_bytes"] / 2**20)]
            for row in report["init"]]
    return PASSED, "%d communicators more" % report["comms"], ["library", "step", "us", "us of the first", "MiB"], rows


def torch_times(status, text, report):
    result, says, _, _ = last_line(status, text, report)
    rows = [[name, json.dumps(value) if isinstance(value, (list, dict)) else value]
            for name, value in (report or {}).items()]
    return result, says, ["case", "ms a step"] if rows else [], rows
