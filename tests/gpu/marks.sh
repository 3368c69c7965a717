#!/bin/sh
# SPDX-License-Identifier: MIT
# marks.sh [BUILD [OLDER/libshunt.so]]: marks and waits on two GPUs with the real NCCL, without PyTorch: what doctor says of jobs that NCCL does not finish, of a captured
# call, and of a late rank; with an older library also the kernels' times beside its. Builds nothing (the tests' doctor_hang must be there); a minute at most. Exit 77: no two GPUs. watch.sh has what a mark costs.
set -u
build=$(realpath "${1:-$(dirname "$0")/../../build}")
[ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -ge 2 ] || { echo "SKIP marks.sh: needs two GPUs"; exit 77; }
shunt=$build/tools/shunt dir=$(mktemp -d) failed=0 job=
trap 'rm -rf "$dir"; [ -z "$job" ] || kill -KILL $job' EXIT
export SHUNT_DEVICE=cuda NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0

# told NAME PATTERN SCENARIO VARIABLE=VALUE...: doctor says so of the job within ten seconds.
told() {
	name=$1 pattern=$2 scenario=$3
	shift 3
	: >"$dir/job"
	env "$@" "$build/tests/tools/doctor_hang" "$scenario" 2 >"$dir/job" 2>"$dir/job.err" &
	job=$!
	tries=0
	until grep -q '^hanging' "$dir/job" && "$shunt" doctor --pid "$(sed -n 's/^pids //p' "$dir/job" | tr ' ' ,)" >"$dir/says" 2>&1; grep -Eq "$pattern" "$dir/says" 2>/dev/null; do
		tries=$((tries + 1))
		kill -0 $job 2>/dev/null && [ $tries -lt 50 ] || break
		sleep 0.2 # pause: poll
	done
	grep -E "$pattern" "$dir/says" 2>/dev/null && echo "ok      $name" || {
		echo "FAILED  $name"
		cat "$dir/job.err" "$dir/says"
		failed=1
	}
	kill -KILL $job 2>/dev/null
	wait $job 2>/dev/null
	job=
	rm -f "$dir/says"
}

told skip 'rank 1 .* is behind: it has not called collective 6 .* in which rank 0 waits' skip SHUNT_MARKS=1 SHUNT_FORCE_NCCL=all
told held 'NCCL has not finished on rank 0 .*collective 6 \(allreduce' held_device SHUNT_MARKS=1 SHUNT_FORCE_NCCL=allreduce
told captured 'nobody waits; all ranks have called 6 collectives' captured SHUNT_MARKS=1 SHUNT_FORCE_NCCL=all
told late 'rank 1 is waited for in [0-9]+ % of the time' late SHUNT_ALGO=allreduce:0-:direct
told late_in_oneshot 'rank 1 is waited for in [0-9]+ % of the time' late SHUNT_ALGO=allreduce:0-:oneshot
[ $# -lt 2 ] || for call in all_reduce all_gather reduce_scatter; do
	"$shunt" bench $call -n 2 -b 1K -e 64M -f 4 --vs "$2" || failed=1
	"$shunt" bench $call -n 2 -b 1K -e 64M -f 4 --register --vs "$2" || failed=1
done
exit $failed
