# SPDX-License-Identifier: MIT
# Sourced by test.sh after setup.sh: builds, runs of tests, and the sum of their results. It takes $all (not empty: the tests of suite
# long, too) and $log, a folder for the commands' output.
# shellcheck shell=sh disable=SC2154
passed=0 failed=0 skipped=0
jobs=$((2 * $(nproc))) # many tests wait more than they work
ran=                   # the runs of tests so far
mkdir -p "$log"
rm -f "$log/flaky"

# The last lines; exits with 0 only if something ran and nothing failed.
finish() {
	[ ! -e "$log/flaky" ] || cat "$log/flaky"
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
	exit
}

# add_up FILE: adds the sum of another run, the last line of FILE; false if that is none.
add_up() {
	sum=$(tail -n 1 "$1" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p')
	# shellcheck disable=SC2086
	set -- $sum
	[ $# = 3 ] && passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

broken() {
	echo "not ok: $*"
	failed=$((failed + 1))
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

# The kinds of machine of tests/required.txt that this one is.
kinds() {
	echo any
	uname -m
	[ "$(id -u)" != 0 ] || echo root
	[ "$(gpu_count)" = 0 ] || echo gpu
	# shellcheck disable=SC1091
	[ ! -r /etc/os-release ] || (. /etc/os-release && echo "$ID$VERSION_ID" | tr -d .)
}

# listed RUN: the tests of it that this machine must run.
listed() {
	kinds | awk -v run="$1" 'NR == FNR { here[$1] = 1; next } $1 in here && $2 == run { print $3 }' - tests/required.txt
}

# configured DIRECTORY OPTION...: false if it failed.
configured() {
	configure "$@" && return
	echo "configuring $1 failed"
	return 1
}

# build DIRECTORY TARGET...: all of it without a target; false if it failed.
build() {
	dir=$1
	shift
	say "building $dir"
	ninja -C "$dir" "$@" >"$log/$dir-compile" 2>&1 && return
	grep -A 20 -E '^FAILED|error' "$log/$dir-compile" | head -n 100
	echo "building $dir failed; all of its output is in $log/$dir-compile"
	return 1
}

# How a run starts meson test: meson_test RUN ARGUMENT... The tests' limits are for idle machines; they end hangs, and judge nothing else.
meson_test() {
	run=$1 multiplier=3 wrapper='' options=${TSAN_OPTIONS:-} lanes=${all:+apart}
	shift
	case $run in
	valgrind) set -- --setup valgrind "$@" ;;
	coverage | address) multiplier=4 ;;
	aarch64) multiplier=10 ;;
	thread) multiplier=6 wrapper=$tsan_wrapper options=suppressions=$PWD/tests/tsan.supp ;;
	esac
	rm -f "$(dir_of "$run")"/meson-logs/testlog*.json "$(dir_of "$run")"/meson-logs/testlog*.junit.xml
	SIM_LANES=${lanes:-together} TSAN_OPTIONS=$options $wrapper meson test -C "$(dir_of "$run")" --no-rebuild --timeout-multiplier "$multiplier" "$@"
}

dir_of() {
	case $1 in
	thread) echo build-tsan ;;
	address) echo build-asan ;;
	coverage) echo build-coverage ;;
	gpu) echo build-gpu ;;
	aarch64) echo build-aarch64 ;;
	*) echo build ;;
	esac
}

# count RUN COMMAND ARGUMENT...: adds the findings of COMMAND of test_results.py in the results of the run.
count() {
	run=$1 command=$2
	shift 2
	results=$(ls "$(dir_of "$run")"/meson-logs/testlog*.json 2>/dev/null)
	if [ ! -s "$results" ]; then
		tail -n 50 "$log/$run-test"
		broken "no test ran in $(dir_of "$run")"
		return
	fi
	counts=$(listed "$run" | python3 tools/test_results.py "$command" "$run" "$(dir_of "$run")" "$results" "$log/$run-again" "$@") || {
		broken "no results in $results"
		return
	}
	# shellcheck disable=SC2086
	set -- $counts
	passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# tests RUN ARGUMENT...: meson test with these arguments, names or options. Its tests that failed run once more, by `again`.
tests() {
	run=$1
	shift
	case ${1:-} in
	'' | -*) say "tests in $(dir_of "$run") $*" ;;
	*) say "$# tests in $(dir_of "$run")" ;;
	esac
	[ -n "$all" ] || set -- "$@" --no-suite long
	ran="$ran $run"
	rm -f "$log/$run-again"
	began=$(date +%s)
	meson_test "$run" --num-processes "$jobs" "$@" >"$log/$run-test" 2>&1
	status=$?
	before=$failed
	count "$run" first
	say "that took $(($(date +%s) - began)) s"
	# It writes this file at its end: without it, meson test has not run them all, whatever else failed.
	if ! ls "$(dir_of "$run")"/meson-logs/testlog*.junit.xml >/dev/null 2>&1 || { [ "$status" != 0 ] && [ "$failed" = "$before" ] && [ ! -s "$log/$run-again" ]; }; then
		tail -n 50 "$log/$run-test"
		broken "meson test ended with $status"
	fi
}

# The tests that failed, once more, each alone.
again() {
	for run in $ran; do
		[ -s "$log/$run-again" ] || continue
		say "once more, alone: $(tr '\n' ' ' <"$log/$run-again")"
		# shellcheck disable=SC2046
		meson_test "$run" --num-processes 1 $(cat "$log/$run-again") >"$log/$run-test-again" 2>&1
		count "$run" again "$log/flaky"
	done
}

# part NAME COMMAND...: for the background; `await NAME` waits for it, shows its output, and has its exit status. None begins once
# the script itself is gone.
part() {
	kill -0 "$$" 2>/dev/null || exit
	part=$1
	shift
	"$@" >"$log/$part-said" 2>&1
	echo $? >"$log/$part-ended.new"
	mv "$log/$part-ended.new" "$log/$part-ended"
}

# priority N: of all that runs in the background.
priority() {
	cat /proc/[0-9]*/stat 2>/dev/null | awk -v top="$beside" '
		{ sub(/\(.*\)/, ""); parent[$1] = $3 }
		END { for (pid in parent) for (p = pid; p in parent; p = parent[p]) if (p == top) print pid }' | xargs renice -n "$1" -p >/dev/null 2>&1
}

# What is waited for has this script's priority: at 19 it would stand still beside busy processes.
await() {
	while [ ! -e "$log/$1-ended" ] && kill -0 "$beside" 2>/dev/null; do
		priority "$(nice)"
		sleep 1
	done
	priority 19
	[ -e "$log/$1-ended" ] || return 1
	cat "$log/$1-said"
	return "$(cat "$log/$1-ended")"
}
