#!/bin/sh
# SPDX-License-Identifier: MIT
# Data through the host's memory, on 2 and 4 GPUs whose peers are off: values, torture, and times beside NCCL, as it is and with
# NCCL_SHM_USE_CUDA_MEMCPY=1. Then NVLink used as PCIe, and in pairs: values, torture, and times, which say how the kernels compare.
# Last, the self-test of links: what it finds, and how long it takes.
#
#   links.sh BUILD NCCL
set -u
shunt=$1/tools/shunt nccl=$2 failed=0
export NCCL_P2P_DISABLE=1

# run SECONDS COMMAND...
run() {
	limit=$1
	shift
	echo "# $*"
	timeout "$limit" "$@" || { echo "not ok: $? from $*"; failed=1; }
}

gpus=$(nvidia-smi -L | wc -l)
for n in 2 4; do
	[ "$gpus" -ge $n ] || continue
	run 90 env SHUNT_NCCL_LIB=none "$shunt" conform --quick -n $n --device cuda
	run 60 env SHUNT_NCCL_LIB=none "$shunt" torture -n $n --device cuda --ops 2000
	copies=allgather:0-:ce_shared,alltoall:0-:ce_shared,broadcast:0-:ce_shared,gather:0-:ce_shared,scatter:0-:ce_shared
	run 90 env SHUNT_NCCL_LIB=none NCCL_CTA_POLICY=2 SHUNT_ALGO="$copies" "$shunt" torture -n $n --device cuda --ops 2000
	for op in all_gather alltoall broadcast gather scatter; do
		run 60 env SHUNT_NCCL_LIB="$nccl" NCCL_CTA_POLICY=2 SHUNT_ALGO="$copies" "$shunt" bench $op -n $n -b 1M -e 64M -f 4 --vs nccl
	done
	run 300 env SHUNT_NCCL_LIB="$nccl" "$shunt" tune --quick -n $n -o "$(mktemp -d)/tune.json"
	for op in all_reduce all_gather reduce_scatter alltoall broadcast reduce gather scatter sendrecv; do
		run 60 env SHUNT_NCCL_LIB="$nccl" "$shunt" bench $op -n $n -b 1K -e 64M -f 8 --vs nccl
		run 60 env SHUNT_NCCL_LIB="$nccl" NCCL_SHM_USE_CUDA_MEMCPY=1 "$shunt" bench $op -n $n -b 1K -e 64M -f 8 --lib nccl
		# Large messages as well, which are NCCL's in front of it.
		run 60 env SHUNT_NCCL_LIB=none "$shunt" bench $op -n $n -b 1M -e 64M -f 8
	done
done
unset NCCL_P2P_DISABLE
export SHUNT_LINKS='*:peer'
for n in 2 4; do
	[ "$gpus" -ge $n ] || continue
	run 90 env SHUNT_NCCL_LIB=none "$shunt" conform --quick -n $n --device cuda
	run 60 env SHUNT_NCCL_LIB=none "$shunt" torture -n $n --device cuda --ops 2000
	for op in all_reduce all_gather reduce_scatter alltoall; do
		run 60 env SHUNT_NCCL_LIB="$nccl" "$shunt" bench $op -n $n -b 1K -e 8K -f 2 --vs nccl
		run 60 env SHUNT_NCCL_LIB=none "$shunt" bench $op -n $n -b 1K -e 64M -f 8
	done
done
# NVLink in pairs.
if [ "$gpus" -ge 4 ]; then
	export SHUNT_LINKS='*:shared;0/1:nvlink;2/3:nvlink'
	run 90 env SHUNT_NCCL_LIB=none "$shunt" conform --quick -n 4 --device cuda
	run 90 env SHUNT_NCCL_LIB=none SHUNT_ALGO='allreduce:0-:islands,allgather:0-:islands,reducescatter:0-:islands' "$shunt" torture -n 4 --device cuda --ops 2000
	for op in all_reduce all_gather reduce_scatter; do
		for algo in "" "${op%_*}${op#*_}:0-:islands"; do
			run 60 env SHUNT_NCCL_LIB=none SHUNT_ALGO="$algo" "$shunt" bench $op -n 4 -b 16K -e 64M -f 2
		done
	done
fi
unset SHUNT_LINKS
# The self-test of links: the long one, then that of a set-up, anew and with what was found before.
run 120 "$shunt" doctor --links
cache=$(mktemp -d)
for n in 2 4; do
	[ "$gpus" -ge $n ] || continue
	for links in '*:nvlink' '*:peer' '*:shared'; do
		for what in anew kept; do
			echo "# self-test of $n GPUs, $links, $what"
			env SHUNT_SELFTEST=always SHUNT_CACHE_DIR="$cache" SHUNT_LINKS="$links" SHUNT_NCCL_LIB=none SHUNT_LOG=info \
				timeout 60 "$shunt" bench all_reduce -n $n -b 1K -e 1K 2>&1 | grep -E 'self-test of|rank 0 .* ready in|not ok'
		done
	done
done
rm -r "$cache"
exit $failed
