#!/bin/sh
# SPDX-License-Identifier: MIT
# doctor_hang.sh SHUNT LIBSHUNT PROGRAM FAKE_NCCL PLUGINS.so: jobs on the sim that hang, each in its way, and what the doctor says of them.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") program=$(realpath "$3")
. "$(dirname "$0")/hanging.sh"

# both NAME STATUS PATTERN: by the ranks' numbers, and without them.
both() {
	comes "$1" "$2" "$3" "$shunt" doctor --pid "$pids"
	[ "$HANGING_ALONE" = no ] || expect "$1_by_job" "$2" "$3" "$shunt" doctor job
}

# planted NAME: the jobs of the table below hang at one time, and each look names the rank of every one, but for those that $leave names. A row: name,
# ranks, the line, in which @1 is rank 1 with its process, and #1 the number of that.
planted() {
	end_job
	all=
	: >"$dir/rows"
	while read -r scenario n line; do
		case " $leave " in *" $scenario "*) continue ;; esac
		: >"$dir/$scenario" # it has another job's processes, until the new one opens it
		"$program" "$scenario" "$n" >"$dir/$scenario" 2>"$dir/$scenario.err" &
		job="$job $!"
		echo "$scenario $! $line" >>"$dir/rows"
	done <"$dir/table"
	: >"$dir/lines"
	while read -r scenario pid line; do
		hangs "$dir/$scenario" "$pid"
		of=$(sed -n 's/^pids //p' "$dir/$scenario")
		all=$all${all:+,}$(echo "$of" | tr ' ' ,)
		for rank in 0 1 2; do
			pid=$(echo "$of" | cut -d' ' -f$((rank + 1)))
			line=$(echo "$line" | sed "s/@$rank/rank $rank \\\\(pid $pid on [^)]*\\\\)/g; s/#$rank/$pid/g")
		done
		echo "$scenario $line" >>"$dir/lines"
	done <"$dir/rows"
	for look in job "--pid $all"; do
		tries=0
		until
			"$shunt" doctor $look >"$dir/look" 2>&1
			status=$? missing=
			while read -r scenario line; do
				grep -Eq -e "$line" "$dir/look" || missing="$missing $scenario"
			done <"$dir/lines"
			[ "$missing$status" = 2 ] || [ $tries = 30 ]
		do
			tries=$((tries + 1))
			sleep 0.2 # pause: poll
		done
		[ "$missing$status" = 2 ] && echo "ok: $1, ${look%% *}: $(wc -l <"$dir/lines") jobs" && continue
		echo "not ok: $1, ${look%% *}: status $status, not named:$missing"
		cat "$dir/look"
		failed=1
	done
	end_job
}

