#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fails on a name of the code that has a word which docs/glossary.md retires, and on a file that the page names and that is not there.

Names are those of C, CUDA, C++ and Python in src/, tools/, include/, tests/ and python/: functions, variables, types,
macros, files. A word is a part of a name: courier_init, SHUNT_FOLD. Comments, strings and pages are prose, which is free.
The page's second table has the words as regular expressions.
"""

import io
import keyword
import os
import re
import sys
import tokenize

GLOSSARY = "docs/glossary.md"
TOPS = ("src", "tools", "include", "tests", "python")
C = re.compile(r"\.(c|h|cc|cu|S|def|in|map)$")
SKIPPED = re.compile(
    r"""/\*.*?\*/|//[^\n]*|^\s*\#\s*include[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S | re.M
)
NAME = re.compile(r"[A-Za-z_]\w*")


def cells(line):
    """Of a row of a Markdown table; a pipe inside is written as \\|."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def read_glossary():
    """([regular expression of a retired word, the word to use], ...), [paths of terms]"""
    banned, paths = [], []
    section = ""
    with open(GLOSSARY, encoding="utf-8") as page:
        for line in page:
            if line.startswith("#"):
                section = line.strip("# \n").lower()
            elif line.startswith("|") and not re.match(r"\|[-| :]+\|$", line.strip()):
                row = cells(line)
                if "retired" in section:
                    banned += [(pattern, row[1]) for pattern in re.findall(r"`([^`]+)`", row[0])]
                else:
                    paths += re.findall(r"`((?:src|tools|include|tests|docs)/[^`]+)`", row[-1])
    return banned, paths


def files():
    for top in TOPS:
        for folder, _, names in os.walk(top):
            yield from (os.path.join(folder, name) for name in names if not name.endswith(".pyc"))


def blank(match):
    """As many lines, and nothing in them."""
    return " " + "\n" * match.group().count("\n")


def names(path, text):
    """(line, name) of each name in a source."""
    if path.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                yield token.start[0], token.string
        return
    if C.search(path):
        text = SKIPPED.sub(blank, text)
    else:
        return
    for number, line in enumerate(text.split("\n"), 1):
        for match in NAME.finditer(line):
            yield number, match.group()


def main():
    banned, paths = read_glossary()
    if len(banned) < 15 or len(paths) < 30:
        print("%s: %d retired words and %d files of terms: is the page broken?" % (GLOSSARY, len(banned), len(paths)))
        return 1
    found = 0
    for path in paths:
        if not os.path.exists(path.rstrip("/")):
            print("%s: %s is not there" % (GLOSSARY, path))
            found += 1
    # A word ends where letters end: names in snake_case and numbers do not hide it.
    wanted = [(re.compile(r"(?<![A-Za-z])(?:%s)(?![A-Za-z])" % pattern, re.I), use) for pattern, use in banned]
    for path in sorted(files()):
        with open(path, encoding="utf-8", errors="replace") as source:
            text = source.read()
        parts = {(0, os.path.basename(path).split(".")[0])} | set(names(path, text))
        for number, name in sorted(parts):
            for pattern, use in wanted:
                if pattern.search(name):
                    print('%s:%d: "%s" has a retired word: %s' % (path, number, name, use))
                    found += 1
    return 1 if found else 0


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    sys.exit(main())
