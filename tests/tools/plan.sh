#!/bin/sh
# SPDX-License-Identifier: MIT
# plan.sh SHUNT MOCK PLANS SOURCE: shunt plan check, show and new do what they say, and new writes the examples as hashes in SOURCE has them.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") plans=$(realpath "$3") source=$(realpath "$4")
. "$(dirname "$0")/expect.sh"

ring=$plans/all_reduce_ring_4.json pipelined=$plans/all_reduce_pipelined_2.json twoshot=$plans/all_reduce_twoshot-ll_4.json

# The command
expect plan_no_action_is_usage_error 2 'check, show, run, new or build' "$shunt" plan
expect plan_unknown_action_is_usage_error 2 'no action "frob"' "$shunt" plan frob
expect plan_help_lists_actions 0 '^  check ' "$shunt" plan --help
for action in check show run new; do
	expect plan_${action}_help 0 "^usage: shunt plan $action" "$shunt" plan $action --help
	expect plan_${action}_unknown_option_is_usage_error 2 'no option --frob' "$shunt" plan $action --frob
done
expect plan_worker_is_not_for_users 2 'not for you' "$shunt" plan run --worker=x x

# check
expect check_right_plan 0 '^ok +.*ring_4.json: all_reduce_ring_4, allreduce of 4 ranks, in place' "$shunt" plan check "$ring"
expect check_directory 0 '^36 right, 0 wrong$' "$shunt" plan check "$plans"
expect check_nothing_is_usage_error 2 'which plans' "$shunt" plan check
expect check_missing_file_fails 1 '^wrong  .*nonexistent.json: cannot be opened' "$shunt" plan check /nonexistent.json
mkdir "$dir/empty" "$dir/mixed"
expect check_empty_directory_fails 1 'no \*.json' "$shunt" plan check "$dir/empty"
cp "$ring" "$dir/mixed/b.json"
head -c 1000 "$ring" >"$dir/mixed/a.json"
sed 's/"index": 3/"index": 99/' "$ring" >"$dir/mixed/c.json"
echo no plan >"$dir/mixed/notes.txt"
echo no plan >"$dir/mixed/.hidden.json"
expect check_counts_wrong_ones 1 '^1 right, 2 wrong$' "$shunt" plan check "$dir/mixed"
expect check_names_rank_block_operation 1 'c.json: rank 0, block 0, operation [0-9]+ .*index 99 and size 1 reach chunk 99' "$shunt" plan check "$dir/mixed"
expect check_quiet_leaves_out_right_ones 1 '^wrong' "$shunt" plan check -q "$dir/mixed"
grep -q '^ok' "$dir/out" && echo "not ok: check_quiet_leaves_out_right_ones: shows right ones" && failed=1
# A signal that nobody gives, and one that is not taken.
sed '0,/"name": "signal"/s//"name": "wait"/' "$ring" >"$dir/cycle.json"
expect check_finds_a_deadlock 1 'waits' "$shunt" plan check "$dir/cycle.json"
"$shunt" plan check --json "$dir/mixed" >"$dir/j" 2>&1 && echo "not ok: check_json: status 0" && failed=1
python3 -c '
import json, sys
rows = json.load(open(sys.argv[1]))
assert [r["ok"] for r in rows] == [False, True, False], rows
assert rows[1]["name"] == "all_reduce_ring_4" and rows[1]["ranks"] == 4 and rows[1]["max_message_size"] == 2**64 - 1, rows[1]
assert "c.json" in rows[2]["file"] and "chunk 99" in rows[2]["error"], rows[2]
' "$dir/j" 2>"$dir/out"
verdict check_json
# Names of files are bytes, JSON is not: what is no UTF-8 becomes characters of these numbers.
for odd in '\351' '\303' '\300\257' '\355\240\200' '\364\220\200\200' '\303\251\342\202\254\360\237\230\200'; do
	head -c 1000 "$ring" >"$dir/$(printf "$odd").json"
