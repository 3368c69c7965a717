/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TESTS_LIB_LEAVE_H
#define SHUNT_TESTS_LIB_LEAVE_H
#include <stdlib.h>
#include <unistd.h>

/*
 * Ends a forked process without what its parent registered for its own end; but a build that counts lines writes its
 * counts there.
 */
static inline _Noreturn void leave(int status)
{
#ifdef TEST_COVERAGE
	exit(status);
#else
	_exit(status);
#endif
}
#endif
