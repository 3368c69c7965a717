/* SPDX-License-Identifier: MIT */
#pragma once
/* A random walk over the life of a handle, for the test and for the fuzzer. */
#include "tests/support/choices.h"

/* What a walk has seen, to tell whether it went everywhere. */
struct life_seen {
	unsigned moved, refused;
	unsigned events;       /* bits: events that came */
	unsigned long visited; /* how many different states of all parts together */
};

/* Makes up to max steps; ends the process where a step is not the tables'. seen: NULL is allowed. */
void life_walk(struct choices *choices, unsigned max, struct life_seen *seen);
