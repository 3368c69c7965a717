#!/bin/sh
# SPDX-License-Identifier: MIT
# deep_ep_upstream.sh CHECKOUT [RANKS [SHUNT]]: DeepEP's two test programs for Buffer, of a checkout of it (tests/legacy/test_intranode.py and
# test_low_latency.py), unmodified, on Shunt's deep_ep. Of its helpers they get math and testing, where the profiler's names of kernels need no
# namespace; init_dist is ours, so that ranks may share GPUs with SHUNT_MULTI_RANK_GPU=1. Exit 77: torch, numpy or GPUs are missing. Each program has
# LIMIT_S seconds (240). ARGUMENTS are the programs', such as "--num-tokens 64"; PROGRAMS are the two names, or one.
set -u
[ $# -ge 1 ] || { echo "usage: deep_ep_upstream.sh CHECKOUT [RANKS [SHUNT]]" >&2; exit 2; }
checkout=$(realpath "$1") ranks=${2:-2}
here=$(realpath "$(dirname "$0")")
shunt=$(realpath "${3:-$here/../../build/tools/shunt}")
for name in tests/legacy/test_intranode.py tests/legacy/test_low_latency.py deep_ep/utils/math.py deep_ep/utils/testing.py; do
	[ -f "$checkout/$name" ] || { echo "deep_ep_upstream.sh: $checkout has no $name: is it a checkout of DeepEP 2.1?" >&2; exit 2; }
done
python3 -c 'import sys, numpy, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
	{ echo "SKIP deep_ep_upstream.sh: no torch and numpy with a GPU"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/deep_ep/utils"
cp "$checkout"/tests/legacy/test_*.py "$dir" && cp "$checkout/deep_ep/utils/math.py" "$dir/deep_ep/utils" || exit 1
sed "s/f'::{kernel_name}'/kernel_name/" "$checkout/deep_ep/utils/testing.py" >"$dir/deep_ep/utils/testing.py"
echo 'from libshunt.deep_ep import *' >"$dir/deep_ep/__init__.py"
echo 'from libshunt.deep_ep.utils import *' >"$dir/deep_ep/utils/__init__.py"
cat >"$dir/deep_ep/utils/envs.py" <<'END'
import datetime, os, sys
import torch, torch.distributed as dist
sys.path.insert(0, os.environ["DEEP_EP_GPUS"])
import gpus
def init_dist(local_rank, num_local_ranks, seed=0):
	device = gpus.mine(local_rank)
	torch.cuda.set_device(device)
	dist.init_process_group("nccl", init_method=f"file://{os.environ['DEEP_EP_STORE']}", rank=local_rank, world_size=num_local_ranks,
	                        timeout=datetime.timedelta(seconds=100), device_id=device)
	torch.set_default_dtype(torch.bfloat16)
	torch.set_default_device("cuda")
	return local_rank, num_local_ranks, dist.new_group(list(range(num_local_ranks)))
END
PYTHONPATH=$dir:$here/../../python${PYTHONPATH:+:$PYTHONPATH}
[ "${SHUNT_MULTI_RANK_GPU:-0}" = 0 ] || export SHUNT_NCCL_LIB="${SHUNT_NCCL_LIB:-none}"
export PYTHONPATH DEEP_EP_GPUS="$here" NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-lo}" SHUNT_EP_TIMEOUT="${SHUNT_EP_TIMEOUT:-20s}" SHUNT_DEVICE=cuda
(cd "$here" && python3 -c "import gpus; gpus.need('deep_ep_upstream.sh', $ranks)") || exit
failed=0
for name in ${PROGRAMS:-test_intranode test_low_latency}; do
	echo "== $name --num-processes $ranks ${ARGUMENTS:-}"
	# shellcheck disable=SC2086
	(cd "$dir" && DEEP_EP_STORE="$dir/store-$name" timeout -k 5 "${LIMIT_S:-240}" "$shunt" run -- python3 "$name.py" --num-processes "$ranks" ${ARGUMENTS:-})
	status=$?
	[ $status -eq 0 ] || { echo "FAILED $name: exit status $status"; failed=1; }
done
[ $failed -ne 0 ] || echo "deep_ep_upstream.sh: all right"
exit $failed
