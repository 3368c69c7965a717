#!/bin/sh
# SPDX-License-Identifier: MIT
# doctor_net.sh SHUNT LIBSHUNT [ONE]: shunt doctor --net among hosts of one machine: names, and for root network namespaces. ONE: only of one host.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") one=${3:-}
. "$(dirname "$0")/expect.sh"

expect net_goes_with_no_pid 2 'goes with neither' "$shunt" doctor --net --pid 1
expect ranks_go_with_net 2 'go with --net' "$shunt" doctor -n 2
expect hosts_need_ranks 1 'a host needs a rank' "$shunt" doctor --net -n 2 --hosts 3
expect all_pairs_of_one_host 0 'ok +3 ranks on 1 host$' "$shunt" doctor --net -n 3
expect json_has_the_findings 0 '"topic": "network"' "$shunt" doctor --net --json -n 2
expect no_interface_is_an_error_of_the_pair 2 'rank 1 on .* cannot connect to rank 0' env NCCL_SOCKET_FAMILY=AF_INET NCCL_SOCKET_IFNAME==none "$shunt" doctor --net -n 2
[ -z "$one" ] || exit $failed
expect hosts_are_counted 0 'ok +3 ranks on 2 hosts' "$shunt" doctor --net -n 3 --hosts 2
expect matrix_has_a_row_for_each_rank 0 '^ +2 +[0-9.]+ +[0-9.]+ +-$' "$shunt" doctor --net -n 3 --hosts 3
expect bench_runs_over_hosts 0 ' hierarchical ' "$shunt" bench allreduce -n 2 --hosts 2 -b 8 -e 8 --device sim
if [ "$(id -u)" = 0 ] && [ -c /dev/net/tun ]; then
	expect namespaces_have_addresses_of_their_own 0 '^ +1 +host1 +eth0 +10\.77\.0\.2$' "$shunt" doctor --net -n 2 --hosts 2
else
	echo "skipped: namespaces_have_addresses_of_their_own (root only)"
fi
exit $failed
