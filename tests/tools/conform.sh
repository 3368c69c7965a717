#!/bin/sh
# SPDX-License-Identifier: MIT
# conform.sh SHUNT MOCK MOCK_OLD: shunt conform is right about a right library, and finds every kind of fault.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2") mock_old=$(realpath "$3")
. "$(dirname "$0")/expect.sh"

conform="$shunt conform --timeout 300" # it ends hangs, and judges nothing else
right=' passed, 0 failed, 0 skipped$'
# The mock is no Shunt, and has no formats. All cases on several ranks are for our library, on the sim.
expect conform_right_library_passes 0 "^[1-9][0-9]{3} passed, 0 failed, 162 skipped$" $conform -n 1
expect conform_comms_of_three_pass 0 "^[1-9][0-9]*$right" $conform -n 3 --filter comm
expect conform_threads_pass 0 "$right" $conform -n 4 --threads --filter pattern.comms
for family in '3 pattern.' '4 types' '4 comm'; do
	expect "conform_one_thread_${family#* }_passes" 0 "^[1-9][0-9]*$right" $conform -n "${family% *}" --one-thread --filter "${family#* }"
done
expect conform_one_thread_says_so 0 'as one thread' $conform -n 2 --one-thread --filter n777
expect conform_huge_passes 0 "^15$right" $conform -n 3 --huge=700K --filter huge
expect conform_huge_only_when_asked_for 0 '^[1-9][0-9]*$' sh -c '"$1" conform -n 2 --list >"$2" && ! grep -q huge "$2" && wc -l <"$2"' sh "$shunt" "$dir/list"
expect conform_vs_same_passes 0 ' passed, 0 failed, 0 skipped$' $conform -n 2 --filter n777 --vs "$mock"
expect conform_other_order_fails_strictly 1 '^FAIL  types.reduce.float32.sum' env MOCK_FAULT=reverse MOCK_FAULT_IN=reduce $conform -n 3 --filter types.reduce.float32
expect conform_other_order_in_bounds_passes 0 ' passed, 0 failed' env MOCK_REAL=/x MOCK_FAULT=reverse MOCK_FAULT_IN=reduce $conform -n 3 --filter types.reduce
expect conform_rounded_hops_in_bounds_pass 0 ' passed, 0 failed' env MOCK_REAL=/x MOCK_FAULT=hops $conform -n 8 --threads --filter types.all_reduce
expect conform_wrong_exceeds_bounds 1 '^FAIL .*element 999 is' env MOCK_REAL=/x MOCK_FAULT=last MOCK_FAULT_IN=reducescatter \
	$conform -n 2 --case types.reduce_scatter.bfloat16.sum.n1000.out
for of in all_reduce reduce broadcast all_gather reduce_scatter alltoall gather scatter recv; do
	coll=$(echo $of | tr -d _)
	expect conform_${coll}_last_bit_found 1 '^FAIL ' env MOCK_FAULT=last MOCK_FAULT_IN=$coll $conform -n 2 --filter $(case $of in recv) echo pattern.ring ;; *) echo large.$of. ;; esac)
	expect conform_${coll}_missing_is_skipped 0 'skipped [1-9].* lacks' env MOCK_FAULT=none MOCK_FAULT_IN=$coll $conform -n 2 --filter n64
done
expect conform_huge_last_bit_found 1 '^FAIL  huge.all_gather.*element' env MOCK_FAULT=last MOCK_FAULT_IN=allgather $conform -n 2 --huge=700K --filter huge.all_gather
expect conform_huge_write_behind_found 1 '^FAIL  huge.broadcast.*behind the result' env MOCK_FAULT=beyond MOCK_FAULT_IN=broadcast $conform -n 2 --huge=700K --filter huge.broadcast
expect conform_one_thread_last_bit_found 1 '^FAIL .*again|^FAIL .*element 999 is' env MOCK_FAULT=last $conform -n 3 --one-thread --filter types.all_reduce
expect conform_one_thread_says_how_to_repeat 1 'again: shunt conform -n 3 --one-thread --device sim' env MOCK_FAULT=last $conform -n 3 --one-thread --filter types.all_reduce
expect conform_simulated_group_that_is_launched_found 1 '^FAIL  pattern.simulate.*only simulated, and its result was written' env MOCK_FAULT=launch $conform -n 2 --filter simulate
expect conform_ties_in_wrong_order_found 1 '^FAIL .*"ties" has rank' env MOCK_FAULT=ties $conform -n 3 --filter ties
expect conform_device_scalar_read_too_early_found 1 '^FAIL  scalar' env MOCK_FAULT=scalar $conform -n 2 --filter scalar_graph
expect conform_missing_config_is_skipped 0 'skipped [1-9].* lacks AllReduceConfig' env SHUNT_LIB="$mock_old" $conform -n 2 --filter all_reduce.float32
expect conform_missing_simulate_is_skipped 0 'skipped [1-9].* lacks ncclGroupSimulateEnd' env SHUNT_LIB="$mock_old" $conform -n 2 --filter n64
expect conform_missing_shrink_is_skipped 0 'skipped [1-9].* lacks CommShrink' env SHUNT_LIB="$mock_old" $conform -n 2 --filter comm
expect conform_missing_wrong_call_is_skipped 0 'skipped [1-9].* lacks ncclGroupSimulateEnd' env SHUNT_LIB="$mock_old" $conform -n 2 --filter invalid
# Of the bits that the same elements give: where it is known who makes them, other ones are a fault.
expect conform_determinism_passes 0 '^# results of the determinism cases, A: [0-9a-f]{16}$' $conform -n 3 --filter determinism.float32.sum
expect conform_bits_that_depend_on_size_found 1 '^FAIL  determinism.float32.sum.*other bits' env MOCK_REAL=/x MOCK_FAULT=size $conform -n 3 --filter determinism.float32.sum
expect conform_bits_of_another_library_are_a_remark 0 'remarks on [1-9]' env MOCK_REAL=/x MOCK_PATH=nccl MOCK_FAULT=size $conform -n 3 --filter determinism.float32.sum
hash_of() {
	"$@" | sed -n 's/^# results of the determinism cases, A: //p'
}
same=$(hash_of $conform -n 3 --filter determinism.float32.sum)
other=$(MOCK_REAL=/x MOCK_FAULT=reverse hash_of $conform -n 3 --filter determinism.float32.sum)
expect conform_determinism_hash_is_of_the_bits 0 "^differ$" sh -c '[ -n "$1" ] && [ "$1" != "$2" ] && echo differ' sh "$same" "$other"
expect conform_write_behind_found 1 '^FAIL .*no result was written' env MOCK_FAULT=beyond MOCK_FAULT_IN=broadcast $conform -n 3 --filter counts.broadcast
expect conform_write_in_front_found 1 '^FAIL .*at -1 from its result' env MOCK_FAULT=before MOCK_FAULT_IN=gather $conform -n 2 --filter roots.gather
expect conform_write_to_input_found 1 '^FAIL .*of the inputs was written' env MOCK_FAULT=input $conform -n 2 --filter types.all_reduce
for ranks in '-n 2' '-n 2 --threads'; do
	expect "conform_warnings_of_wrong_calls_are_kept_$ranks" 0 '^0$' sh -c '"$@" 2>&1 | grep -c "WARN there is no type"; exit 0' sh $conform $ranks --filter invalid
