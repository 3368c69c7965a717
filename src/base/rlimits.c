/* SPDX-License-Identifier: MIT */
#include "base/rlimits.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include "base/lock.h"
#include "base/log.h"

/* Containers have hard limits of 2^30, and programs that close all possible numbers before an exec then take minutes.
 */
enum { ENOUGH_FILES = 1 << 20 };

static atomic_bool raised;

static void raise_again(void)
{
	atomic_store(&raised, false);
}
SHUNT_IN_FORKED_CHILD(raise_again)

void shunt_limits_raise_files(void)
{
	struct rlimit limit;
	rlim_t before;

	if (atomic_exchange(&raised, true) || getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == limit.rlim_max)
		return;
	before = limit.rlim_cur;
	limit.rlim_cur = limit.rlim_max < ENOUGH_FILES ? limit.rlim_max : ENOUGH_FILES;
	if (limit.rlim_cur > before && !setrlimit(RLIMIT_NOFILE, &limit))
		shunt_info(SHUNT_LOG_INIT, "the limit on descriptors (RLIMIT_NOFILE) is raised from %llu to %llu",
		    (unsigned long long)before, (unsigned long long)limit.rlim_cur);
}

/* A limit's value in words; RLIM_INFINITY has none. */
static const char *value_of(int resource, char text[32])
{
	struct rlimit limit;

	if (getrlimit((__rlimit_resource_t)resource, &limit) || limit.rlim_cur == RLIM_INFINITY)
		return "unlimited";
	snprintf(text, 32, "%llu", (unsigned long long)limit.rlim_cur);
	return text;
}

/* The first line of a file of /proc or /sys. */
static const char *line_of(const char *path, char text[32])
{
	FILE *file = fopen(path, "re");

	if (!file || !fgets(text, 32, file))
		snprintf(text, 32, "?");
	if (file)
		fclose(file);
	text[strcspn(text, "\n")] = '\0';
	return text;
}

struct shunt_error_text shunt_error_text(int err)
{
	struct shunt_error_text text;
	char value[32];

	/* Short: another rank may say it, with more in front of it. */
	if (err == -EMFILE)
		snprintf(text.s, sizeof(text.s), "Too many open files: raise ulimit -n, %s (RLIMIT_NOFILE)",
		    value_of(RLIMIT_NOFILE, value));
	else if (err == -ENFILE)
		snprintf(text.s, sizeof(text.s), "Too many open files in the system: raise sysctl fs.file-max, %s",
		    line_of("/proc/sys/fs/file-max", value));
	else if (err == -ENOMEM && strcmp(value_of(RLIMIT_AS, value), "unlimited") != 0)
		snprintf(
		    text.s, sizeof(text.s), "Cannot allocate memory: raise ulimit -v, %s bytes (RLIMIT_AS)", value);
	else
		snprintf(text.s, sizeof(text.s), "%s", strerror(-err));
	return text;
}

struct shunt_error_text shunt_thread_error_text(int err)
{
	struct shunt_error_text text;
	char user[32], system[32];

	if (err != -EAGAIN)
		return shunt_error_text(err);
	snprintf(text.s, sizeof(text.s),
	    "no more threads: raise ulimit -u, %s (RLIMIT_NPROC), sysctl kernel.threads-max, %s, or the control "
	    "group's "
	    "pids.max",
	    value_of(RLIMIT_NPROC, user), line_of("/proc/sys/kernel/threads-max", system));
	return text;
}
