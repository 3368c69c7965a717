#!/bin/sh
# SPDX-License-Identifier: MIT
# cli.sh SHUNT MOCK VARIABLES OLD_MOCK MOCK_CUBLAS: the command's behaviour that needs no device.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") variables=$3 mock_old=$(realpath "$4") mock_cublas=$(realpath "$5")
. "$(dirname "$0")/expect.sh"

expect no_command_is_usage_error 2 '^usage: shunt COMMAND' "$shunt"
expect help_lists_commands 0 '^  bench ' "$shunt" --help
for cmd in run info bench conform; do
	expect "${cmd}_help_explains" 0 "^usage: shunt $cmd" "$shunt" $cmd --help
	expect "help_${cmd}_explains" 0 "^usage: shunt $cmd" "$shunt" help $cmd
	expect "${cmd}_unknown_option_is_usage_error" 2 'no option --frob' "$shunt" $cmd --frob
done
expect unknown_command_is_usage_error 2 'no command "frob"$' "$shunt" frob
expect unknown_command_has_the_nearest 2 'no command "bnech" \(maybe bench\?\)$' "$shunt" bnech
expect unknown_first_option_has_the_nearest 2 'no option --vresion \(maybe --version\?\)$' "$shunt" --vresion
expect unknown_option_has_the_nearest 2 'no option --hlep \(maybe --help\?\)$' "$shunt" bench --hlep
expect unknown_option_with_a_value_has_the_nearest 2 'no option --rnaks=2 \(maybe --ranks\?\)$' "$shunt" bench --rnaks=2
expect unknown_letter_has_no_nearest 2 'no option -\?$' "$shunt" bench '-?'
expect unknown_collective_has_the_nearest 2 '"allredcue" to measure \(maybe all_reduce\?\)' "$shunt" bench allredcue
expect unknown_collective_to_tune_has_the_nearest 2 '"all_gahter" .* tuned \(maybe all_gather\?\)' "$shunt" tune all_gahter
expect unknown_action_has_the_nearest 2 'no action "chekc" \(maybe check\?\)$' "$shunt" plan chekc
expect unknown_shape_has_the_nearest 2 'no shape "pipelnied" of all_reduce \(maybe pipelined\?\)$' "$shunt" plan new all_reduce pipelnied -n 2
expect version_says_how_it_was_built 0 '^shunt [0-9.]+ \(([0-9a-f]{7,}\+?, [0-9]{4}-[0-9]{2}-[0-9]{2}|unknown); [a-z]+ [0-9.]+, .*CUDA' "$shunt" --version
mkfifo "$dir/pipe"

# run
expect run_sets_preload 0 "^$mock\$" "$shunt" run -- sh -c 'echo "$LD_PRELOAD"'
expect run_passes_arguments 0 '^a b$' "$shunt" run sh -c 'echo "$1"' sh 'a b'
expect run_returns_status 7 '' "$shunt" run sh -c 'echo; exit 7'
expect run_sets_stats_and_device 0 '^1 sim$' "$shunt" run --stats --device sim sh -c 'echo "$SHUNT_STATS $SHUNT_DEVICE"'
expect run_on_the_sim_has_no_nccl 0 '^none$' "$shunt" run --device sim sh -c 'echo "$SHUNT_NCCL_LIB"'
expect run_on_the_sim_keeps_a_named_nccl 0 '^/x .$' env SHUNT_NCCL_LIB=/x "$shunt" run --device sim sh -c 'echo "$SHUNT_NCCL_LIB ."'
expect run_on_other_devices_says_nothing_of_nccl 0 '^=$' "$shunt" run --device sim --device cuda sh -c 'echo "$SHUNT_NCCL_LIB="'
expect run_print_names_the_nccl 0 "^export SHUNT_NCCL_LIB='none'\$" "$shunt" run --device sim --print
expect run_wrong_device_is_usage_error 2 '--device: there is no "gpu"; it takes auto, cuda, sim' "$shunt" run --device gpu true
expect run_print_takes_no_program 2 'it takes no "true"' "$shunt" run --print true
expect run_no_program_is_usage_error 2 'which program' "$shunt" run
expect run_missing_program_is_127 127 'cannot run /no-such-place' "$shunt" run /no-such-place
expect run_unusable_program_is_126 126 'cannot run' "$shunt" run "$dir"
expect run_missing_lib_is_error 1 'SHUNT_LIB is "/no-such-place"' env SHUNT_LIB=/no-such-place "$shunt" run true
mkdir "$dir/a b" && cp "$mock" "$dir/a b/libshunt.so"
expect run_lib_with_space_is_found 0 "^libshunt.so $(realpath "$dir")/a b:/x\$" env SHUNT_LIB="$dir/a b/libshunt.so" LD_LIBRARY_PATH=/x "$shunt" run sh -c 'echo "$LD_PRELOAD $LD_LIBRARY_PATH"'
expect run_lib_with_space_is_preloaded 0 "a b/libshunt.so" env SHUNT_LIB="$dir/a b/libshunt.so" "$shunt" run cat /proc/self/maps
mkdir "$dir/a:b" && cp "$mock" "$dir/a:b/libshunt.so" && cp "$mock" "$dir/a b/lib shunt.so"
expect run_lib_with_colon_is_error 1 'neither LD_PRELOAD nor LD_LIBRARY_PATH can hold' env SHUNT_LIB="$dir/a:b/libshunt.so" "$shunt" run true
expect run_lib_whose_name_has_a_space_is_error 1 'neither LD_PRELOAD nor LD_LIBRARY_PATH can hold' env SHUNT_LIB="$dir/a b/lib shunt.so" "$shunt" run true
mkdir -p "$dir/lib/shunt" && cp "$mock" "$dir/lib/libshunt.so" && ln -s ../libshunt.so "$dir/lib/shunt/libnccl.so"
expect run_puts_links_first 0 "/lib/shunt:/x\$" env SHUNT_LIB="$dir/lib/libshunt.so" LD_LIBRARY_PATH=/x "$shunt" run sh -c 'echo "$LD_LIBRARY_PATH"'

