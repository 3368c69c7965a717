/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_OVERLAY_PENDING_CHILD_H
#define SHUNT_SHIM_OVERLAY_PENDING_CHILD_H
/*
 * Overlay: children whose handle the real NCCL writes later: split or shrunk in a group, or from a non-blocking parent.
 *
 * NCCL is given a place of ours to write to. We make the child known and only then pass its handle on to the program's
 * place: at the end of the group, or from a thread of ours that looks as long as there is something to be looked for.
 * So the program may do with its handle what it likes from the first moment on, without another call of NCCL's API in
 * between.
 */
#include "shim/handles.h"

struct shunt_pending_child;

/*
 * Before the real call. The child's reference goes to the list. async: NCCL may write when no call is under way, so
 * that the thread is needed. NULL: neither memory nor a thread could be had, and the child is put; it is NCCL's alone
 * then.
 */
struct shunt_pending_child *shunt_pending_child_add(
    struct shunt_entry *child, ncclComm_t *where, ncclComm_t parent, const void *group, bool async);
/* The place to be given to NCCL. */
ncclComm_t *shunt_pending_child_place(struct shunt_pending_child *pending);
/*
 * The real call failed: there will be no child. Else the entry stays in the list until the handle has come or cannot
 * come any more.
 */
void shunt_pending_child_cancel(struct shunt_pending_child *pending);

/* The group ended: its children are passed on, or later if they are not there yet; dropped if it failed. */
void shunt_pending_child_group_ended(const void *group, bool failed);
/*
 * The parent's state was reported: children that are there are passed on; after an error the rest is not waited for any
 * more.
 */
void shunt_pending_child_parent_state(ncclComm_t parent, ncclResult_t state);
/*
 * The parent is about to end: nothing is written to the program's places from now on, but at the end of a group that is
 * open.
 */
void shunt_pending_child_parent_ends(ncclComm_t parent);
/* It has: NCCL writes nothing any more either. */
void shunt_pending_child_parent_ended(ncclComm_t parent);
/* shunt_entry_get, after what has come meanwhile was made known. */
struct shunt_entry *shunt_entry_find(ncclComm_t handle);
#endif
