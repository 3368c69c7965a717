#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs what the tests need (as root, on Debian or Ubuntu), checks the sources, builds, and runs every suite that this machine can run:
# what needs a GPU, the ABI and long proofs plainly, all the rest with counters, which say what of src/ it reaches, and much of it again under valgrind,
# ThreadSanitizer and AddressSanitizer. The last line is "N passed, N failed, N skipped"; the exit status is 0 only if something ran and
# nothing failed, and nothing skipped that tests/required.txt lists for a machine of this kind. Two cores need 25 minutes.
# --all: also the tests of suite long, and the random runs (libFuzzer, fault_soak) for their full time.
set -u
case ${1:-} in
--all) all=1 libfuzzer=auto ;;
'') all='' libfuzzer=disabled ;;
*)
	echo "usage: tools/test.sh [--all]" >&2
	exit 2
	;;
esac
cd "$(dirname "$0")/.."
. tools/setup.sh

passed=0 failed=0 skipped=0
jobs=$((2 * $(nproc))) # many tests wait more than they work
if [ -z "$all" ]; then
	export FUZZ_SECONDS="${FUZZ_SECONDS:-5}" FAULT_SOAK_SECONDS="${FAULT_SOAK_SECONDS:-8}"
fi
log=.deps/test-logs
mkdir -p "$log"

finish() {
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
	exit
}

# skip STEP WHY: fails instead if this machine must do it.
skip() {
	if listed step | grep -qx "$1"; then
		broken "$1 is listed in tests/required.txt and was skipped: $2"
		return
	fi
	echo "skipped: $2"
	skipped=$((skipped + 1))
}

broken() {
	echo "not ok: $*"
	failed=$((failed + 1))
}

# The kinds of machine of tests/required.txt that this one is.
kinds() {
	echo any
	uname -m
	[ "$(id -u)" != 0 ] || echo root
	[ "$(gpu_count)" = 0 ] || echo gpu
	# shellcheck disable=SC1091
	[ ! -r /etc/os-release ] || (. /etc/os-release && echo "$ID$VERSION_ID" | tr -d .)
}

# listed RUN: what of it this machine must run.
listed() {
	kinds | awk -v run="$1" 'NR == FNR { here[$1] = 1; next } $1 in here && $2 == run { print $3 }' - tests/required.txt
}

# count RUN TESTLOG: adds what is in a testlog.json and names the tests that did not pass, and those that should not have skipped.
count() {
	result=$(listed "$1" | python3 -c "$(cat <<'PY'
import json, sys
ok = bad = skip = 0
ran, skips, suites = set(), {}, {}
for line in open(sys.argv[1]):
    t = json.loads(line)
    of, _, test = t["name"].rpartition(" / ")
    ran.add(test)
    for suite in of.rpartition(":")[2].split("+"):
        suites.setdefault(suite, set()).add(test)
    if t["result"] in ("OK", "EXPECTEDFAIL"):
        ok += 1
        for part in sorted(set(t.get("stdout", "").splitlines())):
            if part.startswith("[  SKIPPED ] test_"):
                print("skipped: a part of %s: %s" % (test, part.split()[3]), file=sys.stderr)
    elif t["result"] == "SKIP":
        skip += 1
        skips[test] = (t.get("stdout", "").strip().splitlines() or ["it does not say why"])[-1]
        print("skipped: %s: %s" % (t["name"], skips[test]), file=sys.stderr)
    else:
        bad += 1
        text = t.get("stdout", "")[-6000:] + "\n" + t.get("stderr", "")[-6000:]
        print("not ok: %s: %s\n%s" % (t["name"], t["result"], text), file=sys.stderr)
for what in sys.stdin.read().split():
    if what.startswith("suite:"):
        tests = suites.get(what[6:], set())
        wrong = sorted(t for t in tests if t in skips and "_skipped_" not in t)
    else:
        tests = {what} & ran
        wrong = [t for t in tests if t in skips]
    if not tests:
        wrong = ["it is not there"]
    if wrong:
        bad += 1
        print("not ok: %s is listed in tests/required.txt and was skipped: %s" % (what, ", ".join(wrong)), file=sys.stderr)
print(ok, bad, skip)
PY
	)" "$2") || {
		broken "no results in $2"
		return
	}
	# shellcheck disable=SC2086
	set -- $result
	passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# suites RUN DIRECTORY WRAPPER [--suite NAME]...
