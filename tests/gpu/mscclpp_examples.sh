#!/bin/sh
# SPDX-License-Identifier: MIT
# mscclpp_examples.sh CHECKOUT [SHUNT]: MSCCL++'s examples for PyTorch, of a checkout of it, unmodified but for 2 ranks instead of 8, which may
# share a GPU, under `shunt run --mscclpp`: values are right, and the statistics name the plan. Exit 77: torch or GPUs are missing.
set -u
[ $# -ge 1 ] || { echo "usage: mscclpp_examples.sh CHECKOUT [SHUNT]" >&2; exit 2; }
examples=$(realpath "$1")/examples/torch-integration
shunt=$(realpath "${2:-build/tools/shunt}")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null || { echo "SKIP mscclpp_examples.sh: no torch with a GPU"; exit 77; }
cp "$examples"/*.py "$dir" || exit 1
sed -i 's/\bnranks_per_node=8\b/nranks_per_node=2/; s/\bworld_size=8\b/world_size=2/; s/\b8\b/2/g' "$dir"/*.py
PYTHONPATH=$(realpath "$(dirname "$0")/../../python")${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH SHUNT_MULTI_RANK_GPU=1 SHUNT_NCCL_LIB=none NCCL_SOCKET_IFNAME=lo MSCCLPP_MASTER_ADDR=127.0.0.1 MSCCLPP_MASTER_PORT=29541
failed=0
for name in dsl_with_nccl_api customized_comm_with_dsl; do
	"$shunt" run --mscclpp --stats -- torchrun --standalone --nproc-per-node 2 "$dir/$name.py" >"$dir/out" 2>&1 || failed=1
	cat "$dir/out"
	[ $name != dsl_with_nccl_api ] || grep -q 'allreduce_nvls' "$dir/out" || { echo "$name: no call ran the plan allreduce_nvls"; failed=1; }
done
exit $failed
