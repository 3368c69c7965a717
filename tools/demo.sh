#!/bin/sh
# SPDX-License-Identifier: MIT
# From a fresh Debian or Ubuntu (as root) to the main job: an all-reduce of 8 B to 64 MB through NCCL's ABI, on the GPUs if there
# are two, else on the sim, every result checked. May be run again; needs no root when nothing is missing.
# Arguments are handed on to shunt bench.
set -eu
cd "$(dirname "$0")/.."
. tools/setup.sh

need_build_tools
need_nvcc
if [ "$(gpu_count)" -ge 2 ] && nvcc_found; then
	gpus=$(gpu_count)
	configure build -Dtests=disabled -Dcuda=enabled "-Dgpu_archs=$(gpu_archs)"
else
	gpus=0
	configure build -Dtests=disabled -Dcuda=disabled
fi
say "building"
if ! meson compile -C build >build/compile.log 2>&1; then
	tail -n 50 build/compile.log
	echo "the build failed; all of its output is in build/compile.log" >&2
	exit 1
fi
if [ "$gpus" != 0 ]; then
	say "all-reduce on $gpus GPUs"
	set -- -b 8 -e 64M "$@"
else
	say "all-reduce of 4 ranks on the sim (there are not two GPUs and a compiler for them)"
	# One CPU thread stands for a block of GPU threads: one round is enough to see that it works.
	set -- --device sim -n 4 -b 8 -e 64M --mode eager -w 0 -i 1 -r 1 "$@"
fi
exec build/tools/shunt bench "$@"
