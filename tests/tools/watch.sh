#!/bin/sh
# SPDX-License-Identifier: MIT
# watch.sh SHUNT LIBSHUNT PROGRAM FAKE_NCCL: jobs on the sim that hang, under shunt top, shunt watch and shunt run --watch.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") program=$(realpath "$3")
. "$(dirname "$0")/hanging.sh"

# until_has FILE PATTERN PID: waits for a line while the process runs.
until_has() {
	tries=0
	until grep -Eq -e "$2" "$1" 2>/dev/null || [ $tries = 600 ]; do
		kill -0 "$3" 2>/dev/null || return 1
		tries=$((tries + 1))
		sleep 0.1 # pause: poll
	done
}

# watched NAME FILE PATTERN OPTION...: a watcher's file has the pattern soon, and SIGTERM ends the watcher with 0.
watched() {
	name=$1 file=$2 pattern=$3
	shift 3
	"$shunt" watch --below "$job" --every 0.2 --hang 0.5 "$@" >"$dir/watch.out" 2>"$dir/watch.err" &
	watcher=$!
	until_has "$file" "$pattern" $watcher
	has=$?
	cp "$dir/m/shunt.prom" "$dir/prom" 2>/dev/null
	kill -TERM $watcher
	wait $watcher
	status=$?
	[ $has = 0 ] && [ $status = 0 ] && grep -Eq -e "$pattern" "$file" "$dir/prom" 2>/dev/null && echo "ok: $name" && return
	echo "not ok: $name: status $status"
	cat "$dir/watch.out" "$dir/watch.err"
	failed=1
}

hang skip 3
comes top_names_the_late_rank 0 '[0-9a-f]{8} +3 .* stands; rank 1 is behind' "$shunt" top --once --every 0.2 --below "$job"
expect top_in_40_columns 0 '^.{1,40}$' env COLUMNS=40 "$shunt" top --once --every 0.2 --below "$job"
! grep -Eq '.{41}' "$dir/out" && echo "ok: no_line_is_longer" || { echo "not ok: no_line_is_longer"; failed=1; }
mkdir "$dir/m"
watched hang_is_an_event "$dir/events" '"event": "hang".*"where": "calls".*"behind": \[1\].*"waiting": \[0, 2\].*has not called collective 6' \
	--events "$dir/events" --on-hang dump --dumps "$dir/kept"
expect events_are_json 0 '^hang 1$' python3 -c '
import collections, json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
count = collections.Counter(line["event"] for line in lines)
assert all(line["time"].endswith("Z") and line["host"] and line["level"] for line in lines), lines
assert count["start"] == 3 and count["communicator"] == 2, count
print("hang", count["hang"])' "$dir/events"
expect dumps_are_kept 2 'rank 1 .* is behind' "$shunt" doctor dumps "$dir/kept"
watched a_command_gets_the_event "$dir/got" '"event": "hang"' --on-hang "exec:cat >$dir/got"
echo other >"$dir/other"
ln -s "$dir/other" "$dir/m/shunt.prom"
ln -s "$dir/other" "$dir/link"
watched events_follow_no_link "$dir/watch.err" 'cannot write .*/link: Too many levels of symbolic links; events are lost' --events "$dir/link"
watched metrics_tell_the_hang "$dir/m/shunt.prom" 'shunt_hang\{comm="[0-9a-f]+"\} 1' --prometheus "$dir/m"
[ "$(cat "$dir/other")" = other ] && echo "ok: links_are_not_followed" || { echo "not ok: links_are_not_followed"; failed=1; }
if [ "$HANGING_ALONE" = yes ]; then # else the port may be another's
	python3 - >"$dir/served" <<'END' &
import re, socket, time

def get(request):
    with socket.create_connection(("127.0.0.1", 9400)) as s:
        s.sendall(request)
        return b"".join(iter(lambda: s.recv(65536), b"")).decode()

text = ""
while not re.search('^shunt_hang.* 1$', text, re.M):
    time.sleep(0.1)  # pause: poll
    try:
        odd = [get(request) for request in (b"POST / HTTP/1.0", bytes(3000), b"G")]
        text = get(b"GET /metrics HTTP/1.0")
    except OSError:
        pass  # nobody listens yet
