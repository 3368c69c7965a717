/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_PENDING_H
#define SHUNT_SHIM_PENDING_H
/*
 * Children whose handle the real NCCL writes later, straight into the program's memory: split or shrunk from a non-blocking parent,
 * or inside a group. We remember the place, and look there when NCCL must have written it: at the end of the group, when the parent
 * reports success, and when a handle turns up that we do not know.
 */
#include "shim/handles.h"

/* group: the thread's open group, or NULL. The entry's reference goes to the list; on -ENOMEM the entry is put. */
int shunt_pending_add(struct shunt_entry *child, ncclComm_t *where, ncclComm_t parent, const void *group);
/* The group ended: its children are adopted, or wait for their parent (where nothing is written yet); dropped if it failed. */
void shunt_pending_group_ended(const void *group, bool failed);
/* The parent's state was reported: its children are adopted, kept (in progress), or dropped (any error). */
void shunt_pending_parent_state(ncclComm_t parent, ncclResult_t state);
/* shunt_entry_get, but looks for the handle among the pending children too. */
struct shunt_entry *shunt_entry_find(ncclComm_t handle);
#endif