done
"$shunt" plan check --json "$dir"/*[!a-z0-9].json >"$dir/j" 2>&1
python3 -c '
import json, sys
rows = json.loads(open(sys.argv[1], "rb").read().decode())
names = {r["file"].split("/")[-1][:-5] for r in rows}
assert names >= {"\xe9", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe9\u20ac\U0001f600"}, names
assert all(r["file"] in r["error"] for r in rows), rows
' "$dir/j" 2>"$dir/out"
verdict check_json_of_names_that_are_no_text

# show
expect show_names_operations 0 '^ +0 +ppkt +rank 3.s packets scratch\[2\] = input\[3\]; .*; part 0 of 2$' "$shunt" plan show -r 2 "$twoshot"
expect show_one_block 0 'respkt +input\[1\], rank 2.s packets scratch\[5\]' "$shunt" plan show -r 1 -b 0 "$twoshot"
[ "$("$shunt" plan show -r 1 -b 0 "$twoshot" | grep -c 'block [0-9]*$')" = 1 ] || { echo "not ok: show_one_block: more than one"; failed=1; }
expect show_pipeline 0 '^ +0.2 +signal +signal to rank 1 \(memory 0\)$' "$shunt" plan show "$pipelined"
expect show_names_the_packet_format 0 'packets travel as LL128' "$shunt" plan show "$twoshot"
expect show_wrong_plan_fails 1 'chunk 99' "$shunt" plan show "$dir/mixed/c.json"
expect show_rank_beyond_fails 1 'no rank 4: .* has ranks 0 to 3' "$shunt" plan show -r 4 "$ring"
expect show_no_plan_is_usage_error 2 'which plan' "$shunt" plan show
expect show_two_plans_is_usage_error 2 '"b" is one too many' "$shunt" plan show a b
expect show_all_without_svg_is_usage_error 2 '^Try: shunt plan show --help$' "$shunt" plan show --all a
expect show_svg_unwritable_fails 1 'cannot write /nonexistent/x.svg' "$shunt" plan show --svg /nonexistent/x.svg "$ring"
expect show_svg_on_full_device_says_so 1 'cannot write /dev/full: No space left' "$shunt" plan show --svg /dev/full "$ring"
cp "$ring" "$dir/same.json"
expect show_svg_in_the_plans_place_is_usage_error 2 'is the plan itself' "$shunt" plan show --svg "$dir/./same.json" "$dir/same.json"
expect show_svg_in_the_plans_place_keeps_it 0 '^ok ' "$shunt" plan check "$dir/same.json"
mkdir "$dir/svg"
for plan in "$plans"/*.json; do
	"$shunt" plan show --svg "$dir/svg/$(basename "$plan").svg" "$plan" || failed=1
	"$shunt" plan show --svg "$dir/svg/$(basename "$plan").all.svg" --all -r 1 "$plan" || failed=1
done
python3 -c '
import sys, xml.etree.ElementTree as x
assert len(sys.argv) == 73, len(sys.argv)
for name in sys.argv[1:]:
	root = x.parse(name).getroot()
	tags = {e.tag.split("}")[1] for e in root.iter()}
	text = open(name).read()
	assert tags <= {"svg", "g", "style", "defs", "marker", "path", "rect", "text", "title"}, (name, tags)
	assert text.count("marker-end") >= 3 and text.count("<title>") >= 4, name
	assert "href" not in text and "script" not in text and "nan" not in text, name
' "$dir"/svg/*.svg || { echo "not ok: show_svg_of_examples"; failed=1; }
echo "ok: show_svg_of_examples"
# Values of semaphores are numbers, and take no memory each.
cat >"$dir/semaphores.py" <<'END'
import json, resource, subprocess, sys
gpu = {"input_chunks": 1, "output_chunks": 1, "scratch_chunks": 0, "channels": [], "remote_buffers": [], "semaphores": [{"init_value": 2147483647}] * 2000,
       "threadblocks": [{"id": 0, "channels": [], "remote_buffer_refs": [], "ops": [{"name": "sem_acquire", "semaphore_ids": [0]}, {"name": "sem_release", "semaphore_ids": [0]}]}]}
plan = {"name": "semaphores", "collective": "custom", "protocol": "Simple", "inplace": False, "gpus": [dict(gpu, id=0)]}
json.dump(plan, open(sys.argv[2] + ".json", "w"))
status = subprocess.run([sys.argv[1], "plan", "show", "--svg", sys.argv[2] + ".svg", sys.argv[2] + ".json"]).returncode
kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print("status %d, %s" % (status, "little memory" if kib < 200 << 10 else "%d KiB" % kib))
END
expect show_svg_of_large_semaphores_takes_little_memory 0 '^status 0, little memory$' python3 "$dir/semaphores.py" "$shunt" "$dir/semaphores"
"$shunt" plan show --svg "$dir/p.svg" "$pipelined"
eight="$dir/eight.json"
"$shunt" plan new all_reduce twoshot-ll -n 8 -o "$eight"
expect show_svg_merges_alike_blocks 0 'rank 0, block 0 \(2 alike\)' sh -c '"$1" plan show --svg "$2" "$3" && cat "$2"' sh "$shunt" "$dir/p.svg" "$twoshot"
picture() {
	"$shunt" plan show --svg "$dir/p.svg" "$@" && cat "$dir/p.svg"
}
expect show_svg_draws_arrows_of_rank_0 0 '>Arrows of rank 0[.] Point at a box' picture "$eight"
expect show_svg_has_others_under_the_pointer 0 '^<g class="h"><path class="a"' picture "$eight"
expect show_svg_of_few_hides_no_arrow 0 '^0$' sh -c '"$1" plan show --svg "$2" "$3" && grep -c "class=.h.>" "$2"; true' sh "$shunt" "$dir/p.svg" "$twoshot"
expect show_svg_legend_has_no_kind_that_the_plan_has_not 0 '^0$' sh -c 'grep -cE ">(semaphore|barrier|signal|a window begins)</text>" "$1"; true' sh "$dir/p.svg"
# Chunk 2 goes from 7 ranks to the rank that reduces it, and from there to 7.
expect show_svg_of_a_chunk_has_its_way_only 0 '^15 15$' sh -c '"$1" plan show --svg "$2" --chunk 2 "$3" && echo "$(grep -c "^<path class=.a. " "$2") $(grep -c "^<g><rect\|^<g><path class=.w" "$2")"' \
	sh "$shunt" "$dir/p.svg" "$eight"
expect show_svg_of_a_block_has_its_arrows_only 0 '^<g><g class="l"><text [^>]*>rank 7, block 0 [(]64 alike[)]' picture --rank 7 --block 63 "$eight"
expect show_json_says_what_an_operation_does 0 '^allreduce 2 put$' sh -c '"$1" plan show --json -r 0 "$2" | python3 -c "
import json, sys
shown = json.load(sys.stdin)
op = [o for b in shown[\"blocks\"] for o in b[\"operations\"] if o[\"name\"] == \"put\"][0]
assert {b[\"rank\"] for b in shown[\"blocks\"]} == {0} and op[\"does\"], shown
print(shown[\"plan\"][\"collective\"], shown[\"plan\"][\"ranks\"], op[\"name\"])
"' sh "$shunt" "$pipelined"
expect show_json_with_svg_is_usage_error 2 '--json does not go with --svg' "$shunt" plan show --json --svg x "$pipelined"
expect show_chunk_beyond_fails 1 'there is no chunk 8: .* has chunks 0 to 7' "$shunt" plan show --svg "$dir/p.svg" --chunk 8 "$eight"
expect show_chunk_without_svg_is_usage_error 2 '--chunk goes with --svg' "$shunt" plan show --chunk 1 "$eight"
expect show_svg_says_what_an_operation_does 0 '<title>0.0, window 1: put: rank 1.s scratch' sh -c '"$1" plan show --svg "$2" "$3" && cat "$2"' sh \
	"$shunt" "$dir/p.svg" "$pipelined"

# select
select="env SHUNT_PLAN_DIR=$plans $shunt info select --overlay"
expect select_names_plan_and_file 0 '^ +64K  all_reduce_twoshot-ll_4  \(plan, .*/all_reduce_twoshot-ll_4.json\)$' $select --ranks 4 64K
expect select_other_number_of_ranks_takes_no_plan 0 '^ +64K  oneshot  \(built-in' $select --ranks 3 64K
expect select_other_operator_takes_no_plan 0 '^ +64K  oneshot  \(built-in' $select --ranks 4 --redop max 64K
expect select_ranges_of_plans 0 '^ +16388 ... 1M +all_reduce_twoshot-ll_4 ' $select --ranks 4
expect select_forced_nccl_comes_before_plans 0 '^ +64K  nccl: forced' env SHUNT_FORCE_NCCL=allreduce $select --ranks 4 64K

