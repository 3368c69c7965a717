/* SPDX-License-Identifier: MIT */
/* Standalone: communicators that are made from others. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "transport/rendezvous/bootstrap_group.h"
#include "kernels/set.h"
#include "shim/standalone/task.h"
#include "shim/handles/child_id.h"
#include "shim/nccl/result.h"
#include "shim/standalone/lookup.h"
#include "shim/standalone/standalone.h"
#include "shim/calls/thread.h"

/* An old rank's knowledge of the root of a group that grows: from the id, or because the rank has made the id. */
struct grow_root_said {
	struct shunt_host_address at; /* of no family: nothing */
	uint32_t by_id;
};

struct standalone_child_task {
	struct shunt_task task; /* of the parent (split, shrink), or of the child (grow) */
	/* split and shrink: not published yet, the task's; NULL without a colour. grow: the task's entry */
	struct shunt_entry *child;
	struct shunt_entry *parent; /* grow: a reference, or NULL for a new rank */
	ncclComm_t *newcomm;
	struct shunt_bootstrap_group bootstrap_group;
	int *members; /* shrink: those of the group, the task's */
	int color, key;
	struct grow_root_said grow_root;
};

struct split_key {
	int32_t color, key;
};

/* A smaller key comes first; with the same key, the smaller rank in the parent. */
static int new_rank(const struct split_key *all, int nranks, int me)
{
	int rank = 0;

	for (int r = 0; r < nranks; r++)
		rank += all[r].color == all[me].color &&
		    (all[r].key < all[me].key || (all[r].key == all[me].key && r < me));
	return rank;
}

/* Takes the hosts of the group's ranks over, of which the child has those in order. */
static int set_hosts(struct shunt_entry *child, struct shunt_hosts *hosts, const int *order, int n)
{
	if (hosts && order)
		shunt_hosts_select(hosts, order, n);
	if (hosts && hosts->nhosts == 1) {
		shunt_hosts_destroy(hosts);
		hosts = NULL;
	}
	return shunt_comm_set_hosts(child->comm, hosts);
}

static ncclResult_t split_run(struct shunt_task *task)
{
	struct standalone_child_task *w = (struct standalone_child_task *)task;
	struct shunt_comm *parent = task->entry->comm;
	int me = shunt_comm_rank(parent), nranks = shunt_comm_nranks(parent), rank = 0, members = 0, err;
	struct split_key mine = { w->color, w->key }, *all = calloc(nranks, sizeof(*all));
	int *order = calloc(nranks, sizeof(*order));
	struct shunt_hosts *hosts = NULL;

	err = all && order ? shunt_bootstrap_allgather(&w->bootstrap_group, &mine, sizeof(mine), all, &hosts) : -ENOMEM;
	for (int r = 0; !err && r < nranks; r++) {
		if (all[r].color != w->color)
			continue;
		order[new_rank(all, nranks, r)] = r;
		members++;
	}
	if (!err && w->child) {
		rank = new_rank(all, nranks, me);
		shunt_comm_set_rank(w->child->comm, rank, members, shunt_comm_device(parent));
		shunt_life_locate(&w->child->life);
		err = set_hosts(w->child, hosts, order, members);
		hosts = NULL;
	}
	shunt_hosts_destroy(hosts);
	free(order);
	free(all);
	return shunt_to_nccl(err);
}

