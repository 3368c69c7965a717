/* SPDX-License-Identifier: MIT */
#include "tests/comm/comm_life_walk.h"

#include "comm/parts/comm_life.h"
#include "tests/support/unit.h"

enum { UNNAMED, WANTED, NEW, READY, UNTOLD, FORWARD, NONE };
enum event { EVENT_WANTED, EVENT_NAMED, EVENT_READY, EVENT_FORWARD, EVENT_FORWARD_TOLD, EVENT_TELL, EVENTS };

/* The state after each event; NONE: the event cannot come. */
static const int after[EVENTS][6] = {
	[EVENT_WANTED] = { WANTED, WANTED, NEW, READY, UNTOLD, FORWARD },
	[EVENT_NAMED] = { NEW, NEW, NONE, NONE, UNTOLD, FORWARD },
	[EVENT_READY] = { READY, READY, READY, NONE, NONE, NONE },
	[EVENT_FORWARD] = { UNTOLD, UNTOLD, UNTOLD, NONE, NONE, NONE },
	[EVENT_FORWARD_TOLD] = { FORWARD, FORWARD, FORWARD, NONE, NONE, NONE },
	[EVENT_TELL] = { UNNAMED, WANTED, NEW, READY, FORWARD, FORWARD },
};

static void step_state(struct shunt_comm_life *life, enum event event)
{
	int from = (int)shunt_comm_life_state(life), to = after[event][from];

	if (to == NONE)
		return;
	switch (event) {
	case EVENT_WANTED:
		assert_int_equal(shunt_comm_life_wanted(life), from == NEW);
		break;
	case EVENT_NAMED:
		assert_int_equal(shunt_comm_life_named(life), from == WANTED);
		break;
	case EVENT_READY:
		shunt_comm_life_ready(life);
		break;
	case EVENT_FORWARD:
		shunt_comm_life_forward(life, "early", false);
		break;
	case EVENT_FORWARD_TOLD:
		shunt_comm_life_forward(life, "late", true);
		break;
	default:
		assert_int_equal(shunt_comm_life_tell(life), from == UNTOLD);
	}
	assert_int_equal(shunt_comm_life_state(life), to);
	assert_int_equal(shunt_comm_life_forwards(life), to >= UNTOLD);
	assert_int_equal(shunt_comm_life_forwards(life), life->reason[0] != 0);
}

/* What the table of the health says. */
struct health {
	int err, lost;
};

static void step_health(struct shunt_comm_life *life, struct health *want, struct choices *choices)
{
	int err = -1 - (int)choices_below(choices, 100), rank = (int)choices_below(choices, 8);

	switch (choices_below(choices, 8)) {
	case 0:
		assert_int_equal(shunt_comm_life_failed(life, err), !want->err);
		if (!want->err)
			*want = (struct health){ .err = err, .lost = -1 };
		break;
	case 1:
	case 2:
	case 3:
		shunt_comm_life_lost(life, rank, 100 + rank);
		assert_int_equal(life->lost_pid, 100 + rank);
		want->lost = want->err ? -1 : rank;
		break;
	default:
		shunt_comm_life_found(life);
		want->lost = -1;
	}
	assert_int_equal(shunt_comm_life_error(life), want->err);
	assert_int_equal(shunt_comm_life_lost_rank(life), want->lost);
}

void comm_life_walk(struct choices *choices)
{
	struct shunt_comm_life life = { 0 };
	struct health want = { .lost = -1 };

	for (int step = 0; step < 40 && !choices_ended(choices); step++) {
		step_state(&life, choices_below(choices, EVENTS));
		step_health(&life, &want, choices);
	}
}
