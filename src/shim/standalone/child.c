/* SPDX-License-Identifier: MIT */
/* Standalone: communicators that are made from others. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "transport/rendezvous/group.h"
#include "base/log.h"
#include "comm/gpu.h"
#include "shim/standalone/task.h"
#include "shim/overlay/children.h"
#include "shim/nccl/result.h"
#include "shim/standalone/standalone.h"
#include "shim/thread.h"

struct standalone_child_task {
	struct shunt_task task;     /* of the parent (split, shrink), or of the child (grow) */
	struct shunt_entry *child;  /* split and shrink: not published yet; NULL without a colour */
	struct shunt_entry *parent; /* grow: a reference, or NULL for a new rank */
	ncclComm_t *newcomm;
	struct shunt_bootstrap_group bootstrap_group;
	int color, key;
};

struct split_key {
	int32_t color, key;
};

static ncclResult_t split_run(struct shunt_task *task)
{
	struct standalone_child_task *w = (struct standalone_child_task *)task;
	struct shunt_comm *parent = task->entry->comm;
	int me = shunt_comm_rank(parent), nranks = shunt_comm_nranks(parent), rank = 0, members = 0, err;
	struct split_key mine = { w->color, w->key }, *all = calloc(nranks, sizeof(*all));

	if (!all)
		return shunt_to_nccl(-ENOMEM);
	err = shunt_bootstrap_allgather(&w->bootstrap_group, &mine, sizeof(mine), all);
	for (int r = 0; !err && r < nranks; r++) {
		if (all[r].color != w->color)
			continue;
		members++;
		/* A smaller key comes first; with the same key, the smaller rank in the parent. */
		if (all[r].key < w->key || (all[r].key == w->key && r < me))
			rank++;
	}
	free(all);
	if (!err && w->child) {
		shunt_comm_set_rank(w->child->comm, rank, members, shunt_comm_device(parent));
		shunt_life_locate(&w->child->life);
	}
	return shunt_to_nccl(err);
}

/* Passes the handle on when the child can be used. */
static ncclResult_t child_finish(struct shunt_task *task, ncclResult_t result)
{
	struct standalone_child_task *w = (struct standalone_child_task *)task;
	ncclComm_t handle;

	if (!w->child)
		return result;
	if (result != ncclSuccess) {
		shunt_entry_put(w->child);
		return result;
	}
	handle = shunt_standalone_handle(w->child);
	if (shunt_entry_publish(w->child, handle))
		return shunt_to_nccl(-ENOMEM);
	__atomic_store_n(w->newcomm, handle, __ATOMIC_RELEASE);
	return ncclSuccess;
}

/* The bootstrap group of all ranks of the described communicator. */
static struct shunt_bootstrap_group bootstrap_group_of(
    const struct shunt_comm_desc *d, const struct shunt_entry *cancels)
{
	return (
	    struct shunt_bootstrap_group){ d->id, d->member, d->nmembers, d->rank, d->nranks, &cancels->life.cancel };
}

/* A child whose rank is still to be determined has rank and nranks -1. */
static struct shunt_comm_desc describe_child(const struct shunt_entry *parent, struct shunt_id id, int rank, int nranks)
{
	return (struct shunt_comm_desc){ .id = id,
		.member = shunt_comm_rank(parent->comm),
		.nmembers = shunt_comm_nranks(parent->comm),
		.rank = rank,
		.nranks = nranks,
		.device = shunt_comm_device(parent->comm) };
}

/* Takes over the references to parent and child. */
static ncclResult_t start_child(
    struct shunt_entry *parent, struct shunt_entry *child, const struct standalone_child_task *what)
{
	struct standalone_child_task *w = malloc(sizeof(*w));

	if (!w) {
		shunt_entry_put(child);
		shunt_entry_put(parent);
		return shunt_group_result(shunt_to_nccl(-ENOMEM));
	}
	*w = *what;
	w->child = child;
	w->task.entry = parent;
	w->task.finish = child_finish;
	return shunt_task_start(&w->task, parent->config.blocking);
}