cat >"$dir/table" <<'END'
skip 3 @1 is behind: it has not called collective 6 \(allreduce of 1000 float32, sum\), in which ranks 0 and 2 wait since
skip_last_of_many 3 @1 called allreduce of 1001 float32, sum as collective 6, where ranks 0 and 2 called allreduce of 1000 float32, sum; it looks as if rank 1 left out that one
count 3 @1 called allreduce of 100000 float32, sum as collective 6, where ranks 0 and 2 called allreduce of 1000 float32
type 3 @1 called allreduce of 1000 int32, sum as collective 6, where ranks 0 and 2 called allreduce of 1000 float32
root 3 @1 called broadcast of 1000 float32, root 1 as collective 6, where ranks 0 and 2 called broadcast of 1000 float32, root 0
kind 4 @2 called broadcast of 1000 float32, root 2 as collective 6, where ranks 0, 1 and 3 called allreduce
send 2 @1 is behind: it has sent 1 message to rank 0, which waits in recv of 1000 float32, rank 1 \(number 2\) since
crossed 2 @1 is behind: it has not called collective 6 .*, in which rank 0 waits since .*; meanwhile it is in allreduce of 1000 float32, sum of communicator
graph 3 @1 is behind in graphs: it has begun 2 launches of them, the farthest 3; rank 0 waits in allreduce of 1000 float32
stop 2 process #1 \(doctor_hang\) is stopped
split 3 ranks 0 and 2 wait in the split since [0-9:]{8} \([0-9.]+ s\) for @1, which has not come to it
held_split 3 @1 is inside ncclCommSplit of NCCL since .*; ranks 0 and 2 are not
held_call 3 @1 is inside ncclAllReduce of NCCL since [0-9:]{8} \([0-9.]+ s\) \(collective 6, allreduce of 1000 float32, sum.*\); ranks 0 and 2 are not
held_group 3 @1 is inside ncclGroupEnd of NCCL since .* \(collective 6
END
leave="held_split held_call held_group"
planted "in Shunt's calls"
# Where a real NCCL is behind, it holds the ranks that split.
sed -i 's/^split 3 .*/split 3 @0, @2 are inside ncclCommSplit of NCCL since .*; rank 1 is not/' "$dir/table"
SHUNT_NCCL_LIB=$(realpath "$4") leave="held_call held_group"
planted "in Shunt's calls, in front of an NCCL"
# A graph's replays pass the host by, and the NCCL of the tests ends each call that it returns from.
sed -i 's/; meanwhile it is in .*//' "$dir/table"
SHUNT_FORCE_NCCL=all leave=graph
export SHUNT_FORCE_NCCL
planted "in NCCL's calls"
unset SHUNT_FORCE_NCCL
SHUNT_NCCL_LIB=none

hang skip 3
both skip_is_named 2 "error +communicator [0-9a-f]{8} of 3: rank 1 \(pid $(rank_pid 1) on .*\) is behind: it has not called collective 6 \
\(allreduce of 1000 float32, sum\), in which ranks 0 and 2 wait since [0-9:]{8} \([0-9.]+ s\); its last was 5 \(.*, finished\)"
expect skip_as_json 2 '"worst": "error"' "$shunt" doctor --json --pid "$pids"
expect skip_with_one_missing 2 'rank 0 has no dump here' "$shunt" doctor --pid "$(echo "$pids" | cut -d, -f2-)"
expect skip_kept 2 'is behind' "$shunt" doctor --output "$dir/kept" --pid "$pids"
expect kept_nowhere_is_said_once 2 '^1 shunt doctor: --output: /proc/self/stat: Not a directory$' \
	sh -c '"$@" 2>&1 | uniq -c | sed "s/^ *//"; exit 2' sh "$shunt" doctor --output /proc/self/stat --pid "$pids"
# A host whose clock is an hour ahead: ages are by the clock of the process that waits.
python3 - "$dir/kept/"*"-$(rank_pid 0)-asked.json" <<'END'
import re, sys

text = open(sys.argv[1]).read()
open(sys.argv[1], "w").write(re.sub(r'(_ns": )(\d+)', lambda m: m[1] + str(int(m[2]) + 3600 * 10**9), text))
END
expect clocks_may_differ 2 'rank 1 .* is behind: .* in which ranks 0 and 2 wait since [0-9:]{8} \([0-9]{1,3}\.[0-9] s\)' "$shunt" doctor dumps "$dir/kept"
expect skip_from_kept 2 'rank 1 .* is behind' "$shunt" doctor dumps "$dir/kept"
echo other >"$dir/other"
for file in "$dir/kept/"*; do
	ln -sf "$dir/other" "$file"
done
expect kept_in_the_place_of_links 2 'is behind' "$shunt" doctor --output "$dir/kept" --pid "$pids"
[ "$(cat "$dir/other")" = other ] && [ "$(ls -l "$dir/kept" | grep -c '^-rw------- ')" = 3 ] && echo "ok: kept_files_are_private" || { echo "not ok: kept_files_are_private"; failed=1; }

if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null && setpriv --reuid=65534 --clear-groups "$shunt" --version >/dev/null 2>&1; then
	expect other_user_is_told_whose_it_is 2 "process $(rank_pid 0) \(.*\) belongs to user root: only that user and root get an answer" \
		setpriv --reuid=65534 --clear-groups "$shunt" doctor --pid "$(rank_pid 0)"
fi

SHUNT_PLUGINS=$5 SHUNT_ALGO=allreduce:0-inf:sound
export SHUNT_PLUGINS SHUNT_ALGO
hang stop 2
unset SHUNT_PLUGINS SHUNT_ALGO
both stop_is_named 2 "process $(rank_pid 1) .* is stopped"
both stop_shows_who_waits_in_which_plugin 2 'rank 0 is in collective 6 \(allreduce of 1000 float32, sum, sound\) since'
kill -CONT "$(rank_pid 1)"
both stop_is_over 0 'nobody waits; all ranks have called 6 collectives'

hang aborted 3
both aborted_is_past 0 'nobody waits; all ranks have called 5 collectives'

hang idle 2
sleep 1.3 # pause: grace: the doctor names waits of more than a second
expect quiet_is_quiet 0 'nobody waits; all ranks have called 5 collectives' "$shunt" doctor --pid "$pids"

SHUNT_CHECK=1
export SHUNT_CHECK
hang count 3
both check_is_told 2 'rank 0 \(pid .*\) ended it with EBADE, because rank 1 calls allreduce of 100000 float32, sum \(collective 6\)'
unset SHUNT_CHECK

# The files that the processes write themselves.
mkdir "$dir/dumps"
SHUNT_DUMP_DIR=$dir/dumps SHUNT_DUMP_SIGNAL=1
export SHUNT_DUMP_DIR SHUNT_DUMP_SIGNAL
hang skip 2
comes signal_comes_when_it_waits 2 'rank 1 .* has not called collective 6' "$shunt" doctor --pid "$pids"
kill -USR1 $(echo "$pids" | tr , ' ')
tries=0
until [ "$(ls "$dir/dumps" | wc -l)" = 2 ] || [ $tries = 600 ]; do
	tries=$((tries + 1))
	sleep 0.1 # pause: poll
done
expect signal_writes_files 2 'rank 1 .* has not called collective 6' "$shunt" doctor dumps "$dir/dumps"
rm -f "$dir"/dumps/*

SHUNT_TIMEOUT=12s
export SHUNT_TIMEOUT
hang skip 2
tries=0
until ls "$dir"/dumps/*.json >/dev/null 2>&1 || [ $tries = 600 ]; do
	tries=$((tries + 1))
	sleep 0.1 # pause: poll
done
expect error_writes_file 2 'rank 0 \(pid .*\) ended it with ETIMEDOUT, after waiting for rank 1 in call 6, allreduce of 1000' "$shunt" doctor dumps "$dir/dumps"
comes error_and_peer 2 'rank 1 .* is behind: it has not called collective 6' "$shunt" doctor --pid "$pids"
unset SHUNT_TIMEOUT SHUNT_DUMP_DIR SHUNT_DUMP_SIGNAL

# NCCL has returned: marks tell what has finished on the device.
SHUNT_NCCL_LIB=$(realpath "$4") SHUNT_FORCE_NCCL=all SHUNT_MARKS=1
export SHUNT_FORCE_NCCL SHUNT_MARKS
hang captured 2
both marked_and_captured_are_no_hang 0 'nobody waits; all ranks have called 6 collectives'
expect marks_are_kept 0 'nobody waits' "$shunt" doctor --output "$dir/marks" --pid "$pids"
expect marks_are_of_calls_outside_of_graphs 0 '"marked":5,"finished":5' sh -c 'tr -d " \n" <"$1"' sh "$dir/marks/"*"-$(rank_pid 0)-asked.json"
SHUNT_FORCE_NCCL=allreduce
hang held_device 3
both held_on_the_device_is_named 2 "NCCL has not finished on rank 1 \\(pid $(rank_pid 1) on .*\\): collective 6 \\(allreduce of 1000 float32, sum\\) since [0-9:]{8} \\([0-9.]+ s\\); ranks 0 and 2 have"
unset SHUNT_FORCE_NCCL SHUNT_MARKS
SHUNT_NCCL_LIB=none

SHUNT_DOCTOR=0
export SHUNT_DOCTOR
hang idle 2
expect doctor_off_has_no_socket 1 'has no socket of Shunt' "$shunt" doctor --pid "$pids"
unset SHUNT_DOCTOR
# peer HOW [COMMAND...]: a stand-in that has the socket of a process.
peer() {
	end_job
	: >"$dir/job"
	how=$1
	shift
	# Another user may not read this folder.
	"$@" python3 -c "$(cat "$(dirname "$0")/doctor_peer.py")" "$how" >"$dir/job" 2>&1 &
	job=$!
	tries=0
	until grep -q '^[0-9]' "$dir/job" || [ $tries = 600 ]; do
		tries=$((tries + 1))
		sleep 0.1 # pause: poll
	done
}
# Processes that answer slowly, or not at all: each has ten seconds.
end_job
for how in drip full; do
	peer $how
	expect answer_in_${how}_has_an_end 2 'does not answer within 10 s' timeout 60 "$shunt" doctor --pid "$(cat "$dir/job")"
done
peer die
expect one_that_ends_is_no_finding 0 'info +process [0-9]+ .* has ended meanwhile' timeout 60 "$shunt" doctor --pid "$(cat "$dir/job")"
peer deaf
expect one_that_does_not_answer_is_told 2 'process [0-9]+ .* closed the connection without an answer' "$shunt" doctor --pid "$(cat "$dir/job")"
peer exec
expect one_that_becomes_another_is_no_finding 0 'info +process [0-9]+ .* has ended meanwhile' "$shunt" doctor --pid "$(cat "$dir/job")"
# Another version, and another process under the number of the first look.
peer old
expect old_answer_is_read 1 'rank 0 is in collective 6 \(allreduce of 1000 float32, sum' "$shunt" doctor --pid "$(cat "$dir/job")"
peer newer
expect newer_answer_is_told 2 'is a dump of another version \("9.8.7"\) of Shunt; use that version.s shunt doctor' "$shunt" doctor --pid "$(cat "$dir/job")"
peer reused
expect reused_number_is_no_hang 0 'communicator bbbbbbbb of 2: runs \(0 calls' "$shunt" doctor --pid "$(cat "$dir/job")"
peer ended
expect ended_meanwhile_is_no_hang 0 'communicator aaaaaaaa of 2: runs \(0 calls' "$shunt" doctor --pid "$(cat "$dir/job")"
# What another process says is shown, and obeyed by no terminal.
peer escape
"$shunt" watch --every 0.1 --events - >"$dir/events" 2>"$dir/escapes" &
watcher=$!
tries=0
until grep -q broken "$dir/escapes" || [ $tries = 600 ]; do
	tries=$((tries + 1))
	sleep 0.1 # pause: poll
done
kill -TERM $watcher
wait $watcher
expect escapes_are_shown 2 'communicator a.\[31m.a of 2: rank 0 \(pid .*\) ended it with .\[31mE' "$shunt" doctor --pid "$(cat "$dir/job")"
cat "$dir/out" >>"$dir/escapes"
"$shunt" top --once --every 0.2 >>"$dir/escapes"
grep -q '^shunt watch: broken: communicator a.\[31m.a of 2: ' "$dir/escapes" && ! LC_ALL=C grep -q "$(printf '[\001-\010\013-\037]')" "$dir/escapes" &&
	echo "ok: no_terminal_obeys_them" || { echo "not ok: no_terminal_obeys_them"; cat -v "$dir/escapes"; failed=1; }
if [ "$HANGING_ALONE" = yes ]; then
	peer old unshare -pf --kill-child
	expect container_of_pids_is_asked 1 'rank 0 is in collective 6 ' "$shunt" doctor job
	stranger="setpriv --reuid=65534 --clear-groups env PATH=/usr/bin:/bin"
	if [ "$(id -u)" = 0 ] && $stranger python3 -c '' 2>/dev/null; then
		peer squat $stranger
		expect stranger_under_a_name_of_root 2 'the socket of process [0-9]+ .* is not its own$' "$shunt" doctor job
	fi
fi
peer silent
expect silence_is_no_progress 1 'rank 0 is in collective 6 \(allreduce of 1000 float32, sum' "$shunt" doctor --pid "$(cat "$dir/job")"
peer between
expect between_two_calls_it_runs 0 ' aaaaaaaa +2 .* runs$' "$shunt" top --once --every 0.2 --below "$(cat "$dir/job")"
peer creation
expect long_creation_is_named 2 'communicator aaaaaaaa of 2: rank 0 waits in the creation since .*; look at the ranks that have no dump' \
	"$shunt" doctor --pid "$(cat "$dir/job")"
peer young
expect young_creation_is_none 1 'rank 0 is in collective 6 ' "$shunt" doctor --pid "$(cat "$dir/job")"
peer many
expect communicators_are_many 1 'communicator 000003e7 of 2: rank 1 has no dump here' "$shunt" doctor --pid "$(cat "$dir/job")"
end_job
expect ask_of_stranger 1 'has no socket of Shunt' "$shunt" doctor --pid $$
expect ask_of_nobody 2 'there is no process 999999999' "$shunt" doctor --pid 999999999
exit $failed
