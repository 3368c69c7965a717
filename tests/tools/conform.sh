#!/bin/sh
# SPDX-License-Identifier: MIT
# conform.sh SHUNT MOCK: shunt conform is right about a right library, and finds every kind of fault.
set -u
shunt=$(realpath "$1") mock=$(realpath "$2")
. "$(dirname "$0")/expect.sh"

conform="$shunt conform --timeout 20"
expect conform_right_library_passes 0 '^[1-9][0-9]* passed, 0 failed, 0 skipped$' $conform -n 3
expect conform_threads_pass 0 ' passed, 0 failed, 0 skipped$' $conform -n 4 --threads --filter pattern.comms
expect conform_vs_same_passes 0 ' passed, 0 failed, 0 skipped$' $conform -n 2 --filter n777 --vs "$mock"
expect conform_other_order_fails_strictly 1 '^FAIL  types.reduce.float32.sum' env MOCK_FAULT=reverse MOCK_FAULT_IN=reduce $conform -n 3 --filter types
expect conform_other_order_in_bounds_passes 0 ' passed, 0 failed' env MOCK_REAL=/x MOCK_FAULT=reverse MOCK_FAULT_IN=reduce $conform -n 3 --filter reduce
expect conform_rounded_hops_in_bounds_pass 0 ' passed, 0 failed' env MOCK_REAL=/x MOCK_FAULT=hops $conform -n 8 --threads --filter types.all_reduce
expect conform_wrong_exceeds_bounds 1 '^FAIL .*element 999 is' env MOCK_REAL=/x MOCK_FAULT=last MOCK_FAULT_IN=reducescatter \
	$conform -n 2 --case types.reduce_scatter.bfloat16.sum.n1000.out
for coll in allreduce reduce broadcast allgather reducescatter alltoall gather scatter recv; do
	expect conform_${coll}_last_bit_found 1 '^FAIL ' env MOCK_FAULT=last MOCK_FAULT_IN=$coll $conform -n 2 --filter 0000
	expect conform_${coll}_missing_is_skipped 0 'skipped [1-9].* lacks' env MOCK_FAULT=none MOCK_FAULT_IN=$coll $conform -n 2 --filter n64
done
expect conform_write_behind_found 1 '^FAIL .*no result was written' env MOCK_FAULT=beyond MOCK_FAULT_IN=broadcast $conform -n 3 --filter counts.broadcast
expect conform_write_in_front_found 1 '^FAIL .*at -1 from its result' env MOCK_FAULT=before MOCK_FAULT_IN=gather $conform -n 2 --filter roots.gather
expect conform_write_to_input_found 1 '^FAIL .*of the inputs was written' env MOCK_FAULT=input $conform -n 2 --filter types.all_reduce
expect conform_unknown_type_taken_found 1 '^FAIL  wrong.all_reduce_bad_dtype.*returned 0' env MOCK_FAULT=code $conform -n 2 --filter wrong
expect conform_forgotten_group_error_found 1 '^FAIL  wrong.group_error' env MOCK_FAULT=group $conform -n 2 --filter wrong
expect conform_error_code_found 1 '^FAIL  .*returned 2' env MOCK_FAULT=fail MOCK_FAULT_IN=recv $conform -n 2 --case pattern.self.n50000
expect conform_failure_says_how_to_repeat 1 'again: shunt conform -n 2 --device sim --lib shunt --seed 9 --case types.all_reduce.int32.sum.n1000.out' \
	env MOCK_FAULT=last $conform -n 2 --seed 9 --case types.all_reduce.int32.sum.n1000.out
expect conform_error_of_one_rank_ends_run 1 'rank 1: .*types.all_reduce.int8.sum.n1000.out, .*returned 2' \
	env MOCK_FAULT=fail $conform -n 2 --case types.all_reduce.int8.sum.n1000.out --timeout 3
expect conform_hang_ends_run 1 'rank 1: checking shunt, in .*broadcast' env MOCK_FAULT=hang MOCK_FAULT_IN=broadcast $conform -n 2 --filter broadcast --timeout 3
expect conform_strict_fails_for_skipped 1 ' 0 failed, [1-9]' env MOCK_FAULT=none MOCK_FAULT_IN=gather $conform -n 2 --strict --filter types.gather
expect conform_nothing_compared_is_error 1 'nothing was compared' $conform -n 2 --filter nosuchcase
cp "$mock" "$dir/other.so"
expect conform_vs_wrong_found 1 '^FAIL .*other.so: .*as shunt has it' env MOCK_FAULT=last MOCK_FAULT_IN=allgather MOCK_FAULT_FILE=other $conform -n 2 --vs "$dir/other.so" \
	--filter large.all_gather
expect conform_vs_code_found 1 '^FAIL  wrong.all_reduce_bad_dtype.*other.so' env MOCK_FAULT=code MOCK_FAULT_FILE=other $conform -n 2 --vs "$dir/other.so" \
	--filter bad_dtype
expect conform_json_written 0 '"verdict": "passed"' sh -c '"$1" conform -n 2 --filter n777 --json "$2" >/dev/null && cat "$2"' sh "$shunt" "$dir/c.json"
exit $failed
