#!/bin/sh
# SPDX-License-Identifier: MIT
# plugin.sh [BUILD [RANKS]]: the example plug-ins on GPUs, of a build with nvcc (build): right in every case of `shunt conform`, also under
# SHUNT_CHECK=2; 1,000 launches of graphs of 20 calls; its times beside those of Shunt's own algorithm; images that no GPU here takes. RANKS: as many as
# there are GPUs, at most 4; on one GPU two ranks share it, and times mean nothing. A minute at most. Exit 77: no GPU.
set -u
build=$(realpath "${1:-$(dirname "$0")/../../build}")
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$gpus" -gt 0 ] || { echo "SKIP plugin.sh: no GPU"; exit 77; }
ranks=${2:-$((gpus > 4 ? 4 : gpus))}
[ "$ranks" -gt 1 ] || ranks=2
[ "$gpus" -ge "$ranks" ] || export SHUNT_MULTI_RANK_GPU=1
export SHUNT_NCCL_LIB=none SHUNT_DEVICE=cuda SHUNT_TIMEOUT=5s NCCL_SOCKET_IFNAME=lo
shunt=$build/tools/shunt dir=$(mktemp -d) failed=0
trap 'rm -rf "$dir"' EXIT

# step NAME SECONDS COMMAND...: one line; the output only if it failed.
step() {
	name=$1 limit=$2
	shift 2
	if timeout -k 2 "$limit" "$@" >"$dir/out" 2>&1; then
		echo "ok      $name: $(tail -n 1 "$dir/out")"
	else
		echo "FAILED  $name: exit status $?"
		tail -n 20 "$dir/out"
		failed=1
	fi
}
oneshot="SHUNT_PLUGINS=$build/plugins/allreduce_oneshot.so SHUNT_ALGO=allreduce:0-256K:allreduce_oneshot"
copies="SHUNT_PLUGINS=$build/plugins/allgather_copies.so SHUNT_ALGO=allgather:0-8M:allgather_copies"
# shellcheck disable=SC2086
{
	step "kernel, all-reduce" 12 env $oneshot "$shunt" conform -n "$ranks" --quick --filter all_reduce
	step "kernel, SHUNT_CHECK=2" 12 env $oneshot SHUNT_CHECK=2 "$shunt" conform -n "$ranks" --quick --filter types.all_reduce
	step "copies, all-gather" 8 env $copies "$shunt" conform -n "$ranks" --quick --filter counts.all_gather
	step "1,000 launches of a graph" 10 env $oneshot "$shunt" bench -n "$ranks" -b 4K -e 4K --mode graph --out-of-place -r 50 -i 400 --json "$dir/replays"
	step "times, plug-in" 8 env $oneshot "$shunt" bench -n "$ranks" -b 8 -e 256K -f 4 --mode graph --out-of-place --json "$dir/plugin"
	step "times, Shunt's own" 8 "$shunt" bench -n "$ranks" -b 8 -e 256K -f 4 --mode graph --out-of-place --json "$dir/own"
}
python3 - "$dir/plugin" "$dir/own" "$dir/replays" <<'END' || failed=1
import json, sys
plugin, own, replays = (json.load(open(path))["results"] for path in sys.argv[1:])
for a, b in zip(plugin, own):
    x, y = a["libraries"][0], b["libraries"][0]
    print(f"{a['bytes']:8} bytes  {x['path']:18} {x['time_us']:8.2f} us  {y['path']:10} {y['time_us']:8.2f} us  ratio {x['time_us'] / y['time_us']:.2f}")
rows = plugin + replays
sys.exit(any(r["libraries"][0]["path"] != "allreduce_oneshot" or r["libraries"][0]["wrong"] for r in rows))
END
# An image that begins as a cubin and goes on as none: one line, and the calls go on without it.
if command -v g++ >/dev/null; then
	root=$(realpath "$(dirname "$0")/../..")
	{ printf '\177ELF\2\1\1\63\7\0\0\0\0\0\0\0\2\0\276\0'; head -c 4000 /dev/urandom; } >"$dir/garbage"
	g++ -std=c++17 -fPIC -shared -x c++ -DIMAGE="\"$dir/garbage\"" -I"$root/include" -o "$dir/garbage.so" "$root/plugins/allreduce_oneshot.cu" || failed=1
	step "garbage for an image" 8 env SHUNT_PLUGINS="$dir/garbage.so" SHUNT_ALGO=allreduce:0-256K:allreduce_oneshot \
		"$shunt" conform -n "$ranks" --quick --filter types.all_reduce.float32
	grep -q "its image cannot be loaded" "$dir/out" || { echo "FAILED  no line says that the image cannot be loaded"; failed=1; }
fi
exit $failed
