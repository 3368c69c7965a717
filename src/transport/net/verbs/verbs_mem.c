/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include "base/config.h"
#include "base/log.h"
#include "transport/net/verbs/verbs_priv.h"

static int failed(struct verbs_rail *rail, const char *what, size_t bytes, int err)
{
	struct rlimit limit;
	char advice[160] = "";

	if ((err == ENOMEM || err == EAGAIN) && !getrlimit(RLIMIT_MEMLOCK, &limit) && limit.rlim_cur != RLIM_INFINITY)
		snprintf(advice, sizeof(advice), "; the limit of locked memory is %llu KiB, raise it (ulimit -l)",
		    (unsigned long long)limit.rlim_cur >> 10);
	shunt_error(
	    "%s: cannot register %zu bytes of %s: %s%s", rail->port->info.where, bytes, what, strerror(err), advice);
	return -err;
}

/* access may have relaxed ordering where the library knows it. NULL: errno. */
static struct shunt_ibv_mr *register_at(struct verbs_rail *rail, void *start, size_t bytes, unsigned access)
{
	errno = 0;
	if (access & SHUNT_IBV_ACCESS_RELAXED_ORDERING)
		return rail->ibv->reg_mr_iova2(rail->pd, start, bytes, (uintptr_t)start, access);
	return rail->ibv->reg_mr(rail->pd, start, bytes, (int)access);
}

struct shunt_ibv_mr *verbs_mem_own(struct verbs_rail *rail, void *start, size_t bytes, bool adds)
{
	unsigned access = SHUNT_IBV_ACCESS_LOCAL_WRITE | SHUNT_IBV_ACCESS_REMOTE_WRITE;
	struct shunt_ibv_mr *mr =
	    register_at(rail, start, bytes, adds ? access | SHUNT_IBV_ACCESS_REMOTE_ATOMIC : access);

	if (!mr)
		failed(rail, "its own", bytes, errno ? errno : EIO);
	return mr;
}

/* This driver cannot have a GPU's memory, or not in this way. */
static bool declined(int err)
{
	return err == EOPNOTSUPP || err == EPROTONOSUPPORT || err == EFAULT || err == EINVAL || err == ENOSYS;
}

static int register_region(struct verbs_rail *rail, const struct shunt_net_region *region, struct shunt_ibv_mr **mr_p)
{
	bool gpu = region->flags & SHUNT_NET_MEMORY_GPU, words = region->flags & SHUNT_NET_MEMORY_WORDS;
	unsigned access = SHUNT_IBV_ACCESS_LOCAL_WRITE | SHUNT_IBV_ACCESS_REMOTE_WRITE;
	int err;

	if ((gpu && !rail->port->info.gpu_memory) || (words && !rail->atomics_in))
		return -EOPNOTSUPP;
	if (words)
		access |= SHUNT_IBV_ACCESS_REMOTE_ATOMIC;
	/* verbs_flush.c reads it. */
	if (gpu)
		access |= SHUNT_IBV_ACCESS_REMOTE_READ;
	/* With relaxed ordering later writes may be seen first, but all are seen before the signal. */
	if (!(region->flags & (SHUNT_NET_MEMORY_ORDERED | SHUNT_NET_MEMORY_WORDS)) &&
	    shunt_nccl_env()->ib_pci_relaxed_ordering && rail->ibv->reg_mr_iova2)
		access |= SHUNT_IBV_ACCESS_RELAXED_ORDERING;
	if (gpu && region->dmabuf_fd >= 0) {
		if (!rail->ibv->reg_dmabuf_mr)
			return -EOPNOTSUPP;
		errno = 0;
		*mr_p = rail->ibv->reg_dmabuf_mr(rail->pd, region->dmabuf_offset, region->bytes,
		    (uintptr_t)region->start, region->dmabuf_fd, (int)access);
	} else {
		*mr_p = register_at(rail, region->start, region->bytes, access);
	}
	if (*mr_p)
		return 0;
	err = errno ? errno : EIO;
	if (gpu && declined(err)) {
		shunt_info(SHUNT_LOG_NET, "%s cannot have memory of this GPU (%s): data goes through the host's memory",
		    rail->port->info.where, strerror(err));
		return -EOPNOTSUPP;
	}
	return failed(rail, gpu ? "a GPU's memory" : "memory", region->bytes, err);
}

/*
 * An addition to a word of the host's memory would not wait for data on its way to a GPU's memory. Nor does a read by
 * one NIC push out the writes of another NIC.
 */
static bool may_register(const struct verbs_device *device, const struct shunt_net_region *region)
{
	if (region->flags & SHUNT_NET_MEMORY_GPU)
		return device->nrails == 1;
	return !(region->flags & SHUNT_NET_MEMORY_WORDS) || !device->gpu_memory;
}

static void deregister(struct verbs_memory *memory)
{
	for (int i = 0; i < VERBS_RAILS; i++)
		if (memory->mr[i] && memory->device->ibv->dereg_mr(memory->mr[i]))
			shunt_warn("%s: cannot release memory: %m", memory->device->rail[i].port->info.where);
	free(memory);
}

int verbs_mem_register(
    struct verbs_device *device, const struct shunt_net_region *region, struct verbs_memory **memory_p)
{
	struct verbs_memory *memory = calloc(1, sizeof(*memory));
	int err;

	if (!memory)
		return failed(device->rail, "memory", region->bytes, ENOMEM);
	*memory = (struct verbs_memory){
		.device = device, .base = { region->start, region->bytes }, .gpu = region->flags & SHUNT_NET_MEMORY_GPU
	};
	err = may_register(device, region) ? 0 : -EOPNOTSUPP;
	for (int i = 0; i < device->nrails && !err; i++)
		err = register_region(&device->rail[i], region, &memory->mr[i]);
	if (err) {
		deregister(memory);
		return err;
	}
	*memory_p = memory;
	return 0;
}

void verbs_mem_deregister(struct shunt_net_memory *net_memory)
{
	struct verbs_memory *memory = verbs_memory_of(net_memory);

	if (!memory)
		return;
	for (struct verbs_memory **link = &memory->device->gpu_memory; *link; link = &(*link)->next_gpu) {
		if (*link == memory) {
			*link = memory->next_gpu;
			break;
		}
	}
	deregister(memory);
}

struct shunt_net_remote verbs_mem_remote(const struct shunt_net_memory *net_memory)
{
	const struct verbs_memory *memory = (const struct verbs_memory *)net_memory;
	uint64_t keys[VERBS_RAILS] = { 0 };

	for (int i = 0; i < memory->device->nrails; i++)
		keys[i] = memory->mr[i]->rkey;
	return (struct shunt_net_remote){ { (uintptr_t)memory->base.start, keys[0] | keys[1] << 32,
	    keys[2] | keys[3] << 32 } };
}
