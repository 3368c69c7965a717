#!/bin/sh
# SPDX-License-Identifier: MIT
# wheel.sh [--arch aarch64] [--cuda auto|disabled|VERSION] [DIRECTORY]: makes the Python package, a wheel and an sdist, in DIRECTORY (dist); installs what is
# missing for that, as root on Debian or Ubuntu. The wheel is for every Python from 3.10 on, and for any Linux with the C library that it
# was built with, or a later one: build on the oldest system that must be supported. With an nvcc it has kernels for compute capability 8.0, 9.0,
# 10.0 and later. A VERSION such as 13.0 gets that nvcc from PyPI, which has versions from CUDA 13 on; their kernels need a driver for CUDA 13.
# --arch aarch64: the wheel for it, built on x86-64, with kernels for capability 9.0, 10.0, 10.3 and 12.1: nvcc's code does not depend on the host.
set -eu
arch=$(uname -m)
if [ "${1:-}" = --arch ]; then
	arch=$2
	shift 2
fi
cuda=auto
if [ "${1:-}" = --cuda ]; then
	cuda=$2
	shift 2
fi
out=${1:-dist}
mkdir -p "$out"
out=$(realpath "$out")
cd "$(dirname "$0")/.."
. tools/setup.sh
need_build_tools binutils
case $cuda in
auto | disabled) ;;
*)
	need_nvcc_wheels "$cuda"
	cuda=enabled
	;;
esac
start=
if [ "$arch" != "$(uname -m)" ]; then
	[ "$arch" = aarch64 ] || {
		echo "wheel.sh: --arch $arch is none that can be built here: aarch64" >&2
		exit 2
	}
	need_aarch64
	start=tools/aarch64.sh
fi
files=$($start python3 python/build_libshunt.py "$out" "cuda=$cuda" "machine=$arch")
echo "$files"
# The package needs only the C library, and contains no file of NVIDIA's.
need_venv
auditwheel show --json --help >/dev/null 2>&1 || pip install -q --disable-pip-version-check 'auditwheel>=6.8.2'
wheel=$(echo "$files" | grep '\.whl$')
auditwheel show --json "$wheel" |
	python3 -c 'import json, sys; sys.exit(not json.load(sys.stdin)["overall_tag"].startswith("manylinux_"))' || {
	auditwheel show "$wheel" >&2
	echo "wheel.sh: $wheel needs what a manylinux wheel may not" >&2
	exit 1
}
size=$(stat -c %s "$wheel")
most=$((25 << 20))
[ "$cuda" != disabled ] || most=$((4 << 20))
[ "$size" -le "$most" ] || {
	echo "wheel.sh: $wheel has $size bytes, more than $most" >&2
	exit 1
}
