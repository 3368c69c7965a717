#!/bin/sh
# SPDX-License-Identifier: MIT
# tune.sh SHUNT LIBSHUNT FAKE_NCCL PLUGIN: tuning files from end to end on the sim, where times mean nothing: made, stopped and gone on with, taken
# by communicators, refused.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") fake=$(realpath "$3") plugin=$(realpath "$4")
. "$(dirname "$0")/expect.sh"
unset SHUNT_ALGO SHUNT_PLUGINS SHUNT_FORCE_NCCL SHUNT_PLAN_DIR NCCL_ALGO NCCL_PROTO NCCL_MAX_CTAS NCCL_MAX_NCHANNELS OMPI_COMM_WORLD_RANK LOCAL_RANK
SHUNT_DEVICE=sim SHUNT_NCCL_LIB=none SHUNT_LOG=warn SHUNT_CACHE_DIR=$dir/cache
export SHUNT_DEVICE SHUNT_NCCL_LIB SHUNT_LOG SHUNT_CACHE_DIR
version=$("$shunt" --version | cut -d" " -f2)
tune="$shunt tune --timeout 100"
bench="$shunt bench -w 0 -i 1 -r 1 --mode eager --out-of-place --timeout 100"

# Options.
expect unknown_collective_is_usage_error 2 '"all_frob" is not a collective' $tune all_frob
expect uneven_collective_is_usage_error 2 '"alltoallv" is not' $tune alltoallv
expect nine_ranks_is_usage_error 2 '--ranks: 9 is not from 2 to 8' $tune -n 9
expect too_many_blocks_is_usage_error 2 '--blocks: 65 is not from 1 to 64' $tune --blocks 65
expect odd_threads_is_usage_error 2 '--threads: 100 is no multiple of 32' $tune --threads 64,100
expect sizes_in_wrong_order_is_usage_error 2 'first <= --last' $tune -b 2K -e 1K
expect nccls_choice_forced_is_error 1 'NCCL_ALGO is set' env NCCL_ALGO=Ring $tune
echo NCCL_PROTO=Simple >"$dir/nccl.conf"
expect nccls_choice_in_file_is_error 1 "NCCL_PROTO is set in NCCL's configuration file" env NCCL_CONF_FILE="$dir/nccl.conf" $tune
expect no_place_to_write_is_error 1 'no cache directory' env -u HOME SHUNT_CACHE_DIR= $tune all_reduce -n 2

