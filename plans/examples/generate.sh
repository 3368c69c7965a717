#!/bin/sh
# SPDX-License-Identifier: MIT
# generate.sh SHUNT FOLDER: writes the plans of `recipes` to a folder. Equal versions of shunt write equal bytes: those of `hashes`, which
# `sha256sum *.json` prints there.
set -eu
shunt=$1 to=$2 here=$(dirname "$0") fixed=
# A program with ThreadSanitizer does not start where the kernel picks addresses too freely.
! setarch "$(uname -m)" -R true 2>/dev/null || fixed="setarch $(uname -m) -R"
grep -v '^#' "$here/recipes" | while read -r collective shape options; do
	for ranks in 2 4 8; do
		# The options are words, and so is how to start a program.
		# shellcheck disable=SC2086
		$fixed "$shunt" plan new "$collective" "$shape" -n $ranks $options -o "$to/${collective}_${shape}_$ranks.json"
	done
done
