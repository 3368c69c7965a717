/* SPDX-License-Identifier: MIT */
#pragma once
/* A random walk of calls through a group, for the test and for the fuzzer. */
#include "tests/support/choices.h"

/* What a walk has seen, to tell whether it went everywhere. */
struct call_seen {
	unsigned moved, refused, calls;
	unsigned events, states; /* bits: events that moved a call, states that calls had */
};

/* Makes up to max steps; ends the process where a step is not the table's. seen: NULL is allowed. */
void call_walk(struct choices *choices, unsigned max, struct call_seen *seen);
