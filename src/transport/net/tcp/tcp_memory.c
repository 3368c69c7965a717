/* SPDX-License-Identifier: MIT */
/* Registered memory: peers name it by its slot. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/os.h"
#include "transport/net/tcp/tcp_priv.h"

#define MAX_SLOTS 65536u

static int new_slot(struct tcp_device *device, uint32_t *slot_p)
{
	uint32_t i = 0, more;
	struct tcp_slot *slots, *old = device->slot;

	while (i < device->nslots && device->slot[i].memory)
		i++;
	if (i == device->nslots) {
		more = device->nslots ? 2 * device->nslots : 16;
		if (more > MAX_SLOTS)
			return -ENOSPC;
		slots = calloc(more, sizeof(*slots));
		if (!slots)
			return -ENOMEM;
		if (old)
			memcpy(slots, old, device->nslots * sizeof(*slots));
		/* Begins at random: a name of another device's or process's memory shall not fit. */
		for (uint32_t j = device->nslots; j < more; j++)
			if (shunt_random(&slots[j].turn, sizeof(slots[j].turn))) {
				free(slots);
				return -EIO;
			}
		shunt_mutex_lock(&device->lock);
		device->slot = slots;
		device->nslots = more;
		shunt_mutex_unlock(&device->lock);
		free(old);
	}
	*slot_p = i;
	return 0;
}

int shunt_tcp_mem_register(
    struct shunt_net_device *net_device, const struct shunt_net_region *region, struct shunt_net_memory **memory_p)
{
	struct tcp_device *device = tcp_device_of(net_device);
	struct tcp_memory *memory;
	uint32_t slot = 0;
	int err;

	if (region->flags & SHUNT_NET_MEMORY_GPU)
		return -EOPNOTSUPP;
	memory = calloc(1, sizeof(*memory));
	err = memory ? new_slot(device, &slot) : -ENOMEM;
	if (err) {
		shunt_error(
		    "memory for the network cannot be registered: %s (%u regions are)", strerror(-err), device->nslots);
		free(memory);
		return err;
	}
	memory->device = device;
	memory->base = (struct shunt_net_memory){ region->start, region->bytes };
	memory->id = (uint32_t)++device->slot[slot].turn << 16 | slot;
	shunt_mutex_lock(&device->lock);
	device->slot[slot].memory = memory;
	shunt_mutex_unlock(&device->lock);
	*memory_p = &memory->base;
	return 0;
}

void shunt_tcp_mem_deregister(struct shunt_net_memory *net_memory)
{
	struct tcp_memory *memory = tcp_memory_of(net_memory);
	struct tcp_device *device;

	if (!memory)
		return;
	device = memory->device;
	shunt_mutex_lock(&device->lock);
	device->slot[memory->id & 0xffff].memory = NULL;
	shunt_mutex_unlock(&device->lock);
	/* A peer may be in the middle of a put that it should not have posted. */
	for (struct tcp_endpoint *ep = device->endpoints; ep; ep = ep->next)
		for (uint32_t i = 0; i < ep->nsockets && ep->state == TCP_CONNECTED; i++) {
			bool used;

			shunt_tcp_load_lock(&ep->socket[i].load);
			used = ep->socket[i].memory == memory;
			shunt_tcp_load_unlock(&ep->socket[i].load);
			if (used)
				shunt_tcp_fail(ep, -EPROTO, "it puts into memory that is not registered any more");
		}
	free(memory);
}

struct shunt_net_remote shunt_tcp_mem_remote(const struct shunt_net_memory *net_memory)
{
	const struct tcp_memory *memory = (const struct tcp_memory *)net_memory;

	return (struct shunt_net_remote){ { memory->id, memory->base.bytes } };
}

struct tcp_memory *shunt_tcp_memory_find(struct tcp_device *device, const struct tcp_head *head)
{
	uint64_t offset = tcp_head_offset(head);
	uint32_t slot = head->memory & 0xffff;
	struct tcp_memory *memory;

	shunt_mutex_lock(&device->lock);
	memory = slot < device->nslots ? device->slot[slot].memory : NULL;
	shunt_mutex_unlock(&device->lock);
	if (!memory || memory->id != head->memory || offset > memory->base.bytes ||
	    head->bytes > memory->base.bytes - offset)
		return NULL;
	return memory;
}
