/* SPDX-License-Identifier: MIT */
#include "core/retire.h"
#include <pthread.h>
#include "core/comm_priv.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shunt_comm *living, *retired;

static bool lives_on(int device)
{
	const struct shunt_comm *c = living;

	while (c && c->device != device)
		c = c->next;
	return c;
}

/*
 * Does the device keep something for it? A communicator of one rank has memory as well, but no kernels that could hang.
 */
static bool has_memory(const struct shunt_comm *comm)
{
	return comm->rank >= 0 && comm->rank < SHUNT_MAX_RANKS && comm->mem[comm->rank].ptr;
}

void shunt_retire_later(struct shunt_comm *comm)
{
	pthread_mutex_lock(&lock);
	comm->next = living;
	living = comm;
	pthread_mutex_unlock(&lock);
}

bool shunt_retire(struct shunt_comm *comm)
{
	struct shunt_comm **at;
	bool frees = true;

	pthread_mutex_lock(&lock);
	for (at = &living; *at && *at != comm; at = &(*at)->next)
		;
	if (*at)
		*at = comm->next;
	if (atomic_load(&comm->cancel) && has_memory(comm))
		frees = !lives_on(comm->device);
	pthread_mutex_unlock(&lock);
	return frees;
}

void shunt_retire_leave(struct shunt_comm *comm)
{
	pthread_mutex_lock(&lock);
	comm->next = retired;
	retired = comm;
	pthread_mutex_unlock(&lock);
}

bool shunt_retire_alone(const struct shunt_comm *comm)
{
	const struct shunt_comm *c;

	pthread_mutex_lock(&lock);
	for (c = living; c && (c == comm || c->device != comm->device); c = c->next)
		;
	pthread_mutex_unlock(&lock);
	return !c;
}

struct shunt_comm *shunt_retired(int device, bool waits)
{
	struct shunt_comm **at, *comm = NULL;

	pthread_mutex_lock(&lock);
	for (at = &retired; *at && (*at)->device != device; at = &(*at)->next)
		;
	if (*at && (waits || !lives_on(device))) {
		comm = *at;
		*at = comm->next;
	}
	pthread_mutex_unlock(&lock);
	return comm;
}
