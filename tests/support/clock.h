/* SPDX-License-Identifier: MIT */
#ifndef TESTS_LIB_CLOCK_H
#define TESTS_LIB_CLOCK_H
#include <time.h>

/* Seconds, from anywhere; never set back. */
static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
#endif