done
expect conform_other_lines_of_wrong_calls_are_shown 0 '^mock: a line that is no warning' $conform -n 2 --filter invalid
expect conform_warnings_of_wrong_answers_are_shown 1 '^mock WARN there is no type 99' env MOCK_FAULT=code $conform -n 2 --filter invalid
expect conform_unknown_type_taken_found 1 '^FAIL  invalid.all_reduce_bad_dtype.*returned 0' env MOCK_FAULT=code $conform -n 2 --filter invalid
expect conform_forgotten_group_error_found 1 '^FAIL  invalid.group_error' env MOCK_FAULT=group $conform -n 2 --filter invalid
expect conform_error_code_found 1 '^FAIL  .*returned 2' env MOCK_FAULT=fail MOCK_FAULT_IN=recv $conform -n 2 --case pattern.self.n50000
expect conform_failure_says_how_to_repeat 1 'again: shunt conform -n 2 --device sim --lib shunt --seed 9 --case types.all_reduce.int32.sum.n1000.out' \
	env MOCK_FAULT=last $conform -n 2 --seed 9 --case types.all_reduce.int32.sum.n1000.out
MOCK_FAULT=hang MOCK_FAULT_IN=broadcast $conform -n 2 --filter broadcast --timeout 10 >"$dir/hang" 2>&1 &
hang=$!
expect conform_error_of_one_rank_ends_run 1 'rank 1: .*types.all_reduce.int8.sum.n1000.out, .*returned 2' \
	env MOCK_FAULT=fail $conform -n 2 --case types.all_reduce.int8.sum.n1000.out --timeout 10
wait "$hang"
expect conform_hang_ends_run 1 'rank 1: checking shunt, in .*broadcast' sh -c 'cat "$1"; exit "$2"' sh "$dir/hang" $?
expect conform_strict_fails_for_skipped 1 ' 0 failed, [1-9]' env MOCK_FAULT=none MOCK_FAULT_IN=gather $conform -n 2 --strict --filter types.gather
expect conform_nothing_compared_is_error 1 'nothing was compared' $conform -n 2 --filter nosuchcase
cp "$mock" "$dir/other.so"
expect conform_vs_wrong_found 1 '^FAIL .*other.so: .*as shunt has it' env MOCK_FAULT=last MOCK_FAULT_IN=allgather MOCK_FAULT_FILE=other $conform -n 2 --vs "$dir/other.so" \
	--filter large.all_gather
expect conform_vs_code_found 1 '^FAIL  invalid.all_reduce_bad_dtype.*other.so' env MOCK_FAULT=code MOCK_FAULT_FILE=other $conform -n 2 --vs "$dir/other.so" \
	--filter bad_dtype
expect conform_ends_early_with_its_counts 143 '^\[conform [0-9]+ of [0-9]+\] [a-z0-9_./]+: [0-9]+ passed, [0-9]+ skipped, 0 failed$' ended_early conform "$shunt" conform -n 2 --full
expect conform_json_says_where 0 '"commit": "abc1234"' sh -c '"$1" conform -n 2 --filter n777 --json "$2" >/dev/null && cat "$2"' sh "$shunt" "$dir/c.json"
expect conform_json_written 0 '"status": "passed"' sh -c '"$1" conform -n 2 --filter n777 --json "$2" >/dev/null && cat "$2"' sh "$shunt" "$dir/c.json"
exit $failed
