/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * ncclGroupStart / ncclGroupEnd. A group belongs to a thread. Calls that Shunt runs are recorded here, and launched at
 * the outermost end, which each mode has for itself (overlay/real_group.h, standalone/task.h).
 *
 * The first error sticks to the group: the outermost End returns it, and no recorded call is launched.
 */
#include <stdbool.h>
#include "shim/calls/coll_call.h"

struct shunt_job;
struct shunt_task;
struct shunt_window;

/* Work that the group does for a communicator's handle when it ends. */
struct shunt_deferred_action {
	ncclComm_t comm;
	ncclRedOp_t op;
	struct shunt_entry *entry;
	struct shunt_window *window;
	ncclWindow_t *handle_p;
};

struct shunt_deferred_actions {
	struct shunt_deferred_action *v;
	size_t n;
};

/* The state of a thread's group; without one, all of it is zero. */
struct shunt_group {
	unsigned depth;
	ncclResult_t error;
	struct shunt_coll_call *calls;
	size_t n, cap;
	size_t nundecided; /* calls that may still turn out to be the real NCCL's */
	size_t done;       /* calls that were forwarded or launched */
	/* Overlay. */
	bool real_due;                               /* the next call of the real NCCL is to open its group first */
	struct shunt_deferred_actions p2p_comms;     /* communicators with messages that the real NCCL has */
	struct shunt_deferred_actions created_comms; /* created inside */
	struct shunt_deferred_actions dying_ops;     /* operators to destroy at the end */
	struct shunt_deferred_actions held_entries;  /* entries to put at the end */
	struct shunt_deferred_actions windows;       /* registered inside */
	/* Standalone. */
	struct shunt_job *jobs, **jobs_end; /* work for the end, in this order */
	bool has_blocking;                  /* the group has a task that the program waits for */
	struct shunt_deferred_tasks *tasks; /* ... or tasks that it does not wait for; one of the jobs (task.c) */
};

/* The functions below need an open group. */

/* Records a call. The entry's reference goes to the group, even on an error. */
ncclResult_t shunt_group_record(struct shunt_group *group, const struct shunt_coll_call *call);
/*
 * True: a recorded call may still turn out to be the real NCCL's. Calls that certainly are must then be recorded behind
 * it.
 */
bool shunt_group_undecided(const struct shunt_group *group);
int shunt_group_defer(struct shunt_deferred_actions *actions, struct shunt_deferred_action action);

/* Sets up the communicators of the recorded calls, all at the same time. */
ncclResult_t shunt_group_setup(struct shunt_group *group);
/*
 * Launches the recorded calls. The set-up is done, and NCCL's calls are forwarded: now a call is declined only without
 * a real NCCL.
 */
ncclResult_t shunt_group_launch(struct shunt_group *group);
/* Forgets everything, with the error or without; returns the result. */
ncclResult_t shunt_group_forget(struct shunt_group *group, ncclResult_t result);
/* The same at the end of a thread, which does not wait for a communicator whose last reference it had. */
void shunt_group_forget_async(struct shunt_group *group);

/* Refuses the end of a group that was not started. what: the function's name, for the log. */
ncclResult_t shunt_group_refuse_end(const char *what);

/*
 * Ends one level of the group. True: it was the outermost, and its end is no longer inside. False: *result_p is the
 * call's result.
 */
static inline bool shunt_group_leave(struct shunt_group *group, const char *what, ncclResult_t *result_p)
{
	if (!group->depth) {
		*result_p = shunt_group_refuse_end(what);
		return false;
	}
	*result_p = ncclSuccess;
	return !--group->depth;
}