# Everything, to the cache; the next communicator takes it.
expect tune_all_is_written 0 "^# written to $dir/cache/tuning/shunt-sim-3.json" $tune -n 3 -b 256 -e 1K
cp "$dir/out" "$dir/all"
expect tune_counts_points 0 '^\[18/18\] sendrecv 1K' cat "$dir/all"
expect tune_tells_before_and_after 0 '^# geometric mean of before / after' cat "$dir/all"
expect file_says_sim 0 '"sim": true' cat "$dir/cache/tuning/shunt-sim-3.json"
expect partial_file_is_gone 2 'No such file' ls "$dir/cache/tuning/shunt-sim-3.json.partial"
expect show_prints_table 0 '^  scatter +1008 \| ll128' $shunt tune --show "$dir/cache/tuning/shunt-sim-3.json"
mkdir -p "$dir/shared/tuning"
expect share_writes_what_others_can_use 0 "for 3 ranks on Shunt sim" "$shunt" tune --share "$dir/cache/tuning/shunt-sim-3.json" -o "$dir/shared/tuning/given.json"
expect share_leaves_the_host_out 0 '"host": null' cat "$dir/shared/tuning/given.json"
expect share_leaves_the_points_out 1 '^0$' grep -c '"points"' "$dir/shared/tuning/given.json"
expect share_is_taken_by_another_user 0 "^ +256  [a-z0-9]+  \(tuned here, $dir/shared/tuning/given.json\)" env SHUNT_CACHE_DIR="$dir/shared" "$shunt" info select --ranks 3 256
expect share_without_output_is_usage_error 2 '^Try: shunt tune --help' "$shunt" tune --share "$dir/cache/tuning/shunt-sim-3.json"
expect share_of_what_is_refused_is_error 1 'nosuch.json' "$shunt" tune --share "$dir/nosuch.json" -o "$dir/given.json"
expect info_lists_tuning_files 0 "^tuning files  $dir/cache/tuning/shunt-sim-3.json: 3 ranks on Shunt sim" "$shunt" info -d
# Ready files: what `tune --share` wrote, in an installation that is the command with them. None is taken by itself.
installed=$dir/usr/bin/shunt ready=$dir/usr/share/shunt/tuning
mkdir -p "$dir/usr/bin" "$ready" && cp "$shunt" "$installed" && cp "$dir/shared/tuning/given.json" "$ready/shunt-sim-3.json"
sed 's/Shunt sim/NVIDIA H200/' "$ready/shunt-sim-3.json" >"$ready/nvidia-h200-3.json"
sed 's/"driver": 0/"driver": 13000/' "$ready/shunt-sim-3.json" >"$ready/shunt-sim-of-13.json"
sim="env SHUNT_LIB=$mock SHUNT_CACHE_DIR=/dev/null"
$sim "$installed" info -d >"$dir/ready" 2>&1 || failed=1
expect ready_file_is_named 0 "^ready files   $ready/shunt-sim-3.json: 3 ranks on Shunt sim$" cat "$dir/ready"
expect ready_file_says_how_to_use_it 0 "^ +fits this machine: SHUNT_TUNING_FILE=$ready/shunt-sim-3.json takes it$" cat "$dir/ready"
expect ready_file_of_other_software_says_so 0 '^ +does not fit: here is Shunt sim; `shunt tune -n 3` makes a file for it$' cat "$dir/ready"
expect ready_file_of_another_gpu_is_not_named 1 '^0$' grep -c H200 "$dir/ready"
expect ready_files_in_json 0 '^3 1$' env dir="$dir" sh -c '"$@" && echo $(grep -c "\"fits\": " "$dir/info.json") $(grep -c "\"fits\": true" "$dir/info.json")' sh $sim "$installed" info --json "$dir/info.json"
expect ready_file_is_not_taken_by_itself 0 '^ +256  oneshot  \(built-in, for the sim\)' $sim "$installed" info select --ranks 3 256
expect ready_file_is_taken_by_name 0 "^ +256  [a-z0-9]+  \\(tuned here, $ready/shunt-sim-3.json\\)" $sim SHUNT_TUNING_FILE="$ready/shunt-sim-3.json" "$installed" info select --ranks 3 256
# Those of the sources are of this version.
for file in "$(dirname "$0")"/../../tuning/*.json; do
	[ ! -e "$file" ] || expect "ready_file_can_be_used_$(basename "$file" .json)" 0 'for [0-9]+ ranks on ' "$shunt" tune --share "$file" -o "$dir/copy.json"
done
expect info_names_the_file 0 "^ +256  [a-z0-9]+  \(tuned here, $dir/cache/tuning/shunt-sim-3.json\)" "$shunt" info select --ranks 3 256
expect info_other_ranks_are_built_in 0 '^ +256  oneshot  \(built-in, for the sim\)' "$shunt" info select --ranks 2 256
for coll in all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter sendrecv; do
	expect tuned_${coll}_right 0 '^# 0 wrong elements' $bench $coll -n 3 -b 256 -e 64K -f 16
done

# Without NVLink between all ranks the file is for these links, and NVLink's is not taken there.
pairs='*:none;0/1:nvlink;2/3:nvlink'
expect tune_by_links_is_written 0 "^# written to $dir/cache/tuning/shunt-sim-4-shared-2-islands.json" env SHUNT_SIM_LINKS="$pairs" $tune all_reduce -n 4 -b 256 -e 256
expect file_says_link 0 '"link": "shared"' cat "$dir/cache/tuning/shunt-sim-4-shared-2-islands.json"
expect show_says_link 0 '^# by shared links between 2 islands' "$shunt" tune --show "$dir/cache/tuning/shunt-sim-4-shared-2-islands.json"
sed 's/"algorithm": "[a-z0-9]*"/"algorithm": "islands"/' "$dir/cache/tuning/shunt-sim-4-shared-2-islands.json" >"$dir/pairs.json"
sed 's/"islands": 2/"islands": 3/' "$dir/pairs.json" >"$dir/threes.json"
expect file_by_links_is_taken 0 ' eager out .* islands +0$' env SHUNT_TUNING_FILE="$dir/pairs.json" SHUNT_SIM_LINKS="$pairs" $bench -n 4 -b 256 -e 256 -d int32
expect file_by_links_is_not_for_nvlink 0 ' eager out .* oneshot +0$' env SHUNT_TUNING_FILE="$dir/pairs.json" $bench -n 4 -b 256 -e 256 -d int32
expect wrong_file_by_links_is_one_line 0 '^1$' env dir="$dir" SHUNT_TUNING_FILE="$dir/threes.json" SHUNT_SIM_LINKS="$pairs" sh -c '"$@" >"$dir/log" 2>&1 && grep -c "tuning file refused: $dir/threes.json: machine.ranks is 4" "$dir/log"' sh $bench -n 4 -b 256 -e 256 --threads

# By hand: a file whose answer is not the built-in table's.
file() {
	printf '{"shunt_tuning": %s, "shunt": "%s", "machine": {"gpu": "%s", "cc": %s, "driver": 0, "ranks": 2, "sim": %s},
		"rows": [{"kind": "allreduce", "upto": 4096, "algorithm": "twoshot", "blocks": 1, "threads": 32}]}\n' "$@"
}
file 1 "$version" "Shunt sim" 0 true >"$dir/mine.json"
file 1 "$version" "NVIDIA H200" 90 false >"$dir/other.json"
file 1 0.0.1 "Shunt sim" 0 true >"$dir/old.json"
file 2 "$version" "Shunt sim" 0 true >"$dir/new.json"
head -c 100 "$dir/mine.json" >"$dir/half.json"
expect named_file_is_taken 0 ' eager out .* twoshot +0$' env SHUNT_TUNING_FILE="$dir/mine.json" $bench -n 2 -b 1K -e 1K
expect named_file_is_found_among_others 0 ' eager out .* twoshot +0$' env SHUNT_TUNING_FILE="$dir/other.json:$dir/mine.json" $bench -n 2 -b 1K -e 1K
expect none_is_the_built_in_table 0 ' eager out .* oneshot +0$' env SHUNT_TUNING_FILE=none $bench -n 2 -b 1K -e 1K
for case in 'other_machine other it.was.made.on.NVIDIA.H200' 'old_version old made.by.Shunt."0.0.1"' 'new_format new format.2' 'broken_file half line.[0-9]+:.no.JSON'; do
	set -- $case
	SHUNT_TUNING_FILE=$dir/$2.json $bench -n 2 -b 1K -e 1K >"$dir/$2.log" 2>&1
	expect "$1_is_refused" 0 "tuning file refused: $dir/$2.json: $3" cat "$dir/$2.log"
	expect "$1_leaves_the_built_in_table" 0 ' eager out .* oneshot +0$' cat "$dir/$2.log"
done
expect one_line_is_enough 0 '^1$' grep -c 'tuning file refused: .*/other.json' "$dir/other.log"

