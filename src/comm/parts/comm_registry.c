/* SPDX-License-Identifier: MIT */
#include "comm/parts/comm_registry.h"
#include <time.h>

static struct shunt_registration *list; /* the newest first */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* A forked child has no communicators. */
static void drop_list(void)
{
	list = NULL;
	pthread_cond_init(&changed, NULL);
}
SHUNT_IN_FORKED_CHILD(drop_list)

struct shunt_registration *shunt_registry_first(void)
{
	return list;
}

bool shunt_registry_wait(const struct timespec *until)
{
	pthread_mutex_t *mutex = &shunt_lock_mutex[SHUNT_LOCK_REGISTRY];

	if (until)
		return !pthread_cond_clockwait(&changed, mutex, CLOCK_MONOTONIC, until);
	return !pthread_cond_wait(&changed, mutex);
}

void shunt_registry_changed(void)
{
	pthread_cond_broadcast(&changed);
}

void shunt_registry_wait_unseen(const struct shunt_registration *r)
{
	while (r->looks)
		shunt_registry_wait(NULL);
}

void shunt_registry_add(struct shunt_registration *r, struct shunt_comm *comm, struct shunt_recorder *recorder)
{
	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	*r = (struct shunt_registration){ .next = list, .comm = comm, .recorder = recorder };
	list = r;
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
}

void shunt_registry_hide(struct shunt_registration *r)
{
	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	r->recorder = NULL;
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
}

void shunt_registry_remove(struct shunt_registration *r)
{
	struct shunt_registration **at;

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	shunt_registry_wait_unseen(r);
	for (at = &list; *at && *at != r; at = &(*at)->next)
		;
	if (*at)
		*at = r->next;
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
}

struct shunt_registration *shunt_registry_next(
    struct shunt_registration *r, bool (*wanted)(const struct shunt_registration *r))
{
	struct shunt_registration *next;

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	next = r ? r->next : list; /* nobody removes r while this thread looks at it */
	if (r && !--r->looks)
		shunt_registry_changed();
	while (next && !wanted(next))
		next = next->next;
	if (next)
		next->looks++;
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	return next;
}
