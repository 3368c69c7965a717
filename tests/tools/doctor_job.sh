#!/bin/sh
# SPDX-License-Identifier: MIT
# doctor_job.sh SHUNT LIBSHUNT PROGRAM FAKE_NCCL: shunt doctor job over two hosts, which are network namespaces, and by files.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") program=$(realpath "$3")
. "$(dirname "$0")/hanging.sh"

# on RANK COMMAND...: on the host of this rank of the job.
on() {
	pid=$(rank_pid "$1")
	shift
	nsenter -t "$pid" -n -u "$@"
}

# launched OPTION...: one process on each host, as a launcher starts them; rank 0 speaks.
launched() {
	on 1 env RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=4000 "$shunt" doctor job "$@" >"$dir/other" 2>&1 &
	other=$!
	on 0 env RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=4000 "$shunt" doctor job "$@"
	status=$?
	wait "$other" || echo "the other host: status $?"
	cat "$dir/other"
	return $status
}

answers() {
	on 0 "$shunt" doctor job --answers >"$dir/answers0" && on 1 "$shunt" doctor job --answers >"$dir/answers1"
	"$shunt" doctor job "$dir/answers0" "$dir/answers1"
}

"$program" idle 2 2 >"$dir/hosts" 2>&1 & # are there namespaces?
job=$!
tries=0
until grep -q '^hanging' "$dir/hosts" || ! kill -0 $job 2>/dev/null || [ $tries = 600 ]; do
	tries=$((tries + 1))
	sleep 0.1 # pause: poll
done
if ! grep -q '^hanging' "$dir/hosts"; then
	wait $job
	status=$?
	cat "$dir/hosts"
	exit $status
fi

hang skip 2 2
expect one_host_alone 1 'communicator [0-9a-f]{8} of 2: rank 1 has no dump here' on 0 "$shunt" doctor job
expect and_told_how_all_are_asked 1 '-> .*srun --overlap --jobid JOB .* shunt doctor job --rendezvous DIR.*, or `shunt doctor job --answers` on each' \
	on 0 "$shunt" doctor job --rank-of "$(rank_pid 0)"
comes hosts_are_put_together 2 "rank 1 \(pid $(rank_pid 1) on host1\) is behind: it has not called collective 6 \(allreduce of 1000 float32, sum\), in which rank 0 waits" launched
expect hosts_are_one_job 2 'job [0-9a-f]{8}: 2 processes of .*, 2 communicators"' launched --json
expect files_are_put_together 2 "rank 1 \(pid $(rank_pid 1) on host1\) is behind: " answers
cat "$dir/answers0" "$dir/answers1" "$dir/answers0" >"$dir/all"
expect lines_of_one_file 2 'job [0-9a-f]{8}: 2 processes of ' "$shunt" doctor job "$dir/all"

# Root asks the processes in all networks that it sees, here those of a PID namespace of their own.
everywhere() {
	unshare -pf --kill-child --mount-proc sh -c '
		"$1" skip 2 2 >"$3" 2>&1 &
		until grep -q "^hanging" "$3" || [ "$((tries = tries + 1))" = 600 ]; do sleep 0.1; done # pause: poll
		until "$2" doctor job --namespaces >"$3.out"; [ $? = 2 ] || [ "$((tries = tries + 1))" = 700 ]; do sleep 0.2; done # pause: poll
		cat "$3.out"; "$2" doctor job --namespaces >"$3.out"' sh "$program" "$shunt" "$dir/everywhere"
}
expect networks_are_entered 2 'rank 1 \(pid [0-9]+ on host1\) is behind: it has not called collective 6' everywhere

expect the_other_never_comes 1 'the launcher.s other processes did not come or went away .*: this is what is known here' \
	on 0 env RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=4000 "$shunt" doctor job --timeout 1
expect here_waits_for_nobody 1 'rank 1 has no dump here' \
	on 0 env RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=4000 "$shunt" doctor job --here
hang late 2 2
comes late_host_is_named 0 'rank 1: [1-9][0-9]* % +runs' on 0 "$shunt" top --once --every 0.5

# The other host is dead: nothing of it answers, neither the rank nor the doctor there. In Shunt's calls, and in NCCL's.
for dead in none "$4"; do
	[ "$dead" = none ] || export SHUNT_FORCE_NCCL=all
	SHUNT_NCCL_LIB=$dead
	hang skip 2 2
	on 1 ip link set eth0 down
	comes dead_host_is_named_${SHUNT_FORCE_NCCL:-shunt} 1 'communicator [0-9a-f]{8} of 2: rank 1 has no dump here' \
		on 0 env RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=4000 "$shunt" doctor job --timeout 1
done
unset SHUNT_FORCE_NCCL
SHUNT_NCCL_LIB=none
echo '{"looks": [[], 7], "findings": [[9, "a"], {}, 1]}' >"$dir/odd"
expect odd_answers_are_no_job 1 'no process ' "$shunt" doctor job "$dir/odd"
for text in '{}' '[]' 'hello' '{"looks": [[{}], []]}'; do
	echo "$text" >"$dir/bad"
	expect bad_answers_are_one_line 2 '^1 shunt doctor job: [^ ]*/bad: ' sh -c '"$@" 2>&1 | uniq -c | sed "s/^ *//"; exit 2' sh "$shunt" doctor job "$dir/bad"
done
# A disk that is full: the dumps are not kept, no part of one stays, and the findings come all the same.
full() {
	on 0 unshare -m sh -c 'mount -t tmpfs -o size=4k,mode=700 none "$1" && { cat /dev/zero >"$1/fill"; "$2" doctor job --here --output "$1"; }; status=$?; ls "$1" | sed "s/^/stays: /"; exit $status' \
		sh "$dir/kept" "$shunt" 2>&1
}
mkdir "$dir/kept"
expect full_disk_is_told 2 'cannot write .*/kept/shunt-host0-.*: No space left on device' full
expect full_disk_costs_no_findings 2 'job [0-9a-f]{8}: 1 process of' full
full | grep -q '^stays: .*shunt' && { echo "not ok: full_disk_keeps_no_part"; failed=1; } || echo "ok: full_disk_keeps_no_part"
exit $failed
