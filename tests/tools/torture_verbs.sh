#!/bin/sh
# SPDX-License-Identifier: MIT
# Torture over hosts by verbs, with NICs that lose packets, stall and go down for a moment: torture_verbs.sh SHUNT LIBSHUNT LIBIBVERBS
dir=$(mktemp -d /dev/shm/shunt-torture.XXXXXX) || exit 1
trap 'rm -rf "$dir"' EXIT
export SHUNT_LIB="$2" SHUNT_NCCL_LIB=none SHUNT_SETUP_TIMEOUT=120s SHUNT_NET=verbs SHUNT_IBV_LIB="$3" NCCL_DEBUG=INFO NCCL_IB_TIMEOUT=18
export FAKE_IBV_FABRIC="$dir/fabric" FAKE_IBV_FIRED="$dir/fired" FAKE_IBV_HOST=%h FAKE_IBV_DEVICES="mlx0 link=roce"
export FAKE_IBV_FAULTS="at=0.3s every=4s link=*:mlx0 action=drop 1; at=0.5s every=2s link=*:mlx0 action=flap 100ms; at=1s every=2s link=*:mlx0 action=stall 200ms"
"$1" torture --device sim -n 4 --hosts 2 --ops 300 --seed 1 >"$dir/out" 2>"$dir/log" || { cat "$dir/out"; grep -v INFO "$dir/log"; exit 1; }
tail -2 "$dir/out"
grep -q 'wrong values in 0,' "$dir/out" || exit 1
grep -q 'hosts by verbs' "$dir/log" || { echo "verbs was not used"; exit 1; }
for kind in drop flap stall; do
	grep -q "^# faults of RDMA:.* [1-9][0-9]* $kind" "$dir/out" || { echo "no $kind"; exit 1; }
done