assert not any(odd), odd
print(text)
END
	watched metrics_are_served "$dir/served" '^shunt_hang.* 1$' --listen 127.0.0.1:9400
fi
expect metrics_have_calls_of_before 0 'rank="0".*op="allreduce",path="[a-z0-9]+",reason=""\} 6$' cat "$dir/prom"
[ ! -e "$dir/m/shunt.prom" ] && echo "ok: metrics_are_removed" || { echo "not ok: metrics_are_removed"; failed=1; }
expect metrics_are_well_formed 0 '^[0-9]+ series$' python3 -c '
import json, re, sys
types, seen = {}, set()
for line in open(sys.argv[1]):
    if line.startswith("# TYPE "):
        name, kind = line.split()[2:]
        assert name not in types and kind in ("counter", "gauge") and (kind == "counter") == name.endswith("_total"), line
        types[name] = kind
    elif not line.startswith("# HELP "):
        m = re.fullmatch(r"(shunt_[a-z_]+)(\{(?:[a-z_]+=\"(?:[^\"\\\n]|\\[\\n\"])*\",?)+\}) ([0-9.]+)\n", line)
        assert m and m[1] in types and (m[1], m[2]) not in seen, line
        seen.add((m[1], m[2]))
dashboard = json.load(open(sys.argv[2]))
for panel in dashboard["panels"]:
    for name in re.findall(r"\bshunt_\w+", panel["targets"][0]["expr"]):
        assert name in types, name
print(len(seen), "series")' "$dir/prom" "$(dirname "$0")/../../docs/grafana.json"
watched a_full_disk_is_said_once "$dir/watch.err" 'cannot write /dev/full: No space left on device; events are lost' --events /dev/full
[ "$(grep -c 'events are lost' "$dir/watch.err")" = 1 ] && echo "ok: once" || { echo "not ok: once"; failed=1; }
watched a_missing_folder_is_said "$dir/watch.err" 'cannot write .*/none/shunt.prom: No such file' --prometheus "$dir/none"
expect only_this_host_may_ask 2 'is not an address of this host alone' "$shunt" watch --listen 0.0.0.0:9400
expect exit_needs_a_program 2 'exit ends what `shunt run --watch` started' "$shunt" watch --on-hang exit
expect times_are_checked 2 '"soon" is no time' "$shunt" watch --hang soon
end_job

# Rank 1 comes late to every call, and kernels of the others wait for it in barriers.
SHUNT_ALGO=allreduce:0-:direct
export SHUNT_ALGO
hang late 3
comes top_names_who_is_waited_for 0 'collective [0-9]+ +rank 1: [1-9][0-9]* % +runs' "$shunt" top --once --every 0.5 --below "$job"
comes doctor_names_who_is_waited_for 0 'runs \([0-9]+ calls between two looks; rank 1 is waited for in [1-9][0-9]* % of the time\)' \
	"$shunt" doctor --pid "$pids"
mkdir -p "$dir/m"
watched a_late_rank_is_an_event "$dir/late" '"event": "straggler", "level": "warning".*"behind": \[1\].*rank 1 is late: rank [02] waited for it in [0-9]+ % of the last 0 s' \
	--straggler 1 --straggler-time 0.4 --events "$dir/late"
watched metrics_have_waits "$dir/m/shunt.prom" 'shunt_wait_seconds_total\{.*rank="0".*peer="1"\} [0-9.]+$' --prometheus "$dir/m"
unset SHUNT_ALGO
end_job

expect hang_ends_with_75 75 'the program hangs: it is ended, with status 75' \
	"$shunt" run --watch --every 0.2 --hang 1 --on-hang exit --dumps "$dir/ended" -- "$program" skip 3
expect its_dumps_are_kept 0 'shunt-.*-hang.json' ls "$dir/ended"
expect own_status 3 '^inside$' "$shunt" run --watch -- sh -c 'echo inside; exit 3'
expect own_signal 137 '^inside$' "$shunt" run --watch -- sh -c 'echo inside; kill -KILL $$'
expect not_found 127 'cannot run /nowhere' "$shunt" run --watch -- /nowhere

