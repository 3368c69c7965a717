#!/bin/sh
# SPDX-License-Identifier: MIT
# bench_sim.sh SHUNT LIBSHUNT FAKE_NCCL: the main job on the sim, through the NCCL ABI, as processes and as threads, checked.
set -u
shunt=$1
. "$(dirname "$0")/../support/own.sh"
SHUNT_LIB=$2 SHUNT_DEVICE=sim SHUNT_NCCL_LIB=none SHUNT_LOG=warn
export SHUNT_LIB SHUNT_DEVICE SHUNT_NCCL_LIB SHUNT_LOG
out=$dir/out

# right NAME PATTERN OPTIONS...: nothing wrong, and a line that matches.
right() {
	name=$1 pattern=$2
	shift 2
	bench=bench
	if [ "$1" = ep ]; then
		bench='bench ep'
		shift
	fi
	"$shunt" $bench -w 0 -i 1 -r 1 --timeout 200 "$@" >"$out" 2>&1 && grep -Eq '^# 0 wrong (elements|parts)' "$out" &&
			grep -Eq "$pattern" "$out"
	verdict "$name"
}

right four_processes_all_paths_right ' oneshot .* 0$' -n 4 -b 8 -e 256K -f 32
right two_processes_graph_right ' graph .* 0$' -n 2 -b 64K -e 64K --mode graph
right three_threads_right ' eager .* 0$' -n 3 --threads -b 24 -e 24K -f 1024
right types_right ' float8e5m2 .* 0$' -n 2 -b 1000 -e 1000 -d all --mode eager --in-place
right operators_right ' avg .* 0$' -n 3 -b 1000 -e 1000 -d float16,int8 -o all --mode eager --out-of-place
SHUNT_DUMP_DIR=/nonexistent/x
export SHUNT_DUMP_DIR
right dump_dir_that_cannot_be_made_is_told_at_once 'SHUNT_DUMP_DIR=/nonexistent/x: no dump can be written there' -n 2 -b 64 -e 64 --mode eager
unset SHUNT_DUMP_DIR
# Some who start programs leave SIGCHLD ignored.
if env --ignore-signal=CHLD true 2>/dev/null; then
	env --ignore-signal=CHLD "$shunt" bench -n 2 -w 0 -i 1 -r 1 -b 64 -e 64 --mode eager --timeout 300 >"$out" 2>&1 &&
		grep -q '^# 0 wrong elements' "$out"
	verdict sigchld_ignored_right
else
	echo "skip: sigchld_ignored_right: env cannot ignore signals"
fi
# Nor are stdout and stderr always there. What is printed must not go into what ranks share.
timeout 60 "$shunt" bench -n 2 -w 0 -i 1 -r 1 -b 64 -e 64 --mode eager 2>&- >"$out" && grep -q '^# 0 wrong elements' "$out"
verdict closed_stderr_right
timeout 60 "$shunt" bench -n 2 -w 0 -i 1 -r 1 -b 64 -e 64 --mode eager >&- 2>"$out"
[ $? = 1 ] && grep -q 'cannot write' "$out"
verdict closed_stdout_is_error
for algo in oneshot twoshot; do
	SHUNT_ALGO=allreduce:0-inf:$algo
	export SHUNT_ALGO
	right "forced_${algo}_right" " $algo .* 0\$" -n 4 -b 96K -e 96K --mode eager
done
SHUNT_ALGO=allgather:0-inf:ce
right registered_path_is_the_one_taken ' ce .* 0$' all_gather -n 2 -b 8K -e 8K --mode graph --register
unset SHUNT_ALGO
"$shunt" info select --ranks 4 2>&1 | grep -q 'standalone on the sim'
verdict selection_is_that_of_the_sim

# By the way of small and by that of large messages.
for coll in all_gather reduce_scatter broadcast reduce alltoall alltoallv gather scatter sendrecv; do
	right ${coll}_right ' float32 .* 0$' $coll -n 3 -b 1K -e 256K -f 256 -R 1 -d float32,uint8
done
right numbers_that_nccl_lacks_right ' float8e4m3b15 .* 0$' -n 2 -d float8e4m3b15,float16/own -b 1K -e 64K -f 64
right ep_right ' normal +5 +- combine +graph .* 0$' ep -n 3 -t 5 --form ue8m0 --calls graph
right ep_blocks_right ' ll +9 +4 combine +eager .* 0$' ep -n 2 --threads -t 9 --hidden 264 --form as-is --blocks 1,4 --calls eager
right rotate_right 'rotate through 1 MB' -n 2 -b 1K -e 64K -f 64 --rotate 1
right skew_right 'waits up to 200 us' -n 3 -b 1K -e 16K -f 16 --skew 200
for coll in all_reduce all_gather sendrecv; do
	right registered_${coll}_right 'buffers of ncclMemAlloc' $coll -n 3 -b 1K -e 64K -f 64 --register
done
right registered_beside_plain_right '# B = shunt:reg: .*, buffers of ncclMemAlloc' -n 2 -b 1K -e 64K -f 64 --vs shunt:reg --rotate 1
right host_right 'shunt: own calls' -n 2 -b 1K -e 16K -f 16 --host
# With something to forward to: what that costs. FAKE_NCCL has no data to check.
SHUNT_NCCL_LIB=$3
"$shunt" bench -n 2 --threads --no-check -w 1 -i 5 -r 2 -b 1K -e 1K --out-of-place --host --vs nccl --vs forwarded --stats >"$out" 2>&1 &&
		grep -Eq '^# forwarded: forwarded calls [0-9]+ ns, the same calls of nccl [0-9]+ ns: [+-]' "$out" &&
		grep -q 'allreduce  *nccl .*forced by SHUNT_FORCE_NCCL' "$out" && grep -Eq '^# shunt: own calls' "$out"
verdict host_of_forwarded_calls
SHUNT_NCCL_LIB=none
# Communicators by themselves: nothing is left over for the next round.
"$shunt" bench --init -n 3 -r 3 -b 4K --comms 3 >"$out" 2>&1 && grep -Eq '^  shunt +first calls of these 3 +[0-9.]+ +[0-9.]+ ' "$out"
verdict init_of_many
right group_right 'groups of 4' -n 3 -b 1K -e 64K -f 64 -g 4
exit $failed