ncclResult_t shunt_standalone_split(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	struct standalone_child_task w = { .task.run = split_run, .newcomm = newcomm, .color = color, .key = key };
	struct shunt_entry *parent, *child = NULL;
	struct shunt_comm_desc desc;
	struct shunt_comm_config c;
	ncclResult_t result;
	const char *error;
	char reason[128];

	parent = shunt_standalone_find(comm, "ncclCommSplit", &result);
	if (!parent)
		return shunt_group_result(result);
	error = newcomm ? NULL : "the place for the communicator is NULL";
	if (!error && color < 0 && color != NCCL_SPLIT_NOCOLOR)
		error = "the colour is negative and not NCCL_SPLIT_NOCOLOR";
	if (!error && shunt_comm_config_read(config, &parent->config, &c, reason, sizeof(reason)))
		error = reason;
	if (error) {
		shunt_entry_put(parent);
		return shunt_standalone_refuse("ncclCommSplit", error);
	}
	*newcomm = NULL;
	desc = describe_child(parent, shunt_id_derive(&parent->id, sizeof(parent->id), "votes", parent->splits, 0),
	    shunt_comm_rank(parent->comm), shunt_comm_nranks(parent->comm)); /* all ranks of the parent */
	w.bootstrap_group = bootstrap_group_of(&desc, parent);
	desc = describe_child(parent, shunt_child_split(parent, color), -1, -1);
	if (color != NCCL_SPLIT_NOCOLOR && !(child = shunt_standalone_new(&desc, &c))) {
		shunt_entry_put(parent);
		return shunt_group_result(ncclSystemError);
	}
	return start_child(parent, child, &w);
}

/* Every member waits for all others: after that each has bound its socket, as after any other init. */
static ncclResult_t barrier_run(struct shunt_task *task)
{
	return shunt_to_nccl(
	    shunt_bootstrap_allgather(&((struct standalone_child_task *)task)->bootstrap_group, NULL, 0, NULL));
}

static const char *check_excluded(const struct shunt_entry *parent, const int *excluded, int n)
{
	if (!excluded || n < 1)
		return "no rank is to be excluded";
	for (int i = 0; i < n; i++) {
		if (excluded[i] < 0 || excluded[i] >= shunt_comm_nranks(parent->comm))
			return "a rank to be excluded is out of range";
		if (excluded[i] == shunt_comm_rank(parent->comm))
			return "this rank is itself to be excluded, and must not call";
		for (int k = 0; k < i; k++)
			if (excluded[k] == excluded[i])
				return "a rank to be excluded is named twice";
	}
	return NULL;
}

ncclResult_t shunt_standalone_shrink(
    ncclComm_t comm, int *excluded, int n, ncclComm_t *newcomm, ncclConfig_t *config, int flags)
{
	struct standalone_child_task w = { .task.run = barrier_run, .newcomm = newcomm };
	struct shunt_entry *parent, *child;
	struct shunt_comm_desc desc;
	struct shunt_comm_config c;
	ncclResult_t result;
	const char *error;
	char reason[128];
	int before = 0;

	parent = shunt_standalone_find(comm, "ncclCommShrink", &result);
	if (!parent)
		return shunt_group_result(result);
	error = newcomm ? check_excluded(parent, excluded, n) : "the place for the communicator is NULL";
	if (!error && shunt_comm_config_read(config, &parent->config, &c, reason, sizeof(reason)))
		error = reason;
	if (error) {
		shunt_entry_put(parent);
		return shunt_standalone_refuse("ncclCommShrink", error);
	}
	*newcomm = NULL;
	if (flags & NCCL_SHRINK_ABORT) {
		/* Kernels were stopped half-way, so the parent can only be ended. */
		shunt_life_stop(&parent->life);
		shunt_comm_abort(parent->comm);
		shunt_comm_quiesce(parent->comm);
	}
	for (int i = 0; i < n; i++)
		before += excluded[i] < shunt_comm_rank(parent->comm);
	desc = describe_child(parent, shunt_child_shrunk(parent, excluded, n), shunt_comm_rank(parent->comm) - before,
	    shunt_comm_nranks(parent->comm) - n);
	w.bootstrap_group = bootstrap_group_of(&desc, parent);
	child = shunt_standalone_new(&desc, &c);
	if (!child) {
		shunt_entry_put(parent);
		return shunt_group_result(ncclSystemError);
	}
	return start_child(parent, child, &w);
}

