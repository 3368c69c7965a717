/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>
#include "shim/pending.h"

struct pending {
	struct pending *next;
	struct shunt_entry *child;
	ncclComm_t *where;
	ncclComm_t parent;
	const void *group; /* not NULL: nothing happens before this group ends */
};

enum verdict { KEEP, ADOPT, DROP };
typedef enum verdict judge_fn(struct pending *p, const void *arg, ncclComm_t *handle_p);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending *list;
static atomic_size_t length; /* so that the usual case takes no lock */

int shunt_pending_add(struct shunt_entry *child, ncclComm_t *where, ncclComm_t parent, const void *group)
{
	struct pending *p = malloc(sizeof(*p));

	if (!p) {
		shunt_entry_put(child);
		return -ENOMEM;
	}
	*p = (struct pending){.child = child, .where = where, .parent = parent, .group = group};
	pthread_mutex_lock(&lock);
	p->next = list;
	list = p;
	atomic_fetch_add(&length, 1);
	pthread_mutex_unlock(&lock);
	return 0;
}

static void judge_all(judge_fn *judge, const void *arg)
{
	struct pending *dropped = NULL, *p;

	if (!atomic_load(&length))
		return;
	pthread_mutex_lock(&lock);
	for (struct pending **at = &list; (p = *at);) {
		ncclComm_t handle = NULL;
		enum verdict verdict = judge(p, arg, &handle);
		if (verdict == KEEP) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		atomic_fetch_sub(&length, 1);
		if (verdict == ADOPT) {
			shunt_entry_publish(p->child, handle); /* without memory the child is simply not ours */
			p->child = NULL;
		}
		p->next = dropped;
		dropped = p;
	}
	pthread_mutex_unlock(&lock);
	while ((p = dropped)) {
		dropped = p->next;
		shunt_entry_put(p->child);
		free(p);
	}
}

/* What stands there now; NULL if nothing does. The program may have moved its handle and given the memory back, so it is read in a
 * way that cannot fault. */
static ncclComm_t written(const struct pending *p)
{
	ncclComm_t handle = NULL;
	struct iovec to = {.iov_base = &handle, .iov_len = sizeof(handle)};
	struct iovec from = {.iov_base = p->where, .iov_len = sizeof(handle)};

	if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof(handle))
		return handle;
	return errno == EFAULT ? NULL : __atomic_load_n(p->where, __ATOMIC_ACQUIRE); /* the system call may be forbidden */
}

struct ended {
	const void *group;
	bool failed;
};

static enum verdict judge_group(struct pending *p, const void *arg, ncclComm_t *handle_p)
{
	const struct ended *ended = arg;

	if (p->group != ended->group)
		return KEEP;
	if (ended->failed)
		return DROP;
	p->group = NULL;
	*handle_p = written(p);
	return *handle_p ? ADOPT : KEEP;
}

void shunt_pending_group_ended(const void *group, bool failed)
{
	struct ended ended = {group, failed};

	judge_all(judge_group, &ended);
}

struct reported {
	ncclComm_t parent;
	ncclResult_t state;
};

static enum verdict judge_parent(struct pending *p, const void *arg, ncclComm_t *handle_p)
{
	const struct reported *reported = arg;

	if (p->parent != reported->parent || p->group || reported->state == ncclInProgress)
		return KEEP;
	if (reported->state != ncclSuccess)
		return DROP;
	*handle_p = written(p);
	return *handle_p ? ADOPT : KEEP;
}

void shunt_pending_parent_state(ncclComm_t parent, ncclResult_t state)
{
	struct reported reported = {parent, state};

	judge_all(judge_parent, &reported);
}

static enum verdict judge_handle(struct pending *p, const void *arg, ncclComm_t *handle_p)
{
	*handle_p = written(p);
	return *handle_p == *(const ncclComm_t *)arg ? ADOPT : KEEP;
}

struct shunt_entry *shunt_entry_find(ncclComm_t handle)
{
	struct shunt_entry *e = shunt_entry_get(handle);

	if (e || !handle || !atomic_load(&length))
		return e;
	judge_all(judge_handle, &handle);
	return shunt_entry_get(handle);
}
