#!/bin/sh
# SPDX-License-Identifier: MIT
# test_aarch64.sh [brief]: what tools/test.sh --arch aarch64 does: a cross build, and its tests under qemu. Exits with 77 where that cannot be.
# What it cannot find is a fault of memory order, because qemu on x86-64 has the order of x86-64. brief: what depends on the machine most.
set -u
cd "$(dirname "$0")/.." || exit
all=''
log=.deps/test-logs-aarch64
. tools/setup.sh
. tools/test_runs.sh
[ "$(uname -m)" = x86_64 ] && need_build_tools && need_aarch64 && tools/aarch64.sh true || exit 77
[ -n "${AARCH64_QEMU:-}" ] || exec tools/aarch64.sh tools/test_aarch64.sh "$@"
configured build-aarch64 --cross-file .deps/arm64/deps.ini --cross-file tools/aarch64.ini -Dtests=enabled -Dlibfuzzer=disabled \
	-Dcuda=disabled -Doptimization=1 -Ddebug=false || broken "configuring build-aarch64"
programs=sim_block targets="src/shim/libshunt_shim.a.p/stubs.S.o tests/device/test_sim_block"
brief=${1:-}
[ -n "$brief" ] || programs="sim_block sim_num sim_stream sim_simple sim_allreduce" targets=all
# shellcheck disable=SC2086
if ! build build-aarch64 $targets; then
	broken "building build-aarch64"
	finish
fi
# shellcheck disable=SC2086
tests aarch64 $programs
again
[ -z "$brief" ] || finish
ran=
tests aarch64 --suite unit --suite abi --no-suite script # scripts start programs of the machine itself, too
again
for hosts in "" "--hosts 2"; do # 600: ten times its default, as the tests' limits are
	say "conform $hosts"
	# shellcheck disable=SC2086
	if SHUNT_NCCL_LIB=none build-aarch64/tools/shunt conform --quick --timeout 600 -n 2 --device sim $hosts >"$log/conform" 2>&1; then
		passed=$((passed + 1))
	else
		tail -n 30 "$log/conform"
		broken "conform $hosts"
	fi
done
finish
