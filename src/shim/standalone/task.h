/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Standalone: work on a communicator that has to wait for other ranks or the device. A task runs at once, at the end of
 * the thread's group, or for a non-blocking communicator on a thread of ours, after the group if there is one. Tasks of
 * one communicator run in the order in which they were started.
 *
 * While a task is under way, its communicator is in progress. If a task fails and the program does not wait for it,
 * ncclCommGetAsyncError returns its result.
 */
#include "shim/calls/call_group.h"
#include "shim/handles/handles.h"
#include "shim/standalone/jobs.h"

struct shunt_task {
	struct shunt_job job;      /* used by task.c */
	struct shunt_entry *entry; /* the communicator; a reference, put when the task is done */
	const char *phase;         /* what a dump calls the wait for other ranks; NULL: it has another word for it */
	bool background;           /* the program does not wait, and may use handles that it got so far */
	bool abandoned;            /* its thread has ended: so may the program's memory have for what it would write */
	ncclResult_t (*run)(struct shunt_task *task);
	/* Publishes or undoes. For a task that was not run: with the group's error, and background false. */
	ncclResult_t (*finish)(struct shunt_task *task, ncclResult_t result);
	struct shunt_task *next;
};

/*
 * Starts a task. It is from calloc, may be larger than this struct, and is freed in any case. Returns the program's
 * result.
 */
ncclResult_t shunt_task_start(struct shunt_task *task, bool blocking);

/*
 * The same for the first task of a communicator: the program has the handle from here on, at *newcomm. If the task
 * fails, its finish() calls fail_new. Then there is no communicator; or, if the program does not wait, one that can
 * only be aborted.
 */
ncclResult_t shunt_task_start_new(struct shunt_task *task, ncclComm_t *newcomm);
void shunt_task_fail_new(struct shunt_task *task, ncclComm_t *newcomm, ncclResult_t result);

/* InProgress, or the result of background tasks. */
ncclResult_t shunt_task_state(const struct shunt_entry *entry);
/* True: only tasks of an open group are under way. */
bool shunt_task_is_queued(const struct shunt_standalone_comm *scomm);
/*
 * Ends the tasks under way, except those that an open group still has to run, and waits for them. It leaves no error,
 * because later tasks are not affected.
 */
void shunt_task_revoke(struct shunt_entry *entry);
/* At the end of a thread that is inside a group: the group's tasks are not run. */
void shunt_task_abandon(struct shunt_group *group);
/* Waits until no thread of ours uses the communicator, or the program's memory for its tasks. */
void shunt_task_wait(const struct shunt_standalone_comm *scomm);
