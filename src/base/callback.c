/* SPDX-License-Identifier: MIT */
#include "base/callback.h"
#include <errno.h>
#include <stddef.h>
#include <time.h>
#include "base/lock.h"

/* Longest wait for a thread that is in a function, which may not come back. */
#define END_SECONDS 10

static struct shunt_callback *all;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
static __thread struct shunt_callback_inside *inside;

/* The threads that were in a function at the fork are not in the child. */
static void drop_callers(void)
{
	for (struct shunt_callback *c = all; c; c = c->next)
		atomic_store(&c->callers, 0);
	for (struct shunt_callback_inside *i = inside; i; i = i->outer)
		atomic_fetch_add(&i->callback->callers, 1);
	pthread_cond_init(&left, NULL);
}
SHUNT_IN_FORKED_CHILD(drop_callers)

void shunt_callback_add(struct shunt_callback *c, void *function, void *arg)
{
	c->function = function;
	c->arg = arg;
	shunt_lock_acquire(SHUNT_LOCK_CALLBACKS);
	c->next = all;
	all = c;
	shunt_lock_release(SHUNT_LOCK_CALLBACKS);
}

void shunt_callback_remove(struct shunt_callback *c)
{
	struct shunt_callback **at = &all;

	shunt_lock_acquire(SHUNT_LOCK_CALLBACKS);
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	shunt_lock_release(SHUNT_LOCK_CALLBACKS);
}

bool shunt_callback_enter(struct shunt_callback *c, struct shunt_callback_inside *here)
{
	*here = (struct shunt_callback_inside){ inside, c };
	inside = here;
	atomic_fetch_add(&c->callers, 1);
	return !atomic_load(&c->ended);
}

void shunt_callback_leave(struct shunt_callback_inside *here)
{
	struct shunt_callback *c = here->callback;

	inside = here->outer;
	atomic_fetch_sub(&c->callers, 1);
	if (atomic_load(&c->ended)) {
		shunt_lock_acquire(SHUNT_LOCK_CALLBACKS);
		pthread_cond_broadcast(&left);
		shunt_lock_release(SHUNT_LOCK_CALLBACKS);
	}
}

/* True: another thread is in it. */
static bool has_callers(const struct shunt_callback *c)
{
	unsigned own = 0;

	for (const struct shunt_callback_inside *i = inside; i; i = i->outer)
		own += i->callback == c;
	return atomic_load(&c->callers) > own;
}

int shunt_callback_end(void *function, void *arg)
{
	struct timespec until;
	struct shunt_callback *c;
	int err = -ENOENT;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += END_SECONDS;
	shunt_lock_acquire(SHUNT_LOCK_CALLBACKS);
	for (c = all; c; c = c->next)
		if (c->function == function && c->arg == arg) {
			atomic_store(&c->ended, true);
			err = 0;
		}
	/* From the first one again after each wait, during which any of them may have been removed. */
	for (c = all; c && err != -ETIMEDOUT;) {
		if (c->function != function || c->arg != arg || !has_callers(c)) {
			c = c->next;
			continue;
		}
		if (pthread_cond_clockwait(&left, &shunt_lock_mutex[SHUNT_LOCK_CALLBACKS], CLOCK_MONOTONIC, &until))
			err = -ETIMEDOUT;
		c = all;
	}
	shunt_lock_release(SHUNT_LOCK_CALLBACKS);
	return err;
}
