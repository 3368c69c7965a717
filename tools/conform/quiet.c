/* SPDX-License-Identifier: MIT */
/*
 * Keeps the warnings of calls that are wrong on purpose from the terminal, where a real one would be lost among them.
 * Standard error is the process's, so ranks that are threads share what is kept. They make the same calls, and all end
 * a case before one begins the next but one.
 */
#include "tools/common/libc.h"
#include "tools/conform/conform.h"

static struct {
	pthread_mutex_t lock;
	unsigned ranks; /* that are inside */
	bool show;
	int before; /* standard error */
	int kept;   /* the file in its place */
} quiet = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* A sanitizer's report may end the process. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KEEPS = false };
#else
enum { KEEPS = true };
#endif

void conform_quiet_begin(void)
{
	pthread_mutex_lock(&quiet.lock);
	if (!quiet.ranks++ && KEEPS) {
		quiet.show = false;
		quiet.kept = memfd_create("shunt-conform", MFD_CLOEXEC);
		quiet.before = quiet.kept < 0 ? -1 : fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
		if (quiet.before >= 0)
			dup2(quiet.kept, STDERR_FILENO);
		else if (quiet.kept >= 0)
			close(quiet.kept);
	}
	pthread_mutex_unlock(&quiet.lock);
}

/* Prints what was kept: all of it, or the lines that are no warnings. */
static void kept_print(int kept, bool all)
{
	off_t bytes = lseek(kept, 0, SEEK_END);
	char *text = bytes > 0 ? malloc((size_t)bytes + 1) : NULL, *save = NULL;

	if (text && pread(kept, text, (size_t)bytes, 0) == bytes) {
		text[bytes] = '\0';
		for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
			if (all || !strstr(line, " WARN "))
				fprintf(stderr, "%s\n", line);
	}
	free(text);
	close(kept);
}

void conform_quiet_end(bool show)
{
	int kept = -1;

	pthread_mutex_lock(&quiet.lock);
	quiet.show |= show;
	show = quiet.show;
	if (!--quiet.ranks && KEEPS && quiet.before >= 0) {
		dup2(quiet.before, STDERR_FILENO);
		close(quiet.before);
		kept = quiet.kept;
	}
	pthread_mutex_unlock(&quiet.lock);
	if (kept >= 0)
		kept_print(kept, show);
}
