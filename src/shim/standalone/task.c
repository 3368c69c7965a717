/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include "base/rlimits.h"
#include "base/log.h"
#include "base/os.h"
#include "shim/standalone/task.h"
#include "shim/nccl/result.h"
#include "shim/standalone/lookup.h"
#include "shim/calls/thread.h"

/* Tasks of the thread's open group that the program does not wait for. They are one job of the group. */
struct shunt_deferred_tasks {
	struct shunt_job job;
	struct shunt_task *first, **end_task;
};

ncclResult_t shunt_task_state(const struct shunt_entry *e)
{
	/* In this order: a task that ends in between has stored its result. */
	return atomic_load(&e->scomm->tasks) ? ncclInProgress : shunt_life_result(&e->life);
}

bool shunt_task_is_queued(const struct shunt_standalone_comm *scomm)
{
	return !atomic_load(&scomm->started);
}

void shunt_task_wait(const struct shunt_standalone_comm *scomm)
{
	while (atomic_load(&scomm->threads))
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
}

void shunt_task_revoke(struct shunt_entry *e)
{
	unsigned before = shunt_life_revoke_tasks(&e->life);

	while (atomic_load(&e->scomm->threads) || atomic_load(&e->scomm->running))
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	shunt_life_tasks_revoked(&e->life, before);
}

/* Finishes a task and frees it. */
static ncclResult_t end_task(struct shunt_task *w, ncclResult_t result)
{
	struct shunt_entry *e = w->entry;
	struct shunt_standalone_comm *scomm = e->scomm;
	bool background = w->background, abandoned = w->abandoned;

	result = w->finish(w, result);
	free(w);
	if (background && result != ncclSuccess)
		shunt_life_fail(&e->life, result);
	if (background) /* before the count of all: then they are not all taken for tasks of a group */
		atomic_fetch_sub(&scomm->started, 1);
	atomic_fetch_sub(&scomm->tasks, 1);
	if (abandoned)
		shunt_entry_put_async(e);
	else
		shunt_entry_put(e);
	/*
	 * The caller that ends the communicator waits until there are no threads, unless it came while the task was
	 * still in an open group.
	 */
	if (background) {
		atomic_fetch_sub(&scomm->threads, 1);
		shunt_standalone_comm_put(scomm);
	}
	return result;
}

static ncclResult_t run_task(struct shunt_task *w)
{
	struct shunt_standalone_comm *scomm = w->entry->scomm;
	ncclResult_t result;

	atomic_fetch_add(&scomm->running, 1);
	if (w->phase)
		shunt_comm_phase(w->entry->comm, w->phase);
	result = w->run(w);
	if (w->phase)
		shunt_comm_phase(w->entry->comm, NULL);
	atomic_fetch_sub(&scomm->running, 1);
	return result;
}

static ncclResult_t run_job(struct shunt_job *job)
{
	return run_task((struct shunt_task *)job);
}

static ncclResult_t finish_job(struct shunt_job *job, ncclResult_t result)
{
	return end_task((struct shunt_task *)job, result);
}

static void *task_list_thread(void *arg)
{
	ncclResult_t result = ncclSuccess;
	struct shunt_task *next;

	for (struct shunt_task *w = arg; w; w = next) {
		next = w->next;
		if (result == ncclSuccess)
			result = run_task(w);
		end_task(w, result);
	}
	return NULL;
}

/* Runs tasks of one communicator on a thread of their own. */
static ncclResult_t start_tasks(struct shunt_task *task_list)
{
	ncclResult_t result = ncclInProgress;
	int err;

	for (struct shunt_task *w = task_list; w; w = w->next) {
		w->background = true;
		atomic_fetch_add(&w->entry->scomm->users, 1);
		atomic_fetch_add(&w->entry->scomm->started, 1);
		atomic_fetch_add(&w->entry->scomm->threads, 1);
	}
	err = shunt_thread_start(NULL, 0, task_list_thread, task_list);
	if (!err)
		return result;
	shunt_error("cannot start a thread for a non-blocking communicator: %s", shunt_thread_error_text(err).s);
	for (struct shunt_task *next; task_list; task_list = next) {
		next = task_list->next;
		result = end_task(task_list, shunt_to_nccl(err));
	}
	return result;
}

static ncclResult_t run_deferred(struct shunt_job *job)
{
	return ncclInProgress;
}