# new
new="$shunt plan new"
expect new_list 0 '^all_reduce +twoshot-ll ' $new --list
expect new_no_ranks_is_usage_error 2 'for how many ranks' $new all_reduce ring
expect new_nine_ranks_is_usage_error 2 '--ranks: 9 is not from 2 to 8' $new all_reduce ring -n 9
expect new_names_without_underscores 0 '"name": "all_reduce_ring_2"' $new allreduce ring -n 2
expect new_unknown_collective_is_usage_error 2 '"all_frob" is not one of' $new all_frob ring -n 2
expect new_unknown_shape_is_usage_error 2 'no shape "ring" of all_to_all' $new all_to_all ring -n 2
expect new_no_shape_is_usage_error 2 'a collective and a shape' $new all_reduce -n 2
expect new_blocks_not_of_stages_is_usage_error 2 '4 is not a multiple of the 3 stages' $new all_reduce pipelined -n 2 -B 4
expect new_min_above_max_is_usage_error 2 'give --min and --max' $new all_reduce twoshot-ll -n 2 --max 1K
expect new_unit_without_windows_is_usage_error 2 'only pipelined' $new all_reduce ring -n 2 --unit 4K
expect new_odd_unit_is_usage_error 2 '--unit: 100 is no multiple of 16' $new all_reduce pipelined -n 2 --unit 100
expect new_op_without_reduction_is_usage_error 2 'all_gather reduces nothing' $new all_gather ring -n 2 --op max
expect new_alltoall_in_place_is_usage_error 2 'no all_to_all in place' $new all_to_all pipelined -n 2 --in-place
expect new_unwritable_fails 1 'cannot write /nonexistent/x' $new all_reduce ring -n 2 -o /nonexistent/x
expect new_on_full_device_says_so 1 'cannot write /dev/full: No space left' $new all_reduce ring -n 2 -o /dev/full
# A job may read what is there, so that a file which cannot be written stays as it was.
echo 'as it was' >"$dir/kept.json"
expect new_too_large_file_fails 1 'cannot write .*/kept.json: File too large' sh -c \
	'trap "" XFSZ; ulimit -f 4; "$1" plan new all_reduce ring -n 8 -o "$2"' sh "$shunt" "$dir/kept.json"