# path
mkdir -p "$dir/include/shunt" && : >"$dir/include/shunt/shunt.h"
expect path_lib 0 "^$(realpath "$dir")/lib/libshunt.so\$" env SHUNT_LIB="$dir/lib/libshunt.so" "$shunt" path lib
expect path_link 0 "^$(realpath "$dir")/lib/shunt\$" env SHUNT_LIB="$dir/lib/libshunt.so" "$shunt" path link
expect path_include 0 "^$(realpath "$dir")/include\$" env SHUNT_LIB="$dir/lib/libshunt.so" "$shunt" path include
mkdir -p "$dir/x/y/z/lib" && cp "$mock" "$dir/x/y/z/lib/libshunt.so"
expect path_that_is_not_there_is_error 1 "there are no headers beside $(realpath "$dir")/x/y/z/lib/libshunt.so" env SHUNT_LIB="$dir/x/y/z/lib/libshunt.so" "$shunt" path include
expect path_without_links_is_error 1 "there is no libnccl.so to link with beside" env SHUNT_LIB="$dir/a b/libshunt.so" "$shunt" path link
expect path_of_nothing_is_usage_error 2 'which path\? lib, link, include, cmake, pkgconfig, python' "$shunt" path
expect path_of_what_is_none_is_usage_error 2 'there is no path "bin"; it is one of lib, link, include, cmake, pkgconfig, python' "$shunt" path bin

# info
expect info_config_names_source 0 'SHUNT_TIMEOUT +5s.*\(from SHUNT_TIMEOUT; default 30m\)' env SHUNT_TIMEOUT=5s "$shunt" info -c
expect info_config_names_what_nccl_alone_reads 0 '^  NCCL_BUFFSIZE=7$' env NCCL_BUFFSIZE=7 "$shunt" info -c
expect info_config_has_not_what_is_unset 1 '^0$' sh -c '"$1" info -c | grep -c "read by NCCL only"; exit 1' sh "$shunt"
expect info_json_has_what_nccl_alone_reads 0 '"nccl_only": true' env NCCL_BUFFSIZE=7 "$shunt" info --json /dev/stdout
expect info_json_has_values_of_any_bytes 0 '"value": "/x\\u00ffy"' env SHUNT_DUMP_DIR="$(printf '/x\377y')" "$shunt" info --json /dev/stdout
expect info_algorithms_lists 0 '^  oneshot +allreduce' "$shunt" info -a
expect info_library_shows_version 0 'NCCL ABI +2\.28\.9' "$shunt" info -l
expect info_devices_shows_mock 0 '^  7 +mock device' "$shunt" info -d
expect info_json_has_variables 0 '"name": "SHUNT_TIMEOUT"' "$shunt" info --json /dev/stdout
expect json_through_a_link_keeps_the_link 0 '^link "where"' sh -c 'ln -s "$2/target" "$2/link"; "$1" info --json "$2/link" && [ -L "$2/link" ] && echo link $(sed -n 2p "$2/target")' \
	sh "$shunt" "$dir"
expect json_to_redirected_stdout_keeps_what_was_printed 0 '^"where" 1$' sh -c '"$1" bench -e 8 -r 1 -i 1 --json /dev/stdout >"$2/both" && [ -L /dev/stdout ] &&
	echo "$(sed -n "s/.*\("\"where\""\).*/\1/p" "$2/both")" $(grep -c "^# shunt mock" "$2/both")' sh "$shunt" "$dir"
expect info_json_unwritable_is_error 1 'cannot write /no-such-place/x' "$shunt" info --json /no-such-place/x
expect info_select_json_has_rows 0 '"path": "twoshot"' "$shunt" info select --ranks 4 --overlay --json /dev/stdout
expect info_select_sizes 0 '^ +8  oneshot  \(built-in, measured on H200\)  1 block$' "$shunt" info select --ranks 4 --overlay 8 64M
expect info_select_windows 0 '^ +16M  ce  \(built-in, for windows, measured on H200\)$' "$shunt" info select --ranks 4 --overlay --op allgather --windows 8 16M
for case in '3 8388604 8M' '4 8388604 8M' '5 1048572 1M' '6 524284 512K' '8 524284 512K'; do
	set -- $case
	expect "info_select_multicast_$1" 0 "^ +$3 \.\.\. +nccl: in windows NCCL is faster at this size  \(built-in, for NCCL with NVLink multicast, estimated\)\$" \
		"$shunt" info select --ranks "$1" --overlay --windows --nvls
	expect "info_select_multicast_below_$1" 0 "\.\.\. $2 +twoshot" "$shunt" info select --ranks "$1" --overlay --windows --nvls
	expect "info_select_multicast_plain_$1" 0 ' 16M +twoshot' "$shunt" info select --ranks "$1" --overlay --nvls
done
expect info_select_multicast_is_nothing_alone 0 'standalone, symmetric' "$shunt" info select --ranks 8 --standalone --windows --nvls
expect info_select_rule_for_nccl_wins 0 'WARN SHUNT_ALGO=allreduce:1M-:nccl wins over SHUNT_DETERMINISTIC' env SHUNT_DETERMINISTIC=1 SHUNT_ALGO=allreduce:1M-:nccl \
	sh -c "\"$shunt\" info select --ranks 4 --overlay 2>&1"
expect info_select_ranges 0 'nccl: ' "$shunt" info select --ranks 4 --overlay
expect info_select_forced 0 '^ +8  nccl: forced' env SHUNT_FORCE_NCCL=allreduce "$shunt" info select --ranks 4 --overlay 8
# What frameworks export so that NCCL's sums do not depend on the batch claims nothing, and limits nothing, where ours do not either.
for op in allreduce reducescatter allgather broadcast; do
	SHUNT_DETERMINISTIC=1 "$shunt" info select --ranks 4 --overlay --op $op >"$dir/plain" || failed=1
	env SHUNT_DETERMINISTIC=1 'NCCL_ALGO=ring,tree;allreduce:tree' NCCL_PROTO=Simple NCCL_MIN_NCHANNELS=1 NCCL_MAX_NCHANNELS=1 \
		NCCL_NTHREADS=1 NCCL_NVLS_ENABLE=0 "$shunt" info select --ranks 4 --overlay --op $op | diff "$dir/plain" - &&
		echo "ok: info_select_batch_invariant_$op" || { echo "not ok: info_select_batch_invariant_$op"; failed=1; }
