/* SPDX-License-Identifier: MIT */
#include "transport/symm/scratch.h"
#include "base/lock.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct scratch {
	struct scratch *next;
	const struct shunt_gpu_ops *gpu;
	struct shunt_gpu_mem mem;
	unsigned users;
};

static struct scratch *list;

/* A forked child has none of what these stand for. */
static void drop_list(void)
{
	list = NULL;
}
SHUNT_IN_FORKED_CHILD(drop_list)

static struct scratch **find_scratch(void *ptr)
{
	struct scratch **at = &list;

	while (*at && (*at)->mem.ptr != ptr)
		at = &(*at)->next;
	return at;
}

int shunt_scratch_alloc(const struct shunt_gpu_ops *gpu, int device, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	struct scratch *s = malloc(sizeof(*s));
	int err = s ? gpu->share_alloc(device, bytes, mem_p) : -ENOMEM;

	if (err) {
		free(s);
		return err;
	}
	shunt_lock_acquire(SHUNT_LOCK_SCRATCH);
	*s = (struct scratch){ .next = list, .gpu = gpu, .mem = *mem_p, .users = 1 };
	list = s;
	shunt_lock_release(SHUNT_LOCK_SCRATCH);
	return 0;
}

void shunt_scratch_close_fd(struct shunt_gpu_mem *mem)
{
	struct scratch *s;

	shunt_lock_acquire(SHUNT_LOCK_SCRATCH);
	s = *find_scratch(mem->ptr);
	if (s)
		s->mem.fd = -1;
	shunt_lock_release(SHUNT_LOCK_SCRATCH);
	close(mem->fd);
	mem->fd = -1;
}

/* Removes a user; the last one frees the memory. False: not in the registry. */
static bool scratch_put(void *ptr)
{
	struct scratch **at, *s, *last = NULL;

	shunt_lock_acquire(SHUNT_LOCK_SCRATCH);
	at = find_scratch(ptr);
	s = *at;
	if (s && !--s->users) {
		*at = s->next;
		last = s;
	}
	shunt_lock_release(SHUNT_LOCK_SCRATCH);
	if (last) /* not under the lock: freeing may wait for the device */
		last->gpu->share_free(&last->mem);
	free(last);
	return s != NULL;
}

int shunt_scratch_borrow(
    const struct shunt_gpu_ops *gpu, int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	struct scratch *s;
	int err;

	shunt_lock_acquire(SHUNT_LOCK_SCRATCH);
	s = *find_scratch(ptr);
	if (s)
		s->users++;
	shunt_lock_release(SHUNT_LOCK_SCRATCH);
	err = s ? gpu->share_borrow(device, ptr, bytes, mem_p) : -ESTALE;
	if (s && err)
		scratch_put(ptr);
	return err;
}

void shunt_scratch_free(const struct shunt_gpu_ops *gpu, struct shunt_gpu_mem *mem)
{
	if (mem->ptr && scratch_put(mem->ptr))
		*mem = (struct shunt_gpu_mem){ .fd = -1 };
	else
		gpu->share_free(mem);
}
