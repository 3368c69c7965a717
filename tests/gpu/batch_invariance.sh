#!/bin/sh
# SPDX-License-Identifier: MIT
# batch_invariance.sh BUILD NCCL OUT: what sums that do not depend on the batch cost, on 2 and 4 GPUs: NCCL and Shunt under the settings that engines
# export, and both without them, into OUT/DATE-MACHINE-COMMIT.json, a file for docs/results; then the sum over a fixed tree as a plan (docs/batch-invariance.md)
# beside the order of ranks, into OUT/tree-of-plan.json and OUT/tree.json. It takes 150 seconds at most. Exit 77: there are no two GPUs.
set -u
[ $# -ge 3 ] || { echo "usage: batch_invariance.sh BUILD NCCL OUT" >&2; exit 2; }
cd "$(dirname "$0")/../.." || exit 1
build=$(realpath "$1") nccl=$2 out=$(realpath "$3") failed=0
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$gpus" -ge 2 ] || { echo "SKIP batch_invariance.sh: $gpus GPUs"; exit 77; }
ranks=2
[ "$gpus" -lt 4 ] || ranks=2,4
timeout 112 tools/measure.sh --build "$build" --nccl "$nccl" --out "$out" --state "$out/state" --ranks $ranks --budget 105 --only 'batch invariant' || failed=1
[ "$gpus" -ge 4 ] || exit $failed
export SHUNT_LIB="$build/src/libshunt.so" SHUNT_NCCL_LIB=none
mkdir -p "$out/plans"
SHUNT_DEVICE=sim PYTHONPATH=python timeout 20 python3 -c '
import os, re, sys
code = re.search(r"^```python\n(.*?)^for ranks", open("docs/batch-invariance.md").read(), re.S | re.M)[1]
exec(compile(code, "tree_sum.py", "exec"), names := {})
open(sys.argv[1], "w").write(names["tree_sum"](4, instances=16).to_json())' "$out/plans/tree.json" || failed=1
for plans in "" "$out/plans"; do
	SHUNT_PLAN_DIR=$plans timeout 8 "$build/tools/shunt" bench all_reduce -n 4 -d bfloat16 --mode graph -r 5 -i 40 -b 1K -e 64M -f 4 --in-place \
		--no-check --json "$out/tree${plans:+-of-plan}.json" || failed=1
done
exit $failed