expect new_failed_keeps_the_file 0 '^as it was$' cat "$dir/kept.json"
expect new_failed_leaves_nothing 0 '^1$' sh -c 'ls "$1"/kept.json* | wc -l' sh "$dir"
expect new_options_are_in_the_plan 0 '^ok +.*: mine, reducescatter of 5 ranks, in place, 64 to 4M bytes$' sh -c \
	'"$1" plan new reduce_scatter pipelined -n 5 -B 6 -t 96 --min 64 --max 4M --unit 48 --op max --in-place --priority 7 --name mine -o "$2" &&
	"$1" plan check "$2"' sh "$shunt" "$dir/n.json"
for word in '"num_threads_per_block": 96' '"reduce_op": "max"' '"unit_size": 48' '"priority": 7'; do
	grep -q "$word" "$dir/n.json" || { echo "not ok: new_options_are_in_the_plan: no $word"; failed=1; }
done
# Those of 2, 3, 4 and 8 ranks run in test_plan_new.
for n in 5 6 7; do
	$new --list | grep -v ' hierarchical' | while read -r collective shape _; do
		$new "$collective" "$shape" -n $n -o "$dir/n.json" || { echo "not ok: new $collective $shape -n $n"; exit 1; }
	done || failed=1
done
echo "ok: new_every_shape_and_number_of_ranks_passes_the_checker"

