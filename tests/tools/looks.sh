#!/bin/sh
# SPDX-License-Identifier: MIT
# looks.sh SHUNT LIBSHUNT [LOOKS]: looks at healthy jobs of 3 and 8 ranks on the sim, none of which may find anything.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") program= looks=${3:-200}
. "$(dirname "$0")/hanging.sh"
[ "$HANGING_ALONE" = yes ] || { echo "SKIP looks.sh: it needs a network of its own, as other tests' jobs hang"; exit 77; }
for ranks in 3 8; do
	"$shunt" torture -n $ranks --minutes 1000 >"$dir/job" 2>&1 &
	job=$!
	done=0 found=0
	until [ "$(grep -c ' @shunt-doctor-' /proc/net/unix)" -ge $ranks ] || ! kill -0 $job; do
		sleep 0.1 # pause: poll
	done
	while [ $done -lt "$looks" ] && kill -0 $job; do
		done=$((done + 1))
		"$shunt" doctor job >"$dir/look" 2>&1 && continue
		found=$((found + 1))
		cat "$dir/look"
	done
	[ $found = 0 ] && [ $done = "$looks" ] && echo "ok: $ranks ranks" || { echo "not ok: $ranks ranks: $done looks, $found with a finding"; cat "$dir/job"; failed=1; }
	kill -TERM $job
	wait $job
	job=
done
exit $failed
