#!/bin/sh
# SPDX-License-Identifier: MIT
# watch.sh [SHUNT]: calls that NCCL carries, seen from outside, on two GPUs with PyTorch's NCCL. The host's time of a call with SHUNT_MARKS=0 and
# 1; graphs with marks; a program in which rank 1 skips a call, named by `shunt doctor job`, shown by `shunt top --once`, and ended with status 75
# by `shunt run --watch`; and NCCL's RAS beside Shunt's counts. Every command has an end, all together 200 s. Exit 77: torch or GPUs are missing.
set -u
[ -n "${WATCH_SH:-}" ] || WATCH_SH=1 exec timeout -k 5 200 sh "$0" "$@"
shunt=$(realpath "${1:-build/tools/shunt}")
SHUNT_LIB=$(realpath "${SHUNT_LIB:-$(dirname "$shunt")/../src/libshunt.so}")
here=$(realpath "$(dirname "$0")")
export SHUNT_LIB NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-lo}" SHUNT_FORCE_NCCL=all
python3 -c 'import sys, torch; sys.exit(torch.cuda.device_count() < 2)' 2>/dev/null || { echo "SKIP watch.sh: no torch with two GPUs"; exit 77; }
dir=$(mktemp -d)
job=
trap '[ -z "$job" ] || kill -KILL "$job" 2>/dev/null; rm -rf "$dir"' EXIT
failed=0
told() { # told NAME: by the last status
	if [ $? = 0 ]; then echo "ok: $1"; else echo "not ok: $1"; failed=1; fi
}

await_hanging() { # until both ranks hang, 30 s at the most
	tries=0
	until [ "$(grep -c '^hanging' "$dir/out")" = 2 ] || [ $tries = 300 ]; do
		tries=$((tries + 1))
		sleep 0.1 # pause: poll
	done
}

settings=
"$shunt" info -c | grep -q SHUNT_MARKS && settings="0 1" # a Shunt without marks is told from one that has them
for marks in ${settings:-none}; do
	echo "== SHUNT_MARKS=$marks"
	SHUNT_MARKS=$marks timeout 20 "$shunt" bench allreduce --host -n 2 -b 1K -e 64K -i 500 -r 20 --no-check
	told "host time with SHUNT_MARKS=$marks"
done

cat >"$dir/job.py" <<'PY'
import os, sys, time
import torch, torch.distributed as dist

sys.path.insert(0, os.environ["WATCH_HERE"])
import gpus

rank, dev = int(os.environ["RANK"]), gpus.mine(int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(dev)
dist.init_process_group("nccl", device_id=dev)
x = torch.ones(1 << 16, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
if sys.argv[1] == "graph":
    for mode in ("global", "relaxed", "thread_local"):
        y, graph = torch.ones(1 << 16, device="cuda"), torch.cuda.CUDAGraph()
        time.sleep(1.1)  # pause: middle: a mark would be due in the capture
        with torch.cuda.graph(graph, capture_error_mode=mode):
            dist.all_reduce(y)
            dist.all_reduce(y)
        for _ in range(3):
            y.fill_(1)
            graph.replay()
            dist.all_reduce(x.fill_(1))
        torch.cuda.synchronize()
        assert y[0].item() == 4 and x[0].item() == 2, (mode, y[0].item(), x[0].item())
    del graph  # NCCL ends a communicator when no graph has its calls any more
    print(f"graphs are right on rank {rank}\n", end="", flush=True)  # in one piece, as both ranks print
    dist.destroy_process_group()
    sys.exit(0)
time.sleep(1.1)  # pause: middle: a mark is due
for i in range(3):
    if rank != 1 or i < 2:
        dist.all_reduce(x)
print("hanging\n", end="", flush=True)
time.sleep(60)  # pause: late
PY
run="timeout 60 torchrun --nproc-per-node 2 --master-port"
for marks in ${settings:-none}; do
	SHUNT_MARKS=$marks WATCH_HERE=$here timeout 40 "$shunt" run -- $run 29541 "$dir/job.py" graph >"$dir/out" 2>&1
	[ "$(grep -c 'graphs are right' "$dir/out")" = 2 ]
	told "graphs with SHUNT_MARKS=$marks"
	[ $failed = 0 ] || tail -20 "$dir/out"
done

WATCH_HERE=$here SHUNT_MARKS=1 "$shunt" run -- $run 29542 "$dir/job.py" skip >"$dir/out" 2>&1 &
job=$!
await_hanging
timeout 20 "$shunt" doctor job --wait 2 | tee "$dir/job"
grep -Eq 'rank 1 \(pid [0-9]+ on .*\) is behind: it has not called collective [0-9]+' "$dir/job"
told "the doctor names the rank"
timeout 20 "$shunt" top --once | tee "$dir/top"
grep -q 'rank 1 is behind' "$dir/top"
told "top names the rank"
kill -TERM $job
wait $job
job=

WATCH_HERE=$here SHUNT_MARKS=1 timeout 60 "$shunt" run --watch --every 1 --hang 4 --on-hang exit --dumps "$dir/dumps" -- $run 29543 "$dir/job.py" skip >"$dir/out" 2>&1
status=$?
grep '^shunt' "$dir/out"
[ $status = 75 ] && grep -q 'rank 1 .* is behind' "$dir/out"
told "run --watch ends it with 75, and names the rank (status $status)"

# NCCL's own count of the calls that Shunt takes stands still.
for calls in all ""; do
	WATCH_HERE=$here SHUNT_FORCE_NCCL=$calls NCCL_RAS_ENABLE=1 NCCL_RAS_ADDR=localhost:28541 "$shunt" run -- $run 29544 "$dir/job.py" skip >"$dir/out" 2>&1 &
	job=$!
	await_hanging
	timeout 30 "$shunt" ras -f json --host localhost -p 28541 >"$dir/ras" 2>"$dir/ras.err"
	python3 - "$dir/ras" <<'PY'
import json, sys

comms = json.load(open(sys.argv[1]))["communicators"]
for c in comms:
    counts = [r["collective_counts"]["AllReduce"] for r in sorted(c["ranks"], key=lambda r: r["rank"])]
    print(c["hash"], c["size"], "AllReduce", counts, c.get("shunt"))
    assert c["shunt"]["merged"] and c["shunt"].get("nccl_hash"), "not merged into an answer of NCCL's"
assert any(counts[0] == counts[1] + 1 for c in comms for counts in [[r["collective_counts"]["AllReduce"] for r in c["ranks"]]] if c["size"] == 2)
PY
	told "the answer of NCCL's RAS has Shunt's counts (SHUNT_FORCE_NCCL=$calls)"
	[ $failed = 0 ] || cat "$dir/ras" "$dir/ras.err"
	kill -TERM $job
	wait $job
	job=
done
exit $failed
