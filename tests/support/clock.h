/* SPDX-License-Identifier: MIT */
#pragma once
#include <time.h>

/*
 * What does not wait for a time limit takes less, on a machine that is as busy as can be, too. Limits that would hide a
 * wait are longer.
 */
#ifdef __SANITIZE_THREAD__
enum { AT_ONCE_S = 100 };
#else
enum { AT_ONCE_S = 45 };
#endif

/* Seconds, from anywhere; never set back. */
static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