# Ranks that have different files agree on the built-in table.
mkdir "$dir/rendezvous"
own0='' own1=''
apart() {
	for r in 0 1; do
		env RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r SHUNT_PLUGINS="$(eval echo "\$own$r")" SHUNT_TUNING_FILE="$(eval echo "\$$((r + 1))")" $bench -b 1K -e 1K --rendezvous "$dir/rendezvous" >"$dir/rank$r" 2>&1 &
	done
	wait
	cat "$dir/rank0" "$dir/rank1"
	grep -q '^# 0 wrong' "$dir/rank0"
}
file 1 "$version" "Shunt sim" 0 true | sed 's/4096/2048/' >"$dir/mine2.json"
expect file_on_one_rank_is_not_taken 0 'built-in tuning: rank 1 has no tuning file, rank 0 has one' apart "$dir/mine.json" none
expect file_on_one_rank_runs_built_in 0 ' eager out .* oneshot +0$' cat "$dir/rank0"
expect two_files_are_not_taken 0 'built-in tuning: rank 1 has another tuning file' apart "$dir/mine.json" "$dir/mine2.json"
expect one_file_is_taken 0 ' eager out .* twoshot +0$' apart "$dir/mine.json" "$dir/mine.json"

mkfifo "$dir/pipe"
expect directory_is_no_tuning_file 2 '/tuning is a directory, and it takes a file' $tune -n 2 -o "$dir/cache/tuning"
expect pipe_is_no_tuning_file 2 'pipe is a device or a pipe' $tune -n 2 -o "$dir/pipe"

