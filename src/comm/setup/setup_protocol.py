#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""setup_protocol.py SRC [OUTPUT DEPFILE]: the number of the set-up's protocol, from the sources on which it depends.

Ranks work together only if they agree on the layout of scratch, on kernels and their arguments, on what they tell each
other in the set-up, and on which call takes which path. All that is in the sources below. The number is a hash of their
tokens: it changes with these, and not with a comment, a space or a line's end. Without OUTPUT it is printed. DEPFILE
lists what was read, folders included, for ninja.
"""
import hashlib
import os
import re
import sys

SOURCES = (
    "base/coll.h", "base/collectives.def", "base/dtypes.def", "base/ops.def",  # numbers of kinds, types, operators
    "base/link.h",  # and of links
    "device/gpu.h", "device/gpu_ops.h",  # lines; what a device says of itself
    "topology",  # islands and rails
    "kernels",  # scratch, arguments, protocols
    "plan",  # what a plan is compiled to, and which one a call takes
    "algos",  # selection, its tables, geometry
    "transport/rendezvous", "transport/symm",  # messages
    "comm/setup", "comm/calls/decide.c", "comm/calls/plan_calls.c", "comm/calls/plugin_calls.c", "comm/calls/windows.c",
    "comm/parts/answers.c",
)
ENDINGS = (".c", ".h", ".cu", ".def")
TOKEN = re.compile(
    r"""(?P<skip>/\*.*?\*/|//[^\n]*|[ \t\r\f\v]+)"""
    r"""|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<word>\.?\w(?:[eEpP][+-]|[\w.])*)"""
    r"""|(?P<line>\n)"""
    r"""|(?P<sign>\#\#|<<=|>>=|\.\.\.|->|\+\+|--|<<|>>|[-+*/%&|^<>=!]=|&&|\|\||::|.)""",
    re.S | re.X,
)


def tokens(text):
    """The tokens of C. The end of a directive is a token, because a macro's text ends there; other ends of lines are not."""
    directive, first, out = False, True, []
    for match in TOKEN.finditer(text.replace("\\\n", " ")):
        if match.lastgroup == "skip":
            continue
        if match.lastgroup == "line":
            if directive:
                out.append("\n")
            directive, first = False, True
            continue
        directive = directive or (first and match.group() == "#")
        first = False
        out.append(match.group())
    return out


def files(src):
    """Paths below src, and the files and folders that a build must check for changes."""
    found, watched = [], []
    for source in SOURCES:
        path = os.path.join(src, source)
        if os.path.isfile(path):
            found.append(source)
        elif not os.path.isdir(path):
            sys.exit("src/comm/setup/setup_protocol.py: there is no src/%s: name what took its place in SOURCES" % source)
        for folder, _, names in os.walk(path):
            watched.append(folder)
            below = os.path.relpath(folder, src)
            found += [os.path.join(below, name) for name in names if name.endswith(ENDINGS)]
    return sorted(found), watched


def number(src):
    digest = hashlib.sha256()
    for path in files(src)[0]:
        with open(os.path.join(src, path), encoding="utf-8") as source:
            text = tokens(source.read())
        digest.update("\0".join([path, str(len(text))] + text).encode() + b"\0")
    return int.from_bytes(digest.digest()[:4], "big")


def main():
    src = sys.argv[1]
    if len(sys.argv) < 4:
        print("0x%08x" % number(src))
        return
    found, watched = files(src)
    with open(sys.argv[2], "w", encoding="utf-8") as output:
        output.write('#include "comm/core/communicator.h"\n\nconst uint32_t shunt_setup_protocol = 0x%08xu;\n' % number(src))
    with open(sys.argv[3], "w", encoding="utf-8") as deps:
        paths = [os.path.join(src, path) for path in found] + watched
        deps.write("%s: %s\n" % (sys.argv[2], " ".join(path.replace(" ", "\\ ") for path in paths)))


if __name__ == "__main__":
    main()
