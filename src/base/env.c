/* SPDX-License-Identifier: MIT */
#include "base/env.h"
#include "base/lock.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define MAX_FILE 65536
#define MAX_VALUE 1024
#define MAX_VARS 64

/*
 * Value from a configuration file. Made on demand; kept for the life of the process because callers keep the pointer.
 */
struct file_var {
	char name[64];
	char *value;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char *texts[2];
static struct file_var vars[MAX_VARS];
static size_t nvars;

static char *read_text(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char *text;
	size_t got = 0;
	ssize_t n;

	if (fd < 0)
		return NULL;
	text = malloc(MAX_FILE);
	while (text && got < MAX_FILE - 1 &&
	    ((n = read(fd, text + got, MAX_FILE - 1 - got)) > 0 || (n < 0 && errno == EINTR)))
		got += n > 0 ? (size_t)n : 0;
	close(fd);
	if (text)
		text[got] = '\0';
	return text;
}

static char *read_in(const char *dir, const char *name)
{
	char path[PATH_MAX];
	int n = dir ? snprintf(path, sizeof(path), "%s/%s", dir, name) : -1;

	return n > 0 && (size_t)n < sizeof(path) ? read_text(path) : NULL;
}

static void read_files(void)
{
	const char *named = secure_getenv("NCCL_CONF_FILE");
	struct passwd pw, *found = NULL;
	char buf[1024];

	if (named && *named) {
		texts[0] = read_text(named);
	} else if (!getauxval(AT_SECURE)) { /* else the file would be that of whoever started the program */
		/* Newer versions of NCCL look in HOME, older ones (2.28) in the account's directory. */
		texts[0] = read_in(secure_getenv("HOME"), ".nccl.conf");
		if (!texts[0] && !getpwuid_r(getuid(), &pw, buf, sizeof(buf), &found) && found)
			texts[0] = read_in(pw.pw_dir, ".nccl.conf");
	}
	texts[1] = read_text("/etc/nccl.conf");
}

static const char *skip_space(const char *p, const char *end)
{
	while (p < end && isspace((unsigned char)*p))
		p++;
	return p;
}

static const char *trim_end(const char *start, const char *end)
{
	while (end > start && isspace((unsigned char)end[-1]))
		end--;
	return end;
}

bool shunt_env_find(const char *text, const char *name, char *value, size_t bytes)
{
	size_t want = strlen(name);

	while (*text) {
		const char *end = text + strcspn(text, "\n");
		const char *key = skip_space(text, end);
		const char *eq = memchr(key, '=', (size_t)(end - key));

		if (eq && *key != '#' && (size_t)(trim_end(key, eq) - key) == want && !memcmp(key, name, want)) {
			const char *from = skip_space(eq + 1, end);
			size_t n = (size_t)(trim_end(from, end) - from);

			if (n >= bytes)
				n = bytes - 1;
			memcpy(value, from, n);
			value[n] = '\0';
			return true;
		}
		text = *end ? end + 1 : end;
	}
	return false;
}

static const char *from_files(const char *name)
{
	const char *result = NULL;
	char value[MAX_VALUE];
	size_t i;

	pthread_once(&once, read_files);
	if (!texts[0] && !texts[1])
		return NULL;
	shunt_lock_acquire(SHUNT_LOCK_ENVIRONMENT);
	for (i = 0; i < nvars && !result; i++)
		if (!strcmp(vars[i].name, name))
			result = vars[i].value;
	for (i = 0; i < 2 && !result && nvars < MAX_VARS && strlen(name) < sizeof(vars[0].name); i++) {
		char *copy;

		if (!texts[i] || !shunt_env_find(texts[i], name, value, sizeof(value)))
			continue;
		copy = strdup(value);
		if (!copy)
			break;
		strcpy(vars[nvars].name, name);
		vars[nvars++].value = copy;
		result = copy;
	}
	shunt_lock_release(SHUNT_LOCK_ENVIRONMENT);
	return result;
}

const char *shunt_env(const char *name)
{
	const char *value = secure_getenv(name);

	if (!value && !strncmp(name, "NCCL_", 5))
		value = from_files(name);
	return value;
}

bool shunt_env_from_file(const char *name)
{
	return !secure_getenv(name) && shunt_env(name);
}