# Stopped, which a second link to what a run has measured stands for: it is kept.
small="all_reduce -n 2 -b 256 -e 1K"
: >"$dir/t.json.partial"
ln "$dir/t.json.partial" "$dir/partial"
expect run_to_be_stopped 0 "^# written to $dir/t.json" $tune $small -o "$dir/t.json"
rm "$dir/t.json"
cp "$dir/partial" "$dir/t.json.partial"
other='is of a run on another machine or of another command'
expect other_options_do_not_go_on 1 "$other" $tune $small -o "$dir/t.json" --rounds 2
expect other_collectives_do_not_go_on 1 "$other" $tune all_gather -n 2 -b 256 -e 1K -o "$dir/t.json"
expect other_sizes_do_not_go_on 1 "$other" $tune all_reduce -n 2 -b 256 -e 4K -o "$dir/t.json"
expect other_factor_does_not_go_on 1 "$other" $tune $small -f 2 -o "$dir/t.json"
expect what_does_not_go_on_is_kept 0 "^same$" sh -c 'cmp "$1" "$2" && echo same' sh "$dir/partial" "$dir/t.json.partial"
expect stopped_run_goes_on 0 '^# 2 points are there' $tune $small -o "$dir/t.json"
cp "$dir/out" "$dir/all"
expect what_is_there_is_not_measured_again 1 '^0$' grep -c '^\[' "$dir/all"
head -c -20 "$dir/partial" >"$dir/t.json.partial"
expect cut_line_is_measured_again 0 '^\[2/2\] all_reduce 1K' $tune $small -o "$dir/t.json"
{ cat "$dir/partial"; echo '{"collective": "all_reduce", "bytes": -1}'; } >"$dir/t.json.partial"
expect wrong_line_is_dropped 0 '^# 2 points are there' $tune $small -o "$dir/t.json"
# What the file has of other collectives stays, if it is of the same machine and type.
expect one_is_tuned_first 0 '^# written' $tune broadcast -n 2 -b 256 -e 256 -o "$dir/two.json"
expect other_collectives_stay 0 '^# 1 points of other collectives stay as they were in .*/two.json$' $tune all_reduce -n 2 -b 256 -e 256 -o "$dir/two.json"
expect other_collectives_are_shown 0 '^  broadcast +256 ' $shunt tune --show "$dir/two.json"
expect other_collectives_have_their_rows 0 '"kind": "broadcast"' cat "$dir/two.json"
expect points_of_another_type_go 1 '^0$' sh -c '$1 all_reduce -n 2 -b 256 -e 256 -d float32 -o "$2" >/dev/null && grep -c broadcast "$2"' sh "$tune" "$dir/two.json"
# A user's own kernel: a row like the others. A point by hand stands for one at which it is the fastest.
small_own="all_reduce -n 2 -b 256 -e 1K -d float32"
: >"$dir/own.json.partial"
ln "$dir/own.json.partial" "$dir/own"
expect plugin_is_measured_beside_the_others 0 "^# written to $dir/own.json" env SHUNT_PLUGINS="$plugin" $tune $small_own -o "$dir/own.json"
by_hand='2,$s/"algorithm": "[a-z0-9_]*"/"algorithm": "allreduce_oneshot"/;2,$s/"plugin": [a-z]*/"plugin": true/'
sed "$by_hand" "$dir/own" >"$dir/own.json.partial"
expect other_plugins_do_not_go_on 1 "$other" $tune $small_own -o "$dir/own.json"
expect point_of_a_plugin_goes_on 0 '^# 2 points are there' env SHUNT_PLUGINS="$plugin" $tune $small_own -o "$dir/own.json"
expect plugin_has_its_row 0 '"rows": .*"algorithm": "allreduce_oneshot", *"plugin": true.*"points"' sh -c 'tr -d "\n" <"$1"' sh "$dir/own.json"
expect plugin_is_shown_where_it_is_not 0 '^  all_reduce +1K .* allreduce_oneshot ' $shunt tune --show "$dir/own.json"
expect plugin_of_the_file_is_taken 0 ' eager out .* allreduce_oneshot +0$' env SHUNT_PLUGINS="$plugin" SHUNT_TUNING_FILE="$dir/own.json" $bench -n 2 -b 1K -e 1K
expect plugin_leaves_other_types 0 ' eager out .* oneshot +0$' env SHUNT_PLUGINS="$plugin" SHUNT_TUNING_FILE="$dir/own.json" $bench -n 2 -b 1K -e 1K -d float16
expect plugin_of_a_rule_is_a_row_of_bench 0 ' eager out .* allreduce_oneshot +0$' env SHUNT_PLUGINS="$plugin" SHUNT_ALGO=allreduce:0-:allreduce_oneshot $bench -n 2 -b 1K -e 1K
SHUNT_TUNING_FILE=$dir/own.json $bench -n 2 -b 1K -e 1K >"$dir/own.log" 2>&1
expect plugin_that_is_nowhere_is_built_in 0 ' eager out .* oneshot +0$' cat "$dir/own.log"
expect plugin_that_is_nowhere_is_one_line 0 '^1$' grep -c "tuning file $dir/own.json: its plug-in allreduce_oneshot is not there" "$dir/own.log"
own0=$plugin
expect plugin_on_one_rank_is_not_used 0 'uses no plug-ins: plug-in allreduce_oneshot: rank 1 has none' apart "$dir/own.json" "$dir/own.json"
expect plugin_on_one_rank_is_built_in 0 ' eager out .* oneshot +0$' cat "$dir/rank0"
expect plugin_on_one_rank_is_one_line 0 '^1$' sh -c 'cat "$1/rank0" "$1/rank1" | grep -c plug-in' sh "$dir"
own1=$plugin
expect plugin_on_all_ranks_is_taken 0 ' eager out .* allreduce_oneshot +0$' apart "$dir/own.json" "$dir/own.json"
own0='' own1=''
# One at a time.
cp "$dir/partial" "$dir/t.json.partial"
expect second_run_at_a_time_is_refused 1 'another shunt tune is writing .*/t.json.partial' flock "$dir/t.json.partial" $tune $small -o "$dir/t.json"
expect second_run_leaves_what_is_there 0 "^same$" sh -c 'cmp "$1" "$2" && echo same' sh "$dir/partial" "$dir/t.json.partial"
# Lines that are points, and that this run cannot have measured.
for change in 's/"us": [0-9.]*/"us": -5.0/' 's/"before_us": [0-9.]*/"before_us": 1e300/' 's/"part": 1024/"part": 1/' 's/"nccl": false/"nccl": true/' \
	's/"bytes": 1024, "part": 1024/"bytes": 65536, "part": 65536/' 's/all_reduce", "bytes": 1024/broadcast", "bytes": 1024/'; do
	sed "3$change" "$dir/partial" >"$dir/t.json.partial"
	cmp -s "$dir/partial" "$dir/t.json.partial" && echo "not ok: $change changes nothing" && failed=1
	expect point_that_was_not_measured_is_dropped 0 '^# 1 points are there' $tune $small -o "$dir/t.json"
