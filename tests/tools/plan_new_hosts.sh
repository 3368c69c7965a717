#!/bin/bash
# SPDX-License-Identifier: MIT
# plan_new_hosts.sh SHUNT PLACES...: what shunt plan new writes for several hosts gives right values on them. PLACES are HOSTSxLOCAL.
set -u
shunt=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for place in "$@"; do
	# Ranks that share a device of the sim have one block each.
	blocks=
	[ $((${place%x*} * ${place#*x})) -gt 8 ] && blocks="-B 1"
	for collective in all_reduce all_gather reduce_scatter; do
		for shape in hierarchical hierarchical-ll; do
			# shellcheck disable=SC2086 # no option is no word
			"$shunt" plan new $collective $shape $blocks --hosts "${place%x*}" --local "${place#*x}" --min 0 --max any \
				-o "$dir/${collective}_${shape}_$place.json" || exit 1
		done
	done
done
bash "$(dirname "$0")/plan_hosts.sh" "$shunt" "$dir"
