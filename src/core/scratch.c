/* SPDX-License-Identifier: MIT */
#include "core/scratch.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct scratch {
	struct scratch *next;
	const struct shunt_gpu_ops *gpu;
	struct shunt_gpu_mem mem;
	unsigned users;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct scratch *list;

static struct scratch **find(void *ptr)
{
	struct scratch **at = &list;

	while (*at && (*at)->mem.ptr != ptr)
		at = &(*at)->next;
	return at;
}

int shunt_scratch_own(const struct shunt_gpu_ops *gpu, const struct shunt_gpu_mem *mem)
{
	struct scratch *s = malloc(sizeof(*s));

	if (!s)
		return -ENOMEM;
	pthread_mutex_lock(&lock);
	*s = (struct scratch){.next = list, .gpu = gpu, .mem = *mem, .users = 1};
	list = s;
	pthread_mutex_unlock(&lock);
	return 0;
}

int shunt_scratch_borrow(void *ptr)
{
	struct scratch *s;

	pthread_mutex_lock(&lock);
	s = *find(ptr);
	if (s)
		s->users++;
	pthread_mutex_unlock(&lock);
	return s ? 0 : -ESTALE;
}

bool shunt_scratch_drop(void *ptr)
{
	struct scratch **at, *s, *last = NULL;

	if (!ptr)
		return false;
	pthread_mutex_lock(&lock);
	at = find(ptr);
	s = *at;
	if (s && !--s->users) {
		*at = s->next;
		last = s;
	}
	pthread_mutex_unlock(&lock);
	if (last) /* not under the lock: freeing may wait for the device */
		last->gpu->share_free(&last->mem);
	free(last);
	return s != NULL;
}
