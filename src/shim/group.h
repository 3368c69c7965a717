/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_GROUP_H
#define SHUNT_SHIM_GROUP_H
/*
 * ncclGroupStart / ncclGroupEnd. A group belongs to a thread. Calls that Shunt runs are recorded here. In overlay the
 * first call inside the group that reaches the real NCCL opens the real NCCL's group (real.h). That group is closed at
 * the end of ours, and the recorded calls are launched once it has ended without an error.
 *
 * The first error sticks to the group: the outermost End returns it, and no recorded call is launched.
 */
#include <stdbool.h>
#include "shim/overlay/forward.h"

struct shunt_group;

/* The calling thread's open group, or NULL. */
struct shunt_group *shunt_group_open(void);

/* Puts the entry at the end of the open group, after the real calls, or at once without a group. NULL is allowed. */
void shunt_group_put(struct shunt_entry *entry);

/* The functions below need an open group. */

/* Records a call. The entry's reference goes to the group, even on an error. */
ncclResult_t shunt_group_record(struct shunt_group *group, const struct shunt_coll_call *call);
/*
 * True: a recorded call may still turn out to be the real NCCL's. Calls that certainly are must then be recorded behind
 * it.
 */
bool shunt_group_undecided(const struct shunt_group *group);
/* Notes that the real NCCL has a message of the communicator in this group. */
void shunt_group_forwarded_p2p(struct shunt_group *group, ncclComm_t comm);
/* Remembers the result as the group's error if it is one; returns it. */
ncclResult_t shunt_group_result(ncclResult_t result);
/* Notes a communicator that was created inside the group: its entry is dropped if the group fails. */
void shunt_group_comm_created(ncclComm_t comm);
/* True: a recorded call uses the operator, so the group's end destroys the real one. */
bool shunt_group_defer_op_destroy(ncclRedOp_t op, ncclComm_t comm);

struct shunt_window;
/*
 * Notes a window that was registered inside the group: the real NCCL writes its handle to handle_p at the group's end.
 * The entry's reference goes to the group.
 */
void shunt_group_window(struct shunt_entry *entry, struct shunt_window *window, ncclWindow_t *handle_p);

/* Standalone: adds work for the group's end. */
struct shunt_job;
void shunt_group_add_job(struct shunt_job *job);
#endif
