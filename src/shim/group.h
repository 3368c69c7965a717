/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_GROUP_H
#define SHUNT_SHIM_GROUP_H
/*
 * ncclGroupStart / ncclGroupEnd. A group belongs to a thread. What we run ourselves is recorded here. In overlay the
 * real NCCL's group is opened by the first call inside ours that reaches it (real.h); it is closed at the end of ours,
 * and what was recorded is launched after it has ended well.
 *
 * The first error sticks to the group: the outermost End returns it, and nothing recorded is launched.
 */
#include <stdbool.h>
#include "shim/overlay/forward.h"

struct shunt_group;

/* The calling thread's open group, or NULL. */
struct shunt_group *shunt_group_open(void);

/* Puts the entry when the real calls of the open group have been made, or at once without a group. NULL is allowed. */
void shunt_group_put(struct shunt_entry *entry);

/* The rest needs an open group. */

/* The entry's reference goes to the group, in case of an error too. */
ncclResult_t shunt_group_record(struct shunt_group *group, const struct shunt_coll_call *call);
/*
 * Is there a call of which it is not known yet whether the real NCCL gets it? What that gets for sure is recorded
 * behind it then.
 */
bool shunt_group_undecided(const struct shunt_group *group);
/* The real NCCL has got a message of the communicator in the group. */
void shunt_group_forwarded_p2p(struct shunt_group *group, ncclComm_t comm);
/* Remembers the result of a call inside the group if it is an error; returns it. */
ncclResult_t shunt_group_result(ncclResult_t result);
/* A communicator was created inside the group: its entry is dropped if the group fails. */
void shunt_group_comm_created(ncclComm_t comm);
/* True if a recorded call uses the operator; the real one is then destroyed at the group's end. */
bool shunt_group_defer_op_destroy(ncclRedOp_t op, ncclComm_t comm);

struct shunt_window;
/*
 * A window was registered inside the group: the real NCCL writes its handle to handle_p at the group's end. The entry's
 * reference goes to the group.
 */
void shunt_group_window(struct shunt_entry *entry, struct shunt_window *window, ncclWindow_t *handle_p);

/* Standalone: work for the group's end. */
struct shunt_job;
void shunt_group_add_job(struct shunt_job *job);
#endif
