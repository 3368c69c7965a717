#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fails where a page differs from the rows of src/base/collectives.def, dtypes.def and ops.def. --write mends it.

A table stands between the comments <!-- rows: NAME --> and <!-- /rows -->; NAME is that of a function below. A list in
running text stands in the pages of LISTS as it is written there.
"""
import re
import sys

BLOCK = re.compile(r"(<!-- rows: (\w+) -->\n).*?(<!-- /rows -->)", re.S)
PAGE = "docs/collectives.md"


def rows(name):
    """The columns of each row of a list, as in the file."""
    with open("src/base/%s.def" % name, encoding="utf-8") as source:
        text = re.sub(r"/\*.*?\*/", "", source.read(), flags=re.S).replace("\\\n", " ")
    body = text[text.index("LIST("):]
    found = re.findall(r"\bROW\(([^()]*)\)", body)
    return [[cell.strip().strip('"') for cell in row.split(",")] for row in found]


def table(head, lines):
    cells = [head, ["---"] * len(head)] + lines
    return "".join("| %s |\n" % " | ".join(line) for line in cells)


def side(parts, who, rank):
    if parts == "NONE":
        return ""
    text = {"ONE": "`count`", "EACH": "n x `count`"}[parts]
    return text + (", the root alone" if who == rank else "")


def collectives():
    lines = []
    for _, name, _, function, ranks, send, recv, op, place, tuned, plans in rows("collectives"):
        in_place = ""
        if place == "IN_PLACE" and send == recv:
            in_place = "both the same"
        elif place == "IN_PLACE":
            in_place = "%s is part r of %s" % (("recv", "send") if send == "EACH" else ("send", "recv"))
        lines.append([
            "`nccl%s`" % function, "`%s`" % name, side(send, ranks, "FROM_ROOT"), side(recv, ranks, "TO_ROOT"),
            "yes" if op == "REDUCES" else "", in_place, "yes" if tuned == "TUNED" else "",
            "yes" if plans == "PLANNED" else ""])
    return table(["function", "name", "send buffer", "receive buffer", "reduces", "in place at rank r",
                  "`NCCL_ALGO`, `NCCL_PROTO`", "plans"], lines)


def dtypes():
    lines = []
    for row in rows("dtypes"):
        _, number, name, alias, nccl, _, size, kind, exponent, mantissa, acc = row[:11]
        bits = "" if exponent == "0" else "%s, %s%s" % (exponent, mantissa, ", no infinity" if kind == "FINITE" else "")
        lines.append(["`%s`" % nccl, number, "`%s`" % name, "`%s`" % alias if alias else "", size, bits, "`%s`" % acc])
    return table(["NCCL", "number", "name", "or", "bytes", "exponent, mantissa", "reduced in"], lines)


def ops():
    lines = []
    for _, number, name, nccl, kernel, plans in rows("ops"):
        nccl = "created by the program" if nccl == "ncclNumOps" else "`%s`" % nccl
        number = "from %s on" % number if nccl[0] == "c" else number
        lines.append([nccl, number, "`%s`" % name, "`%s`" % kernel.lower(), "yes" if plans == "PLANNED" else ""])
    return table(["NCCL", "number", "name", "kernels", "plans"], lines)


def listed(names, last=", "):
    return ", ".join(names[:-1]) + last + names[-1]


def lists():
    all_rows = rows("collectives")
    parts = [row[1] for row in all_rows if "EACH" in row[5:7]]
    planned = ["`%s`" % row[1] for row in all_rows if row[10] == "PLANNED"]
    tuned = [row[1] for row in all_rows if row[1] != "recv"]  # receives go by the rows of sends
    return (
        ("docs/variables.md", "one rank's part for %s (" % listed(parts, " and ")),
        ("src/base/config.def", "one rank's part for %s (" % listed(parts, " and ")),
        ("docs/guide.md", "one rank's part for %s (" % listed(parts, " and ")),
        ("docs/plans.md", "the collective (%s)" % listed(planned)),
        ("docs/plans.md", "| `collective` | | %s; " % listed(planned)),
        ("docs/tuning.md", "| `kind` | %s (" % listed(tuned)),
    )


def main():
    tables = {"collectives": collectives, "dtypes": dtypes, "ops": ops}
    found = 0
    with open(PAGE, encoding="utf-8") as page:
        was = page.read()
    now = BLOCK.sub(lambda m: m.group(1) + tables[m.group(2)]() + m.group(3), was)
    if sorted(m.group(2) for m in BLOCK.finditer(was)) != sorted(tables):
        print("%s: its blocks are not those of %s" % (PAGE, ", ".join(sorted(tables))))
        found += 1
    if now != was and "--write" in sys.argv:
        with open(PAGE, "w", encoding="utf-8") as page:
            page.write(now)
    elif now != was:
        print("%s: differs from the rows: tools/lint_defs.py --write" % PAGE)
        found += 1
    for path, text in lists():
        with open(path, encoding="utf-8") as page:
            # A line's end, or in C the end of a string and the begin of the next, is a space.
            if text not in re.sub(r'"\s*\n\s*"|\s*\n\s*', lambda m: "" if '"' in m.group() else " ", page.read()):
                print("%s: the rows say: ... %s" % (path, text))
                found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
