#!/bin/sh
# SPDX-License-Identifier: MIT
# Which lines of src/ the tests run: builds with counters (build-coverage), runs the suites named, or all that need no GPU, and prints what
# coverage.py finds by folder and in all. The lines that never ran are in build-coverage/coverage.txt. Fails below COVERAGE_LEAST percent
# (85), or if a test fails. tools/test.sh does the same on its way.
set -u
cd "$(dirname "$0")/.." || exit
. tools/setup.sh

dir=build-coverage
need_build_tools libcmocka-dev || exit 1
need_rdma || say "the tests of RDMA are left out, or skip"
configure "$dir" -Dcuda=disabled -Dtests=enabled -Db_coverage=true || exit 1
meson compile -C "$dir" >"$dir/compile.log" 2>&1 || {
	tail -n 50 "$dir/compile.log"
	exit 1
}
find "$dir" -name '*.gcda' -delete
if [ $# = 0 ]; then
	set -- --no-suite gpu
else
	for suite; do
		shift
		set -- "$@" --suite "$suite"
	done
fi
status=0
meson test -C "$dir" --no-rebuild --timeout-multiplier 3 "$@" || status=1
python3 tools/coverage.py "$dir" "$dir/coverage.txt" || status=1
exit "$status"
