/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TESTS_SUPPORT_CHILD_H
#define SHUNT_TESTS_SUPPORT_CHILD_H
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

/*
 * A fork whose child is killed when the thread that made it ends, however that comes: a test that is killed leaves
 * nobody behind. To be called again in a child that became another user: the kernel forgets it then. What the child
 * forks in its turn is on its own.
 */
static inline void child_end_with(pid_t parent)
{
	pid_t now;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	now = getppid();
	if (now != parent && now) /* 0: in a PID namespace that it opened */
		_exit(99);
}

static inline pid_t child_fork(void)
{
	pid_t parent = getpid(), child = fork();

	if (child == 0)
		child_end_with(parent);
	return child;
}
#endif
