#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs what the tests need (as root, on Debian or Ubuntu), checks the sources, builds, and runs every suite that this machine can run. What
# has threads runs under ThreadSanitizer, and the suites unit, sim and abi under AddressSanitizer; all else runs plainly, and so does what has
# fewer cases under a sanitizer (suite proof). Those of the ABI run under valgrind, too, and those of GPUs in a build of their own. A test that
# failed runs once more, alone, at the end. The last line is "N passed, N failed, N skipped"; lines "flaky: TEST (RUN)" in front of it name the
# tests that passed only then. The exit status is 0 only if something ran and nothing failed, and nothing skipped that tests/required.txt lists
# for a machine of this kind. Two cores need 13 to 15 minutes.
# --all: every test also plainly, those of suite long, each GPU thread of the sim as one of ThreadSanitizer's (tests of hosts, threads and
# faults have a warp as one otherwise), the random ones (libFuzzer, fault_soak) with seeds of their own, fault_soak for longer, clang-tidy's
# analyzer and cppcheck, the kernels as nvcc optimizes them, and how much of src/ the tests reach.
# --arch aarch64: none of this, but a cross build of everything, and the suites unit and abi, the sim and conform in it under qemu; --all does
# that, too, and a run without --all a small part of it, --arch aarch64 brief.
set -u
case $* in
--all) all=1 libfuzzer=auto ;;
'') all='' libfuzzer=disabled ;;
'--arch aarch64' | '--arch aarch64 brief') exec "$(dirname "$0")/test_aarch64.sh" "${3:-}" ;;
*)
	echo "usage: tools/test.sh [--all | --arch aarch64 [brief]]" >&2
	exit 2
	;;
esac
cd "$(dirname "$0")/.." || exit
log=.deps/test-logs
. tools/setup.sh
. tools/test_runs.sh
if [ -n "$all" ]; then # each time others; else the same ones always
	export FUZZ_SEED="${FUZZ_SEED:-$(date +%s)}" FAULT_SEED="${FAULT_SEED:-$(date +%s)}" FAULT_SOAK_ROUNDS="${FAULT_SOAK_ROUNDS:-15000}"
	echo "FUZZ_SEED=$FUZZ_SEED FAULT_SEED=$FAULT_SEED"
fi

# How to start a program that ThreadSanitizer instruments: on kernels with many random address bits it does not start otherwise.
find_tsan_wrapper() {
	printf 'int main(void) { return 0; }\n' >"$log/tsan.c"
	cc -fsanitize=thread -o "$log/tsan" "$log/tsan.c" 2>/dev/null || return 1
	for wrapper in "" "setarch $(uname -m) -R"; do
		for _ in 1 2 3; do
			$wrapper "$log/tsan" >/dev/null 2>&1 || continue 2
		done
		echo "$wrapper"
		return 0
	done
	return 1
}

# Reports need lines, and no types, which take a quarter of the compiler's time; -O2 of code that checks each access takes a third of it,
# and its tests no less time than -O1. AddressSanitizer's code takes a third less of it with -Og.
lines="-Ddebug=false -Dc_args=-g1 -Dcpp_args=-g1"
suites_of_thread="unit abi sim threads"
suites_of_address="unit abi sim"

# sanitized DIRECTORY OPTION...: a build with a sanitizer, whose own symbols are undefined.
sanitized() {
	dir=$1
	shift
	# shellcheck disable=SC2086
	configured "$dir" $lines -Dtests=enabled -Dlibfuzzer=disabled -Dcuda=disabled -Db_lundef=false "$@"
}

# build_for DIRECTORY ARGUMENT...: builds what those tests need that tools/test_targets.py is told.
build_for() {
	dir=$1
	shift
	# shellcheck disable=SC2046
	build "$dir" $(python3 tools/test_targets.py "$dir" "$@" ${all:+long})
}

# The kernels by nvcc: in a library, with the suites that it makes a difference to, or, without a GPU, by themselves: that nvcc and its assembler
# take them shows without most of the optimizations, which are five sixths of the work, and with few rows of types, which takes two fifths off
# the rest.
with_cuda() {
	archs=90
	[ "$(gpu_count)" = 0 ] || archs=$(gpu_archs)
	if [ "$(gpu_count)" = 0 ] && [ -z "$all" ] && "$(nvcc_path | head -n 1)" --help | grep -q -e --Ofast-compile; then
		export NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS:-} --Ofast-compile=max -DSHUNT_FEW_ROWS"
	fi
	configured build-gpu -Dtests=enabled -Dlibfuzzer=disabled -Dcuda=enabled -Dgpu_archs="${CUDA_ARCHS:-$archs}" || return
	if [ "$(gpu_count)" != 0 ] || [ -n "$all" ]; then
		build_for build-gpu --sources abi gpu # suite abi installs all of it
	else
		build build-gpu src/kernels/shunt_fatbin.S
	fi
}