done
expect info_select_unknown_collective 2 '--op: there is no "foo"; it takes allreduce, reduce, .*, send, recv$' "$shunt" info select --ranks 2 --op foo
expect info_select_names_with_underscores 0 '^alltoall of ' "$shunt" info select --ranks 2 --op all_to_all
expect info_select_rules_with_underscores 0 '^ +8  twoshot  \(SHUNT_ALGO\)  1 block$' env SHUNT_ALGO=all_reduce:0-:twoshot "$shunt" info select --ranks 2 --overlay 8
expect info_select_no_number_of_ranks 2 '--ranks: "x" is no number from 1 to ' "$shunt" info select --ranks x
expect info_select_p2p_off 0 '^ +8  oneshot  \(built-in, for shared memory' env NCCL_P2P_DISABLE=1 "$shunt" info select --ranks 4 --overlay 8
expect info_select_p2p_disable_is_1_alone 0 '^ +8  oneshot ' env NCCL_P2P_DISABLE=2 "$shunt" info select --ranks 4 --overlay 8
expect info_select_over_pcie 0 '^ +8K  oneshot  \(built-in, over PCIe, not measured' env SHUNT_LINKS='0-1:peer' "$shunt" info select --ranks 4 --overlay 8K
expect info_select_over_pcie_large 0 '^ +16K  nccl' env SHUNT_LINKS='*:peer' "$shunt" info select --ranks 4 --overlay 16K
expect info_select_mixed 0 '^ +8K  oneshot  \(built-in, for shared memory' env SHUNT_LINKS='0-1:peer;2-3:none' "$shunt" info select --ranks 4 --overlay 8K
expect info_select_islands 0 '^ +512K  islands  \(built-in, for islands, estimated' env SHUNT_LINKS='0/1-2/3:none' "$shunt" info select --ranks 4 --overlay 512K
expect info_select_islands_by_rank 0 '^ +512K  twoshot ' env SHUNT_LINKS='0/1-2/3:none' "$shunt" info select --ranks 4 --standalone 512K
expect info_select_launch_order_is_nccls 0 '^ +8  nccl: NCCL_LAUNCH_ORDER_IMPLICIT has NCCL put the launches of all communicators in order  \(the whole communicator\)$' \
	env NCCL_LAUNCH_ORDER_IMPLICIT=1 "$shunt" info select --ranks 4 --overlay 8
expect info_select_too_many_ranks 0 '^ +4 \.\.\. +nccl: more than 8 ranks' "$shunt" info select --ranks 9 --overlay
expect info_select_too_many_ranks_alone 0 '^ +8  none: more than 8 ranks' "$shunt" info select --ranks 9 --standalone 8
# Ranges between two powers of two, and others that differ in nothing but where they come from.
rule() {
	env SHUNT_ALGO=$1 "$shunt" info select --ranks 2 --overlay --op $2 | tr -s ' '
}
expect info_select_shows_narrow_rules 0 '^ 5000 \.\.\. 5996 twoshot \(SHUNT_ALGO\) [0-9]+ .*blocks?$' rule allreduce:5000-6000:twoshot allreduce
expect info_select_shows_where_from 0 '^ 5000 \.\.\. 5996 oneshot \(SHUNT_ALGO\) [0-9]+ .*blocks?$' rule allreduce:5000-6000:oneshot allreduce
expect info_select_goes_on_behind_a_rule 0 '^ 6000 \.\.\. 16M oneshot \(built-in, measured on H200\) [0-9]+ .*blocks?$' rule allreduce:5000-6000:oneshot allreduce
expect info_select_parts_are_multiples_of_16 0 '^ 5008 \.\.\. 5984 ll128 \(SHUNT_ALGO\) [0-9]+ .*blocks?$' rule allgather:5000-6000:ll128 allgather
"$shunt" plan new all_reduce twoshot-ll -n 2 --min 5000 --max 6000 --blocks 16 -o "$dir/plan.json"
planned() {
	env SHUNT_PLAN_DIR="$dir/plan.json" "$@" "$shunt" info select --ranks 2 --overlay | tr -s ' '
}
expect info_select_shows_plans 0 '^ 5000 \.\.\. 6000 all_reduce_twoshot-ll_2 \(plan, ' planned env
expect info_select_leaves_plans_out_that_are_too_large 0 '^ 4 \.\.\. 16M oneshot' planned env NCCL_MAX_CTAS=8
expect info_select_takes_names_of_types_that_bench_takes 0 '^allreduce of bfloat16, ' "$shunt" info select --ranks 2 --dtype bf16
expect info_select_says_what_a_size_is 2 'size: "1.5K" is no whole number such as 8, 64K or 1M' "$shunt" info select --ranks 2 8 1.5K
expect info_select_needs_ranks 2 'how many --ranks' "$shunt" info select
expect info_select_unknown_type 2 '--dtype: there is no "float17" \(maybe float16\?\); it takes int8, uint8, .*float32' "$shunt" info select --ranks 2 --dtype float17

# docs/variables.md: its tables are what the program has.
"$shunt" info -c --markdown >"$dir/table" || failed=1
sed -n '/^| variable | default | meaning |$/,$p' "$variables" >"$dir/page"
diff "$dir/page" "$dir/table" >"$dir/out"
verdict variables_table_matches "replace the tables in docs/variables.md by the output of: shunt info -c --markdown"

