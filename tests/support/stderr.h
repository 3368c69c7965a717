/* SPDX-License-Identifier: MIT */
#pragma once
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What this process writes to stderr, kept in a file without a name until it is given back. */
struct stderr_kept {
	int before, file;
};

/* False: there are no descriptors. */
static inline bool stderr_keep(struct stderr_kept *k)
{
	fflush(stderr);
	k->before = dup(STDERR_FILENO);
	k->file = memfd_create("stderr", MFD_CLOEXEC);
	/* The kernel does not lock such a file's position for a write. */
	return k->before >= 0 && k->file >= 0 && !fcntl(k->file, F_SETFL, O_APPEND) &&
	    dup2(k->file, STDERR_FILENO) == STDERR_FILENO;
}

/* Its beginning, with an end. */
static inline void stderr_read(const struct stderr_kept *k, char *text, size_t bytes)
{
	ssize_t n = pread(k->file, text, bytes - 1, 0);

	text[n > 0 ? n : 0] = '\0';
}

/* How often it has a text. */
static inline int stderr_count(const struct stderr_kept *k, const char *with)
{
	static char all[1 << 16];
	int n = 0;

	stderr_read(k, all, sizeof(all));
	for (const char *at = all; (at = strstr(at, with)); at += strlen(with))
		n++;
	return n;
}

/* show: what was kept matters, as the test fails. Returns `show`. */
static inline int stderr_give_back(struct stderr_kept *k, int show)
{
	char text[16384];

	fflush(stderr);
	dup2(k->before, STDERR_FILENO);
	close(k->before);
	stderr_read(k, text, sizeof(text));
	close(k->file);
	if (show)
		fputs(text, stderr);
	return show;
}
