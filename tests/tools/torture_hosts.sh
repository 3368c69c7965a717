#!/bin/sh
# SPDX-License-Identifier: MIT
# Torture over hosts whose links lose, delay and are cut for a while: torture_hosts.sh SHUNT LIBSHUNT
# Cut links are TCP's to mend, which takes longer the busier the machine is: a set-up has time here.
[ "$(id -u)" = 0 ] || { echo "skipped: hosts are network namespaces, which only root can make"; exit 77; }
[ -c /dev/net/tun ] || { echo "skipped: no TAPs here"; exit 77; }
export SHUNT_LIB="$2" SHUNT_NCCL_LIB=none SHUNT_LOG=none SHUNT_SETUP_TIMEOUT=120s
out=$("$1" torture --device sim -n 4 --hosts 2 --ops 600 --seed 1 --faults=1) || { echo "$out"; exit 1; }
echo "$out" | tail -2
echo "$out" | grep -q 'wrong values in 0,' || exit 1
echo "$out" | grep -q '^# faults between the hosts: [0-9]* loss' || exit 1
if "$1" torture --device sim -n 4 --ops 10 --faults 2>/dev/null; then
	echo "--faults without --hosts is taken"
	exit 1
fi
