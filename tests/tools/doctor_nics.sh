#!/bin/sh
# SPDX-License-Identifier: MIT
# doctor_nics.sh SHUNT LIBSHUNT FAKE_IBVERBS: what shunt doctor and shunt info say of network devices, by NICs that are not there.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") fake=$(realpath "$3")
. "$(dirname "$0")/expect.sh"
NCCL_SOCKET_IFNAME=lo
SHUNT_NCCL_LIB=none
export NCCL_SOCKET_IFNAME SHUNT_NCCL_LIB

# With NICs: sees NAME STATUS PATTERN NICS [VARIABLE=VALUE...] -- ARGUMENTS
sees() {
	case_name=$1 case_status=$2 case_pattern=$3
	FAKE_IBV_DEVICES=$4
	export FAKE_IBV_DEVICES
	shift 4
	expect "$case_name" "$case_status" "$case_pattern" env SHUNT_IBV_LIB="$fake" "$@"
	unset FAKE_IBV_DEVICES
}

two='mlx0 link=roce numa=0 gids=v2@10.84.0.7; mlx1 link=ib state=down'
expect interface_of_tcp 1 'ok +tcp: lo, 127\.0\.0\.1' env SHUNT_IBV_LIB=/nonexistent/libibverbs.so "$shunt" doctor
expect library_that_is_not_there 1 'warning +no RDMA \(verbs\): SHUNT_IBV_LIB=/nonexistent/libibverbs.so cannot be opened' env SHUNT_IBV_LIB=/nonexistent/libibverbs.so "$shunt" doctor
expect library_that_is_none 1 'no RDMA \(verbs\): .*libc\.so.* has no ibv_[a-z_]+ of version' env SHUNT_IBV_LIB="$(ldd "$shunt" | sed -n 's/.*=> \(.*libc\.so[^ ]*\).*/\1/p')" "$shunt" doctor
expect the_variable_with_the_path_is_named 1 'MSCCLPP_IBV_SO=/nonexistent cannot be opened' env MSCCLPP_IBV_SO=/nonexistent "$shunt" doctor
sees nic_with_its_address 0 'ok +verbs: mlx0 port 1, RoCE v2, GID 0, 10\.84\.0\.7, 200 Gb/s' "$two" "$shunt" doctor
sees port_that_is_down 0 'info +verbs: mlx1 port 1 is not used: it is not active' "$two" "$shunt" doctor
sees port_that_is_left_out 0 'info +verbs: mlx0 port 1 is not used: NCCL_IB_HCA leaves it out' 'mlx0; mlx1' NCCL_IB_HCA==mlx1 "$shunt" doctor
sees no_port_is_active 1 'warning +no RDMA \(verbs\): libibverbs shows no port that can be used' 'mlx1 link=ib state=down' "$shunt" doctor
sees no_nic 1 'warning +no RDMA \(verbs\): libibverbs shows no NIC' '' "$shunt" doctor
sees rdma_is_off 0 'info +no RDMA \(verbs\): NCCL_IB_DISABLE=1' "$two" NCCL_IB_DISABLE=1 "$shunt" doctor
sees tcp_was_asked_for 0 'info +SHUNT_NET=tcp: NICs with RDMA are not used' "$two" SHUNT_NET=tcp "$shunt" doctor
sees memlock_is_too_small 1 'warning +verbs: mlx0 .*: 69 MB, .* the limit of locked memory is too small' mlx0 FAKE_IBV_MEMLOCK=1000000 "$shunt" doctor
sees memlock_is_lifted_by 1 '-> ulimit -l unlimited; docker run --ulimit memlock=-1' mlx0 FAKE_IBV_MEMLOCK=1000000 "$shunt" doctor
sees no_gid_suits 1 'warning +verbs: mlx0 .* cannot find an address' "$two" SHUNT_IB_GID_INDEX=77 "$shunt" doctor
sees info_lists_interface 0 '^tcp +lo, 127\.0\.0\.1' "$two" "$shunt" info
sees info_lists_nics 0 '^verbs +mlx0 port 1, RoCE v2, GID 0, 10\.84\.0\.7, 200 Gb/s' "$two" "$shunt" info
sees info_lists_what_is_left_out 0 '^ +mlx1 port 1 is not used: it is not active' "$two" "$shunt" info
expect info_says_why_there_are_none 0 '^verbs +none: SHUNT_IBV_LIB=/nonexistent cannot be opened' env SHUNT_IBV_LIB=/nonexistent "$shunt" info
exit $failed
