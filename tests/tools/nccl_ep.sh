#!/bin/sh
# SPDX-License-Identifier: MIT
# nccl_ep.sh SHUNT CLIENT OTHER NCCL: whose libnccl_ep.so.0 a program gets. OTHER stands for NVIDIA's, whose version is 999 here, and NCCL
# for a real NCCL; CLIENT prints the version of the one that it gets.
set -u
shunt=$1 client=$2 nccl=$4
. "$(dirname "$0")/../support/own.sh"
gets() { # name, line of output, status, command
	name=$1 line=$2 status=$3
	shift 3
	LD_LIBRARY_PATH=$other "$@" >"$dir/out" 2>&1
	[ $? = "$status" ] && grep -q -e "$line" "$dir/out"
	verdict "$name"
}
other=$(dirname "$3")
gets "no Shunt" '^999$' 0 "$client"
gets "in front of NCCL" '^999$' 0 env SHUNT_NCCL_LIB="$nccl" "$shunt" run -- "$client"
gets "without NCCL" '^999$' 0 env SHUNT_NCCL_LIB=none "$shunt" run -- "$client"
gets "without NCCL, asked for" '^100$' 0 env SHUNT_NCCL_LIB=none "$shunt" run --nccl-ep -- "$client"
gets "on the sim, asked for" '^100$' 0 "$shunt" run --device sim --nccl-ep -- "$client"
refusal='--nccl-ep is for programs without a real NCCL'
gets "in front of an NCCL that is found, asked for" "$refusal" 2 "$shunt" run --nccl-ep -- "$client"
gets "in front of a named NCCL, asked for" "$refusal" 2 env SHUNT_NCCL_LIB="$nccl" "$shunt" run --nccl-ep -- "$client"
exit "$failed"