/* At the group's end: one thread for each communicator. */
static ncclResult_t finish_deferred(struct shunt_job *job, ncclResult_t result)
{
	struct shunt_deferred_tasks *d = (struct shunt_deferred_tasks *)job;
	struct shunt_task *w, **at;

	while ((w = d->first)) {
		struct shunt_task *task_list = w, **task_list_end = &w->next;

		d->first = w->next;
		*task_list_end = NULL;
		if (result != ncclSuccess && result != ncclInProgress) {
			end_task(w, result);
			continue;
		}
		for (at = &d->first; (w = *at);) {
			if (w->entry != task_list->entry) {
				at = &w->next;
				continue;
			}
			*at = w->next;
			w->next = NULL;
			*task_list_end = w;
			task_list_end = &w->next;
		}
		start_tasks(task_list);
	}
	free(d);
	return result;
}

void shunt_task_abandon(struct shunt_group *g)
{
	for (struct shunt_job *job = g->jobs; job; job = job->next)
		if (job->run == run_job)
			((struct shunt_task *)job)->abandoned = true;
	for (struct shunt_task *w = g->tasks ? g->tasks->first : NULL; w; w = w->next)
		w->abandoned = true;
	shunt_jobs_run(g->jobs, ncclInvalidUsage);
}

/* Adds work for the group's end. */
static void add_job(struct shunt_group *g, struct shunt_job *job)
{
	if (!g->jobs)
		g->jobs_end = &g->jobs;
	job->next = NULL;
	*g->jobs_end = job;
	g->jobs_end = &job->next;
}

/* NULL: the group has the task. Else the reason why it cannot. */
static const char *group_add_task(struct shunt_group *g, struct shunt_task *w, bool blocking)
{
	struct shunt_deferred_tasks *d = g->tasks;

	if (blocking ? d != NULL : g->has_blocking)
		return "blocking and non-blocking communicators cannot be in one group";
	if (blocking) {
		g->has_blocking = true;
		w->job = (struct shunt_job){ .queue = w->entry, .run = run_job, .finish = finish_job };
		add_job(g, &w->job);
		return NULL;
	}
	if (!d) {
		d = calloc(1, sizeof(*d));
		if (!d)
			return "no memory";
		d->job = (struct shunt_job){ .queue = d, .run = run_deferred, .finish = finish_deferred };
		d->end_task = &d->first;
		g->tasks = d;
		add_job(g, &d->job);
	}
	*d->end_task = w;
	d->end_task = &w->next;
	return NULL;
}

ncclResult_t shunt_task_start(struct shunt_task *w, bool blocking)
{
	struct shunt_group *g = shunt_group_open();
	const char *reason;

	w->next = NULL;
	w->background = w->abandoned = false;
	atomic_fetch_add(&w->entry->scomm->tasks, 1);
	if (g) {
		reason = group_add_task(g, w, blocking);
		if (!reason)
			return ncclSuccess;
		shunt_warn("%s", reason);
		return shunt_group_result(end_task(w, shunt_to_nccl(-EINVAL)));
	}
	if (!blocking)
		return start_tasks(w);
	return end_task(w, run_task(w));
}

ncclResult_t shunt_task_start_new(struct shunt_task *w, ncclComm_t *newcomm)
{
	struct shunt_entry *e = w->entry;

	atomic_fetch_add(&e->refs, 1); /* the table's, in addition to the task's */
	if (shunt_entry_publish(e, shunt_standalone_handle(e))) {
		atomic_fetch_add(&e->scomm->tasks, 1);
		return shunt_group_result(end_task(w, shunt_to_nccl(-ENOMEM)));
	}
	/* From here on another thread may abort it. */
	__atomic_store_n(newcomm, shunt_standalone_handle(e), __ATOMIC_RELEASE);
	return shunt_task_start(w, e->config.blocking);
}

void shunt_task_fail_new(struct shunt_task *w, ncclComm_t *newcomm, ncclResult_t result)
{
	struct shunt_entry *e = w->entry;

	/* The program has the handle: it finds the error there, and ends the communicator. */
	if (w->background || w->abandoned) {
		shunt_life_lose(&e->life, result);
		return;
	}
	shunt_entry_put(shunt_entry_remove(shunt_standalone_handle(e)));
	*newcomm = NULL;
}
