/* SPDX-License-Identifier: MIT */
#include "base/lock.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_FUNCTIONS 24

pthread_mutex_t shunt_lock_mutex[SHUNT_NLOCKS] = {
#define FREE(name, kind, what) [SHUNT_LOCK_##name] = PTHREAD_MUTEX_INITIALIZER,
	SHUNT_LOCKS(FREE)
#undef FREE
};
static void (*functions[MAX_FUNCTIONS])(void);
static size_t nfunctions;
static atomic_uint generation;

#if SHUNT_LOCK_CHECKS
enum kind { PROCESS, OPENING, OBJECT };

static const struct {
	const char *name, *what;
	enum kind kind;
} rows[SHUNT_NLOCKS] = {
#define ROW(name_, kind_, what_) [SHUNT_LOCK_##name_] = { #name_, what_, kind_ },
	SHUNT_LOCKS(ROW)
#undef ROW
};

/* The locks that this thread holds, in the order of taking. */
static _Thread_local struct {
	enum shunt_lock lock[SHUNT_NLOCKS];
	unsigned n;
} held;

/* Not through the log, which has a lock of its own. */
static _Noreturn void stop(const char *what, enum shunt_lock holds)
{
	char line[512];
	int n = snprintf(line, sizeof(line), "SHUNT lock order: this thread holds %s (%s) and %s; src/base/lock.h\n",
	    rows[holds].name, rows[holds].what, what);

	if (n > 0 && write(STDERR_FILENO, line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1) < 0)
		abort();
	abort();
}

void shunt_lock_check_take(enum shunt_lock lock, bool tries)
{
	char what[256];

	for (unsigned i = 0; i < held.n; i++)
		if (held.lock[i] == lock || (held.lock[i] > lock && !tries)) {
			snprintf(what, sizeof(what), "takes %s (%s), which is not later in the order", rows[lock].name,
			    rows[lock].what);
			stop(what, held.lock[i]);
		}
	held.lock[held.n++] = lock; /* there is room: no lock is in it twice */
}

void shunt_lock_check_release(enum shunt_lock lock)
{
	unsigned at = held.n;

	while (at && held.lock[at - 1] != lock)
		at--;
	if (!at) {
		held.n = 0;
		return;
	}
	for (held.n--; at <= held.n; at++)
		held.lock[at - 1] = held.lock[at];
}

void shunt_lock_check_blocking(const char *what, bool opens)
{
	for (unsigned i = 0; i < held.n; i++)
		if (rows[held.lock[i]].kind == PROCESS || (rows[held.lock[i]].kind == OPENING && !opens))
			stop(what, held.lock[i]);
}
#endif

/* A thread that forks in a handler of a signal may hold this lock itself, and must not wait for itself. */
static void let_descriptors_recur(void)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&shunt_lock_mutex[SHUNT_LOCK_DESCRIPTORS], &attr);
	pthread_mutexattr_destroy(&attr);
}

/* A descriptor that another thread makes now would be in the child without a note. Its holders wait for nothing. */
static void before_fork(void)
{
	pthread_mutex_lock(&shunt_lock_mutex[SHUNT_LOCK_DESCRIPTORS]);
}

static void parent_after_fork(void)
{
	pthread_mutex_unlock(&shunt_lock_mutex[SHUNT_LOCK_DESCRIPTORS]);
}

static void child_after_fork(void)
{
	/* For ThreadSanitizer, which takes it for locked; the C library takes the owner for another thread. */
	pthread_mutex_unlock(&shunt_lock_mutex[SHUNT_LOCK_DESCRIPTORS]);
	atomic_fetch_add(&generation, 1);
	for (size_t i = 0; i < SHUNT_NLOCKS; i++)
		pthread_mutex_init(&shunt_lock_mutex[i], NULL);
	let_descriptors_recur();
#if SHUNT_LOCK_CHECKS
	held.n = 0;
#endif
	for (size_t i = 0; i < nfunctions; i++)
		functions[i]();
}

/* As the library is loaded: no thread can fork in between. */
__attribute__((constructor)) static void watch_forks(void)
{
	let_descriptors_recur();
	pthread_atfork(before_fork, parent_after_fork, child_after_fork);
}

void shunt_in_forked_child(void (*fn)(void))
{
	if (nfunctions == MAX_FUNCTIONS)
		abort();
	functions[nfunctions++] = fn;
}

unsigned shunt_process_generation(void)
{
	return atomic_load_explicit(&generation, memory_order_relaxed);
}