done
cp "$dir/partial" "$dir/t.json.partial"
expect restart_forgets 0 '^\[1/2\] all_reduce 256' $tune $small -o "$dir/t.json" --restart
expect show_broken_is_error 1 'no JSON' $shunt tune --show "$dir/half.json"
expect show_without_points_is_error 1 'no points to show' $shunt tune --show "$dir/mine.json"

# Bounded: what is measured then is written, what is missing comes with the next run.
expect no_minutes_is_usage_error 2 '--minutes: "0" is no number of minutes above 0' $tune --minutes 0
expect quick_says_when_it_ends 0 '^# 2 points to measure, which takes about .*; it ends after 4 min$' $tune $small --quick -o "$dir/quick.json"
expect unbounded_says_how_to_bound 0 '--minutes bounds that' $tune $small -o "$dir/q.json"
both="all_reduce broadcast -n 2 -b 256 -e 1K"
expect nothing_measured_in_time_is_error 1 'of no collective enough is measured' $tune $both -o "$dir/b.json" --minutes 0.00001
sed 1q "$dir/b.json.partial" >"$dir/begun"
sed 1d "$dir/partial" >>"$dir/begun"
mv "$dir/begun" "$dir/b.json.partial"
expect time_over_is_said 0 '^# the time is over: 2 of 4 points' $tune $both -o "$dir/b.json" --minutes 0.00001
cp "$dir/out" "$dir/all"
expect time_over_names_what_stays 0 '^# too little of broadcast is measured' cat "$dir/all"
expect time_over_writes_what_is_there 0 '"kind": "allreduce"' cat "$dir/b.json"
expect time_over_leaves_the_rest_built_in 1 '^0$' grep -c '"kind": "broadcast"' "$dir/b.json"
expect time_over_goes_on 0 '^\[4/4\] broadcast 1K' $tune $both -o "$dir/b.json"
expect gone_on_writes_everything 0 '"kind": "broadcast"' cat "$dir/b.json"

