#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fails on a word that docs/glossary.md retires, and on a file that it names and that is not there.

A word counts in src/, tools/, include/, docs/ and python/, as a whole word, as a part of a name (courier_init, SHUNT_FOLD) and
in any case.
The page's second table has the words as regular expressions.
"""
import os
import re
import sys

GLOSSARY = "docs/glossary.md"
TOPS = ("src", "tools", "include", "docs", "python")
OURSELVES = (GLOSSARY, "tools/lint_words.py", "src/base/renamed.def")


def cells(line):
    """Of a row of a Markdown table; a pipe inside is written as \\|."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def read_glossary():
    """([regular expression of a retired word, the word to use], ...), [paths of terms]"""
    retired, paths = [], []
    section = ""
    with open(GLOSSARY, encoding="utf-8") as page:
        for line in page:
            if line.startswith("#"):
                section = line.strip("# \n").lower()
            elif line.startswith("|") and not re.match(r"\|[-| :]+\|$", line.strip()):
                row = cells(line)
                if "retired" in section:
                    retired += [(pattern, row[1]) for pattern in re.findall(r"`([^`]+)`", row[0])]
                else:
                    paths += re.findall(r"`((?:src|tools|include|tests|docs)/[^`]+)`", row[-1])
    return retired, paths


def files():
    for top in TOPS:
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                if path not in OURSELVES and not name.endswith((".png", ".pyc", ".svg")):
                    yield path


def main():
    retired, paths = read_glossary()
    if len(retired) < 20 or len(paths) < 30:
        print("%s: %d retired words and %d files of terms: is the page broken?" % (GLOSSARY, len(retired), len(paths)))
        return 1
    found = 0
    for path in paths:
        if not os.path.exists(path.rstrip("/")):
            print("%s: %s is not there" % (GLOSSARY, path))
            found += 1
    # A word ends where letters end: names in snake_case and numbers do not hide it.
    wanted = [(re.compile(r"(?<![A-Za-z])(?:%s)(?![A-Za-z])" % pattern, re.I), use) for pattern, use in retired]
    for path in sorted(files()):
        with open(path, encoding="utf-8", errors="replace") as text:
            for number, line in enumerate(text, 1):
                for pattern, use in wanted:
                    match = pattern.search(line)
                    if match:
                        print('%s:%d: "%s" is retired: %s' % (path, number, match.group(0), use))
                        found += 1
    return 1 if found else 0


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    sys.exit(main())
