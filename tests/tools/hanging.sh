# SPDX-License-Identifier: MIT
# Sourced by the tests of jobs that hang, with $shunt, $mock and $program (doctor_hang) set.
# The doctor and the watcher ask every process that they find: a network of its own keeps other tests out, of which some count what they do.
if [ -z "${HANGING_ALONE:-}" ]; then
	HANGING_ALONE=no
	for alone in "unshare -n" "unshare -rn"; do
		$alone ip link set lo up 2>/dev/null || continue
		HANGING_ALONE=yes exec $alone sh -c 'ip link set lo up; exec sh "$@"' sh "$0" "$@"
	done
fi
. "$(dirname "$0")/expect.sh"
# A job shall hang where its scenario says, and not end in its set-up on a machine that stands still for a while.
SHUNT_DEVICE=sim SHUNT_NCCL_LIB=none SHUNT_LOG=error SHUNT_SETUP_TIMEOUT=30m
export SHUNT_DEVICE SHUNT_NCCL_LIB SHUNT_LOG SHUNT_SETUP_TIMEOUT
job=

end_job() {
	[ -z "$job" ] || kill -KILL $job 2>/dev/null
	[ -z "$job" ] || wait $job 2>/dev/null
	job=
}

# hangs FILE PID: waits until the job that writes there has come to hang.
hangs() {
	tries=0
	until grep -q '^hanging' "$1"; do
		tries=$((tries + 1))
		if [ $tries -gt 600 ] || ! kill -0 "$2" 2>/dev/null; then
			echo "not ok: $1 does not come to hang"
			cat "$1" "$1.err"
			exit 1
		fi
		sleep 0.1 # pause: poll
	done
}

# hang SCENARIO N [HOSTS]: starts it; $pids are its ranks, with commas.
hang() {
	end_job
	: >"$dir/job"
	"$program" "$@" >"$dir/job" 2>"$dir/job.err" &
	job=$!
	hangs "$dir/job" $job
	pids=$(sed -n 's/^pids //p' "$dir/job" | tr ' ' ',')
}

# comes NAME STATUS PATTERN COMMAND...: as expect, as soon as it is so; the doctor names waits of more than a second, and on a busy machine a job
# takes its time to wait, and to go on.
comes() {
	name=$1 status=$2 pattern=$3 tries=0
	shift 3
	until "$@" >"$dir/soon" 2>&1; said=$?; [ $said = "$status" ] && grep -Eq -e "$pattern" "$dir/soon" || [ $tries = 300 ]; do
		tries=$((tries + 1))
		sleep 0.2 # pause: poll
	done
	expect "$name" "$status" "$pattern" sh -c 'cat "$1"; exit "$2"' sh "$dir/soon" $said
}

rank_pid() {
	echo "$pids" | cut -d, -f$(($1 + 1))
}