ncclResult_t shunt_standalone_grow_id(ncclComm_t comm, ncclUniqueId *id)
{
	struct shunt_entry *e;
	ncclResult_t result;

	e = shunt_standalone_find(comm, "ncclCommGetUniqueId", &result);
	if (!e)
		return result;
	if (!id) {
		shunt_entry_put(e);
		return shunt_standalone_refuse("ncclCommGetUniqueId", "the pointer is NULL");
	}
	memset(id, 0, sizeof(*id));
	shunt_child_grow_id(e, id);
	shunt_entry_put(e);
	return ncclSuccess;
}

static ncclResult_t grow_finish(struct shunt_task *task, ncclResult_t result)
{
	struct standalone_child_task *w = (struct standalone_child_task *)task;

	if (result != ncclSuccess)
		shunt_task_fail_new(task, w->newcomm, result);
	shunt_entry_put(w->parent);
	return result;
}

/* Describes this rank in the grown communicator. NULL, or what is wrong. */
static const char *describe_grown(
    struct shunt_entry *parent, int nranks, const ncclUniqueId *id, int rank, struct shunt_comm_desc *desc)
{
	const struct shunt_gpu_ops *gpu = shunt_gpu();
	const char *reason = NULL;

	*desc = (struct shunt_comm_desc){ .rank = rank, .nranks = nranks, .nmembers = nranks };
	if (nranks < 1 || (parent && nranks <= shunt_comm_nranks(parent->comm)))
		return "the communicator would not be larger than before";
	if (parent) {
		if (rank != -1)
			return "a rank that was there before must say -1 and keeps its rank";
		desc->rank = shunt_comm_rank(parent->comm);
		desc->device = shunt_comm_device(parent->comm);
		desc->id = shunt_child_grown(parent);
	} else {
		if (!id)
			return "a new rank needs the unique id";
		if (rank < 0 || rank >= nranks)
			return "the new rank is out of range";
		reason = shunt_child_grown_by_id(id, &desc->id);
		if (!reason && (!gpu || gpu->device_get(&desc->device)))
			reason = "there is no device";
	}
	desc->member = desc->rank;
	return reason;
}

ncclResult_t shunt_standalone_grow(
    ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm, ncclConfig_t *config)
{
	struct shunt_entry *parent = NULL, *child;
	struct shunt_comm_desc desc;
	struct shunt_comm_config c;
	struct standalone_child_task *w;
	ncclResult_t result;
	const char *error;
	char reason[128];

	if (!newcomm)
		return shunt_standalone_refuse("ncclCommGrow", "the place for the communicator is NULL");
	*newcomm = NULL;
	if (comm && !(parent = shunt_standalone_find(comm, "ncclCommGrow", &result)))
		return shunt_group_result(result);
	error =
	    shunt_comm_config_read(config, parent ? &parent->config : NULL, &c, reason, sizeof(reason)) ? reason : NULL;
	if (!error)
		error = describe_grown(parent, nranks, id, rank, &desc);
	if (error) {
		shunt_entry_put(parent);
		return shunt_standalone_refuse("ncclCommGrow", error);
	}
	w = calloc(1, sizeof(*w));
	child = w ? shunt_standalone_new(&desc, &c) : NULL;
	if (!child) {
		shunt_entry_put(parent);
		free(w);
		return shunt_group_result(ncclSystemError);
	}
	w->task = (struct shunt_task){ .entry = child, .run = barrier_run, .finish = grow_finish };
	w->bootstrap_group = bootstrap_group_of(&desc, child);
	w->parent = parent;
	w->newcomm = newcomm;
	return shunt_task_start_new(&w->task, newcomm);
}