# bench
expect bench_bad_size_is_usage_error 2 '"8x" is no whole number' "$shunt" bench -b 8x
expect bench_size_order_is_usage_error 2 'first <= --last' "$shunt" bench -b 16 -e 8
expect bench_unknown_type_is_usage_error 2 '"float17"' "$shunt" bench -d float17
expect bench_option_without_value_is_usage_error 2 '--first needs a value' "$shunt" bench --first
expect bench_empty_list_is_usage_error 2 '--dtype: "," is an empty list' "$shunt" bench -d ,
expect bench_long_list_is_usage_error 2 '--dtype: .*... is too long for a list' "$shunt" bench -d "$(printf '%0300d' 0)"
expect bench_one_word_of_a_list_is_wrong 2 '--op: there is no "frob"; it takes sum, prod, max, min, avg' "$shunt" bench -o sum,frob
expect bench_five_libraries_are_usage_error 2 '--vs: at most 4 libraries' "$shunt" bench --vs a --vs b --vs c --vs d
expect bench_size_of_nothing_is_usage_error 2 '--first: 0 is less than 1' "$shunt" bench -b 0
expect tune_many_blocks_are_usage_error 2 '--blocks: 9 is one too many; there may be 8' "$shunt" tune --blocks 1,2,3,4,5,6,7,8,9
expect tune_empty_name_is_usage_error 2 '--output: "" names nothing' "$shunt" tune --output ''
expect plan_long_name_is_usage_error 2 '--name: "0{32}..." has not 1 to 255 letters' "$shunt" plan new all_reduce ring -n 2 --name "$(printf '%0300d' 0)"
expect report_more_limits_than_there_may_be 2 '--limit: there may be 16 limits' sh -c '"$1" bench report x -o y $(printf "%017d" 0 | sed "s/0/ --limit 1/g")' sh "$shunt"
# The text has each option of its table once, and no line that a terminal would break.
for cmd in run info 'info select' doctor 'doctor dumps' bench 'bench ep' 'bench p2p' 'bench report' conform torture 'plan check' 'plan show' 'plan run' 'plan new' 'plan build' tune; do
	"$shunt" $cmd --help >"$dir/help"
	! { sed -n 's/^ *\(-., \)*--\([a-z-]*\).*/\2/p' "$dir/help" | sort | uniq -d | grep . || grep '^  .\{120\}' "$dir/help" || ! grep -q '^  -h, --help ' "$dir/help"; } >"$dir/out"
	verdict "help of $cmd"
done
expect bench_unknown_collective_is_usage_error 2 'no collective "all_frob" to measure; there are all_reduce, ' "$shunt" bench all_frob
expect bench_of_sizes_without_parts_is_error 1 'nothing was measured: alltoall of 2 ranks begins at 32 bytes, ' "$shunt" bench alltoall -n 2 -e 16
expect bench_measures_a_size_once 0 '^1$' sh -c '"$1" bench -n 2 -b 1 -e 3 -r 1 -i 1 --mode eager --in-place | grep -c "float32 .* in "' sh "$shunt"
expect bench_of_a_reader_that_goes_is_silent 0 '^0$' sh -c '"$1" bench -e 64M -r 1 -i 1 2>"$2" | head -n 1 >/dev/null; grep -c "died of signal" "$2" || true' \
	sh "$shunt" "$dir/silent"
p2p="$shunt bench p2p --large 1027 -i 1 -r 1"
expect p2p_prints_matrices 0 '^    2 +[0-9.]+ +[0-9.]+ +-$' $p2p -n 3
expect p2p_compares_libraries 0 '^# shunt is better than libtools_mock.so, .* rate [0-9.]+, both' $p2p -n 2 --vs "$mock"
expect p2p_finds_wrong_data 1 '^# 1 words arrived wrong$' env MOCK_FAULT=last MOCK_FAULT_IN=recv $p2p -n 2
expect p2p_json_written 0 '"rate_GBps": \[' sh -c '$1 -n 2 --json "$2" >/dev/null && cat "$2"' sh "$p2p" "$dir/p2p.json"
expect p2p_needs_a_pair 2 '--ranks: 1 is not from 2' $p2p -n 1
expect bench_second_collective_is_usage_error 2 '"gather" is one argument too many' "$shunt" bench reduce gather
expect bench_ranks_say_how_many 2 '--ranks: 99 is not from 1 to ' "$shunt" bench -n 99
expect bench_names_without_underscores 0 'reduce_scatter' "$shunt" bench ReduceScatter -n 2 -e 64 -r 1 -i 1
expect bench_unknown_mode_is_usage_error 2 '--mode: there is no "foo"; it takes eager, graph, both' "$shunt" bench --mode foo
expect bench_too_many_ranks_is_error 1 '9 ranks need as many devices' "$shunt" bench -n 9
expect bench_lib_not_a_library_is_error 1 'invalid ELF|file too short|cannot open' "$shunt" bench -n 1 --lib "$variables"
expect bench_lib_nccl_on_sim_is_error 1 'needs GPUs' "$shunt" bench --vs nccl
small="-e 4K -f 8 -r 2 -i 2"
expect bench_lib_on_sim_is_the_commands 0 "on the sim only this command's $mock can be measured, and not $mock_old; SHUNT_LIB=$mock_old makes" \
	"$shunt" bench $small --vs "$mock_old"
expect bench_lib_on_sim_is_not_told_of_itself 1 '^0$' sh -c '"$@" 2>&1 | grep -c "on the sim only"' sh "$shunt" bench $small --vs "$mock"
expect bench_processes_right 0 '^# 0 wrong elements' "$shunt" bench $small
expect bench_threads_right 0 '^# 0 wrong elements' "$shunt" bench $small --threads -n 3
expect bench_int32_right 0 '^ +4K +1024 +int32 +sum graph in .* large +0$' "$shunt" bench -e 4K -f 512 -d int32 --buffers 3
expect bench_vs_prints_mean 0 'geometric mean of .* / shunt: [0-9]' "$shunt" bench $small --vs "$mock"
expect bench_stats_prints_counters 0 'allreduce +small +9 calls +72 bytes' "$shunt" bench -e 8 --stats -n 2 --mode eager --out-of-place -r 2 -i 3 -w 1
expect bench_json_written 0 '"time_us": [0-9]' sh -c '"$1" bench -e 8 --json "$2" >/dev/null && cat "$2"' sh "$shunt" "$dir/x.json"
expect bench_json_says_where 0 '"where": \{ "time": "20[0-9-]*T[0-9:]*Z", "host": ".+", "shunt": "mock", "commit": "abc1234", "build": "gcc 1", .*"cpus": [1-9][0-9]*, "devices": \[ ("mock device",? )+\]' \
	sh -c '"$1" bench -e 8 --json "$2" >/dev/null && tr "\n" " " <"$2" | tr -s " "' sh "$shunt" "$dir/x.json"
