/* SPDX-License-Identifier: MIT */
#include "comm/deferred_free.h"
#include <pthread.h>
#include "comm/comm_priv.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shunt_comm *live, *deferred;

static bool live_on_device(int device)
{
	const struct shunt_comm *c = live;

	while (c && c->device != device)
		c = c->next;
	return c;
}

/* True: the communicator has device memory. That of a single rank has, too, but no kernels that could hang. */
static bool has_memory(const struct shunt_comm *comm)
{
	return comm->rank >= 0 && comm->rank < SHUNT_MAX_RANKS && comm->mem[comm->rank].ptr;
}

void shunt_deferred_free_enter(struct shunt_comm *comm)
{
	pthread_mutex_lock(&lock);
	comm->next = live;
	live = comm;
	pthread_mutex_unlock(&lock);
}

bool shunt_deferred_free_leave(struct shunt_comm *comm)
{
	struct shunt_comm **at;
	bool frees = true;

	pthread_mutex_lock(&lock);
	for (at = &live; *at && *at != comm; at = &(*at)->next)
		;
	if (*at)
		*at = comm->next;
	if (atomic_load(&comm->cancel) && has_memory(comm))
		frees = !live_on_device(comm->device);
	pthread_mutex_unlock(&lock);
	return frees;
}

void shunt_deferred_free_push(struct shunt_comm *comm)
{
	pthread_mutex_lock(&lock);
	comm->next = deferred;
	deferred = comm;
	pthread_mutex_unlock(&lock);
}

bool shunt_deferred_free_alone(const struct shunt_comm *comm)
{
	const struct shunt_comm *c;

	pthread_mutex_lock(&lock);
	for (c = live; c && (c == comm || c->device != comm->device); c = c->next)
		;
	pthread_mutex_unlock(&lock);
	return !c;
}

struct shunt_comm *shunt_deferred_free_pop(int device, bool waits)
{
	struct shunt_comm **at, *comm = NULL;

	pthread_mutex_lock(&lock);
	for (at = &deferred; *at && (*at)->device != device; at = &(*at)->next)
		;
	if (*at && (waits || !live_on_device(device))) {
		comm = *at;
		*at = comm->next;
	}
	pthread_mutex_unlock(&lock);
	return comm;
}