# A real NCCL gets every size: with this margin it is the faster one whatever was measured.
expect faster_nccl_is_measured 0 '^# 2 ranks on Shunt sim.*NCCL 2\.' env SHUNT_NCCL_LIB="$fake" $tune $small --no-check --margin 100 -o "$dir/nccl.json"
expect faster_nccl_gets_every_size 0 '^\[2/2\] all_reduce 1K: .*: nccl$' env SHUNT_NCCL_LIB="$fake" $tune $small --no-check --margin 100 -o "$dir/nccl.json"
expect nccl_in_windows_is_measured 0 '^# all_reduce in windows: NCCL.s from parts of 256$' env SHUNT_NCCL_LIB="$fake" $tune $small --no-check --margin 100 -o "$dir/nccl.json"
expect file_says_where_windows_are_nccls 0 '"allreduce": 256' cat "$dir/nccl.json"
expect file_says_there_was_no_multicast 0 '"nvls": false' cat "$dir/nccl.json"
# Communicators that hand everything on: what would be measured is not what it says.
expect forwarding_ranks_are_error 1 "none of Shunt's algorithms runs it on these ranks, its path is nccl" env SHUNT_NCCL_LIB="$fake" NCCL_LAUNCH_ORDER_IMPLICIT=1 $tune $small \
	--no-check -o "$dir/no.json"