suites() {
	run=$1 dir=$2 wrapper=$3
	shift 3
	rm -f "$dir"/meson-logs/testlog*.json
	[ -n "$all" ] || set -- "$@" --no-suite long
	say "tests in $dir $*"
	began=$(date +%s)
	$wrapper meson test -C "$dir" --no-rebuild --num-processes "$jobs" --timeout-multiplier "${TIMEOUT_MULTIPLIER:-1}" "$@" >"$log/$run-test" 2>&1
	status=$?
	results=$(ls "$dir"/meson-logs/testlog*.json 2>/dev/null)
	if [ ! -s "$results" ]; then
		tail -n 50 "$log/$run-test"
		broken "no test ran in $dir"
		return
	fi
	before=$failed
	count "$run" "$results"
	say "that took $(($(date +%s) - began)) s"
	if [ "$status" != 0 ] && [ "$failed" = "$before" ]; then
		tail -n 50 "$log/$run-test"
		broken "meson test ended with $status"
	fi
}

# build DIRECTORY OPTION...: false if it failed.
build() {
	dir=$1
	shift
	configure "$dir" "$@" || {
		broken "configuring $dir"
		return 1
	}
	say "building $dir"
	nice meson compile -C "$dir" >"$log/$dir-compile" 2>&1 || {
		grep -A 20 -E '^FAILED|error' "$log/$dir-compile" | head -n 100
		broken "building $dir; all of its output is in $log/$dir-compile"
		return 1
	}
}

# How to start a program that ThreadSanitizer instruments: on kernels with many random address bits it does not start otherwise.
tsan_wrapper() {
	printf 'int main(void) { return 0; }\n' >"$log/tsan.c"
	cc -fsanitize=thread -o "$log/tsan" "$log/tsan.c" 2>/dev/null || return 1
	for wrapper in "" "setarch $(uname -m) -R"; do
		for try in 1 2 3; do
			$wrapper "$log/tsan" >/dev/null 2>&1 || continue 2
		done
		echo "$wrapper"
		return 0
	done
	return 1
}

if ! need_build_tools libcmocka-dev; then
	broken "setting up"
	finish
fi
need_nvcc || say "no nvcc: the GPU suites will skip"
need_valgrind || say "no valgrind: its step and the test that counts instructions will skip"
[ "$(gpu_count)" != 0 ] || say "no GPU: the GPU suites skip"
need_rdma || say "no libibverbs-dev, or no programs for it: the tests of RDMA are left out, or skip"
[ -z "$all" ] || need_packages clang libclang-rt-14-dev || say "no libFuzzer: our own drivers change the texts"

say "lint"
tools/lint.sh
case $? in
0) passed=$((passed + 1)) ;;
77) skip lint "lint" ;;
*) broken "tools/lint.sh has findings" ;;
esac

archs=90
[ "$(gpu_count)" = 0 ] || archs=$(gpu_archs)
if build build -Dtests=enabled -Dlibfuzzer=disabled -Dcuda=auto -Dgpu_archs="${CUDA_ARCHS:-$archs}"; then
	suites plain build "" --suite abi --suite proof --suite gpu
	if command -v valgrind >/dev/null; then
		suites valgrind build "" --setup valgrind --suite abi
	else
		skip valgrind "valgrind"
	fi
fi
# All else runs with counters: they cost a few minutes less than another run. Our own drivers feed the fuzzers, with --all libFuzzer, too.
if build build-coverage -Dtests=enabled -Dlibfuzzer="$libfuzzer" -Db_coverage=true -Ddebug=false -Dcuda=disabled; then
	find build-coverage -name '*.gcda' -delete
	TIMEOUT_MULTIPLIER=2 suites coverage build-coverage "" --no-suite gpu
	if python3 tools/coverage.py build-coverage build-coverage/coverage.txt; then
		passed=$((passed + 1))
	else
		broken "the tests reach too little of src/; build-coverage/coverage.txt has the lines that never ran"
	fi
fi
# Reports need lines, and no types, which take a quarter of the compiler's time; so does -O2 of code that checks each access.
lines="-Ddebug=false -Dc_args=-g1 -Dcpp_args=-g1"
if wrapper=$(tsan_wrapper); then
	# Undefined symbols are the sanitizer's own.
	# shellcheck disable=SC2086
	if build build-tsan $lines -Dcuda=disabled -Db_sanitize=thread -Db_lundef=false -Dplanted_faults=true; then
		TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp" TIMEOUT_MULTIPLIER=3 suites thread build-tsan "$wrapper" --suite unit --suite abi --suite sim --suite threads
	fi
else
	skip tsan "ThreadSanitizer does not start on this machine"
fi
# shellcheck disable=SC2086
if build build-asan $lines -Doptimization=1 -Dcuda=disabled -Db_sanitize=address,undefined -Db_lundef=false; then
	TIMEOUT_MULTIPLIER=2 suites address build-asan "" --suite unit --suite abi --suite sim
fi
finish
