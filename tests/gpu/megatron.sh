#!/bin/sh
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2086 # $launch is several words
# megatron.sh [SHUNT]: tests/gpu/megatron_train.py on two ranks, which share GPUs where there is one: without a real NCCL, where nothing may be
# forwarded; the same as with --deterministic-mode; and, if NCCL_LIB names a libnccl.so.2 (2.30 or later on one GPU), with plain NCCL, whose
# losses must be equal up to the order of sums. Exit 77: it cannot run here.
set -u
shunt=$(realpath "${1:-build/tools/shunt}")
cd "$(dirname "$0")" || exit 1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
PYTHONPATH=$(realpath ../../python)${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH SHUNT_MULTI_RANK_GPU=1 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_SOCKET_IFNAME=lo
launch="torchrun --standalone --nproc-per-node 2 megatron_train.py"
reason=$(python3 megatron_train.py --layouts none 2>/dev/null) # 77 without torch or megatron-core
[ $? -ne 77 ] || { echo "$reason"; exit 77; }
failed=0
part() {
	echo "== $1"
	shift
	"$@" || failed=1
}
part "Shunt alone" env SHUNT_NCCL_LIB=none "$shunt" run --stats -- $launch --forwarded none --save "$dir/shunt.json"
part "deterministic" env SHUNT_NCCL_LIB=none SHUNT_DETERMINISTIC=1 "$shunt" run --stats -- $launch --forwarded none --deterministic
if [ -n "${NCCL_LIB:-}" ]; then
	part "plain NCCL" env LD_PRELOAD="$NCCL_LIB" $launch --compare "$dir/shunt.json"
fi
exit $failed
