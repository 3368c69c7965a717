#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares rows.txt with what the fake can do, and with the tests of the provider verbs."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "transport" / "test_verbs.c"  # runs them; they stand there and in verbs_*.c beside it


def settings() -> set[str]:
    """What config.c and faults.c read, as rows.txt names it."""
    config = (HERE / "config.c").read_text()
    names = {n.removeprefix("FAKE_IBV_") for n in re.findall(r'"((?:FAKE_IBV|SHUNT)_\w+)"', config)} - {"DEVICES"}
    keys = re.findall(r'\{ "(\w+)", &s->', config) + re.findall(r'strcmp\(key, "(\w+)"\)', config)
    table = re.search(r"action_names\[\] = \{(.*?)\};", (HERE / "faults.c").read_text(), re.S)
    actions = re.findall(r'"([\w-]+)"', table.group(1)) if table else []
    return names | {k + "=" for k in keys} | {"action=" + a for a in actions}


def body(source: str, test: str) -> str | None:
    """The text of a test, with the macros of its devices; None: it is not there."""
    found = re.search(rf"^TEST(\(test_{test}\)\n\{{.*?^\}}|_CALL\(test_{test},.*?\)$)", source, re.S | re.M)
    if not found:
        return None
    text = found.group(0)
    for name, value in re.findall(r'^#define (\w+) (".*")$', source, re.M):
        text = re.sub(rf"\b{name}\b", lambda _, v=value: v, text)  # type: ignore[misc]
    return text


def uses(text: str, setting: str) -> bool:
    if setting.startswith("action="):
        return re.search(rf"{setting}\b(?!-)", text) is not None
    if setting.endswith("="):
        return re.search(rf"\b{setting}", text) is not None
    return f'"{setting}"' in text or f'"FAKE_IBV_{setting}"' in text


def main() -> int:
    source = "".join(path.read_text() for path in [TESTS, *sorted(TESTS.parent.glob("verbs_*.[ch]"))])
    known = settings()
    errors = []
    named: set[str] = set()
    for number, line in enumerate((HERE / "rows.txt").read_text().splitlines(), 1):
        if line.startswith("#"):
            continue
        if line.startswith("- "):
            named.update(line[2:].split())
            continue
        what, words, test = (field.strip() for field in line.split("|"))
        text = body(source, test)
        if text is None:
            errors.append(f"rows.txt:{number}: {TESTS.name} has no test_{test} ({what})")
            continue
        errors += [f"rows.txt:{number}: test_{test} does not use {w}" for w in words.split() if not uses(text, w)]
        named.update(words.split())
    errors += [f"rows.txt has no row for {n}" for n in sorted(known - named)]
    errors += [f"rows.txt names {n}, which the fake does not have" for n in sorted(named - known)]
    print("\n".join(errors) or f"{len(known)} settings, all with a test")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
