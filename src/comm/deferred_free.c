/* SPDX-License-Identifier: MIT */
#include "comm/deferred_free.h"
#include "comm/comm_priv.h"
#include "base/lock.h"

static void drop_lists(void);
static struct shunt_lock lock = SHUNT_LOCK(drop_lists);
static struct shunt_comm *live, *deferred;

/* A forked child has none of what these stand for. */
static void drop_lists(void)
{
	live = deferred = NULL;
}

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
	shunt_lock_acquire(&lock);
	comm->next = live;
	live = comm;
	shunt_lock_release(&lock);
}

bool shunt_deferred_free_leave(struct shunt_comm *comm)
{
	struct shunt_comm **at;
	bool frees = true;

	shunt_lock_acquire(&lock);
	for (at = &live; *at && *at != comm; at = &(*at)->next)
		;
	if (*at)
		*at = comm->next;
	if (shunt_comm_life_aborted(&comm->life) && has_memory(comm))
		frees = !live_on_device(comm->device);
	shunt_lock_release(&lock);
	return frees;
}

void shunt_deferred_free_push(struct shunt_comm *comm)
{
	shunt_lock_acquire(&lock);
	comm->next = deferred;
	deferred = comm;
	shunt_lock_release(&lock);
}

bool shunt_deferred_free_alone(const struct shunt_comm *comm)
{
	const struct shunt_comm *c;

	shunt_lock_acquire(&lock);
	for (c = live; c && (c == comm || c->device != comm->device); c = c->next)
		;
	shunt_lock_release(&lock);
	return !c;
}

struct shunt_comm *shunt_deferred_free_pop(int device, bool waits)
{
	struct shunt_comm **at, *comm = NULL;

	shunt_lock_acquire(&lock);
	for (at = &deferred; *at && (*at)->device != device; at = &(*at)->next)
		;
	if (*at && (waits || !live_on_device(device))) {
		comm = *at;
		*at = comm->next;
	}
	shunt_lock_release(&lock);
	return comm;
}
