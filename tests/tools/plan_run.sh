#!/bin/sh
# SPDX-License-Identifier: MIT
# plan_run.sh SHUNT LIBSHUNT PLANS [QUICK]: shunt plan run through the real library on the sim: every example of 4 ranks is right, and what is not is found.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") plans=$(realpath "$3") quick=${4:-}
. "$(dirname "$0")/expect.sh"
SHUNT_DEVICE=sim SHUNT_NCCL_LIB=none SHUNT_LOG=warn SHUNT_CACHE_DIR=$dir/none
export SHUNT_DEVICE SHUNT_NCCL_LIB SHUNT_LOG SHUNT_CACHE_DIR
unset SHUNT_PLAN_DIR SHUNT_ALGO NCCL_MAX_CTAS

run="$shunt plan run --timeout 120 -r 1 -i 1"
right='^# all values are right, and the plan made them$'
expect run_processes_right 0 "$right" $run "$plans/all_reduce_twoshot-ll_2.json" -e 128K
expect run_graph_right 0 '^ +65536 +16384 +in +graph .* 0$' $run "$plans/all_reduce_twoshot-ll_2.json" -b 64K -e 64K --graph --in-place
expect run_threads_right 0 "$right" $run "$plans/all_gather_oneshot-ll_4.json" -e 1K --threads -d float16
# Those of 2 and 8 ranks run in test_plan_new, and the Python language's of 8 as here.
for plan in "$plans"/*_4.json; do
	[ -n "$quick" ] && break
	expect "run_$(basename "$plan" .json)" 0 "$right" $run "$plan" -f 1024 --out-of-place -d int32
done
for op in max avg; do
	"$shunt" plan new reduce_scatter oneshot-ll -n 3 -B 2 --op $op -o "$dir/$op.json"
	expect run_$op 0 "float32, $op\$" $run "$dir/$op.json" -e 1K
done
expect run_json_has_rows 0 '"bytes": [0-9]+' sh -c '$1 "$2" -e 1K --json "$3" >/dev/null && cat "$3"' sh "$run" "$dir/max.json" "$dir/run.json"
# Sizes that leave the last chunks short.
"$shunt" plan new all_reduce pipelined -n 3 -B 6 --min 0 --unit 1K -o "$dir/small.json"
expect run_odd_sizes_right 0 "$right" $run "$dir/small.json" -b 4 -e 100K -f 7 -d uint8

# What is wrong is found.
sed '0,/"dst_buff": \[{"type": "o", "index": 0/s//"dst_buff": [{"type": "o", "index": 1/' "$plans/all_gather_oneshot-ll_2.json" >"$dir/wrong.json"
expect run_wrong_plan_refused 1 "wrong.json: rank 0, block 0, operation 2 \(upkt\): a race: writes rank 0's output\[1\]" $run "$dir/wrong.json" -e 1K
# What the proof cannot decide, since two blocks wait for one channel, is run and found: nobody writes rank 0's own part of its result.
rank() { # NUMBER PEER COPY
	cat <<-JSON
		{"id":$1,"input_chunks":1,"output_chunks":2,"scratch_chunks":0,"channels":[{"channel_type":"memory","connected_to":[$2]}],
		"remote_buffers":[{"rank":$2,"type":"o","access_channel_types":["memory"]}],"threadblocks":[
		$(block 0 "{\"name\":\"put\",\"channel_type\":\"memory\",$source,\"dst_buff\":[{\"buffer_id\":0,\"index\":$1,\"size\":1}]},$3{\"name\":\"nop\"},"),
		$(block 1 '')]}
	JSON
}
block() { # NUMBER OPERATIONS
	cat <<-JSON
		{"id":$1,"channels":[{"channel_type":"memory","channel_ids":[0]}],
		"remote_buffer_refs":[{"access_channel_type":"memory","remote_buffer_ids":[0]}],
		"ops":[$2{"name":"signal","channel_type":"memory","channel_ids":[0]},{"name":"wait","channel_type":"memory","channel_ids":[0]}]}
	JSON
}
source='"src_buff":[{"type":"i","index":0,"size":1}]'
copy="{\"name\":\"copy\",$source,\"dst_buff\":[{\"type\":\"o\",\"index\":1,\"size\":1}]},"
printf '{"name":"doubt","collective":"allgather","protocol":"Simple","inplace":false,"gpus":[\n%s,\n%s]}\n' "$(rank 0 1 '')" "$(rank 1 0 "$copy")" \
	>"$dir/doubt.json"
doubt="$run $dir/doubt.json -b 1K -e 1K --out-of-place"
expect run_undecided_plan_says_so 1 "WARN plan doubt is not proved to be right: .*rank 0's output\[0\] holds nothing that an input gives" $doubt
expect run_wrong_values_found 1 '^# there are wrong values' $doubt
expect run_wrong_values_named 1 "rank 0: shunt, float32 sum, eager out-of-place, 1024 bytes: 128 wrong; element 0 of rank 0's input arrived as 0xa5a5a5a5" $doubt
expect run_plan_that_was_not_used_found 1 'did not run plan all_reduce_oneshot-ll_2: .* took the path "oneshot"' env NCCL_MAX_CTAS=1 \
	$run "$plans/all_reduce_oneshot-ll_2.json" -e 1K
expect run_several_runs_each 0 '^2$' sh -c '"$@" | grep -c "all values are right"' sh $run -b 128K -e 128K "$plans/all_reduce_twoshot-ll_2.json" "$dir/max.json"
expect run_type_beyond_plan_fails 1 'is not for float32' sh -c 'sed "s/\"inplace\"/\"dtypes\": [\"int8\"], &/" "$1" >"$2" && "$3" plan run "$2"' sh \
	"$plans/all_reduce_oneshot-ll_2.json" "$dir/int8.json" "$shunt"
# By name only: the selector wants it.
sed 's/"inplace"/"tags": {"auto": 0}, &/' "$plans/all_reduce_oneshot-ll_2.json" >"$dir/named.json"
expect run_plan_by_name_right 0 "$right" $run "$dir/named.json" -e 1K
# Only the file's plan, not one of its name that every program would get, and that comes first.
mkdir -p "$dir/home/.cache/shunt/default"
sed 's/"inplace"/"tags": {"priority": 7}, &/' "$dir/wrong.json" >"$dir/home/.cache/shunt/default/same.json"
gather="$run $plans/all_gather_oneshot-ll_2.json -e 1K"
expect run_not_the_caches_plan 0 "$right" env SHUNT_CACHE_DIR="$dir/home/.cache/shunt" $gather
expect run_not_the_aliased_caches_plan 0 "$right" env -u SHUNT_CACHE_DIR MSCCLPP_CACHE_DIR="$dir/home/.cache/shunt" $gather
expect run_not_the_homes_plan 0 "$right" env -u SHUNT_CACHE_DIR HOME="$dir/home" $gather

# As a program would have it.
bench="$shunt bench -n 2 -w 0 -i 1 -r 1 --timeout 120"
expect plan_dir_is_used_by_programs 0 ' all_reduce_oneshot-ll_2 +0$' env SHUNT_PLAN_DIR="$plans" $bench -b 4K -e 4K
expect plan_dir_larger_size_takes_next_plan 0 ' all_reduce_twoshot-ll_2 +0$' env SHUNT_PLAN_DIR="$plans" $bench -b 64K -e 64K
mkdir "$dir/mixed" && echo '{' >"$dir/mixed/broken.json"
expect plan_dir_wrong_plan_is_refused_alone 0 ' all_reduce_oneshot-ll_2 +0$' env SHUNT_PLAN_DIR="$dir/mixed:$plans" $bench -b 4K -e 4K
exit $failed
