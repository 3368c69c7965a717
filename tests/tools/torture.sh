#!/bin/sh
# SPDX-License-Identifier: MIT
# torture.sh SHUNT MOCK: shunt torture is content with a right library, and finds every kind of fault, again by its seed.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2")
. "$(dirname "$0")/expect.sh"

torture="$shunt torture --timeout 300 --seed 9" # it ends hangs, and judges nothing else
right='^[0-9]+ ops, [0-9]+ results and [0-9]+ elements checked, wrong values in 0, .* seed 9$'
expect torture_right_library_passes 0 "$right" $torture -n 3 --ops 1500
expect torture_threads_pass 0 "$right" $torture -n 4 --threads --ops 500
expect torture_one_rank_passes 0 "$right" $torture -n 1 --ops 300
expect torture_by_the_clock_passes 0 "$right" $torture -n 2 --minutes 0.02
expect torture_chooses_a_seed 0 ', seed [1-9][0-9]*$' "$shunt" torture -n 2 --ops 50
for coll in allreduce reduce broadcast allgather reducescatter alltoall gather scatter recv; do
	expect torture_${coll}_last_bit_found 1 'rank [01]: op [0-9]+ .*: at [0-9]+ of [0-9]+ elements: .*; again: shunt torture' env MOCK_FAULT=last MOCK_FAULT_IN=$coll $torture -n 2 --ops 1500
done
expect torture_wrong_value_found 1 'rank 1: op [0-9]+ \(all_reduce of .*element' env MOCK_FAULT=wrong $torture -n 3 --ops 1500
expect torture_write_behind_found 1 'a byte that is no result was written' env MOCK_FAULT=beyond $torture -n 2 --ops 1500
expect torture_write_in_front_found 1 'a byte that is no result was written: at -1 of' env MOCK_FAULT=before MOCK_FAULT_IN=broadcast $torture -n 2 --ops 1500
expect torture_write_to_input_found 1 'the input was written' env MOCK_FAULT=input $torture -n 2 --ops 1500
expect torture_error_is_told 1 'rank 1: that was in op [0-9]+ \(all_reduce' env MOCK_FAULT=fail $torture -n 2 --ops 1500
expect torture_broken_communicator_has_no_values 0 '^0$' env MOCK_FAULT=broken sh -c '$1 -n 2 --ops 1500 2>&1 | grep -c "elements: .*again:"; $1 -n 2 --ops 1500 2>&1 | grep -q "GetAsyncError.s answer"' sh "$torture"
expect torture_death_is_told 139 'rank 1 died of signal 11' env MOCK_FAULT=die ASAN_OPTIONS=handle_segv=0:detect_leaks=0 $torture -n 2 --ops 1500
expect torture_hang_ends_run 1 'rank 1: .*, in op [0-9]+ \(.*\) of --seed 9' env MOCK_FAULT=hang $torture -n 2 --ops 1500 --timeout 10
expect torture_leak_is_found 1 'after [4-9] lifecycles .* in use, where it was .* after the first 3: something of the communicators was not given back' env MOCK_FAULT=leak $torture -n 2 --ops 4000
expect torture_leak_is_found_beside_others 1 'descriptors are in use, where it was' env MOCK_FAULT=leak $torture -n 2 --ops 4000 --shared
expect torture_passes_beside_others 0 "$right" $torture -n 2 --ops 300 --shared
expect torture_large_results_are_sampled 0 "$right" $torture -n 2 --ops 60 --max 3M
expect torture_wrong_in_large_result_found 1 ': at [0-9]{6,} of [0-9]{6,} elements' env MOCK_FAULT=last MOCK_FAULT_IN=broadcast "$shunt" torture --timeout 300 --seed 5 -n 2 --ops 300 --max 3M

# What it says to run finds it again, in the same op.
MOCK_FAULT=last $torture -n 3 --threads --ops 1500 >/dev/null 2>"$dir/first"
again=$(sed -n 's/.*; again: shunt //p' "$dir/first" | head -n 1)
first=$(sed -n 's/.*\(rank 1: op .*\); again: .*/\1/p' "$dir/first" | head -n 1)
expect torture_is_repeated_by_its_seed 1 "^found$" env MOCK_FAULT=last sh -c '"$1" $2 2>&1 | grep -qF -e "$3" && echo found; exit 1' sh "$shunt" "$again" "$first"

counts='calls, [0-9]+ groups, [0-9]+ graphs, [0-9]+ communicators, 0 wrong$'
expect torture_ends_early_with_its_counts 143 "^\\[torture [0-9]:[0-9]+ of 10:00\\] [0-9]+ $counts" ended_early torture $torture -n 2 --minutes 10
expect torture_json_written 0 '"wrong": 0' sh -c '$1 -n 2 --ops 50 --json "$2" >/dev/null && cat "$2"' sh "$torture" "$dir/t.json"
expect torture_two_ends_refused 2 'give one of them' $torture --ops 5 --minutes 1
expect torture_bad_minutes_refused 2 '--minutes: "-1" is no number of minutes above 0' $torture --minutes=-1
expect torture_ep_goes_alone 2 '--ep goes with' $torture --ep --max 1M
expect torture_nine_ranks_refused 2 '--ranks: 9 is not from 1 to 8' $torture -n 9
exit $failed
