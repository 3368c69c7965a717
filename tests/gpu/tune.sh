#!/bin/sh
# SPDX-License-Identifier: MIT
# tune.sh BUILD NCCL OUT [FROM]: the ready tuning files for this kind of machine, for 2 and 4 ranks: OUT/GPU-RANKS.json, which go into tuning/ of the
# sources, after a look at the tables of before and after that it prints. It takes 150 seconds at most. A run that had no time for all points keeps them in
# OUT/cache; with that OUT as FROM the next run goes on from there. Exit 77: there are no two GPUs.
set -u
[ $# -ge 3 ] || { echo "usage: tune.sh BUILD NCCL OUT [FROM]" >&2; exit 2; }
shunt=$1/tools/shunt out=$3 failed=0
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$gpus" -ge 2 ] || { echo "SKIP tune.sh: $gpus GPUs"; exit 77; }
[ -z "${4:-}" ] || cp -R "$4/cache" "$out/" || exit 1
# Multicast of a machine whose fabric manager does not run fails late, and a file is for machines with it or without.
export SHUNT_NCCL_LIB="$2" SHUNT_CACHE_DIR="$out/cache" NCCL_NVLS_ENABLE=0
for n in 2 4; do
	[ "$gpus" -ge $n ] || continue
	timeout 70 "$shunt" tune -n $n --minutes 0.9 || { echo "not ok: $? from shunt tune -n $n"; failed=1; }
	for file in "$out"/cache/tuning/*-$n.json; do
		timeout 4 "$shunt" tune --share "$file" -o "$out/$(basename "$file")" || { echo "not ok: $? from shunt tune --share $file"; failed=1; }
	done
done
exit $failed
