#!/bin/sh
# SPDX-License-Identifier: MIT
# doctor_net.sh SHUNT LIBSHUNT [FAKE_IBVERBS]: shunt doctor --net among hosts of one machine: names, and for root network namespaces;
# over TCP, and by verbs on NICs that are not there.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") fake=${3:+$(realpath "$3")}
. "$(dirname "$0")/expect.sh"

expect net_goes_with_no_pid 2 'goes with neither' "$shunt" doctor --net --pid 1
expect ranks_go_with_net 2 'go with --net' "$shunt" doctor -n 2
expect hosts_need_ranks 1 'a host needs a rank' "$shunt" doctor --net -n 2 --hosts 3
expect all_pairs_of_one_host 0 'ok +3 ranks on 1 host$' "$shunt" doctor --net -n 3
expect hosts_are_counted 0 'ok +3 ranks on 2 hosts' "$shunt" doctor --net -n 3 --hosts 2
expect matrix_has_a_row_for_each_rank 0 '^ +2 +[0-9.]+ +[0-9.]+ +-$' "$shunt" doctor --net -n 3 --hosts 3
expect json_has_the_findings 0 '"topic": "network"' "$shunt" doctor --net --json -n 2
expect bench_runs_over_hosts 0 '^# 0 wrong elements' env NCCL_SOCKET_IFNAME=lo SHUNT_NCCL_LIB=none "$shunt" bench allreduce -n 2 --hosts 2 -b 8 -e 8 --device sim
if [ "$(id -u)" = 0 ] && [ -c /dev/net/tun ]; then
	expect namespaces_have_addresses_of_their_own 0 '^ +1 +host1 +eth0 +10\.77\.0\.2$' "$shunt" doctor --net -n 2 --hosts 2
	expect no_interface_is_an_error_of_the_pair 2 'rank 1 on .* cannot connect to rank 0' env NCCL_SOCKET_FAMILY=AF_INET NCCL_SOCKET_IFNAME==none "$shunt" doctor --net -n 2
else
	echo "skipped: namespaces_have_addresses_of_their_own (root only)"
fi

# By verbs; without NICs a line says why not. verbs NAME STATUS PATTERN [VARIABLE=VALUE...] COMMAND...
expect without_nics_a_line_says_so 0 'info +no test of verbs.* rank 0 on .* has no NIC: SHUNT_NET=tcp' env SHUNT_NET=tcp "$shunt" doctor --net -n 2
expect verbs_that_were_asked_for 1 'warning +no test of verbs.* has no NIC: NCCL_IB_DISABLE=1' env SHUNT_NET=verbs NCCL_IB_DISABLE=1 "$shunt" doctor --net -n 2
if [ -n "$fake" ]; then
	verbs() {
		case_name=$1 case_status=$2 case_pattern=$3
		shift 3
		rm -f "$dir/fabric"
		expect "$case_name" "$case_status" "$case_pattern" env SHUNT_IBV_LIB="$fake" FAKE_IBV_FABRIC="$dir/fabric" \
			FAKE_IBV_TIME_SCALE=100 FAKE_IBV_DEVICES='mlx0 link=roce gids=v2@10.84.0.1; mlx1 link=roce gids=v2@10.84.0.2' "$@"
	}
	verbs all_pairs_by_verbs 0 'ok +all pairs exchange data by verbs' "$shunt" doctor --net -n 3
	verbs ranks_take_the_nics_in_turn 0 '^ +1 +mlx1 port 1, RoCE v2, GID 0, 10\.84\.0\.2$' "$shunt" doctor --net -n 3
	verbs verbs_have_a_matrix_of_rates 0 '^verbs: rate in MB/s' "$shunt" doctor --net -n 2
	verbs data_comes_late_and_in_pieces 0 'ok +all pairs exchange data by verbs' FAKE_IBV_PIECE_US=1 FAKE_IBV_LATE_READ_US=200 FAKE_IBV_CQ_DELAY_US=200 "$shunt" doctor --net -n 2
	verbs memlock_is_an_error_of_the_pair 2 'error +rank 1 on .* \(mlx1 port 1, RoCE v2, GID 0, 10\.84\.0\.2\) cannot connect by verbs to rank 0' FAKE_IBV_MEMLOCK=100000 "$shunt" doctor --net -n 2
	echo 'at=1000 link=host0:mlx0 action=down' >"$dir/faults"
	verbs link_that_goes_down 2 'error +rank 1 on .* \(mlx1 port 1, .*\) .* by verbs .*rank 0 on .* \(mlx0 port 1, RoCE v2, GID 0, 10\.84\.0\.1\)' FAKE_IBV_FAULTS="$dir/faults" NCCL_IB_TIMEOUT=10 "$shunt" doctor --net -n 2
	verbs others_work_while_a_link_is_down 2 '^ +1 +FAILS +- ' FAKE_IBV_FAULTS="$dir/faults" NCCL_IB_TIMEOUT=10 "$shunt" doctor --net -n 3
	verbs verbs_over_hosts 0 'ok +all pairs exchange data by verbs' "$shunt" doctor --net -n 2 --hosts 2
else
	echo "skipped: verbs (no infiniband/verbs.h when this was built)"
fi
exit $failed
