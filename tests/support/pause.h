/* SPDX-License-Identifier: MIT */
#ifndef TESTS_SUPPORT_PAUSE_H
#define TESTS_SUPPORT_PAUSE_H
/*
 * The only sleeps of tests, each with its reason; tools/lint.sh finds others. A test waits for a condition or holds a
 * stream at a gate (device/sim/hooks.h) where it can.
 */
#include <errno.h>
#include <time.h>

enum pause_reason {
	PAUSE_POLL,   /* between two looks of a loop that has an end */
	PAUSE_LATE,   /* this thread or rank comes later than others; the test is right with any delay */
	PAUSE_MIDDLE, /* another one gets into the middle of what cannot be asked; the test says less without */
	PAUSE_GRACE   /* longer than a time that the library grants: what must not happen would have by then */
};

static inline void pause_us(enum pause_reason reason, unsigned us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000L };

	(void)reason;
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}
#endif
