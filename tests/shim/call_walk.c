/* SPDX-License-Identifier: MIT */
/*
 * The table of shim/calls/call_state.h once more, as data. Each step makes one event on a call and on the state here,
 * and compares them. Whatever comes, one library gets a call, once.
 */
#include <stdio.h>
#include <stdlib.h>
#include "shim/calls/call_state.h"
#include "tests/shim/call_walk.h"

enum event { RECORD, SETTLE, QUEUE, FORWARD, FORK, LAUNCH, JOIN, NEVENTS };

enum { NO = -1, NSTATES = SHUNT_CALL_LAUNCHED + 1 };

static int (*const events[NEVENTS])(enum shunt_call_state *state) = { shunt_call_record, shunt_call_settle,
	shunt_call_queue, shunt_call_forward, shunt_call_fork, shunt_call_launch, shunt_call_join };

#define U SHUNT_CALL_UNDECIDED
#define Q SHUNT_CALL_QUEUED
#define O SHUNT_CALL_OURS
#define F SHUNT_CALL_FORWARDED
#define L SHUNT_CALL_LAUNCHED
/* By event and state: NEW, UNDECIDED, QUEUED, OURS, FORKED, JOINING, FORWARDED, LAUNCHED. */
static const int table[NEVENTS][NSTATES] = {
	[RECORD] = { U, NO, NO, NO, NO, NO, NO, NO },
	[SETTLE] = { O, O, NO, NO, NO, NO, NO, NO },
	[QUEUE] = { Q, NO, NO, NO, NO, NO, NO, NO },
	[FORWARD] = { NO, F, F, F, NO, NO, NO, NO },
	[FORK] = { NO, NO, NO, SHUNT_CALL_FORKED, NO, NO, NO, NO },
	[LAUNCH] = { NO, NO, NO, L, SHUNT_CALL_JOINING, NO, NO, NO },
	[JOIN] = { NO, NO, NO, NO, O, L, NO, NO },
};

static void fail(enum event event, int before, int after)
{
	fprintf(stderr, "event %d: a call in state %d came to %d, the table says %d\n", (int)event, before, after,
	    table[event][before]);
	abort();
}

void call_walk(struct choices *choices, unsigned max, struct call_seen *seen)
{
	enum shunt_call_state state = SHUNT_CALL_NEW;
	struct call_seen none;
	unsigned got = 0; /* libraries that the call was given to */

	seen = seen ? seen : &none;
	*seen = (struct call_seen){ .states = 1u << SHUNT_CALL_NEW, .calls = 1 };
	for (unsigned i = 0; i < max && !choices_ended(choices); i++) {
		enum event event = (enum event)choices_below(choices, NEVENTS + 1);
		int before = (int)state, to, err;

		if (event == NEVENTS) { /* the next call */
			if (choices_below(choices, 4))
				continue;
			state = SHUNT_CALL_NEW;
			got = 0;
			seen->calls++;
			continue;
		}
		to = table[event][before];
		err = events[event](&state);
		if (err != (to == NO ? -EBUSY : 0) || (int)state != (to == NO ? before : to))
			fail(event, before, (int)state);
		got += !err && (event == FORWARD || event == LAUNCH);
		if (got > 1 || shunt_call_waits(state) != (before != SHUNT_CALL_NEW || !err ? !got : false))
			fail(event, before, (int)state);
		seen->moved += !err;
		seen->refused += err != 0;
		seen->events |= !err ? 1u << event : 0;
		seen->states |= 1u << state;
	}
}
