/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TESTS_SUPPORT_CHILD_H
#define SHUNT_TESTS_SUPPORT_CHILD_H
#include <signal.h>
#include <stdbool.h>
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

/*
 * A child that only waits, and ends with its parent. keeps: as a child of the bare system call, which runs no handlers,
 * it has copies of all that its parent has open.
 */
static inline pid_t child_sleeps(bool keeps)
{
	pid_t parent = getpid(), child = keeps ? _Fork() : fork();

	if (child == 0) {
		child_end_with(parent);
		for (;;)
			pause();
	}
	return child;
}

static inline pid_t child_fork(void)
{
	pid_t parent = getpid(), child = fork();

	if (child == 0)
		child_end_with(parent);
	return child;
}
#endif
