#!/bin/sh
# SPDX-License-Identifier: MIT
# fuzz.sh FUZZER BUILD_DIRECTORY TIMES CORPUS... (FUZZ_TIMES is used instead): runs libFuzzer on all plans of the directories that exist,
# from a seed of its own unless FUZZ_SEED says one. What it finds new is kept in
# the build directory, for the next run; a text that breaks something is left there as crash-*, and its name printed.
set -u
fuzzer=$1 build=$2 times=${FUZZ_TIMES:-$3}
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
exec "$fuzzer" -runs="$times" -seed="${FUZZ_SEED:-0}" -timeout=20 -rss_limit_mb=2048 -max_len=20000 -artifact_prefix="$build/" -print_final_stats=1 \
	-verbosity=0 "$@"
