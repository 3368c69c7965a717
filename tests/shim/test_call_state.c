/* SPDX-License-Identifier: MIT */
/* The way of a call through a group: a random walk against its table. */
#include "shim/calls/call_state.h"
#include "tests/shim/call_walk.h"
#include "tests/support/test.h"

TEST(test_call_goes_as_the_table_says)
{
	struct call_seen seen;
	struct choices choices = { .seed = 88172645463325252 };

	call_walk(&choices, 400000, &seen);
	assert_int_equal(seen.events, (1 << 7) - 1);
	assert_int_equal(seen.states, (1 << (SHUNT_CALL_LAUNCHED + 1)) - 1);
	assert_true(seen.moved > 1000);
	assert_true(seen.refused > 1000);
	assert_true(seen.calls > 1000);
}
