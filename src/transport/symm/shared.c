/* SPDX-License-Identifier: MIT */
#include "transport/symm/shared.h"
#include "base/fd.h"
#include "base/lock.h"
#include "transport/symm/host_memory.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct shared {
	struct shared *next;
	const struct shunt_gpu_ops *gpu;
	struct shunt_gpu_mem mem;
	unsigned users;
};

static struct shared *list;

/* A forked child does not have this memory of the device. */
static void drop_list(void)
{
	list = NULL;
}
SHUNT_IN_FORKED_CHILD(drop_list)

static struct shared **find_shared(void *ptr)
{
	struct shared **at = &list;

	while (*at && (*at)->mem.ptr != ptr)
		at = &(*at)->next;
	return at;
}

static void free_mem(const struct shunt_gpu_ops *gpu, struct shunt_gpu_mem *mem)
{
	if (mem->host)
		shunt_host_memory_free(gpu, mem);
	else
		gpu->share_free(mem);
}

int shunt_shared_alloc(
    const struct shunt_gpu_ops *gpu, int device, bool on_host, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	struct shared *s = malloc(sizeof(*s));
	int err = -ENOMEM;

	if (s)
		err = on_host ? shunt_host_memory_create(gpu, device, bytes, mem_p) :
		                gpu->share_alloc(device, bytes, mem_p);

	if (err) {
		free(s);
		return err;
	}
	shunt_lock_acquire(SHUNT_LOCK_SYMM);
	*s = (struct shared){ .next = list, .gpu = gpu, .mem = *mem_p, .users = 1 };
	list = s;
	shunt_lock_release(SHUNT_LOCK_SYMM);
	return 0;
}

void shunt_shared_close_fd(struct shunt_gpu_mem *mem)
{
	struct shared *s;

	shunt_lock_acquire(SHUNT_LOCK_SYMM);
	s = *find_shared(mem->ptr);
	if (s)
		s->mem.fd = -1;
	shunt_lock_release(SHUNT_LOCK_SYMM);
	shunt_close_fd(&mem->fd);
}

/* Removes a user; the last one frees the memory. False: not in the registry. */
static bool shared_put(void *ptr)
{
	struct shared **at, *s, *last = NULL;

	shunt_lock_acquire(SHUNT_LOCK_SYMM);
	at = find_shared(ptr);
	s = *at;
	if (s && !--s->users) {
		*at = s->next;
		last = s;
	}
	shunt_lock_release(SHUNT_LOCK_SYMM);
	if (last) /* not under the lock: freeing may wait for the device */
		free_mem(last->gpu, &last->mem);
	free(last);
	return s != NULL;
}

int shunt_shared_borrow(
    const struct shunt_gpu_ops *gpu, int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	struct shared *s;
	int err;

	*mem_p = (struct shunt_gpu_mem){ .fd = -1 };
	shunt_lock_acquire(SHUNT_LOCK_SYMM);
	s = *find_shared(ptr);
	if (s)
		s->users++;
	if (s && s->mem.host) {
		*mem_p = s->mem;
		mem_p->fd = -1;
	}
	shunt_lock_release(SHUNT_LOCK_SYMM);
	if (s && mem_p->host)
		return 0;
	err = s ? gpu->share_borrow(device, ptr, bytes, mem_p) : -ESTALE;
	if (s && err)
		shared_put(ptr);
	return err;
}

void shunt_shared_free(const struct shunt_gpu_ops *gpu, struct shunt_gpu_mem *mem)
{
	if (mem->ptr && shared_put(mem->ptr))
		*mem = (struct shunt_gpu_mem){ .fd = -1 };
	else
		free_mem(gpu, mem);
}
