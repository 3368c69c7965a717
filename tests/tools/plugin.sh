#!/bin/sh
# SPDX-License-Identifier: MIT
# shunt plugin: the examples are right, each planted defect is told by name, and what `new` writes works.
# Under ThreadSanitizer a race between ranks is told, too, and a launch with more threads than it takes is no obstacle.
# Usage: plugin.sh SHUNT DEFECTS.so EXAMPLE.so... | plugin.sh SHUNT DEFECTS.so races
set -eu
. "$(dirname "$0")/../support/own.sh"
shunt=$(realpath "$1") defects=$2
shift 2
out=$dir

# Builds with ThreadSanitizer only.
if [ "$1" = races ]; then
	"$shunt" plugin check -n 2 --timeout 300 -p ordered "$defects" >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
	TSAN_OPTIONS="${TSAN_OPTIONS:-} halt_on_error=1" "$shunt" plugin check -n 2 --timeout 300 -p unordered "$defects" >"$out/log" 2>&1 && exit 1
	grep -q 'FAILED: ThreadSanitizer has found a race, in allreduce of [0-9]* float32, sum or before: its report is above$' "$out/log" &&
		grep -q '^SUMMARY: ThreadSanitizer: data race .*defects.cc' "$out/log" || { cat "$out/log"; exit 1; }
	set +e # as below
	exit 0
fi
"$shunt" plugin check -n 2 "$@" >"$out/examples" || { cat "$out/examples"; exit 1; }
grep -q "^$# plug-ins, 0 wrong$" "$out/examples" || { cat "$out/examples"; exit 1; }

SHUNT_PLUGINS=$(realpath "$1") SHUNT_ALGO=allreduce:0-inf:allreduce_oneshot "$shunt" conform -n 4 --device sim --quick --filter types.all_reduce.float32 >"$out/conform" 2>&1 ||
	{ cat "$out/conform"; exit 1; }

if "$shunt" plugin check -n 3 --timeout 2 "$defects" >"$out/defects"; then
	echo "defects were not told"
	cat "$out/defects"
	exit 1
fi
# Between the line of a plug-in and the next one's.
told() {
	sed -n "/^$1: /,/^[a-z_]*: all/{/^$1: /p;/^  /p}" "$out/defects" | tr '\n' ' ' | grep -q "$2" ||
		{ echo "$1: not told: $2"; cat "$out/defects"; exit 1; }
}
told past_scratch 'wrote at byte 1048613 of its scratch, behind the last'
told past_peer 'wrote at byte -3 of its scratch, before the first'
told past_output 'wrote at byte 132 of the output, behind the last'
told no_barrier 'does not wait for a rank that is late'
told own_order 'added in an order of its own'
told old_epoch 'words of an earlier epoch'
told no_limit 'ignores the limit'
told for_ever 'waited 2000 ms for rank 1'
told no_tail 'not Shunt.s, from element 32 on'
told no_place 'in place.*FAILED\|FAILED.*not Shunt.s'
told one_operator 'max rank . has a result that is not Shunt.s'
told unaligned 'dies by signal .*, unaligned'
told uncounted 'SHUNT_PLUGIN_COUNTED is for kernels'
told unequal 'supports()'
told failing 'its enqueue gave -28'
told waiting 'its enqueue waits for another rank'
told sound ' ok '
grep -Eq '^(17 plug-ins, 16|19 plug-ins, 17) wrong$' "$out/defects"

"$shunt" plugin new my_own -o "$out" >/dev/null
"$shunt" plugin new my_own -o "$out" 2>"$out/err" && exit 1
grep -q 'is there already' "$out/err"
"$shunt" plugin new oneshot -o "$out" 2>"$out/err" && exit 1
grep -q 'cannot be a plug-in' "$out/err"
# Building for GPUs is no matter of this test.
NVCC=no_nvcc CHECK='-n 2' SHUNT=$shunt sh "$out/my_own.sh" >"$out/log" 2>&1 || { cat "$out/log"; exit 1; }
grep -q '^1 plug-in, 0 wrong$' "$out/log"
set +e # what own.sh ends at the exit may be gone
