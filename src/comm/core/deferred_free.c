/* SPDX-License-Identifier: MIT */
#include "comm/core/deferred_free.h"
#include "comm/core/communicator.h"

/* With the registry's lock held. True: a communicator other than this one has kernels on the device. */
static bool used_by_others(int device, const struct shunt_comm *comm)
{
	const struct shunt_registration *r = shunt_registry_first();

	while (r && (!r->on_device || r->comm == comm || r->comm->device != device))
		r = r->next;
	return r;
}

/* True: the communicator has device memory. That of a single rank has, too, but no kernels that could hang. */
static bool has_memory(const struct shunt_comm *comm)
{
	return comm->rank >= 0 && shunt_comm_local_rank(comm) < SHUNT_MAX_RANKS &&
	    comm->mem[shunt_comm_local_rank(comm)].ptr;
}

void shunt_deferred_free_enter(struct shunt_comm *comm)
{
	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	comm->registration.on_device = true;
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
}

bool shunt_deferred_free_leave(struct shunt_comm *comm)
{
	bool frees = true;

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	comm->registration.on_device = false;
	if (shunt_comm_life_aborted(&comm->life) && has_memory(comm))
		frees = !used_by_others(comm->device, comm);
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	return frees;
}

void shunt_deferred_free_push(struct shunt_comm *comm)
{
	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	comm->registration.deferred = true;
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
}

bool shunt_deferred_free_alone(const struct shunt_comm *comm)
{
	bool alone;

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	alone = !used_by_others(comm->device, comm);
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	return alone;
}

struct shunt_comm *shunt_deferred_free_pop(int device, bool waits)
{
	struct shunt_registration *r;

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	for (r = shunt_registry_first(); r && (!r->deferred || r->comm->device != device); r = r->next)
		;
	if (r && !waits && used_by_others(device, NULL))
		r = NULL;
	if (r)
		r->deferred = false;
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	return r ? r->comm : NULL;
}
