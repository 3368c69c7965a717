/* SPDX-License-Identifier: MIT */
#pragma once
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/support/child_exit.h"
#include "tests/support/entries.h"

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

/* Its status, as waitpid() gives it; -1: it is no child. */
static inline int child_wait(pid_t child)
{
	int status;

	return waitpid(child, &status, 0) == child ? status : -1;
}

/* The status of a child that ends with this expression's value; one that hangs is ended by its alarm. */
#define IN_CHILD(expression) \
	({ \
		pid_t in_child_ = child_fork(); \
\
		if (!in_child_) { \
			alarm(60); \
			child_exit(expression); \
		} \
		child_wait(in_child_); \
	})

/* What a forked child of this process has: open descriptors, or -1 if it maps the file `not_mapped`. */
static inline int child_holds(const char *not_mapped)
{
	pid_t child = child_fork();
	int n = 0, status;

	if (!child) {
		FILE *maps = fopen("/proc/self/maps", "re");
		char line[512];

		n = entries("/proc/self/fd");
		while (maps && fgets(line, sizeof(line), maps))
			n = strstr(line, not_mapped) ? 255 : n;
		_exit(n);
	}
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) == 255)
		return -1;
	return WEXITSTATUS(status);
}
