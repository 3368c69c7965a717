/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Groups with a real NCCL. The first call inside the group that reaches the real NCCL opens the real NCCL's group
 * (real/real.h). That group is closed at the end of ours, and the recorded calls are launched once it has ended without
 * an error.
 */
#include "shim/calls/call_group.h"

/* Puts the entry at the end of the open group, after the real calls, or at once without a group. NULL is allowed. */
void shunt_group_put(struct shunt_entry *entry);

/* The functions below need an open group. */

/* Notes that the real NCCL has a message of the communicator in this group. */
void shunt_group_forwarded_p2p(struct shunt_group *group, ncclComm_t comm);
/* Notes a communicator that was created inside the group: its entry is dropped if the group fails. */
void shunt_group_comm_created(struct shunt_group *group, ncclComm_t comm);
/* True: a recorded call uses the operator, so the group's end destroys the real one. */
bool shunt_group_defer_op_destroy(struct shunt_group *group, ncclRedOp_t op, ncclComm_t comm);
/*
 * Notes a window that was registered inside the group: the real NCCL writes its handle to handle_p at the group's end.
 * The entry's reference goes to the group.
 */
void shunt_group_window(
    struct shunt_group *group, struct shunt_entry *entry, struct shunt_window *window, ncclWindow_t *handle_p);
