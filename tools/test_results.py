#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What tools/test.sh makes of a testlog.json of Meson. Both commands print "PASSED FAILED SKIPPED", and to stderr a text for each test
that did not pass.

first RUN BUILD TESTLOG AGAIN <LISTED: counts a run of tests. LISTED is what this machine must run of it (tests/required.txt). The names
of those that failed go into the file AGAIN, a line each, and count as nothing yet: they run once more, alone. A test that a sanitizer reported
has failed: what it saw is there, though it may not come again. If Meson was interrupted, all of them have failed: others did not run.
again RUN BUILD TESTLOG AGAIN FLAKY: counts that second run of the tests in AGAIN. Those that passed add a line to the file FLAKY; those
that did not, or did not run, have failed.

Names and suites of the tests are those of meson-info/intro-tests.json. The log has only a title for each, which differs between versions
of Meson: "shunt:sim+threads / ring", "ring", "sim+threads - shunt:ring".
"""

import json
import re
import sys

from test_targets import introspect, suites_of

MOST_AGAIN = 10  # more failures than that are no accident: they are not run again
REPORT = re.compile(r"(?:WARNING|ERROR|SUMMARY): (\w+Sanitizer)\b|: runtime error: ")
STATUSES = {66: "ThreadSanitizer", 99: "memcheck"}  # of a process with a report, wherever the text went; 99: tests/valgrind.sh


def say(text):
    print(text, file=sys.stderr)


def passed(test):
    return test["result"] in ("OK", "EXPECTEDFAIL")


def skipped(test):
    return test["result"] == "SKIP"


def reporter(test):
    """The sanitizer that reported the test, or None."""
    for text in test.get("stdout", ""), test.get("stderr", ""):
        found = REPORT.search(text)
        if found:
            return found[1] or "UndefinedBehaviorSanitizer"
    return STATUSES.get(test.get("returncode"))


def read(build, path):
    """The rows of the log, with the name and the suites of each test."""
    suites = {test["name"]: suites_of(test) for test in introspect(build, "tests")}
    with open(path) as lines:
        tests = [json.loads(line) for line in lines]
    for test in tests:
        title = test["name"]
        ends = [name for name in suites if re.search(r"(^|[^\w-])%s$" % re.escape(name), title)]
        if not ends:
            sys.exit('test_results.py: no test of %s has the name at the end of "%s" in %s' % (build, title, path))
        test["test"] = max(ends, key=len)
        test["suites"] = suites[test["test"]]
    return tests


def tell_skipped(test):
    """A test that skipped, or the parts that a test of cmocka left out."""
    lines = test.get("stdout", "").strip().splitlines()
    if skipped(test):
        say("skipped: %s: %s" % (test["name"], lines[-1] if lines else "it does not say why"))
    elif passed(test):
        for line in sorted(set(lines)):
            if line.startswith("[  SKIPPED ] test_"):
                say("skipped: a part of %s: %s" % (test["test"], line.split()[3]))


def tell_failed(word, test):
    texts = [test.get(stream, "")[-6000:] for stream in ("stdout", "stderr")]
    say("%s: %s: %s\n%s" % (word, test["name"], test["result"], "\n".join(texts)))


def missing(listed, tests):
    """(what, why) for each entry of `listed` that did not run."""
    for what in listed:
        if what.startswith("suite:"):
            those = [t for t in tests if what[6:] in t["suites"]]
            wrong = [t["test"] for t in those if skipped(t) and "_skipped_" not in t["test"]]
        else:
            those = [t for t in tests if t["test"] == what]
            wrong = [t["test"] for t in those if skipped(t)]
        if wrong or not those:
            yield what, ", ".join(sorted(wrong)) or "it is not there"


def first(build, log, again, listed):
    tests = read(build, log)
    failures = [t for t in tests if not passed(t) and not skipped(t)]
    whole = all(t["result"] != "INTERRUPT" for t in tests)
    second = [t for t in failures if not reporter(t)] if whole and len(failures) <= MOST_AGAIN else []
    failed = len(failures) - len(second)
    for test in tests:
        tell_skipped(test)
    for test in failures:
        tell_failed("failed, and runs again" if test in second else "not ok", test)
        if reporter(test):
            say("not ok: %s: %s has a report, which fails the run even if it does not come again" % (test["name"], reporter(test)))
    for what, why in missing(listed, tests):
        failed += 1
        say("not ok: %s is listed in tests/required.txt and was skipped: %s" % (what, why))
    with open(again, "w") as out:
        out.writelines(t["test"] + "\n" for t in second)
    return sum(map(passed, tests)), failed, sum(map(skipped, tests))


def second(run, build, log, again, flaky):
    results = {t["test"]: t for t in read(build, log)}
    ok = bad = 0
    with open(again) as lines:
        names = lines.read().split()
    for name in names:
        test = results.get(name)
        if test and passed(test):
            ok += 1
            with open(flaky, "a") as out:
                out.write("flaky: %s (%s)\n" % (name, run))
            continue
        bad += 1
        if test:
            tell_failed("not ok, twice", test)
        else:
            say("not ok: %s failed and did not run again" % name)
    return ok, bad, 0


def main(argv):
    command, run, build, log, again = argv[1:6]
    if command == "first":
        counts = first(build, log, again, sys.stdin.read().split())
    else:
        counts = second(run, build, log, again, argv[6])
    print(*counts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
