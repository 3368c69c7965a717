/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/log.h"
#include "core/thread.h"
#include "shim/alone_task.h"
#include "shim/result.h"
#include "shim/standalone.h"

/* Works of the thread's open group that the program does not wait for. They stand in the group as one job. */
struct deferred {
	struct shunt_job job;
	struct shunt_task *first, **end;
};

static _Thread_local struct deferred *deferred;
static _Thread_local bool group_blocks; /* the open group has a task that the program waits for */

ncclResult_t shunt_task_state(const struct shunt_own *own)
{
	/* In this order: a task that ends in between has left its result. */
	return atomic_load(&own->tasks) ? ncclInProgress : (ncclResult_t)atomic_load(&own->result);
}

bool shunt_task_is_queued(const struct shunt_own *own)
{
	return !atomic_load(&own->threads);
}

void shunt_task_wait(const struct shunt_own *own)
{
	while (atomic_load(&own->threads))
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
}

void shunt_task_revoke(struct shunt_own *own)
{
	int before = atomic_load(&own->result);

	atomic_fetch_or(&own->cancel, SHUNT_CANCEL_REVOKED);
	while (atomic_load(&own->threads) || atomic_load(&own->running))
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	atomic_fetch_and(&own->cancel, ~SHUNT_CANCEL_REVOKED);
	if (!atomic_load(&own->stillborn))
		atomic_store(&own->result, before);
}

/* Done, and gone. */
static ncclResult_t end(struct shunt_task *w, ncclResult_t result)
{
	struct shunt_entry *e = w->entry;
	struct shunt_own *own = e->own;
	bool background = w->background;
	int none = ncclSuccess;

	result = w->finish(w, result);
	free(w);
	if (background && result != ncclSuccess)
		atomic_compare_exchange_strong(&own->result, &none, (int)result);
	atomic_fetch_sub(&own->tasks, 1);
	shunt_entry_put(e);
	/*
	 * Whoever ends the communicator waits until there are no threads, unless he came when the task still stood in
	 * an open group.
	 */
	if (background) {
		atomic_fetch_sub(&own->threads, 1);
		shunt_own_put(own);
	}
	return result;
}

static ncclResult_t run(struct shunt_task *w)
{
	struct shunt_own *own = w->entry->own;
	ncclResult_t result;

	atomic_fetch_add(&own->running, 1);
	result = w->run(w);
	atomic_fetch_sub(&own->running, 1);
	return result;
}

static ncclResult_t run_job(struct shunt_job *job)
{
	return run((struct shunt_task *)job);
}

static ncclResult_t finish_job(struct shunt_job *job, ncclResult_t result)
{
	group_blocks = false;
	return end((struct shunt_task *)job, result);
}

static void *chain_thread(void *arg)
{
	ncclResult_t result = ncclSuccess;
	struct shunt_task *next;

	for (struct shunt_task *w = arg; w; w = next) {
		next = w->next;
		if (result == ncclSuccess)
			result = run(w);
		end(w, result);
	}
	return NULL;
}

/* Runs tasks of one communicator on a thread of their own. */
static ncclResult_t start_thread(struct shunt_task *chain)
{
	ncclResult_t result = ncclInProgress;
	int err;

	for (struct shunt_task *w = chain; w; w = w->next) {
		w->background = true;
		atomic_fetch_add(&w->entry->own->users, 1);
		atomic_fetch_add(&w->entry->own->threads, 1);
	}
	err = shunt_thread_start(NULL, 0, chain_thread, chain);
	if (!err)
		return result;
	shunt_error("cannot start a thread for a non-blocking communicator: %s", strerror(-err));
	for (struct shunt_task *next; chain; chain = next) {
		next = chain->next;
		result = end(chain, shunt_to_nccl(err));
	}
	return result;
}

static ncclResult_t run_deferred(struct shunt_job *job)
{
	return ncclInProgress;
}

/* The group ends: one thread for each communicator. */
static ncclResult_t finish_deferred(struct shunt_job *job, ncclResult_t result)
{
	struct deferred *d = (struct deferred *)job;
	struct shunt_task *w, **at;

	deferred = NULL;
	while ((w = d->first)) {
		struct shunt_task *chain = w, **chain_end = &w->next;

		d->first = w->next;
		*chain_end = NULL;
		if (result != ncclSuccess && result != ncclInProgress) {
			end(w, result);
			continue;
		}
		for (at = &d->first; (w = *at);) {
			if (w->entry != chain->entry) {
				at = &w->next;
				continue;
			}
			*at = w->next;
			w->next = NULL;
			*chain_end = w;
			chain_end = &w->next;
		}
		start_thread(chain);
	}
	free(d);
	return result;
}

/* NULL: it is in the group now. Else why it cannot be. */
static const char *add_to_group(struct shunt_task *w, bool blocking)
{
	if (blocking ? deferred != NULL : group_blocks)
		return "blocking and non-blocking communicators cannot be in one group";
	if (blocking) {
		group_blocks = true;
		w->job = (struct shunt_job){ .lane = w->entry, .run = run_job, .finish = finish_job };
		shunt_group_add_job(&w->job);
		return NULL;
	}
	if (!deferred) {
		deferred = calloc(1, sizeof(*deferred));
		if (!deferred)
			return "no memory";
		deferred->job = (struct shunt_job){ .lane = deferred, .run = run_deferred, .finish = finish_deferred };
		deferred->end = &deferred->first;
		shunt_group_add_job(&deferred->job);
	}
	*deferred->end = w;
	deferred->end = &w->next;
	return NULL;
}

ncclResult_t shunt_task_start(struct shunt_task *w, bool blocking)
{
	const char *why;

	w->next = NULL;
	w->background = false;
	atomic_fetch_add(&w->entry->own->tasks, 1);
	if (shunt_group_open()) {
		why = add_to_group(w, blocking);
		if (!why)
			return ncclSuccess;
		shunt_warn("%s", why);
		return shunt_group_result(end(w, shunt_to_nccl(-EINVAL)));
	}
	if (!blocking)
		return start_thread(w);
	return end(w, run(w));
}

ncclResult_t shunt_task_start_new(struct shunt_task *w, ncclComm_t *newcomm)
{
	struct shunt_entry *e = w->entry;

	atomic_fetch_add(&e->refs, 1); /* the table's, beside that of the task */
	if (shunt_entry_publish(e, shunt_alone_handle(e))) {
		atomic_fetch_add(&e->own->tasks, 1);
		return shunt_group_result(end(w, shunt_to_nccl(-ENOMEM)));
	}
	/* Another thread may abort it from here on. */
	__atomic_store_n(newcomm, shunt_alone_handle(e), __ATOMIC_RELEASE);
	return shunt_task_start(w, e->config.blocking);
}

void shunt_task_fail_new(struct shunt_task *w, ncclComm_t *newcomm)
{
	struct shunt_entry *e = w->entry;

	if (w->background) {
		atomic_store(&e->own->stillborn, 1);
		return;
	}
	shunt_entry_put(shunt_entry_remove(shunt_alone_handle(e)));
	*newcomm = NULL;
}
