/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The only sleeps of tests, each with its reason; tools/lint.sh finds others. A test that acts in the middle of what
 * others do waits for that (tests/support/until.h), or holds a stream at a gate (device/sim/hooks.h).
 */
#include <errno.h>
#include <time.h>

enum pause_reason {
	PAUSE_POLL, /* between two looks of a loop that has an end */
	PAUSE_LATE, /* this thread or rank comes later than others; the test is right with any delay */
	PAUSE_GRACE /* longer than a time that the library grants: what must not happen would have by then */
};

static inline void pause_us(enum pause_reason reason, unsigned us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000L };

	(void)reason;
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}
