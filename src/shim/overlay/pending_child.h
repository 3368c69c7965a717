/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Overlay: children whose handle the real NCCL writes later, because they were split or shrunk in a group or from a
 * non-blocking parent.
 *
 * NCCL writes the handle to memory of ours. The child is published first, and only then its handle goes to the
 * program's memory: at the end of the group, or by a thread of ours that polls as long as handles are missing. So the
 * program may use the handle from the first moment on, without another call of NCCL's API in between.
 */
#include "shim/handles/handles.h"

struct shunt_pending_child;

/*
 * To be called before the real call. The child's reference goes to the list. async: NCCL may write the handle while no
 * call is under way, so the thread is needed. NULL: no memory or no thread; the child is put, and NCCL has it alone.
 */
struct shunt_pending_child *shunt_pending_child_add(
    struct shunt_entry *child, ncclComm_t *where, ncclComm_t parent, const void *group, bool async);
/* The memory for NCCL's handle. */
ncclComm_t *shunt_pending_child_place(struct shunt_pending_child *pending);
/*
 * The real call failed, so there will be no child. Otherwise the entry stays in the list until the handle has come or
 * cannot come any more.
 */
void shunt_pending_child_cancel(struct shunt_pending_child *pending);

/*
 * The group ended. If it failed, its children are dropped; else their handles are passed on, now or once they are
 * there.
 */
void shunt_pending_child_group_ended(const void *group, bool failed);
/* The parent's state was reported: handles that are there are passed on. After an error the others are given up. */
void shunt_pending_child_parent_state(ncclComm_t parent, ncclResult_t state);
/*
 * The parent is about to end: from now on no handle is written to the program's memory, except at the end of an open
 * group.
 */
void shunt_pending_child_parent_ends(ncclComm_t parent);
/* The parent has ended, so NCCL writes no handle any more. */
void shunt_pending_child_parent_ended(ncclComm_t parent);
/* shunt_entry_get, after publishing the children whose handles have come meanwhile. */
struct shunt_entry *shunt_entry_find(ncclComm_t handle);
