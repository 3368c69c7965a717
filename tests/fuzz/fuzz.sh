#!/bin/sh
# SPDX-License-Identifier: MIT
# fuzz.sh FUZZER BUILD_DIRECTORY SECONDS CORPUS... (FUZZ_SECONDS is used instead): runs libFuzzer on all plans of the directories that exist. What it finds new is kept in
# the build directory, for the next run; a text that breaks something is left there as crash-*, and its name printed.
set -u
fuzzer=$1 build=$2 seconds=${FUZZ_SECONDS:-$3}
shift 3
mkdir -p "$build/fuzz_corpus"
set -- "$build/fuzz_corpus" "$@"
n=$#
while [ "$n" -gt 0 ]; do
	dir=$1
	shift
	[ ! -d "$dir" ] || set -- "$@" "$dir"
	n=$((n - 1))
done
exec "$fuzzer" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=20000 -artifact_prefix="$build/" -print_final_stats=1 \
	-verbosity=0 "$@"
