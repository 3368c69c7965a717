#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_setup_protocol.py SCRIPT SRC: the set-up protocol's number changes with what ranks must agree on, and with
nothing else. Each case edits one file of a copy of the sources."""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

KARGS, TABLES, HELLO = "kernels/kargs.h", "algos/select/tuning.c", "comm/setup/hello.h"

# what, file, text, replacement, whether the number changes. The text is in the file.
CASES = (
    ("a line of comment", KARGS, "struct shunt_kargs {", "/* new */\nstruct shunt_kargs {", False),
    ("the text of a comment", KARGS, "/*", "/* new ", False),
    ("a comment of C++", KARGS, "struct shunt_kargs {", '// new "\nstruct shunt_kargs {', False),
    ("spaces and lines", KARGS, "struct shunt_kargs {", "struct\n\n  shunt_kargs\n{", False),
    ("a directive over two lines", KARGS, "#define SHUNT_P2P_RING 16u", "#define SHUNT_P2P_RING \\\n 16u", False),
    ("a size of the scratch", KARGS, "#define SHUNT_P2P_RING 16u", "#define SHUNT_P2P_RING 32u", True),
    ("an argument's type", KARGS, "	uint16_t channels;", "	uint32_t channels;", True),
    (
        "the order of arguments",
        KARGS,
        "	const void *send;\n	void *recv;",
        "	void *recv;\n	const void *send;",
        True,
    ),
    ("what belongs to a directive", KARGS, "#define SHUNT_P2P_RING 16u", "#define SHUNT_P2P_RING\n16u", True),
    ("a size in the tables", TABLES, "#define WIDE { 64, 512, 0 }", "#define WIDE { 64, 256, 0 }", True),
    ("a name in the tables", TABLES, '"oneshot"', '"one shot"', True),
    ("what looks like a comment in a text", TABLES, '"oneshot"', '"one/**/shot"', True),
    ("a word of the first message", HELLO, "	uint32_t protocol;", "	uint64_t protocol;", True),
    ("what ranks say of their connections", "comm/setup/connect.c", "	uint8_t to[];", "	uint8_t by[];", True),
    ("a flag's bit", "kernels/flags.h", "ROW(PLAN_LL8,           12", "ROW(PLAN_LL8,           16", True),
    ("a collective's row", "base/collectives.def", "ROW(ALLTOALL,", "ROW(ALLTOALLV,", True),
    ("the order of types", "base/dtypes.def", "ROW(I8, 0", "ROW(I8, 1", True),
    ("the order of links", "base/link.h", "	SHUNT_LINK_SELF, /* one GPU */\n", "", True),
    ("a rank's part of a kernel", "kernels/oneshot.cu", "oneshot(", "oneshots(", True),
)


def load(script):
    """The script as a module that takes each text apart once: a case changes one file of many."""
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location("setup_protocol", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.tokens = functools.cache(module.tokens)
    return module


def main():
    script, src = sys.argv[1:]
    number = load(script).number
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "src")
        shutil.copytree(src, copy)
        before = number(copy)
        printed = subprocess.run([sys.executable, script, src], check=True, capture_output=True, text=True).stdout
        if printed != "0x%08x\n" % before:
            print("not ok: the number depends on the folder's place")
            failed += 1
        for what, name, text, replacement, changes in CASES:
            path = os.path.join(copy, name)
            with open(path, encoding="utf-8") as source:
                was = source.read()
            if text not in was:
                print("not ok: %s: %s has no %r" % (what, name, text))
                failed += 1
                continue
            with open(path, "w", encoding="utf-8") as source:
                source.write(was.replace(text, replacement, 1))
            if (number(copy) != before) != changes:
                print("not ok: %s (%s) %s the number" % (what, name, "does not change" if changes else "changes"))
                failed += 1
            with open(path, "w", encoding="utf-8") as source:
                source.write(was)
        with open(os.path.join(copy, "kernels", "new.h"), "w", encoding="utf-8") as source:
            source.write("/* SPDX */\nenum { NEW };\n")
        if number(copy) == before:
            print("not ok: a new file does not change the number")
            failed += 1
        os.remove(os.path.join(copy, "kernels", "new.h"))
        os.rename(os.path.join(copy, "comm", "calls", "decide.c"), os.path.join(copy, "comm", "calls", "other.c"))
        gone = subprocess.run([sys.executable, script, copy], check=False, capture_output=True, text=True)
        if gone.returncode == 0 or "there is no src/comm/calls/decide.c" not in gone.stderr:
            print("not ok: a source that is gone is not named: %s" % gone.stderr)
            failed += 1
    print("%d cases, %d failed" % (len(CASES) + 3, failed))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