# What the tests leave of the CPUs goes to the next builds, and to the checks of the sources, which read the plain build's commands. What
# downloads and unpacks, one file behind the other, comes before what can use all CPUs at the end.
beside_the_tests() {
	if [ "$tsan_starts" = 1 ]; then
		# shellcheck disable=SC2086
		part thread build_for build-tsan $suites_of_thread
	fi
	# shellcheck disable=SC2046
	[ "$(uname -m)" != x86_64 ] || part aarch64 tools/test.sh --arch aarch64 $([ -n "$all" ] || echo brief)
	part lint env LINT_BUILD=build LINT_DEEP="$all" tools/lint.sh
	# shellcheck disable=SC2086
	part address build_for build-asan $suites_of_address
	! nvcc_found || part gpu with_cuda
}

if ! need_build_tools libcmocka-dev; then
	broken "setting up"
	finish
fi
need_nvcc || say "no nvcc: the GPU suites are left out"
need_valgrind || say "no valgrind: its step and the test that counts instructions will skip"
[ "$(gpu_count)" != 0 ] || say "no GPU: the GPU suites skip"
need_rdma || say "no libibverbs-dev, or no programs for it: the tests of RDMA are left out, or skip"
[ -z "$all" ] || need_packages clang libclang-rt-14-dev || say "no libFuzzer: our own drivers change the texts"
tsan_starts=0
tsan_wrapper=$(find_tsan_wrapper) && tsan_starts=1

rm -f "$log"/*-ended
# shellcheck disable=SC2086
configured build $lines -Dtests=enabled -Dlibfuzzer="$libfuzzer" -Dcuda=disabled &&
	{ [ "$tsan_starts" = 0 ] || sanitized build-tsan -Doptimization=1 -Db_sanitize=thread -Dplanted_faults=true; } &&
	sanitized build-asan -Doptimization=g -Db_sanitize=address,undefined
configured=$?
# The names of the tests that run plainly.
elsewhere="--but build:gpu"
if [ -z "$all" ]; then
	elsewhere="$elsewhere --but build-asan:unit,sim"
	[ "$tsan_starts" = 0 ] || elsewhere="$elsewhere --but build-tsan:unit,sim,threads"
fi
# shellcheck disable=SC2086
[ "$configured" = 0 ] && plain=$(python3 tools/test_targets.py --names build $elsewhere ${all:+long}) && build_for build --sources $elsewhere
built=$?
beside_the_tests &
beside=$!
priority 19
if [ "$built" = 0 ]; then
	# shellcheck disable=SC2086
	tests plain $plain
	if command -v valgrind >/dev/null; then
		tests valgrind --suite abi --no-suite script
	else
		skip valgrind "valgrind"
	fi
else
	broken "building build"
fi
if [ "$tsan_starts" = 0 ]; then
	skip tsan "ThreadSanitizer does not start on this machine"
elif await thread; then
	tests thread --suite unit --suite abi --suite sim --suite threads
else
	broken "building build-tsan"
fi
if await address; then
	tests address --suite unit --suite abi --suite sim
else
	broken "building build-asan"
fi
if ! nvcc_found; then
	skip gpu "the GPU suites: no nvcc"
elif ! await gpu; then
	broken "building build-gpu"
elif [ "$(gpu_count)" != 0 ] || [ -n "$all" ]; then
	tests gpu --suite abi --suite gpu
else
	passed=$((passed + 1)) # nvcc takes the kernels
fi
await lint
case $? in
0) passed=$((passed + 1)) ;;
77) skip lint "lint" ;;
*) broken "tools/lint.sh has findings" ;;
esac
if [ "$(uname -m)" = x86_64 ]; then
	await aarch64
	case $? in
	77) skip aarch64 "aarch64: needs Debian's packages, and user namespaces that have a binfmt_misc (Linux 6.7)" ;;
	*) add_up "$log/aarch64-said" || broken "tools/test.sh --arch aarch64 did not end" ;;
	esac
fi
if [ -n "$all" ]; then
	if configured build-coverage -Dtests=enabled -Dlibfuzzer=disabled -Db_coverage=true -Ddebug=false -Dcuda=disabled && build build-coverage; then
		find build-coverage -name '*.gcda' -delete
		tests coverage --no-suite gpu --no-suite long
		if python3 tools/coverage.py build-coverage build-coverage/coverage.txt; then
			passed=$((passed + 1))
		else
			broken "the tests reach too little of src/; build-coverage/coverage.txt has the lines that never ran"
		fi
	else
		broken "building build-coverage"
	fi
fi
again
finish
