#!/bin/sh
# SPDX-License-Identifier: MIT
# link.sh LIBRARY API_LIBRARY FAKE OLDER ALONE BESIDE PLAN: programs that are linked with libshunt_api.so.0: ALONE with nothing else, BESIDE with
# an NCCL, too (FAKE). Whatever is loaded, there is one state.
set -u
lib=$1 api=$2 fake_dir=$(dirname "$3") older=$4 alone=$5 beside=$6 plan=$7
bad=0
. "$(dirname "$0")/../support/own.sh"
check() { # name, expected, actual
	[ "$2" = "$3" ] && return
	echo "$1: expected '$2', got '$3'"
	bad=1
}
export SHUNT_DEVICE=sim
export LD_LIBRARY_PATH="$fake_dir"
check "alone" "once none $lib sim" "$("$alone" "$plan" 2>&1)"
check "alone, preloaded" "once shunt $lib sim" "$(LD_PRELOAD=$lib "$alone" "$plan" 2>&1)"
check "beside NCCL, neither preloaded" "once nccl $lib sim" "$("$beside" "$plan" 2>&1)"
check "beside NCCL, preloaded" "once shunt $lib sim" "$(LD_PRELOAD=$lib "$beside" "$plan" 2>&1)"
mkdir "$dir/place"
ln -s "$lib" "$dir/place/libnccl.so.2"
check "in NCCL's place" "once shunt $dir/place/libnccl.so.2 sim" "$(LD_LIBRARY_PATH=$dir/place "$beside" "$plan" 2>&1)"

# A library of another place that is there already comes before the one beside libshunt_api.so.0.
cp "$lib" "$dir/place/libother.so"
check "opened before" "once none $dir/place/libother.so sim" "$("$alone" "$plan" "$dir/place/libother.so" 2>&1)"
check "opened before, beside NCCL" "once nccl $dir/place/libother.so sim" "$("$beside" "$plan" "$dir/place/libother.so" 2>&1)"
ln -s "$api" "$dir/place/libshunt_api.so.0"
check "through a link" "once none $lib sim" "$(LD_LIBRARY_PATH=$dir/place "$alone" "$plan" 2>&1)"

# A wheel has copies in the folder of the links.
mkdir -p "$dir/wheel/lib/shunt"
cp "$lib" "$dir/wheel/lib/libshunt.so"
cp "$api" "$dir/wheel/lib/shunt/libshunt_api.so.0"
check "a wheel's copy" "once none $dir/wheel/lib/libshunt.so sim" "$(LD_LIBRARY_PATH=$dir/wheel/lib/shunt "$alone" "$plan" 2>&1)"

# Without any, and with one that lacks the function.
mkdir "$dir/bare"
cp "$api" "$dir/bare/libshunt_api.so.0"
export LD_LIBRARY_PATH="$dir/bare"
check "no libshunt.so" "ELIBACC" "$("$alone" "$plan" 2>"$dir/said" | sed 's/.* //')"
check "no libshunt.so: lines" 1 "$(wc -l <"$dir/said")"
grep -q "cannot load libshunt.so ($dir/bare/libshunt.so: .*preload it" "$dir/said" || check "no libshunt.so" "a remedy" "$(cat "$dir/said")"
check "an older one" "older ENOSYS" "$(LD_PRELOAD=$older "$alone" "$plan" 2>&1)"
exit $bad