expect bench_table_says_where 0 "^# 20[0-9-]*T[0-9:]*Z, $(hostname), commit abc1234, .* CPUs\$" "$shunt" bench -e 8
expect bench_leaves_the_host_out 0 '^# 20[0-9-]*T[0-9:]*Z, commit abc1234.*null$' sh -c '"$1" bench -e 8 --no-host --json "$2" | sed -n 2p | tr "\n" " "; tr "\n" " " <"$2" | grep -o "\"host\": null" | sed "s/.*: //"' sh "$shunt" "$dir/x.json"
expect bench_json_unwritable_is_error 1 'cannot write /no-such-place/x' "$shunt" bench -e 8 --json /no-such-place/x
expect bench_json_unwritable_is_said_first 1 '^1$' sh -c '"$1" bench -e 8 --json /no-such-place/x 2>&1 | wc -l; exit 1' sh "$shunt"
echo mine >"$dir/x.json.tmp"
expect bench_json_leaves_others_alone 0 '^mine$' sh -c '"$1" bench -e 8 --json "$2" >/dev/null && cat "$2.tmp"' sh "$shunt" "$dir/x.json"
expect bench_json_has_the_usual_permissions 0 '^640 $' sh -c 'rm "$2"; umask 027; "$1" bench -e 8 --json "$2" >/dev/null && stat -c "%a " "$2"' sh "$shunt" "$dir/x.json"
expect bench_json_keeps_permissions 0 '^600 $' sh -c 'chmod 600 "$2"; "$1" bench -e 8 --json "$2" >/dev/null && stat -c "%a " "$2"' sh "$shunt" "$dir/x.json"
expect bench_json_leaves_nothing_beside 0 '^2$' sh -c 'ls "$1"/x.json* | wc -l' sh "$dir"
expect bench_json_into_a_pipe 0 '"time_us": [0-9]' sh -c 'cat "$2" & "$1" bench -e 8 --json "$2" >/dev/null; wait $!; test -p "$2"' sh "$shunt" "$dir/pipe"

fault="-b 512 -e 2K -r 2 --mode eager"
expect bench_wrong_element_found 1 'rank 1: .*1 wrong; element 128 is' env MOCK_FAULT=wrong "$shunt" bench $fault
expect bench_write_behind_found 1 'bytes behind the result were written' env MOCK_FAULT=beyond "$shunt" bench $fault
expect bench_write_to_input_found 1 'the input was written' env MOCK_FAULT=input "$shunt" bench $fault
expect bench_dead_rank_ends_run 139 'rank 1 died of signal 11' env MOCK_FAULT=die ASAN_OPTIONS=handle_segv=0 TSAN_OPTIONS=handle_segv=0 \
	"$shunt" bench $fault
expect bench_error_code_ends_run 1 'all_reduce of shunt failed: mock error: because it was told to' env MOCK_FAULT=fail_all "$shunt" bench $fault
MOCK_FAULT=hang "$shunt" bench $fault --timeout 10 --threads >"$dir/threads" 2>&1 &
threads=$!
expect bench_hang_ends_run 1 'rank 1: checking shunt, eager out of place, at 1024 bytes' env MOCK_FAULT=hang "$shunt" bench $fault --timeout 10
wait "$threads"
expect bench_hang_of_threads_ends_run 1 'nothing has moved for 10 s' sh -c 'cat "$1"; exit "$2"' sh "$dir/threads" $?

for coll in all_gather reduce_scatter broadcast reduce alltoall alltoallv gather scatter sendrecv; do
	expect bench_${coll}_right 0 '^# 0 wrong elements' "$shunt" bench $coll -n 3 -b 1K -e 16K -f 4 -r 1 -i 1 -w 0 -R 2 -d float32,int8
done
expect bench_uneven_sizes_sum_up 0 '^ +960 +40 +float32 +- eager out' "$shunt" bench alltoallv -n 3 -b 1000 -e 1000 -r 1 -i 1
expect bench_uneven_wrong_found 1 'rank 1: .*[1-9] wrong; element .* of rank .*arrived as' env MOCK_FAULT=last MOCK_FAULT_IN=recv \
	"$shunt" bench alltoallv -n 3 -b 24K -e 24K -r 1 -i 1 --mode eager
expect bench_rotate_right 0 '^# 0 wrong elements' "$shunt" bench $small --rotate 1 -g 2
expect bench_rotate_says_so 0 'rotate through 1 MB a side' "$shunt" bench $small --rotate 1
expect bench_rotate_wrong_found 1 'rank 1: .*1 wrong' env MOCK_FAULT=wrong "$shunt" bench $fault --rotate 1 -g 2
expect bench_rotate_with_buffers_is_usage_error 2 'says itself how many' "$shunt" bench --rotate 1 --buffers 3
# A rank's own waits are left out, but it waits for those of the others: with two ranks and a mock that is all waiting, about 20 ms.
expect bench_skew_is_seen 0 '^ +4K +1024 .* eager out \| +[1-9][0-9]{3,}' "$shunt" bench -b 4K -e 4K -n 2 -i 3 -r 3 --mode eager --skew 30000 --no-check
expect bench_skew_says_so 0 'waits up to 50 us before each call' "$shunt" bench $small --skew 50
expect bench_host_prints_cpu_time 0 ' us +p99 +cpu ' "$shunt" bench $small --host
expect bench_host_prints_own_calls 0 '^# shunt: own calls [0-9]+ ns' "$shunt" bench $small --host
expect bench_host_of_graphs_is_usage_error 2 'in a graph there are none' "$shunt" bench --host --mode graph
expect bench_forwarded_on_sim_is_error 1 'needs GPUs' "$shunt" bench --vs forwarded
expect bench_group_right 0 'groups of 5' "$shunt" bench $small -g 5 -n 3
expect bench_group_wrong_element_found 1 'rank 1: .*1 wrong' env MOCK_FAULT=wrong "$shunt" bench $fault -g 3
expect bench_sizes_are_as_in_nccl_tests 0 '^ +960 +80 +float32 +- eager out' "$shunt" bench all_gather -n 3 -b 1000 -e 1000 -r 1 -i 1
expect bench_alltoall_in_place_is_usage_error 2 'not defined in place' "$shunt" bench alltoall --in-place
expect bench_root_too_high_is_error 1 'none is root 2' "$shunt" bench broadcast -n 2 -R 2
expect bench_missing_collective_is_error 1 'broadcast of .* failed|has no ncclBroadcast' env MOCK_FAULT=none MOCK_FAULT_IN=broadcast \
	"$shunt" bench broadcast -n 2 -e 64
