#!/bin/sh
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2086 # $launch is several words
# enable_torch.sh [SHUNT]: the trainings of torch_train.py and the checks of torch_nccl.py on two ranks that may share a GPU, under
# `shunt run`, and with libshunt.enable() in the program instead and nothing preloaded: the same losses, and libshunt.status() active.
# Without a real NCCL, so that nothing can be forwarded. Exit 77: torch or GPUs are missing.
set -u
shunt=$(realpath "${1:-build/tools/shunt}")
SHUNT_LIB=$(realpath "${SHUNT_LIB:-$(dirname "$shunt")/../src/libshunt.so}")
cd "$(dirname "$0")" || exit 1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -c 'import torch' 2>/dev/null || { echo "SKIP enable_torch.sh: no torch"; exit 77; }
cat >"$dir/enabled.py" <<'PY'
import os, runpy, sys

import libshunt

libshunt.enable()
path = sys.argv[1]
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(path))
try:
    runpy.run_path(path, run_name="__main__")
finally:
    status = libshunt.status()
    print(status, flush=True)
    if not status:
        sys.exit("libshunt.status() is not active")
PY
PYTHONPATH=$(realpath ../../python)${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH SHUNT_LIB SHUNT_MULTI_RANK_GPU=1 SHUNT_NCCL_LIB=none SHUNT_STATS=1 NCCL_SOCKET_IFNAME=lo
launch="torchrun --standalone --nproc-per-node 2"
failed=0
for program in torch_nccl.py "torch_train.py --out"; do
	set -- $program
	name=$1 out=${2:-}
	"$shunt" run -- $launch "$PWD/$name" ${out:+$out "$dir/run.json"}
	status=$?
	[ $status -ne 77 ] || exit 77
	$launch "$dir/enabled.py" "$PWD/$name" ${out:+$out "$dir/enabled.json"} || failed=1
	[ $status -eq 0 ] || failed=1
done
cmp "$dir/run.json" "$dir/enabled.json" || failed=1
[ $failed -ne 0 ] || echo "enable() and shunt run give the same"
exit $failed
