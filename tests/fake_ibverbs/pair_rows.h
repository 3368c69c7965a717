/* SPDX-License-Identifier: MIT */
#pragma once
/* A test in a line: a body for both sides, and the options of its pair. */
#include "tests/support/test.h"
#include "pair.h"

#define ENV(...) \
	(const char *const[]) \
	{ \
		__VA_ARGS__, NULL \
	}
#define QUICK "FAKE_IBV_TIME_SCALE", "1000", "FAKE_IBV_TIMEOUT_MIN_MS", "10"
/* Losses with small time-outs on a busy machine must not use up the retries. */
#define PATIENT "FAKE_IBV_TIMEOUT_MIN_MS", "40"

/* Within a process and between two. */
static inline void pair_run_both(const struct pair_options *o, void (*body)(struct pair_side *s))
{
	pair_run(PAIR_THREADS, o, body);
	pair_run(PAIR_PROCESSES, o, body);
}

#define ROW(name, body, ...) \
	TEST(test_##name) \
	{ \
		pair_run_both(&(struct pair_options){ __VA_ARGS__ }, body); \
	}
#define PROCESSES(name, body, ...) \
	TEST(test_##name) \
	{ \
		pair_run(PAIR_PROCESSES, &(struct pair_options){ __VA_ARGS__ }, body); \
	}
