/* SPDX-License-Identifier: MIT */
#pragma once
/* The test's program as one that another user has made setuid; for root. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SETUID_UNKNOWN 77 /* exit status of such a program where the file system knows none */

/*
 * The exit status of a copy of this program in the directory, which everybody can open, with these variables, as for a
 * shell, and these arguments; negative: it did not end, or there is no copy.
 */
static inline int setuid_run(const char *dir, const char *variables, const char *arguments)
{
	char command[4 * PATH_MAX + 512], self[PATH_MAX] = "";
	int status;

	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) /* another process sees an emulator there */
		return -1;
	snprintf(command, sizeof(command),
	    "chmod 755 %s && cp %s %s/program && chown 65534 %s/program && chmod 4755 %s/program && %s %s/program %s",
	    dir, self, dir, dir, dir, variables, dir, arguments);
	status = system(command);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
