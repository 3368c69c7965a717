#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs what the tests need (as root, on Debian or Ubuntu), checks the sources, builds, and runs every suite that this machine can run:
# what needs a GPU and the ABI plainly, all the rest with counters, which say what of src/ it reaches, and much of it again under valgrind,
# ThreadSanitizer and AddressSanitizer. The last line is "N passed, N failed, N skipped"; the exit status is 0 only if something ran and
# nothing failed.
set -u
cd "$(dirname "$0")/.."
. tools/setup.sh

passed=0 failed=0 skipped=0
log=.deps/test-logs
mkdir -p "$log"

finish() {
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
	exit
}

skip() {
	echo "skipped: $*"
	skipped=$((skipped + 1))
}

broken() {
	echo "not ok: $*"
	failed=$((failed + 1))
}

# Adds what is in a testlog.json and names the tests that did not pass.
count() {
	result=$(python3 - "$1" <<'PY'
import json, sys
ok = bad = skip = 0
for line in open(sys.argv[1]):
    t = json.loads(line)
    if t["result"] in ("OK", "EXPECTEDFAIL"):
        ok += 1
    elif t["result"] == "SKIP":
        skip += 1
        print("skipped: " + t["name"], file=sys.stderr)
    else:
        bad += 1
        text = t.get("stdout", "")[-6000:] + "\n" + t.get("stderr", "")[-6000:]
        print("not ok: %s: %s\n%s" % (t["name"], t["result"], text), file=sys.stderr)
print(ok, bad, skip)
PY
	) || {
		broken "no results in $1"
		return
	}
	# shellcheck disable=SC2086
	set -- $result
	passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# suites DIRECTORY WRAPPER [--suite NAME]...
suites() {
	dir=$1 wrapper=$2
	shift 2
	rm -f "$dir"/meson-logs/testlog*.json
	say "tests in $dir $*"
	$wrapper meson test -C "$dir" --no-rebuild --timeout-multiplier "${TIMEOUT_MULTIPLIER:-1}" "$@" >"$log/$dir-test" 2>&1
	status=$?
	results=$(ls "$dir"/meson-logs/testlog*.json 2>/dev/null)
	if [ ! -s "$results" ]; then
		tail -n 50 "$log/$dir-test"
		broken "no test ran in $dir"
		return
	fi
	before=$failed
	count "$results"
	if [ "$status" != 0 ] && [ "$failed" = "$before" ]; then
		tail -n 50 "$log/$dir-test"
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
need_packages clang libclang-rt-14-dev || say "no libFuzzer: our own drivers change the texts"

say "lint"
tools/lint.sh
case $? in
0) passed=$((passed + 1)) ;;
77) skip "lint" ;;
*) broken "tools/lint.sh has findings" ;;
esac

archs=90
[ "$(gpu_count)" = 0 ] || archs=$(gpu_archs)
if build build -Dtests=true -Dcuda=auto -Dgpu_archs="${CUDA_ARCHS:-$archs}"; then
	suites build "" --suite abi --suite gpu
	if command -v valgrind >/dev/null; then
		suites build "" --setup valgrind --suite abi
	else
		skip "valgrind"
	fi
fi
# All else runs with counters: they cost a few minutes less than another run.
if build build-coverage -Dtests=true -Db_coverage=true -Dcuda=disabled; then
	find build-coverage -name '*.gcda' -delete
	TIMEOUT_MULTIPLIER=2 suites build-coverage "" --no-suite gpu
	if python3 tools/coverage.py build-coverage build-coverage/coverage.txt; then
		passed=$((passed + 1))
	else
		broken "the tests reach too little of src/; build-coverage/coverage.txt has the lines that never ran"
	fi
fi
if wrapper=$(tsan_wrapper); then
	# Undefined symbols are the sanitizer's own.
	if build build-tsan -Dcuda=disabled -Db_sanitize=thread -Db_lundef=false; then
		TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp" TIMEOUT_MULTIPLIER=3 suites build-tsan "$wrapper" --suite unit --suite abi --suite sim --suite threads
	fi
else
	skip "ThreadSanitizer does not start on this machine"
fi
if build build-asan -Dcuda=disabled -Db_sanitize=address,undefined -Db_lundef=false; then
	TIMEOUT_MULTIPLIER=2 suites build-asan "" --suite unit --suite abi --suite sim
fi
finish