rows() { sed -n '/"rows"/,/\]/p' "$dir/nccl.json" | grep -c "$1"; }
expect every_row_is_nccls 0 "^$(rows '"kind"') rows\$" echo "$(rows '"nccl": true') rows"
expect there_are_rows 0 '^[1-9]' rows '"kind"'
# Over several hosts: network namespaces for root, else names, on loopback.
export NCCL_SOCKET_IFNAME=lo
# The init of the fake ends when all ranks have come to it, as NCCL's does.
truncate -s 64K "$dir/meeting"
export FAKE_NCCL_SHARED="$dir/meeting"
hosts="-n 2 --hosts 2 -b 256 -e 1K --no-check"
expect over_hosts_a_table_needs_nccl 1 'over several hosts a table says what is left to NCCL' $tune $hosts
expect over_hosts_ranks_are_as_many 1 'a host has [12] of 3 ranks on 2 hosts' env SHUNT_NCCL_LIB="$fake" $tune -n 3 --hosts 2
expect over_hosts_is_written 0 "^# written to $dir/cache/tuning/shunt-sim-2x1-tcp.json" env SHUNT_NCCL_LIB="$fake" $tune $hosts
cp "$dir/out" "$dir/all"
expect over_hosts_all_collectives 0 '^\[12/12\] sendrecv 1K: hierarchical' cat "$dir/all"
expect over_hosts_file_says_so 0 '"net": "tcp"' cat "$dir/cache/tuning/shunt-sim-2x1-tcp.json"
expect over_hosts_is_shown 0 '^# 2 hosts by tcp' $shunt tune --show "$dir/cache/tuning/shunt-sim-2x1-tcp.json"
spread="$bench -n 2 --hosts 2 -b 1K -e 1K"
expect over_hosts_file_is_taken 0 ' eager out .* nccl +[0-9-]+$' env SHUNT_NCCL_LIB="$fake" $spread --no-check
expect over_hosts_without_file_it_is_ours 0 ' eager out .* hierarchical +[0-9-]+$' env SHUNT_NCCL_LIB="$fake" SHUNT_TUNING_FILE=none $spread --no-check
expect over_hosts_file_is_of_its_provider 0 ' eager out .* hierarchical +[0-9-]+$' sh -c 'sed "s/\"net\": \"tcp\"/\"net\": \"verbs\"/" "$1" >"$2" && shift 2 && "$@"' sh \
	"$dir/cache/tuning/shunt-sim-2x1-tcp.json" "$dir/verbs.json" env SHUNT_CACHE_DIR=/dev/null SHUNT_TUNING_FILE="$dir/verbs.json" SHUNT_NCCL_LIB="$fake" $spread --no-check
expect over_hosts_file_is_not_for_one_host 0 ' eager out .* oneshot +0$' $bench -n 2 -b 1K -e 1K
# A file that has messages has ranks set up communicators by them, and connects all pairs.
sed 's/"nccl": true/"nccl": false/g' "$dir/cache/tuning/shunt-sim-2x1-tcp.json" >"$dir/messages.json"
expect over_hosts_file_may_have_messages 0 ' eager out .* hierarchical +0$' env SHUNT_NCCL_LIB="$fake" SHUNT_TUNING_FILE="$dir/messages.json" SHUNT_CACHE_DIR=/dev/null \
	$bench sendrecv -n 2 --hosts 2 -b 1K -e 1K
# Default plans are measured, too, and run where the file says so.
mkdir "$dir/defaults"
for collective in all_reduce all_gather reduce_scatter; do
	"$shunt" plan new $collective hierarchical-ll --hosts 2 --local 1 --by-name -o "$dir/defaults/${collective}_2x1.json" || failed=1
done
planned="env SHUNT_NCCL_LIB=$fake SHUNT_DEFAULT_PLANS=$dir/defaults"
expect over_hosts_plans_are_measured 0 '^\[6/6\] reduce_scatter 1K: (hierarchical|plan)' $planned $tune all_reduce all_gather reduce_scatter $hosts -o "$dir/plans.json"
sed 's/"algorithm": "hierarchical"/"algorithm": "plan"/g; s/"nccl": true/"nccl": false/g' "$dir/plans.json" >"$dir/planned.json"
expect over_hosts_file_may_want_plans 0 ' eager out .* all_reduce_hierarchical-ll_2x1 ' $planned SHUNT_TUNING_FILE="$dir/planned.json" SHUNT_CACHE_DIR=/dev/null \
	$bench all_reduce -n 2 --hosts 2 -b 1K -e 1K --no-check
expect info_over_hosts_names_plan_and_file 0 "^ +1K  all_reduce_hierarchical-ll_2x1  \\(plan, .*, by tuned here, $dir/planned.json\\)" $planned SHUNT_NCCL_LIB=none \
	SHUNT_TUNING_FILE="$dir/planned.json" "$shunt" info select --hosts 2 --local 1 1K
exit $failed
