#!/bin/sh
# SPDX-License-Identifier: MIT
# load_time.sh [BUILD...]: what loading the kernels takes, of each build directory, in turns: the set-up of a communicator of two ranks that
# share a GPU, ten times each. Without arguments it builds two, in build-load-*: as always, and as nvcc compresses by itself. Exit 77: no
# GPU, or no nvcc to build with.
set -u
cd "$(dirname "$0")/../.." || exit 1
nvidia-smi -L >/dev/null 2>&1 || { echo "SKIP load_time.sh: no GPU"; exit 77; }
if [ $# -eq 0 ]; then
	command -v nvcc >/dev/null || { echo "SKIP load_time.sh: no nvcc"; exit 77; }
	for mode in ours nvcc; do
		[ $mode = ours ] || export NVCC_APPEND_FLAGS=--compress-mode=default
		[ -e build-load-$mode/build.ninja ] || meson setup build-load-$mode -Dcuda=enabled -Dtests=disabled >/dev/null || exit 1
		ninja -C build-load-$mode >/dev/null || exit 1
		set -- "$@" build-load-$mode
	done
fi
export SHUNT_MULTI_RANK_GPU=1 SHUNT_NCCL_LIB=none NCCL_SOCKET_IFNAME=lo
for build in "$@"; do
	echo "$build: $(stat -c %s "$build/src/libshunt.so") bytes"
done
for round in 1 2 3 4 5 6 7 8 9 10; do
	for build in "$@"; do
		echo "round $round $build"
		"$build/tools/shunt" bench all_reduce -n 2 -b 4K -e 4K -w 0 -i 1 -r 1 --init || exit 1
	done
done
