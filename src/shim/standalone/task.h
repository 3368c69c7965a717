/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_STANDALONE_TASK_H
#define SHUNT_SHIM_STANDALONE_TASK_H
/*
 * Standalone: what takes its time on a communicator, because other ranks or the device have to be waited for. It runs
 * now, at the end of the thread's group, or for a non-blocking communicator on a thread of ours, after the group if
 * there is one. Tasks of one communicator run in the order in which they were started.
 *
 * While a task is under way its communicator is in progress. A task that fails where the program does not wait leaves
 * its result to ncclCommGetAsyncError.
 */
#include "shim/group.h"
#include "shim/handles.h"
#include "shim/jobs.h"

struct shunt_task {
	struct shunt_job job;      /* belongs to standalone_task.c */
	struct shunt_entry *entry; /* whom it concerns; a reference, put when it is done */
	bool background;           /* set while the program does not wait: what it was given so far is its own */
	ncclResult_t (*run)(struct shunt_task *task);
	/* Publishes or undoes; not to be run: with the group's error and background false. */
	ncclResult_t (*finish)(struct shunt_task *task, ncclResult_t result);
	struct shunt_task *next;
};

/* The task, calloc'ed and larger than this struct as it may be, is freed in any case. The result is the program's. */
ncclResult_t shunt_task_start(struct shunt_task *task, bool blocking);

/*
 * The same for the first task of a communicator: the program has the handle from here on, at *newcomm. If it fails, its
 * finish() calls fail_new, and there is no communicator; or, where the program has gone on with it, one that can only
 * be aborted.
 */
ncclResult_t shunt_task_start_new(struct shunt_task *task, ncclComm_t *newcomm);
void shunt_task_fail_new(struct shunt_task *task, ncclComm_t *newcomm);

/* InProgress, or the result of what ran in the background. */
ncclResult_t shunt_task_state(const struct shunt_standalone_comm *scomm);
/* Nothing but tasks of an open group is under way. */
bool shunt_task_is_queued(const struct shunt_standalone_comm *scomm);
/*
 * Ends what is under way, but not what an open group has to do yet, and waits for it. It leaves no error: what comes
 * next is not concerned.
 */
void shunt_task_revoke(struct shunt_standalone_comm *scomm);
/* Until no thread of ours touches the communicator any more, or what the program gave for its tasks. */
void shunt_task_wait(const struct shunt_standalone_comm *scomm);
#endif