expect bench_gather_wrong_found 1 'rank 1: .*1 wrong' env MOCK_FAULT=last MOCK_FAULT_IN=gather "$shunt" bench gather -R 1 $fault
expect bench_scatter_write_in_front_found 1 'wrong elements' env MOCK_FAULT=beyond MOCK_FAULT_IN=scatter "$shunt" bench scatter $fault -e 4K

# Registered buffers, of one library or of all; what a library lacks is said, and it is measured without.
unregistered="measured with buffers of ncclMemAlloc that are not registered"
expect bench_register_right 0 '^# 0 wrong elements' "$shunt" bench $small --register -n 3
expect bench_register_of_all 0 '^# B = .*, buffers of ncclMemAlloc, registered$' "$shunt" bench $small --register --vs "$mock"
expect bench_register_of_one 0 '^# C = shunt:reg: .*, registered$' "$shunt" bench $small --vs "$mock" --vs shunt:reg
expect bench_register_of_one_leaves_others_plain 0 '^# A = shunt: .*, NCCL ABI [0-9]+$' "$shunt" bench $small --vs shunt:reg
expect bench_register_with_rotate_right 0 '^# 0 wrong elements' "$shunt" bench $small --register --rotate 1 -g 2
expect bench_register_buffers_right 0 '^# 0 wrong elements' "$shunt" bench all_gather $small --register --buffers 3 -n 3
expect bench_register_wrong_element_found 1 'rank 1: .*1 wrong' env MOCK_FAULT=wrong "$shunt" bench $fault --register
expect bench_register_without_window_is_said 0 "ncclCommWindowRegister gives no window: $unregistered" env MOCK_WINDOW=none "$shunt" bench $small --register
expect bench_register_without_window_is_measured 0 '^# A = shunt: .*, buffers of ncclMemAlloc$' env MOCK_WINDOW=none "$shunt" bench $small --register
expect bench_register_failure_on_one_rank_is_said 0 "rank 1: ncclCommWindowRegister says .*: $unregistered" env MOCK_WINDOW=fail "$shunt" bench $small --register
expect bench_register_of_old_library_is_said 0 'it has no ncclMemAlloc: measured with plain buffers' "$shunt" bench $small --vs "$mock_old:reg"
expect bench_register_json_says_so 0 '"buffers": "registered"' sh -c '"$1" bench -e 8 --register --json "$2" >/dev/null && cat "$2"' sh "$shunt" "$dir/x.json"

# Means: of each comparison, and against the best of the others.
expect bench_mean_is_by_way 0 '^# geometric mean of .* / shunt: [0-9.]+ \(eager out [0-9.]+, eager in [0-9.]+, graph out [0-9.]+, graph in [0-9.]+\)$' \
	"$shunt" bench $small --vs "$mock"
expect bench_mean_against_the_best 0 '^# geometric mean of the fastest of the others / shunt: ' "$shunt" bench $small --vs "$mock" --vs "$mock"
expect bench_mean_in_json 0 '"of": "best"' sh -c '"$1" bench -e 8 --vs "$3" --vs "$3" --json "$2" >/dev/null && cat "$2"' sh "$shunt" "$dir/x.json" "$mock"

# Communicators themselves, with short first calls.
init="--init -b 4K"
expect bench_init_prints_steps 0 '^  shunt +ncclCommInitRank +[0-9.]+ +[0-9.]+ ' "$shunt" bench $init -r 2 -n 3
expect bench_init_calls_once 0 '^  shunt +first alltoall of 4K +[0-9.]+ ' "$shunt" bench alltoall $init -r 1
expect bench_init_makes_more 0 '^  shunt +3 more by ncclCommSplit +[0-9.]+ ' "$shunt" bench $init -r 1 --comms 3
expect bench_init_calls_more 0 '^  shunt +first calls of these 3 +[0-9.]+ ' "$shunt" bench $init -r 1 --comms 3
expect bench_init_without_split_says_so 0 '2 more by ncclCommSplit +: it has no ncclCommSplit' "$shunt" bench $init -r 1 --comms 2 --lib "$mock_old"
expect bench_init_of_two_libraries 0 '^  libtools_mock.so     ncclCommInitRank ' "$shunt" bench $init -r 2 --vs "$mock"
expect bench_init_json_has_rounds 0 '"step": "first_calls_of_splits"' sh -c '"$1" bench --init -r 2 -n 2 --json "$2" >/dev/null && cat "$2"' sh "$shunt" "$dir/init.json"
expect bench_init_of_failing_call_ends_run 1 'all_reduce of shunt failed' env MOCK_FAULT=fail_all "$shunt" bench $init -r 1
expect bench_init_with_host_is_usage_error 2 'init does not go with' "$shunt" bench --init --host
expect bench_init_with_register_is_usage_error 2 'init does not go with' "$shunt" bench --init --vs shunt:reg

# Beside matrix multiplications, by a cuBLAS that multiplies nothing.
expect bench_gemm_on_sim_is_error 2 '^shunt bench: --gemm needs GPUs, and this is the sim$' "$shunt" bench --gemm
mkdir "$dir/cublas" "$dir/nocublas"
echo 'no library' >"$dir/nocublas/libcublas.so.13"
echo 'no library' >"$dir/nocublas/libcublas.so.12"
expect bench_gemm_without_cublas_is_error 2 'there is no libcublas.so.13' env MOCK_KIND=cuda LD_LIBRARY_PATH="$dir/nocublas" "$shunt" bench --gemm
cp "$mock_cublas" "$dir/cublas/libcublas.so.13"
gemm() {
	env MOCK_KIND=cuda LD_LIBRARY_PATH="$dir/cublas" "$shunt" bench -b 4K -e 4K -r 2 -i 2 -n 2 --gemm "$@"
}
expect bench_gemm_prints_rates 0 '^ +4K +1024 .* eager out .* [0-9]+\.[0-9]+ +[0-9]+\.[0-9]$' gemm
expect bench_gemm_compares_beside 0 '^# geometric mean beside multiplications of .* / shunt: [0-9]' gemm --vs "$mock"
expect bench_gemm_in_json 0 '"with_tflops": [0-9]' sh -c 'cat "$1"' sh "$(gemm --json "$dir/gemm.json" >/dev/null; echo "$dir/gemm.json")"
expect bench_gemm_with_host_is_usage_error 2 'gemm is about calls that run' "$shunt" bench --gemm --host

