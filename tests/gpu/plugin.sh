#!/bin/sh
# SPDX-License-Identifier: MIT
# plugin.sh [BUILD [RANKS...]]: plug-ins and accumulators on GPUs, of a build with nvcc (build). With 2 and with 4 ranks, or as said: the example kernel
# beside Shunt's own oneshot, 1,000 calls in graphs a turn, with the ratio of times; both examples in cases of `shunt conform`, also under SHUNT_CHECK=2; kernels
# by NVRTC, CuPy, Triton and what else is installed; float8 e4m3b15 and accumulators, with the sums of the sim; images that no GPU here takes. Three minutes at
# most: what has no time left is skipped by name. Where there are fewer GPUs, 2 ranks share one, and times mean nothing. Exit 77: no GPU.
set -u
root=$(realpath "$(dirname "$0")/../..")
build=$(realpath "${1:-$root/build}")
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$gpus" -gt 0 ] || { echo "SKIP plugin.sh: no GPU"; exit 77; }
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || { [ "$gpus" -ge 4 ] && set -- 2 4 || set -- 2; }
export SHUNT_NCCL_LIB=none SHUNT_DEVICE=cuda SHUNT_TIMEOUT=5s NCCL_SOCKET_IFNAME=lo SHUNT_LIB="$build/src/libshunt.so" PYTHONPATH="$root/python"
shunt=$build/tools/shunt dir=$(mktemp -d) failed=0 end=$(($(date +%s) + 185))
trap 'rm -rf "$dir"' EXIT

# step NAME SECONDS COMMAND...: its last line; the output only if it failed, or if the name ends in a colon.
step() {
	name=$1 limit=$2
	shift 2
	left=$((end - $(date +%s)))
	[ "$limit" -lt "$left" ] || limit=$left
	[ "$limit" -gt 2 ] || { echo "SKIP    $name: no time left"; failed=1; return; }
	timeout -k 2 "$limit" "$@" >"$dir/out" 2>&1
	status=$?
	case $status,$name in
	0,*: | 77,*) echo "ok      $name" && cat "$dir/out" ;;
	0,*) echo "ok      $name: $(tail -n 1 "$dir/out")" ;;
	*) echo "FAILED  $name: exit status $status" && tail -n 20 "$dir/out" && failed=1 ;;
	esac
}
oneshot="SHUNT_PLUGINS=$build/plugins/allreduce_oneshot.so SHUNT_ALGO=allreduce:0-256K:allreduce_oneshot"
copies="SHUNT_PLUGINS=$build/plugins/allgather_copies.so SHUNT_ALGO=allgather:0-8M:allgather_copies"
# shellcheck disable=SC2086
for ranks; do
	unset SHUNT_MULTI_RANK_GPU
	[ "$gpus" -ge "$ranks" ] || export SHUNT_MULTI_RANK_GPU=1
	step "$ranks ranks, the example beside Shunt's own:" 30 python3 "$root/tests/gpu/plugins.py" -n "$ranks" example
	step "$ranks ranks, kernel, all-reduce" 12 env $oneshot "$shunt" conform -n "$ranks" --quick --filter all_reduce
	step "$ranks ranks, kernel, SHUNT_CHECK=2" 12 env $oneshot SHUNT_CHECK=2 "$shunt" conform -n "$ranks" --quick --filter types.all_reduce
	step "$ranks ranks, copies, all-gather" 8 env $copies "$shunt" conform -n "$ranks" --quick --filter counts.all_gather
	step "$ranks ranks, copies, times:" 8 env $copies "$shunt" bench all_gather -n "$ranks" -b 64K -e 1M -f 4 --mode graph --out-of-place -r 50
	step "$ranks ranks, e4m3b15 and accumulators" 20 "$shunt" conform -n "$ranks" --quick --filter formats
	step "$ranks ranks, programs' kernels:" 58 python3 "$root/tests/gpu/plugins.py" -n "$ranks" nvrtc cupy_source cupy_function triton_kernel cubin ptx cuda_core
	for device in sim cuda; do
		step "$ranks ranks, sums on $device" 20 env SHUNT_DEVICE=$device python3 "$root/tests/gpu/sum_errors.py" "$ranks"
		grep '^|' "$dir/out" >"$dir/$device"
	done
	cmp "$dir/sim" "$dir/cuda" || { echo "FAILED  the sums differ from the sim's"; failed=1; }
	sed -n '/e4m3/p' "$dir/cuda"
done
# An image that begins as a cubin and goes on as none: one line, and the calls go on without it.
if command -v g++ >/dev/null; then
	{ printf '\177ELF\2\1\1\63\7\0\0\0\0\0\0\0\2\0\276\0'; head -c 4000 /dev/zero; } >"$dir/garbage"
	g++ -std=c++17 -fPIC -shared -x c++ -DIMAGE="\"$dir/garbage\"" -I"$root/include" -o "$dir/garbage.so" "$root/plugins/allreduce_oneshot.cu" || failed=1
	step "garbage for an image" 8 env SHUNT_PLUGINS="$dir/garbage.so" SHUNT_ALGO=allreduce:0-256K:allreduce_oneshot \
		"$shunt" conform -n "$1" --quick --filter types.all_reduce.float32
	grep -q "its image cannot be loaded" "$dir/out" || { echo "FAILED  no line says that the image cannot be loaded"; failed=1; }
fi
exit $failed