/* Passes the handle on when the child can be used. */
static ncclResult_t child_finish(struct shunt_task *task, ncclResult_t result)
{
	struct standalone_child_task *w = (struct standalone_child_task *)task;
	ncclComm_t handle;

	free(w->members);
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

/* The bootstrap group of all ranks of the described communicator. root: the lowest rank of the parent among them. */
static struct shunt_bootstrap_group bootstrap_group_of(
    const struct shunt_comm_desc *d, const struct shunt_entry *cancels, const struct shunt_entry *parent, int root)
{
	const struct shunt_hosts *hosts = parent ? shunt_comm_hosts(parent->comm) : NULL;
	struct shunt_bootstrap_group group = { .id = d->id,
		.member = d->member,
		.nmembers = d->nmembers,
		.rank = d->rank,
		.nranks = d->nranks,
		.cancel = &cancels->life.cancel,
		.of_parent = cancels == parent,
		.root = { .fd = -1, .member = root } };

	if (hosts)
		group.root.at = hosts->rank[root].group;
	if (hosts && shunt_comm_rank(parent->comm) == root)
		group.root.fd = hosts->group_fd;
	return group;
}

/* A child whose rank is still to be determined has rank and nranks -1. */
static struct shunt_comm_desc describe_child(const struct shunt_entry *parent, struct shunt_id id, int rank, int nranks)
{
	return (struct shunt_comm_desc){ .id = id,
		.member = shunt_comm_rank(parent->comm),
		.nmembers = shunt_comm_nranks(parent->comm),
		.rank = rank,
		.nranks = nranks,
		.device = shunt_comm_device(parent->comm),
		.may_span = shunt_comm_hosts(parent->comm) };
}

/* Takes over the references to parent and child. */
static ncclResult_t start_child(
    struct shunt_entry *parent, struct shunt_entry *child, const struct standalone_child_task *what)
{
	struct standalone_child_task *w = malloc(sizeof(*w));

	if (!w) {
		free(what->members);
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

ncclResult_t shunt_standalone_CommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	struct standalone_child_task w = {
		.task = { .run = split_run, .phase = "split" }, .newcomm = newcomm, .color = color, .key = key
	};
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
	w.bootstrap_group = bootstrap_group_of(&desc, parent, parent, 0);
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
	struct standalone_child_task *w = (struct standalone_child_task *)task;
	struct shunt_hosts *hosts;
	int err = shunt_bootstrap_allgather(&w->bootstrap_group, NULL, 0, NULL, &hosts);

	return shunt_to_nccl(err ? err : set_hosts(w->child, hosts, NULL, 0));
}

/* The parent's ranks that stay, in order; NULL: no memory. */
static int *ranks_left(const struct shunt_entry *parent, const int *excluded, int n)
{
	int nranks = shunt_comm_nranks(parent->comm), left = 0;
	int *ranks = malloc((size_t)nranks * sizeof(*ranks));

	for (int r = 0; ranks && r < nranks; r++) {
		bool stays = true;

		for (int i = 0; i < n; i++)
			stays = stays && excluded[i] != r;
		if (stays)
			ranks[left++] = r;
	}
	return ranks;
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

ncclResult_t shunt_standalone_CommShrink(
    ncclComm_t comm, int *excluded, int n, ncclComm_t *newcomm, ncclConfig_t *config, int flags)
{
	struct standalone_child_task w = { .task = { .run = barrier_run, .phase = "shrink" }, .newcomm = newcomm };
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
	w.members = ranks_left(parent, excluded, n);
	child = w.members ? shunt_standalone_new(&desc, &c) : NULL;
	if (!child) {
		free(w.members);
		shunt_entry_put(parent);
		return shunt_group_result(ncclSystemError);
	}
	w.bootstrap_group = bootstrap_group_of(&desc, parent, parent, w.members[0]);
	w.bootstrap_group.members = w.members;
	return start_child(parent, child, &w);
}

/* ---- growing */

/* Where the ranks come together, or NULL: on their host, as nobody can come from another one. */
static const struct shunt_host_address *make_grow_root(struct shunt_entry *e)
{
	const struct shunt_hosts *hosts = shunt_comm_hosts(e->comm);
	struct shunt_group_root *root = &e->scomm->grow_root;

	if (hosts)
		return &hosts->rank[0].group;
	e->scomm->grow = e->grows;
	return shunt_host_address_listen(&root->at, &root->fd) ? NULL : &root->at;
}

ncclResult_t shunt_standalone_CommGetUniqueId(ncclComm_t comm, ncclUniqueId *id)
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
	shunt_child_grow_id(e, make_grow_root(e), id);
	shunt_entry_put(e);
	return ncclSuccess;
}

/* An old rank of one host need not pass the id, which the ranks of a program give to one another by other means. */
static struct grow_root_said say_grow_root(
    const struct shunt_entry *parent, const struct shunt_id *child, unsigned grow, const ncclUniqueId *id)
{
	const struct shunt_standalone_comm *scomm = parent->scomm;
	struct grow_root_said said = { 0 };
	struct shunt_id named;

	if (id && !shunt_child_grown_by_id(id, &named) && !memcmp(&named, child, sizeof(named)))
		said.at = shunt_child_grow_root(id);
	said.by_id = said.at.family != 0;
	if (!said.by_id && scomm->grow_root.fd >= 0 && scomm->grow == grow)
		said.at = scomm->grow_root.at;
	return said;
}

/* The old ranks of one host tell each other which of them is the root. */
static int find_grow_root(struct standalone_child_task *w)
{
	const struct shunt_comm *parent = w->parent->comm;
	const struct shunt_standalone_comm *scomm = w->parent->scomm;
	struct shunt_bootstrap_group *group = &w->bootstrap_group;
	struct shunt_bootstrap_group old = { .id = shunt_id_derive(&group->id, sizeof(group->id), "root", 0, 0),
		.member = shunt_comm_rank(parent),
		.nmembers = shunt_comm_nranks(parent),
		.rank = shunt_comm_rank(parent),
		.nranks = shunt_comm_nranks(parent),
		.cancel = group->cancel,
		.root = { .fd = -1, .member = -1 } };
	struct grow_root_said *said = calloc((size_t)old.nranks, sizeof(*said));
	struct shunt_hosts *none;
	int root = -1, err = -ENOMEM;

	if (said)
		err = shunt_bootstrap_allgather(&old, &w->grow_root, sizeof(w->grow_root), said, &none);
	for (int r = 0; !err && r < old.nranks; r++)
		if (said[r].at.family && (root < 0 || said[r].by_id > said[root].by_id))
			root = r;
	if (root >= 0)
		group->root.at = said[root].at;
	group->root.member = root;
	if (root >= 0 && scomm->grow_root.fd >= 0 &&
	    !memcmp(&scomm->grow_root.at, &group->root.at, sizeof(group->root.at)))
		group->root.fd = scomm->grow_root.fd;
	free(said);
	return err;
}

static ncclResult_t grow_run(struct shunt_task *task)
{
	struct standalone_child_task *w = (struct standalone_child_task *)task;
	int err = w->parent && !shunt_comm_hosts(w->parent->comm) ? find_grow_root(w) : 0;

	return err ? shunt_to_nccl(err) : barrier_run(task);
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

	*desc = (struct shunt_comm_desc){ .rank = rank, .nranks = nranks, .nmembers = nranks, .may_span = true };
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

ncclResult_t shunt_standalone_CommGrow(
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
	w->task = (struct shunt_task){ .entry = child, .phase = "creation", .run = grow_run, .finish = grow_finish };
	w->bootstrap_group = bootstrap_group_of(&desc, child, parent, 0);
	if (parent)
		w->grow_root = say_grow_root(parent, &desc.id, parent->grows - 1, id);
	else
		w->bootstrap_group.root = (struct shunt_group_root){ shunt_child_grow_root(id), -1, -1 };
	w->child = child;
	w->parent = parent;
	w->newcomm = newcomm;
	return shunt_task_start_new(&w->task, newcomm);
}