# Reports. A page refers to nothing outside of itself.
for coll in all_reduce alltoall; do
	"$shunt" bench $coll $small --vs "$mock" --json "$dir/$coll.json" >/dev/null 2>&1
done
expect report_does_not_write_over_what_it_reads 2 'is a file to read as well' "$shunt" bench report "$dir/all_reduce.json" -o "$dir/all_reduce.json"
expect report_unwritable_is_error 1 'cannot write /no-such-place/x' "$shunt" bench report "$dir/all_reduce.json" -o /no-such-place/x
expect report_missing_file_is_error 1 'report: /no-such-place/y: cannot be opened' "$shunt" bench report /no-such-place/y -o "$dir/y.html"
"$shunt" bench $small --host --json "$dir/host.json" >/dev/null 2>&1
report() {
	"$shunt" bench report "$@" -o "$dir/x.html" && cat "$dir/x.html"
}
alone() {
	report "$@" >/dev/null && ! grep -E '(src|href)=|@import|url\(|<script' "$dir/x.html" && echo alone
}
lacks() {
	text=$1
	shift
	report "$@" >"$dir/lacks" && ! grep -q "$text" "$dir/lacks" && echo lacking
}
expect report_says_where_under_the_title 0 '^<p class="where">20[0-9-]*T[0-9:]*Z, .* commit abc1234' report "$dir/all_reduce.json"
expect report_has_ratios_where_there_are_two 0 'aria-label="time over that of the first"' report "$dir/all_reduce.json"
expect report_of_one_has_no_ratios 0 '^lacking$' lacks 'time over that' "$dir/host.json"
expect report_has_colours_for_the_dark 0 'prefers-color-scheme:dark' report "$dir/all_reduce.json"
# The spread: a vertical line of each dot. A page with other p99 is another page.
expect report_draws_p99 0 '^drawn$' sh -c 'sed "s/\"p99_us\": [0-9.e+]*/\"p99_us\": 0/" "$1/host.json" >"$1/nospread.json" &&
	"$2" bench report "$1/host.json" -o "$1/x.html" && "$2" bench report "$1/nospread.json" -o "$1/y.html" &&
	[ $(($(grep -c "<line" "$1/x.html") - $(grep -c "<line" "$1/y.html"))) -ge 4 ] && echo drawn' sh "$dir" "$shunt"
expect report_has_eager_beside_graph 0 '^2$' sh -c '"$2" bench report "$1/all_reduce.json" -o "$1/x.html" && grep -c "^<div class=.pair.>" "$1/x.html"' sh "$dir" "$shunt"
expect report_of_two_days_names_them 0 '<title>shunt \(older.json, 2020-01-02\): ' sh -c 'sed "s/\"time\": \"[^\"]*/\"time\": \"2020-01-02T03:04:05Z/" "$1/all_reduce.json" >"$1/older.json" &&
	"$2" bench report "$1/older.json" "$1/all_reduce.json" -o "$1/x.html" && grep -q "different days" "$1/x.html" && cat "$1/x.html"' sh "$dir" "$shunt"
expect report_help_explains 0 '^usage: shunt bench report' "$shunt" bench report --help
expect report_has_chart_of_each 0 '<h2>alltoall float32, 4 ranks, graph, out of place' report "$dir/all_reduce.json" "$dir/alltoall.json"
expect report_says_where 0 'mock device.*, 20[0-9-]*T[0-9:]*Z, .* commit abc1234' report "$dir/all_reduce.json"
expect report_names_libraries 0 '<title>libtools_mock.so: [0-9.e+]+ at 4K</title>' report "$dir/all_reduce.json"
expect report_has_limit 0 'limit of the fabric' report "$dir/all_reduce.json" --limit 10
expect report_limit_of_another_collective_is_not_drawn 0 '^lacking$' lacks 'limit of the fabric' "$dir/all_reduce.json" --limit alltoall:10
expect report_of_two_files_tells_them_apart 0 'shunt \(again.json\)' sh -c 'cp "$1/all_reduce.json" "$1/again.json" && "$2" bench report "$1/all_reduce.json" "$1/again.json" -o "$1/y.html" && cat "$1/y.html"' sh "$dir" "$shunt"
sed 's/"bytes": 4096,/"bytes": 1073741824,/; s/"bytes": \([0-9]\{1,5\}\),/"bytes": \1000000,/' "$dir/all_reduce.json" >"$dir/large.json"
expect report_of_other_sizes_goes_on_with_the_line 0 '^lacking$' lacks '(large.json)' "$dir/all_reduce.json" "$dir/large.json"
expect report_of_other_sizes_has_all_in_one_mean 0 'geometric mean of 8 sizes: ' report "$dir/all_reduce.json" "$dir/large.json"
expect report_of_host_has_host_times 0 'host time of a call' report "$dir/host.json"
expect report_of_host_has_no_bandwidths 0 '^lacking$' lacks 'bus bandwidth' "$dir/host.json"
"$shunt" bench $small --vs "$mock" --vs "$mock" --json "$dir/three.json" >/dev/null 2>&1
expect report_has_means 0 'geometric mean of 4 sizes: <b>[0-9.]+</b>' report "$dir/three.json"
expect report_has_mean_against_the_best 0 'Time of the fastest of the others over that of shunt' report "$dir/three.json"
expect report_sums_up 0 '<td>all_reduce float32 sum, 4 ranks, graph, in place .*</td><td>shunt</td><td>.* [0-9.]+, .* [0-9.]+</td><td><b>' \
	report "$dir/three.json"
