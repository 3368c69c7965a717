#!/bin/sh
# SPDX-License-Identifier: MIT
# nvtx.sh SHUNT LIBSHUNT TOOL FAKE_NCCL: a profiler sees each call that Shunt takes, by its name in NCCL's domain, and none that it forwards.
set -u
shunt=$1
. "$(dirname "$0")/../support/own.sh"
SHUNT_LIB=$2 NVTX_INJECTION64_PATH=$3 SHUNT_NCCL_LIB=none SHUNT_DEVICE=sim SHUNT_LOG=error
fake=$4
export SHUNT_LIB NVTX_INJECTION64_PATH SHUNT_NCCL_LIB SHUNT_DEVICE SHUNT_LOG

# sees NAME LINES COMMAND...: what begins, how often, and as many ends.
sees() {
	name=$1 want=$2
	shift 2
	rm -f "$dir/ranges"
	NVTX_TOOL_OUT=$dir/ranges "$@" >"$dir/out" 2>&1
	status=$?
	touch "$dir/ranges"
	got=$(grep '^begin' "$dir/ranges" | sort | uniq -c | sed 's/^ *//' | tr '\n' ';')
	[ "$status" = 0 ] && [ "$got" = "$want" ] && [ "$(grep -c '^begin' "$dir/ranges")" = "$(grep -cx 'end NCCL' "$dir/ranges")" ]
	verdict "$name" "status $status, \"$got\", not \"$want\""
}

# Two ranks, each a call before those that are timed, and three of these.
bench="$shunt bench -n 2 -w 1 -i 3 -r 1 -b 4K -e 4K --mode eager --out-of-place --no-check"
sees each_call '8 begin NCCL ncclAllReduce 4096;' $bench all_reduce
sees threads '8 begin NCCL ncclReduceScatter 2048;' $bench reduce_scatter --threads
sees groups '8 begin NCCL ncclGroupEnd 2;8 begin NCCL ncclRecv 4096;8 begin NCCL ncclSend 4096;' $bench sendrecv
sees none_where_nvtx_is_disabled '' env NCCL_NVTX_DISABLE=1 $bench all_reduce
sees calls_taken_from_nccl '8 begin NCCL ncclAllReduce 4096;' env SHUNT_NCCL_LIB="$fake" $bench all_reduce
sees none_of_what_is_forwarded '' env SHUNT_NCCL_LIB="$fake" SHUNT_FORCE_NCCL=all $bench all_reduce
exit $failed
