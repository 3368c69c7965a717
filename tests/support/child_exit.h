/* SPDX-License-Identifier: MIT */
#pragma once
#include <stdlib.h>
#include <unistd.h>

/*
 * Ends a forked process without what its parent registered for its own end; but a build that counts lines writes its
 * counts there.
 */
__attribute__((noreturn)) static inline void child_exit(int status)
{
#ifdef TEST_COVERAGE
	exit(status);
#else
	_exit(status);
#endif
}
