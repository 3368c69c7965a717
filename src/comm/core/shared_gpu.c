/* SPDX-License-Identifier: MIT */
#include "comm/core/shared_gpu.h"
#include <string.h>
#include "comm/core/communicator.h"

bool shunt_shared_gpu_take(struct shunt_comm *comm)
{
	bool taken = false;

	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	for (const struct shunt_registration *r = shunt_registry_first(); r && !taken; r = r->next)
		taken = r->has_device && r->comm->device == comm->device &&
		    memcmp(&r->comm->id, &comm->id, sizeof(comm->id)) != 0;
	comm->registration.has_device = !taken;
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
	return !taken;
}

void shunt_shared_gpu_release(struct shunt_comm *comm)
{
	shunt_lock_acquire(SHUNT_LOCK_REGISTRY);
	comm->registration.has_device = false;
	shunt_lock_release(SHUNT_LOCK_REGISTRY);
}