# In front of an NCCL that does not return on rank 1, or whose call rank 1 leaves out.
SHUNT_NCCL_LIB=$(realpath "$4") SHUNT_FORCE_NCCL=all
export SHUNT_FORCE_NCCL
for held in call:ncclAllReduce group:ncclGroupEnd split:ncclCommSplit; do
	expect held_${held%:*}_ends_with_75 75 "hang: communicator .* rank 1 \\(pid [0-9]+ on .*\\) is inside ${held#*:} of NCCL" \
		"$shunt" run --watch --every 0.2 --hang 1 --on-hang exit --dumps "$dir/ended" --events "$dir/held" -- "$program" held_${held%:*} 3
done
expect held_events_name_the_rank 0 '^3$' grep -c '"where": "nccl_host".*"behind": \[1\]' "$dir/held"
expect held_init_ends_with_75 75 'hang: pid [0-9]+ on .* is inside ncclCommInitRank of NCCL since' \
	"$shunt" run --watch --every 0.2 --hang 1 --on-hang exit --dumps "$dir/ended" -- "$program" held_init 3
expect skip_in_nccl_ends_with_75 75 'hang: communicator .* rank 1 .* is behind: it has not called collective 6' \
	"$shunt" run --watch --every 0.2 --hang 1 --on-hang exit --dumps "$dir/ended" -- "$program" skip 3
hang skip 3
comes top_names_the_late_rank_of_nccl 0 'stands; rank 1 is behind' "$shunt" top --once --every 0.2 --below "$job"
end_job
hang idle 3
"$shunt" watch --below "$job" --every 0.1 --hang 0.3 --events "$dir/idle" 2>"$dir/idle.err" &
watcher=$!
until_has "$dir/idle" '"communicator"' $watcher
sleep 1 # pause: grace: several times what hangs
kill -TERM $watcher
wait $watcher
! grep -q '"hang"' "$dir/idle" && echo "ok: idle_is_no_hang" || { echo "not ok: idle_is_no_hang"; failed=1; }
end_job
SHUNT_FORCE_NCCL=allreduce SHUNT_MARKS=1
export SHUNT_MARKS
expect held_on_the_device_ends_with_75 75 'hang: communicator .* NCCL has not finished on rank 1 \(.*; ranks 0 and 2 have' \
	"$shunt" run --watch --every 0.2 --hang 1.5 --on-hang exit --dumps "$dir/ended" --events "$dir/on_device" -- "$program" held_device_group 3
expect that_event_names_the_rank 0 '^1$' grep -c '"where": "nccl_device".*"behind": \[1\]' "$dir/on_device"
unset SHUNT_FORCE_NCCL SHUNT_MARKS
SHUNT_NCCL_LIB=none

# A program that says when it is ready, and which signal it got.
echo 'trap "echo got TERM; exit 5" TERM; echo ready; while :; do sleep 0.1; done # pause: poll' >"$dir/program"
"$shunt" run --watch -- sh "$dir/program" >"$dir/run.out" 2>"$dir/run.err" &
run=$!
until_has "$dir/run.out" ready $run
kill -TERM $run
wait $run
[ $? = 5 ] && grep -q 'got TERM' "$dir/run.out" && echo "ok: signals_pass" || { echo "not ok: signals_pass"; failed=1; }

rm "$dir/run.out" # else the line of the program before may be found
"$shunt" run --watch -- sh "$dir/program" >"$dir/run.out" 2>"$dir/run.err" &
run=$!
until_has "$dir/run.out" ready $run
for child in $(cat "/proc/$run/task/$run/children"); do
	! grep -q shunt "/proc/$child/comm" || kill -KILL "$child"
done
until_has "$dir/run.err" 'the watcher has ended; the program goes on without' $run
kill -TERM $run
wait $run
[ $? = 5 ] && grep -q 'goes on without' "$dir/run.err" && echo "ok: lives_without_the_watcher" || { echo "not ok: lives_without_the_watcher"; failed=1; }
exit $failed
