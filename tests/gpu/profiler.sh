#!/bin/sh
# SPDX-License-Identifier: MIT
# profiler.sh PLUGIN [BUILD]: NVIDIA's Inspector (libnccl-profiler-inspector.so, built from NCCL's plugins/profiler/inspector) is told of all-reduces
# of Shunt and of the real NCCL on two GPUs, and writes a coll_perf with the GPU's times for both; what the plug-in costs; Shunt's calls without it.
# Builds nothing; 80 seconds at most. Exit 77: no two GPUs, or no real NCCL.
set -u
[ $# -ge 1 ] || { echo "usage: profiler.sh PLUGIN [BUILD]" >&2; exit 2; }
plugin=$(realpath "$1") build=$(realpath "${2:-$(dirname "$0")/../../build}")
[ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" -ge 2 ] || { echo "SKIP profiler.sh: needs two GPUs"; exit 77; }
shunt=$build/tools/shunt dir=$(mktemp -d) failed=0
trap 'rm -rf "$dir"' EXIT
export SHUNT_DEVICE=cuda SHUNT_TIMEOUT=10s NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0
bench="timeout -k 2 20 $shunt bench all_reduce -n 2 --out-of-place"
inspector="NCCL_PROFILER_PLUGIN=$plugin NCCL_INSPECTOR_ENABLE=1 NCCL_INSPECTOR_DUMP_DIR=$dir/told NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500"
mkdir "$dir/told"
# shellcheck disable=SC2086 # several words
{
	env $inspector NCCL_DEBUG=INFO $bench -b 1M -e 1M --mode eager -r 3 --vs nccl >"$dir/log" 2>&1 || {
		echo "FAILED  bench with the plug-in: exit status $?"
		tail -n 20 "$dir/log"
		exit 1
	}
	timeout 10 python3 - "$dir/told" "$dir/log" <<'END' || failed=1
import glob, json, os, re, statistics, sys
with open(sys.argv[2], errors="replace") as f:
    shunts = {f"0x{int(m):x}" for m in re.findall(r"SHUNT INFO profiler plug-in: .*commHash: (\d+)", f.read())}
times = {}
for path in glob.glob(os.path.join(sys.argv[1], "*")):
    with open(path) as f:
        for line in f:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the last line of a process that ended
            if "coll_perf" in row:
                who = "Shunt" if any(h.startswith(row["header"]["id"]) for h in shunts) else "NCCL"
                perf = row["coll_perf"]
                times.setdefault((who, perf["coll_timing_source"]), []).append(perf["coll_exec_time_us"])
for (who, source), us in sorted(times.items()):
    print(f"coll_perf of {who}, {source}: {len(us)} all-reduces of 1M, median {statistics.median(us)} us")
missing = [who for who in ("Shunt", "NCCL") if (who, "kernel_gpu") not in times]
print(f"FAILED  no coll_perf with kernel_gpu of {' and '.join(missing)}" if missing else "ok      coll_perf with kernel_gpu of both")
sys.exit(bool(missing))
END
	for how in none events "no events"; do
		set -- NCCL_PROFILER_PLUGIN=none
		[ "$how" = none ] || set -- $inspector
		[ "$how" != "no events" ] || set -- "$@" SHUNT_TIMES=0
		echo "Shunt's times, plug-in: $how"
		env "$@" $bench -b 8K -e 8M -f 32 -r 10 2>&1 | grep -E "^ +[0-9.]+[KM] " || { echo "FAILED  bench, plug-in: $how"; failed=1; }
	done
}
exit $failed