# ... over hosts
expect new_hosts_without_local_is_usage_error 2 '--local is missing' $new all_reduce --hosts 2
expect new_local_without_hosts_is_usage_error 2 '--local: it goes with --hosts' $new all_reduce ring -n 2 --local 2
expect new_hosts_with_ranks_is_usage_error 2 'over hosts they follow from' $new all_reduce --hosts 2 --local 2 -n 4
expect new_shape_of_one_host_is_usage_error 2 'ring is for one host' $new all_reduce ring --hosts 2 --local 2
expect new_shape_of_hosts_is_usage_error 2 'hierarchical is for several hosts' $new all_reduce hierarchical -n 4
expect new_nothing_over_hosts_is_usage_error 2 'no shape "hierarchical" of all_to_all' $new all_to_all --hosts 2 --local 2
expect new_hosts_is_hierarchical 0 '"name": "all_reduce_hierarchical_2x4"' $new all_reduce --hosts 2 --local 4
expect new_hosts_keeps_the_ranks_of_a_host 0 '"nranks_per_node": 4' $new all_reduce --hosts 2 --local 4
mkdir "$dir/hosts"
for place in 2x1 2x2 3x2 4x1 2x8; do
	for collective in all_reduce all_gather reduce_scatter; do
		for shape in hierarchical hierarchical-ll; do
			for where in --in-place --out-of-place; do
				file=$dir/hosts/${collective}_${shape}_$place.json
				$new $collective $shape --hosts ${place%x*} --local ${place#*x} $where --by-name -o "$file" &&
					"$shunt" plan check --hosts ${place%x*} "$file" >>"$dir/checked" || { echo "not ok: new $collective $shape $place $where"; failed=1; }
			done
		done
	done
done
echo "ok: new_every_shape_over_hosts_passes_the_checker"
expect new_hosts_leaves_no_doubt 0 '^60 0$' sh -c 'echo $(grep -c "^ok" "$1") $(grep -Ec "doubt|unread" "$1")' sh "$dir/checked"
expect new_hosts_fits_its_hosts_only 1 'different hosts' "$shunt" plan check --hosts 4 "$dir/hosts/all_reduce_hierarchical_2x2.json"
over="env SHUNT_DEFAULT_PLANS=$dir/hosts $shunt info select --standalone --hosts 2 --local 2"
expect select_over_hosts 0 '^allreduce of float32, sum, 4 ranks, on 2 hosts of 2, standalone' $over
expect select_over_hosts_has_no_plan_by_itself 0 '^ +64K  hierarchical  \(built-in, for such hosts, measured' $over 64K
expect select_over_hosts_shows_what_waits 0 '^ +0 ... 16K +all_reduce_hierarchical-ll_2x2 ' $over
expect select_over_hosts_takes_the_plan_that_is_wanted 0 '^ +16K  all_reduce_hierarchical-ll_2x2  \(plan, .*, by SHUNT_ALGO\)$' \
	env SHUNT_ALGO=allreduce:0-inf:plan $over 16K
expect select_over_hosts_without_a_plan_is_hierarchical 0 '^ +64M  hierarchical  \(no plan fits, wanted by SHUNT_ALGO\)$' \
	env SHUNT_ALGO=allreduce:0-inf:plan $over 64M
expect select_one_host_has_no_such_plan 0 '^ +64K  oneshot' env SHUNT_ALGO=allreduce:0-inf:plan SHUNT_DEFAULT_PLANS="$dir/hosts" \
	"$shunt" info select --standalone --ranks 4 64K
expect select_odd_ranks_over_hosts_is_usage_error 2 'not as many on each' "$shunt" info select --hosts 2 --ranks 3
expect select_local_without_hosts_is_usage_error 2 'goes with --hosts' "$shunt" info select --ranks 3 --local 3

# The examples: the build has just written them. To see what changed, write them by the version before, too, and compare.
(cd "$plans" && sha256sum ./*.json | sed 's, \./, ,' | diff "$source/hashes" -) >"$dir/out"
verdict examples_are_what_new_writes "plans/examples/hashes has others, and the left ones above"
for plan in "$source"/*.json; do
	cmp "$plan" "$plans/$(basename "$plan")" || { echo "not ok: examples_to_read: shunt plan new writes others"; failed=1; }
done
[ "$(find "$source" -name '*.json' | wc -l)" = 2 ] || { echo "not ok: examples_to_read: not two"; failed=1; }
echo "ok: examples_to_read"

# run, as far as it needs no library that knows plans
expect run_several_with_json_is_usage_error 2 '--json takes one plan; "b" is one too many' "$shunt" plan run --json "$dir/x" a b
sed 's/"collective": *"[a-z]*"/"collective": "test"/' "$ring" >"$dir/meansnothing.json"
expect run_several_skips_what_no_call_means 1 'skipped: no NCCL call means it' "$shunt" plan run "$dir/meansnothing.json" "$dir/mixed/c.json"
expect run_several_skips_only_what_no_call_means 0 '' "$shunt" plan run "$dir/meansnothing.json" "$dir/meansnothing.json"
expect run_one_that_no_call_means_fails 1 'which no NCCL call means' "$shunt" plan run "$dir/meansnothing.json"
expect run_no_plan_is_usage_error 2 'which plan' "$shunt" plan run
expect run_wrong_plan_fails 1 'chunk 99' "$shunt" plan run "$dir/mixed/c.json"
expect run_other_number_of_ranks_fails 1 'is for 4 ranks, not for 3' "$shunt" plan run -n 3 "$ring"
expect run_size_beyond_fails 1 'is for 16385 to 1M bytes' "$shunt" plan run -b 2M "$twoshot"
expect run_unknown_type_is_usage_error 2 '"float17"' "$shunt" plan run -d float17 "$ring"
expect run_old_library_fails 1 'knows no plans' "$shunt" plan run "$pipelined"
exit $failed
