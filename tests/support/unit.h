/* SPDX-License-Identifier: MIT */
#pragma once
/* What the unit tests share: cmocka, ranks as threads and as processes, stderr as a string. */
#include "tests/support/test.h"
#include "tests/support/child.h"
#include "tests/support/child_exit.h"
#include "tests/support/stderr.h"

#define UNIT_MAX_RANKS 16
/*
 * For what does not wait for a time limit: less than the limits that the tests set, and more than a busy machine takes.
 */
#define AT_ONCE_MS 60000

/* A rank's body: returns an error, 0 or -errno. */
struct unit_rank {
	int (*body)(int rank, void *arg);
	void *arg;
	int rank, err;
};

static inline void *unit_thread(void *p)
{
	struct unit_rank *r = p;

	r->err = r->body(r->rank, r->arg);
	return NULL;
}

/* Runs n ranks as threads; errs[r] gets what each returned. */
static inline void unit_run_threads(int n, int (*body)(int rank, void *arg), void *arg, int *errs)
{
	struct unit_rank ranks[UNIT_MAX_RANKS];
	pthread_t threads[UNIT_MAX_RANKS];

	for (int r = 0; r < n; r++) {
		ranks[r] = (struct unit_rank){ body, arg, r, 0 };
		assert_int_equal(pthread_create(&threads[r], NULL, unit_thread, &ranks[r]), 0);
	}
	for (int r = 0; r < n; r++) {
		pthread_join(threads[r], NULL);
		errs[r] = ranks[r].err;
	}
}

/* The same as forked processes. A rank that was killed gives -1000 - signal. */
static inline void unit_run_processes(int n, int (*body)(int rank, void *arg), void *arg, int *errs)
{
	pid_t pids[UNIT_MAX_RANKS];

	fflush(NULL);
	for (int r = 0; r < n; r++) {
		pids[r] = child_fork();
		assert_true(pids[r] >= 0);
		if (pids[r] == 0)
			child_exit(-body(r, arg));
	}
	for (int r = 0; r < n; r++) {
		int status;

		assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
		errs[r] = WIFEXITED(status) ? -WEXITSTATUS(status) : -1000 - WTERMSIG(status);
	}
}

typedef void unit_run(int n, int (*body)(int rank, void *arg), void *arg, int *errs);

/* Memory that processes share, zero at first, for as long as the program runs. */
static inline void *unit_shared(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(at != MAP_FAILED);
	return at;
}

static inline int64_t unit_now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Everything that is written to stderr between begin and end. */
struct unit_capture {
	struct stderr_kept kept;
	char text[16384];
};

static inline void unit_capture_begin(struct unit_capture *c)
{
	assert_true(stderr_keep(&c->kept));
}

static inline const char *unit_capture_end(struct unit_capture *c)
{
	fflush(stderr);
	stderr_read(&c->kept, c->text, sizeof(c->text));
	stderr_give_back(&c->kept, 0);
	return c->text;
}

static inline void unit_write_file(const char *dir, const char *name, const char *text)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static inline int unit_count(const char *text, const char *what)
{
	int n = 0;

	for (; (text = strstr(text, what)); text += strlen(what))
		n++;
	return n;
}
