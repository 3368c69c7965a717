#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs plans whose ranks ports join, over hosts of this machine: plan_hosts.sh SHUNT DIRECTORY [HOSTS...]
#
# A plan with more than one host in its name, "2x4", runs on as many; others on each number of hosts that they fit. Each has to
# give right values, at several sizes, in place and not, call by call and from a graph. What no NCCL call means, or has more
# ranks than can be checked, is named with the reason. Exit status: 77 if there is nothing to run.
set -u
shunt=$1 dir=$2
shift 2
hosts=("$@")
[ ${#hosts[@]} -gt 0 ] || hosts=(2 4)
export SHUNT_NCCL_LIB=none SHUNT_DEVICE=sim SHUNT_MULTI_RANK_GPU=1 NCCL_SOCKET_IFNAME=lo
[ -d "$dir" ] || { echo "no directory $dir"; exit 77; }
ran=0 failed=0 skipped=0
for plan in "$dir"/*.json; do
	grep -q '"channel_type": *"port"' "$plan" || continue
	name=$(basename "$plan" .json) on=("${hosts[@]}")
	if [[ $name =~ _([0-9]+)x[0-9]+(_|$) ]] && [ "${BASH_REMATCH[1]}" -gt 1 ]; then
		on=("${BASH_REMATCH[1]}")
	fi
	for n in "${on[@]}"; do
		if ! reason=$("$shunt" plan check -q --hosts "$n" "$plan"); then
			echo "left out: $name on $n hosts: ${reason#*: }"
			skipped=$((skipped + 1))
			continue
		fi
		for graph in "" --graph; do
			# shellcheck disable=SC2086 # no option is no word
			out=$(timeout 300 "$shunt" plan run --hosts "$n" $graph -b 1000 -e 300K -f 17 -i 2 -r 1 "$plan" 2>&1)
			status=$?
			if [ $status -eq 0 ] && grep -q "all values are right, and the plan made them" <<< "$out"; then
				echo "right: $name on $n hosts${graph:+, from a graph}"
				ran=$((ran + 1))
			elif grep -Eq "which no NCCL call means|values can be checked for up to|reduces nothing" <<< "$out"; then
				echo "left out: $name on $n hosts: $(grep -Eo '(is a plan for|is for|reduces nothing).*' <<< "$out" | head -1)"
				skipped=$((skipped + 1))
				break
			else
				printf 'WRONG: %s on %s hosts%s, exit status %s\n%s\n' "$name" "$n" "${graph:+, from a graph}" $status "$out"
				failed=$((failed + 1))
			fi
		done
	done
done
echo "$ran runs right, $failed wrong, $skipped left out"
[ $failed -eq 0 ] || exit 1
[ $ran -gt 0 ] || exit 77
