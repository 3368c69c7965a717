/* SPDX-License-Identifier: MIT */
/* Selectors, which communicators keep after the program has set another one. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include "base/lock.h"
#include "plan/plan_registry_priv.h"

/* Longest wait for a thread that is in a selector, which may not come back. */
#define END_SECONDS 10

static struct shunt_selector *all;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
/* The selector that this thread is in, and the one around it. */
static __thread struct inside {
	struct inside *outer;
	const struct shunt_selector *selector;
} *inside;

/* The threads that were in a selector at the fork are not in the child. */
static void drop_askers(void)
{
	for (struct shunt_selector *s = all; s; s = s->next)
		atomic_store(&s->askers, 0);
	for (struct inside *i = inside; i; i = i->outer)
		atomic_fetch_add(&((struct shunt_selector *)(uintptr_t)i->selector)->askers, 1);
	pthread_cond_init(&left, NULL);
}
SHUNT_IN_FORKED_CHILD(drop_askers)

struct shunt_selector *shunt_selector_create(shunt_plan_selector *function, void *arg)
{
	struct shunt_selector *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->function = function;
	s->arg = arg;
	s->refs = 1;
	s->next = all;
	all = s;
	return s;
}

struct shunt_selector *shunt_selector_ref(struct shunt_selector *s)
{
	if (s)
		s->refs++;
	return s;
}

void shunt_selector_unref(struct shunt_selector *s)
{
	struct shunt_selector **at = &all;

	if (!s || --s->refs)
		return;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	free(s);
}

bool shunt_selector_ask(struct shunt_selector *s, const struct shunt_plan_request *request, const char **answer_p)
{
	struct inside here = { inside, s };
	bool live;

	atomic_fetch_add(&s->askers, 1);
	live = !atomic_load(&s->ended);
	if (live) {
		inside = &here;
		*answer_p = s->function(s->arg, request);
		inside = here.outer;
	}
	atomic_fetch_sub(&s->askers, 1);
	if (atomic_load(&s->ended)) {
		shunt_lock_acquire(SHUNT_LOCK_PLANS);
		pthread_cond_broadcast(&left);
		shunt_lock_release(SHUNT_LOCK_PLANS);
	}
	return live;
}

/* Waits until no other thread is in the selector. With SHUNT_LOCK_PLANS. */
static int wait_for_askers(const struct shunt_selector *s, const struct timespec *until)
{
	unsigned own = 0;

	for (const struct inside *i = inside; i; i = i->outer)
		own += i->selector == s;
	while (atomic_load(&s->askers) > own)
		if (pthread_cond_clockwait(&left, &shunt_lock_mutex[SHUNT_LOCK_PLANS], CLOCK_MONOTONIC, until))
			return -ETIMEDOUT;
	return 0;
}

int shunt_selector_end(shunt_plan_selector *function, void *arg)
{
	struct timespec until;
	int err = -ENOENT;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += END_SECONDS;
	shunt_lock_acquire(SHUNT_LOCK_PLANS);
	for (struct shunt_selector *s = all, *next; s; s = next) {
		if (s->function == function && s->arg == arg) {
			int late;

			atomic_store(&s->ended, true);
			shunt_selector_ref(s);
			late = wait_for_askers(s, &until);
			err = late || err == -ETIMEDOUT ? -ETIMEDOUT : 0;
			next = s->next;
			shunt_selector_unref(s);
		} else {
			next = s->next;
		}
	}
	shunt_lock_release(SHUNT_LOCK_PLANS);
	return err;
}
