#!/bin/sh
# SPDX-License-Identifier: MIT
# generate.sh SHUNT [FOLDER]: writes the plans of `recipes`, here or to a folder. Equal versions of shunt write equal bytes.
set -eu
shunt=$1 here=$(dirname "$0")
to=${2:-$here}
grep -v '^#' "$here/recipes" | while read -r collective shape options; do
	for ranks in 2 4 8; do
		# The options are words.
		# shellcheck disable=SC2086
		"$shunt" plan new "$collective" "$shape" -n $ranks $options -o "$to/${collective}_${shape}_$ranks.json"
	done
done
