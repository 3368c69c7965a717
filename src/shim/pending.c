/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/log.h"
#include "core/thread.h"
#include "shim/attach.h"
#include "shim/pending.h"

#define LOOK_NS 200000

struct shunt_pending {
	struct shunt_pending *next;
	ncclComm_t place; /* NCCL's to write, from any thread */
	struct shunt_entry *child;
	ncclComm_t *where; /* NULL: nobody wants it any more, but NCCL may still write */
	ncclComm_t parent;
	const void *group; /* not NULL: nothing happens before this group ends */
};

enum verdict { KEEP, PASS, DROP };
typedef enum verdict judge_fn(struct shunt_pending *p, const void *arg);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shunt_pending *list;
static atomic_size_t length; /* so that the usual case takes no lock */
static bool looking;         /* the thread runs */

static ncclComm_t written(const struct shunt_pending *p)
{
	return __atomic_load_n(&p->place, __ATOMIC_ACQUIRE);
}

/* Under the lock: whoever finds his pending gone knows that nothing is written for it any more. */
static void judge_all(judge_fn *judge, const void *arg)
{
	struct shunt_pending *done = NULL, *p;

	pthread_mutex_lock(&lock);
	for (struct shunt_pending **at = &list; (p = *at);) {
		enum verdict verdict = judge(p, arg);
		if (verdict == KEEP) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		if (verdict == PASS) {
			shunt_attach_ready(p->child, written(p));
			shunt_entry_publish(p->child, written(p)); /* without memory the child is simply not ours */
			p->child = NULL;
			__atomic_store_n(p->where, written(p), __ATOMIC_RELEASE);
		}
		/* Last: who finds nothing pending, and takes no lock for it, finds the handle in its place. */
		atomic_fetch_sub(&length, 1);
		p->next = done;
		done = p;
	}
	pthread_mutex_unlock(&lock);
	while ((p = done)) {
		done = p->next;
		shunt_entry_put(p->child);
		free(p);
	}
}

/* Nobody wants it any more, but NCCL may still write for it. */
static void orphan(struct shunt_pending *p)
{
	p->where = NULL;
	p->group = NULL;
}

static enum verdict judge_written(struct shunt_pending *p, const void *arg)
{
	return p->where && !p->group && written(p) ? PASS : KEEP;
}

static void *look(void *arg)
{
	for (;;) {
		bool left = false;

		judge_all(judge_written, NULL);
		pthread_mutex_lock(&lock);
		for (struct shunt_pending *p = list; p && !left; p = p->next)
			left = p->where;
		looking = left;
		pthread_mutex_unlock(&lock);
		if (!left)
			return NULL;
		nanosleep(&(struct timespec){ .tv_nsec = LOOK_NS }, NULL);
	}
}

/* With the lock held. */
static int start_looking(void)
{
	int err;

	if (looking)
		return 0;
	err = shunt_thread_start(NULL, 0, look, NULL);
	if (err)
		shunt_warn(
		    "cannot start a thread for a non-blocking communicator (%s): NCCL has it alone", strerror(-err));
	looking = !err;
	return err;
}

struct shunt_pending *shunt_pending_add(
    struct shunt_entry *child, ncclComm_t *where, ncclComm_t parent, const void *group, bool async)
{
	struct shunt_pending *p = malloc(sizeof(*p));
	int err = p ? 0 : -ENOMEM;

	pthread_mutex_lock(&lock);
	if (!err) {
		*p = (struct shunt_pending){
			.next = list, .child = child, .where = where, .parent = parent, .group = group
		};
		if (async)
			err = start_looking(); /* it waits for the lock, and finds the new one */
	}
	if (!err) {
		list = p;
		atomic_fetch_add(&length, 1);
	}
	pthread_mutex_unlock(&lock);
	if (!err)
		return p;
	shunt_entry_put(child);
	free(p);
	return NULL;
}

ncclComm_t *shunt_pending_place(struct shunt_pending *p)
{
	return &p->place;
}

static enum verdict judge_same(struct shunt_pending *p, const void *arg)
{
	return p == arg ? DROP : KEEP;
}

void shunt_pending_cancel(struct shunt_pending *p)
{
	judge_all(judge_same, p);
}

struct ended {
	const void *group;
	bool failed;
};

static enum verdict judge_group(struct shunt_pending *p, const void *arg)
{
	const struct ended *ended = arg;

	if (!p->group || p->group != ended->group)
		return KEEP;
	p->group = NULL;
	if (ended->failed)
		orphan(p);
	return judge_written(p, NULL);
}

void shunt_pending_group_ended(const void *group, bool failed)
{
	struct ended ended = { group, failed };

	if (atomic_load(&length))
		judge_all(judge_group, &ended);
}

struct reported {
	ncclComm_t parent;
	ncclResult_t state;
};

static enum verdict judge_parent(struct shunt_pending *p, const void *arg)
{
	const struct reported *reported = arg;

	if (p->parent != reported->parent || p->group || !p->where || reported->state == ncclInProgress)
		return KEEP;
	if (written(p))
		return PASS;
	/* Success may be news from before the call. */
	if (reported->state != ncclSuccess)
		orphan(p);
	return KEEP;
}

void shunt_pending_parent_state(ncclComm_t parent, ncclResult_t state)
{
	struct reported reported = { parent, state };

	if (atomic_load(&length))
		judge_all(judge_parent, &reported);
}

static enum verdict judge_ending(struct shunt_pending *p, const void *arg)
{
	if (p->parent != (ncclComm_t)arg ||
	    p->group) /* the child of an open group comes at its end, whatever becomes of the parent in there */
		return KEEP;
	if (judge_written(p, NULL) == PASS)
		return PASS;
	orphan(p);
	return KEEP;
}

void shunt_pending_parent_ends(ncclComm_t parent)
{
	if (atomic_load(&length))
		judge_all(judge_ending, parent);
}

static enum verdict judge_ended(struct shunt_pending *p, const void *arg)
{
	return p->parent == (ncclComm_t)arg && !p->where ? DROP : KEEP;
}

void shunt_pending_parent_ended(ncclComm_t parent)
{
	if (atomic_load(&length))
		judge_all(judge_ended, parent);
}

struct shunt_entry *shunt_entry_find(ncclComm_t handle)
{
	struct shunt_entry *e = shunt_entry_get(handle);

	if (e || !handle || !atomic_load(&length))
		return e;
	judge_all(judge_written, NULL);
	return shunt_entry_get(handle);
}
