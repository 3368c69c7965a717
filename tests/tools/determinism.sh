#!/bin/sh
# SPDX-License-Identifier: MIT
# determinism.sh SHUNT LIBSHUNT: on the sim, the same elements give the same bits, whatever a run is like: with a process or a thread for
# each rank, with each algorithm for all sizes, and once more; and beside a plan that adds in another order, if SHUNT_DETERMINISTIC says so. Within a
# run `shunt conform` compares sizes, places, groups and graphs. That the algorithms have the order of the reference, whatever the operator and
# the type, is what tests/algos shows.
set -u
shunt=$1
. "$(dirname "$0")/../support/own.sh"
SHUNT_LIB=$2 SHUNT_DEVICE=sim SHUNT_NCCL_LIB=none SHUNT_LOG=error
export SHUNT_LIB SHUNT_DEVICE SHUNT_NCCL_LIB SHUNT_LOG
out=$dir/out
first=

# run NAME ALGORITHM OPTION...
run() {
	name=$1 algo=$2
	shift 2
	SHUNT_ALGO=$algo "$shunt" conform -n 3 --filter determinism.float32.sum --timeout 100 "$@" >"$out" 2>&1
	status=$?
	bits=$(sed -n 's/^# results of the determinism cases, A: //p' "$out")
	first=${first:-$bits}
	[ "$status" = 0 ] && [ -n "$bits" ] && [ "$bits" = "$first" ]
	verdict "$name" "status $status, bits $bits, not $first"
}

run determinism_processes ''
run determinism_processes_again ''
run determinism_threads '' --threads
for algo in oneshot twoshot; do
	run determinism_$algo allreduce:0-inf:$algo
done
mkdir "$dir/plans" && "$shunt" plan new all_reduce ring -n 3 --min 4 --max any -o "$dir/plans/ring.json" || exit 1
SHUNT_PLAN_DIR=$dir/plans SHUNT_DETERMINISTIC=1
export SHUNT_PLAN_DIR SHUNT_DETERMINISTIC
run determinism_beside_a_plan ''
# What frameworks export so that NCCL's sums have one order.
NCCL_ALGO='ring,tree;allreduce:tree' NCCL_PROTO=Simple NCCL_MIN_NCHANNELS=1 NCCL_MAX_NCHANNELS=1 NCCL_NTHREADS=1 NCCL_NVLS_ENABLE=0
export NCCL_ALGO NCCL_PROTO NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_NTHREADS NCCL_NVLS_ENABLE
run determinism_under_batch_invariant_settings ''
unset NCCL_ALGO NCCL_PROTO NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_NTHREADS NCCL_NVLS_ENABLE
SHUNT_DETERMINISTIC=0 "$shunt" conform -n 3 --filter determinism.float32.sum --timeout 100 >"$out" 2>&1
bits=$(sed -n 's/^# results of the determinism cases, A: //p' "$out")
[ -n "$bits" ] && [ "$bits" != "$first" ]
verdict the_plan_adds_in_another_order
exit $failed
