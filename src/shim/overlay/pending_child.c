/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include "base/rlimits.h"
#include "base/log.h"
#include "base/os.h"
#include "base/lock.h"
#include "shim/overlay/attach.h"
#include "shim/overlay/pending_child.h"

#define POLL_NS 200000

struct shunt_pending_child {
	struct shunt_pending_child *next;
	ncclComm_t real_handle_p; /* written by NCCL, from any thread */
	struct shunt_entry *child;
	ncclComm_t *where; /* NULL: given up, but NCCL may still write */
	ncclComm_t parent;
	const void *group; /* not NULL: nothing happens before this group ends */
};

enum action { ACTION_KEEP, ACTION_PUBLISH, ACTION_DROP };
typedef enum action decide_fn(struct shunt_pending_child *p, const void *arg);

static struct shunt_pending_child *pending_list;
static atomic_size_t npending; /* 0 saves the lock */
static bool polling;           /* the thread runs */

/* A forked child does not have the communicators of these handles. */
static void drop_list(void)
{
	pending_list = NULL;
	atomic_store(&npending, 0);
	polling = false;
}
SHUNT_IN_FORKED_CHILD(drop_list)

static ncclComm_t written_handle(const struct shunt_pending_child *p)
{
	return __atomic_load_n(&p->real_handle_p, __ATOMIC_ACQUIRE);
}

/* Under the lock: once a pending child is out of the list, no thread writes its handle any more. */
static void for_each_pending(decide_fn *decide, const void *arg)
{
	struct shunt_pending_child *done = NULL, *p;

	shunt_lock_acquire(SHUNT_LOCK_PENDING);
	for (struct shunt_pending_child **at = &pending_list; (p = *at);) {
		enum action action = decide(p, arg);
		if (action == ACTION_KEEP) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		if (action == ACTION_PUBLISH) {
			shunt_attach_ready(p->child, written_handle(p));
			shunt_entry_publish(p->child, written_handle(p)); /* without memory NCCL has the child alone */
			p->child = NULL;
			__atomic_store_n(p->where, written_handle(p), __ATOMIC_RELEASE);
		}
		/* Last: a thread that reads 0, and so takes no lock, finds the handle in the program's memory. */
		atomic_fetch_sub(&npending, 1);
		p->next = done;
		done = p;
	}
	shunt_lock_release(SHUNT_LOCK_PENDING);
	while ((p = done)) {
		done = p->next;
		shunt_entry_put(p->child);
		free(p);
	}
}

/* Gives the handle up; NCCL may still write it. */
static void orphan_child(struct shunt_pending_child *p)
{
	p->where = NULL;
	p->group = NULL;
}

static enum action decide_written(struct shunt_pending_child *p, const void *arg)
{
	return p->where && !p->group && written_handle(p) ? ACTION_PUBLISH : ACTION_KEEP;
}

static void *poll_thread(void *arg)
{
	for (;;) {
		bool left = false;

		for_each_pending(decide_written, NULL);
		shunt_lock_acquire(SHUNT_LOCK_PENDING);
		for (struct shunt_pending_child *p = pending_list; p && !left; p = p->next)
			left = p->where;
		polling = left;
		shunt_lock_release(SHUNT_LOCK_PENDING);
		if (!left)
			return NULL;
		nanosleep(&(struct timespec){ .tv_nsec = POLL_NS }, NULL);
	}
}

/* With the lock held. */
static int start_polling(void)
{
	int err;

	if (polling)
		return 0;
	err = shunt_thread_start(NULL, 0, poll_thread, NULL);
	polling = !err;
	return err;
}

struct shunt_pending_child *shunt_pending_child_add(
    struct shunt_entry *child, ncclComm_t *where, ncclComm_t parent, const void *group, bool async)
{
	struct shunt_pending_child *p = malloc(sizeof(*p));
	int err = p ? 0 : -ENOMEM, no_thread = 0;

	shunt_lock_acquire(SHUNT_LOCK_PENDING);
	if (!err) {
		*p = (struct shunt_pending_child){
			.next = pending_list, .child = child, .where = where, .parent = parent, .group = group
		};
		if (async)
			err = no_thread = start_polling(); /* it waits for the lock, and then finds this child */
	}
	if (!err) {
		pending_list = p;
		atomic_fetch_add(&npending, 1);
	}
	shunt_lock_release(SHUNT_LOCK_PENDING);
	if (!err)
		return p;
	if (no_thread)
		shunt_warn("cannot start a thread for a non-blocking communicator (%s): NCCL has it alone",
		    shunt_thread_error_text(no_thread).s);
	shunt_entry_put(child);
	free(p);
	return NULL;
}

ncclComm_t *shunt_pending_child_place(struct shunt_pending_child *p)
{
	return &p->real_handle_p;
}

static enum action decide_same(struct shunt_pending_child *p, const void *arg)
{
	return p == arg ? ACTION_DROP : ACTION_KEEP;
}

void shunt_pending_child_cancel(struct shunt_pending_child *p)
{
	for_each_pending(decide_same, p);
}

struct group_end {
	const void *group;
	bool failed;
};

static enum action decide_group(struct shunt_pending_child *p, const void *arg)
{
	const struct group_end *group_end = arg;

	if (!p->group || p->group != group_end->group)
		return ACTION_KEEP;
	p->group = NULL;
	if (group_end->failed)
		orphan_child(p);
	return decide_written(p, NULL);
}

void shunt_pending_child_group_ended(const void *group, bool failed)
{
	struct group_end group_end = { group, failed };

	if (atomic_load(&npending))
		for_each_pending(decide_group, &group_end);
}

struct parent_report {
	ncclComm_t parent;
	ncclResult_t state;
};

static enum action decide_parent(struct shunt_pending_child *p, const void *arg)
{
	const struct parent_report *parent_report = arg;

	if (p->parent != parent_report->parent || p->group || !p->where || parent_report->state == ncclInProgress)
		return ACTION_KEEP;
	if (written_handle(p))
		return ACTION_PUBLISH;
	/* Success may be from before the call. */
	if (parent_report->state != ncclSuccess)
		orphan_child(p);
	return ACTION_KEEP;
}

void shunt_pending_child_parent_state(ncclComm_t parent, ncclResult_t state)
{
	struct parent_report parent_report = { parent, state };

	if (atomic_load(&npending))
		for_each_pending(decide_parent, &parent_report);
}

static enum action decide_parent_ends(struct shunt_pending_child *p, const void *arg)
{
	if (p->parent != (ncclComm_t)arg ||
	    p->group) /* an open group's child comes at the group's end, even if the parent ends inside the group */
		return ACTION_KEEP;
	if (decide_written(p, NULL) == ACTION_PUBLISH)
		return ACTION_PUBLISH;
	orphan_child(p);
	return ACTION_KEEP;
}

void shunt_pending_child_parent_ends(ncclComm_t parent)
{
	if (atomic_load(&npending))
		for_each_pending(decide_parent_ends, parent);
}

static enum action decide_parent_ended(struct shunt_pending_child *p, const void *arg)
{
	return p->parent == (ncclComm_t)arg && !p->where ? ACTION_DROP : ACTION_KEEP;
}

void shunt_pending_child_parent_ended(ncclComm_t parent)
{
	if (atomic_load(&npending))
		for_each_pending(decide_parent_ended, parent);
}

struct shunt_entry *shunt_entry_find(ncclComm_t handle)
{
	struct shunt_entry *e = shunt_entry_get(handle);

	if (e || !handle || !atomic_load(&npending))
		return e;
	for_each_pending(decide_written, NULL);
	return shunt_entry_get(handle);
}