expect report_of_one_library_has_no_means 0 '^lacking$' lacks 'geometric mean' "$dir/gemm.json"
expect report_of_gemm_has_a_line_for_it 0 '<title>shunt beside a GEMM: ' report "$dir/gemm.json"
expect report_of_gemm_has_rates 0 '<td>GEMM at [0-9]+ of [0-9]+ TFLOP/s</td>' report "$dir/gemm.json"
expect report_of_init_has_steps 0 '<td>shunt</td><td>first_calls_of_splits</td><td>[0-9.]+</td>' report "$dir/init.json"
expect report_of_init_on_sim_has_no_memory 0 '<td>init</td><td>[0-9.]+</td><td>[0-9.]+</td><td></td><td></td>' report "$dir/init.json"
expect report_refers_to_nothing 0 '^alone$' alone "$dir/all_reduce.json" "$dir/host.json"
expect report_escapes 0 '&lt;b&gt; &amp; c' report "$dir/all_reduce.json" --title '<b> & c'
expect report_without_files_is_usage_error 2 'which files' "$shunt" bench report -o "$dir/x.html"
expect report_without_output_is_usage_error 2 'output is missing' "$shunt" bench report "$dir/host.json"
expect report_bad_limit_is_usage_error 2 '"all_frob:3" is not' "$shunt" bench report "$dir/host.json" -o "$dir/x.html" --limit all_frob:3
expect report_missing_file_is_error 1 'nosuch.json' "$shunt" bench report "$dir/nosuch.json" -o "$dir/x.html"
expect report_not_json_is_error 1 'page: line 1: no JSON' sh -c '"$2" bench report "$1/page" -o "$1/x.html"' sh "$dir" "$shunt"
expect report_of_directory_is_error 1 'not a regular file' "$shunt" bench report "$dir" -o "$dir/x.html"
echo '{"results": 3}' >"$dir/other.json"
expect report_of_something_else_is_error 1 'is not what shunt bench --json writes' "$shunt" bench report "$dir/other.json" -o "$dir/x.html"
echo '{"collective": "all_reduce", "results": []}' >"$dir/empty.json"
expect report_of_no_results_is_error 1 'nothing to show: no results in .*empty.json' "$shunt" bench report "$dir/empty.json" -o "$dir/x.html"
# The legend is between the title and the lines; a single point is in the middle.
expect report_legend_is_above_the_lines 0 '<text x="90.0" y="38.0" [^>]*>shunt</text>' report "$dir/three.json"
"$shunt" bench -n 2 -b 1K -e 1K -r 1 -i 1 --json "$dir/point.json" >/dev/null 2>&1
expect report_of_one_size_has_it_in_the_middle 0 '<circle cx="290.0"' report "$dir/point.json"
long=$(printf '%050d' 0)
cp "$dir/point.json" "$dir/$long-a.json"
cp "$dir/point.json" "$dir/$long-b.json"
expect report_tells_files_of_long_names_apart 0 'shunt \(0{40}\) #2' report "$dir/$long-a.json" "$dir/$long-b.json"
expect report_unwritable_is_error 1 'cannot write /no-such-place/x.html' "$shunt" bench report "$dir/host.json" -o /no-such-place/x.html
# Texts of any length are cut.
sed "s/\"sum\"/\"$(printf '%0600d' 0)\"/" "$dir/all_reduce.json" >"$dir/long.json"
expect report_cuts_long_texts 0 '<h2>all_reduce float32 0{200,240}</h2>' report "$dir/long.json"
"$shunt" bench -n 1 -b 1K -e 4K -r 1 -i 1 --json "$dir/one.json" >/dev/null 2>&1
expect report_of_one_rank_has_times 0 'time of a call' report "$dir/one.json" --limit 10
expect report_of_one_rank_has_no_bandwidths 0 '^lacking$' lacks 'bus bandwidth' "$dir/one.json"
expect report_of_one_rank_has_numbers_only 0 '^lacking$' lacks '="-*nan' "$dir/one.json"
expect report_draws_no_png 2 "there is no option --png" "$shunt" bench report "$dir/one.json" -o "$dir/x.html" --png "$dir"

# Ranks from outside: torchrun's variables, and mpirun's with a directory.
outside() {
	for r in 0 1 2; do
		env "$1=$r" "$2=3" "$3=$r" "$shunt" bench -e 64 --timeout 300 $4 >"$dir/rank$r" 2>&1 &
	done
	wait
	cat "$dir"/rank?
	grep -q '3 ranks as launched from outside' "$dir/rank0" && grep -q '^# 0 wrong' "$dir/rank0" && [ ! -s "$dir/rank1" ]
}
# A port below those that the kernel gives to others, and another one if somebody has it.
at_a_port() {
	for try in 1 2 3 4 5; do
		MASTER_PORT=$((20000 + $(od -A n -t u2 -N 2 /dev/urandom) % 12000))
		"$@" && return
		grep -q 'in use' "$dir"/rank? || return
	done
}
MASTER_ADDR=127.0.0.1 MASTER_PORT=
export MASTER_ADDR MASTER_PORT
expect bench_torchrun_right 0 '^# 0 wrong' at_a_port outside RANK WORLD_SIZE LOCAL_RANK ''
unset MASTER_ADDR MASTER_PORT
expect bench_unknown_host_is_said_at_once 1 'MASTER_ADDR is "no such host", which is no host that is known here' \
	env RANK=1 WORLD_SIZE=2 MASTER_ADDR='no such host' MASTER_PORT=5000 "$shunt" bench
mkdir "$dir/rendezvous"
expect bench_mpirun_right 0 '^# 0 wrong' outside OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK "--rendezvous $dir/rendezvous"
expect bench_missing_rank_is_error 1 'rendezvous of the ranks|did not come' env RANK=0 WORLD_SIZE=2 "$shunt" bench --rendezvous "$dir/rendezvous" --timeout 2
expect bench_bad_rank_is_error 1 'RANK="5", as torchrun sets it' env RANK=5 WORLD_SIZE=2 "$shunt" bench
exit $failed
