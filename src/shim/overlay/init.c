/* SPDX-License-Identifier: MIT */
/*
 * Calls that create communicators. The real NCCL creates the program's; Shunt's side is created before that, so that
 * peers find it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "base/log.h"
#include "shim/real/real.h"
#include "shim/nccl/result.h"
#include "shim/overlay/attach.h"
#include "shim/handles/child_id.h"
#include "shim/overlay/real_group.h"
#include "shim/overlay/overlay.h"
#include "shim/overlay/pending_child.h"
#include "shim/calls/thread.h"
#include "transport/rendezvous/directory.h"

/* More devices than any machine has; limits what a wrong ndev does here. */
#define MAX_INIT_ALL_DEVICES 64

static bool succeeded(ncclResult_t result)
{
	return result == ncclSuccess || result == ncclInProgress;
}

/*
 * NCCL_COMM_ID gives every communicator the same id, with a mark. Members of two communicators would take each other
 * for their own.
 */
static const char *shared_id_reason(const ncclUniqueId *id)
{
	const uint64_t comm_id_magic = SHUNT_NCCL_COMM_MAGIC;

	return memcmp(id->internal, &comm_id_magic, sizeof(comm_id_magic)) ?
	    NULL :
	    "its unique id is NCCL_COMM_ID's and not its own";
}

/* The directory's address is in the id from the start, so that all ranks find each other before NCCL's init is done. */
ncclResult_t shunt_overlay_GetUniqueId(ncclUniqueId *id)
{
	ncclResult_t result = real_GetUniqueId(id);

	if (result == ncclSuccess && !shared_id_reason(id))
		shunt_directory_mark((uint8_t *)id->internal);
	return result;
}

/* Shunt's side of a communicator with this rank; NULL: NCCL has it alone. */
static struct shunt_entry *prepare_rank(int nranks, int rank, const ncclUniqueId *id, const ncclConfig_t *config)
{
	struct shunt_comm_desc desc = {
		.member = rank, .nmembers = nranks, .rank = rank, .nranks = nranks, .device = -1
	};
	struct shunt_directory_tail tail;
	struct shunt_comm_config c;
	char reason[128];

	if (!id || nranks < 1 || rank < 0 || rank >= nranks ||
	    shunt_comm_config_read(config, NULL, &c, reason, sizeof(reason)))
		return NULL; /* the real NCCL reports it */
	desc.id = shunt_id_derive(id->internal, sizeof(id->internal), "init", 0, 0);
	desc.forward_reason = shared_id_reason(id);
	tail = shunt_directory_tail_of((const uint8_t *)id->internal);
	desc.directory = &tail;
	desc.members_are_ranks = true;
	return shunt_overlay_attach(&desc, &c);
}

/* The handle is valid as soon as the call returns, even if the real NCCL still works on it. */
static ncclResult_t publish_rank(struct shunt_entry *e, int rank, const ncclComm_t *newcomm, ncclResult_t result)
{
	ncclComm_t handle = newcomm && succeeded(result) ? *newcomm : NULL;

	if (!e || !handle) {
		shunt_entry_put(e);
		return result;
	}
	if (!shunt_entry_publish(e, handle) && shunt_group_open())
		shunt_group_comm_created(shunt_group_open(), handle);
	else if (result == ncclSuccess)
		shunt_attach_refresh(handle);
	shunt_overlay_banner(rank);
	return result;
}

ncclResult_t shunt_overlay_CommInitRank(ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank)
{
	struct shunt_entry *e = prepare_rank(nranks, rank, &id, NULL);

	return publish_rank(e, rank, newcomm, real_CommInitRank(newcomm, nranks, id, rank));
}

ncclResult_t shunt_overlay_CommInitRankConfig(
    ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	struct shunt_entry *e = prepare_rank(nranks, rank, &id, config);

	return publish_rank(e, rank, newcomm, real_CommInitRankConfig(newcomm, nranks, id, rank, config));
}

ncclResult_t shunt_overlay_CommInitRankScalable(
    ncclComm_t *newcomm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config)
{
	struct shunt_entry *e = nids < 1 ? NULL : prepare_rank(nranks, rank, ids, config);

	return publish_rank(e, rank, newcomm, real_CommInitRankScalable(newcomm, nranks, rank, nids, ids, config));
}

ncclResult_t shunt_overlay_CommInitAll(ncclComm_t *comms, int ndev, const int *devlist)
{
	struct shunt_comm_config config;
	struct shunt_entry **entries = NULL;
	uint8_t secret[32];
	ncclResult_t result;
	char reason[128];

	if (comms && ndev > 0 && ndev <= MAX_INIT_ALL_DEVICES && getrandom(secret, sizeof(secret), 0) == sizeof(secret))
		entries = calloc(ndev, sizeof(*entries));
	shunt_comm_config_read(NULL, NULL, &config, reason, sizeof(reason));
	for (int i = 0; entries && i < ndev; i++) {
		struct shunt_comm_desc desc = { .id = shunt_id_derive(secret, sizeof(secret), "all", 0, 0),
			.member = i,
			.nmembers = ndev,
			.rank = i,
			.nranks = ndev,
			.device = devlist ? devlist[i] : i };
		entries[i] = shunt_overlay_attach(&desc, &config);
	}
	result = real_CommInitAll(comms, ndev, devlist);
	for (int i = 0; entries && result == ncclSuccess && i < ndev; i++)
		if (entries[i])
			shunt_attach_ask_nvls(entries[i], comms[i]);
	for (int i = 0; entries && i < ndev; i++)
		publish_rank(entries[i], i, &comms[i], result);
	free(entries);
	return result;
}

/* Shunt's side of a child; NULL if rank and size in the parent are not known. Member indices are the parent's ranks. */
static struct shunt_entry *prepare_child(
    struct shunt_entry *parent, ncclComm_t comm, struct shunt_id id, const ncclConfig_t *config)
{
	struct shunt_comm_desc desc = {
		.id = id, .rank = -1, .nranks = -1, .device = -1, .forward_reason = parent->forward_reason
	};
	struct shunt_comm_config c;
	char reason[128];

	if (shunt_comm_config_read(config, &parent->config, &c, reason, sizeof(reason)) ||
	    !shunt_attach_ready(parent, comm))
		return NULL;
	desc.member = shunt_comm_rank(parent->comm);
	desc.nmembers = shunt_comm_nranks(parent->comm);
	desc.directory = shunt_comm_directory(parent->comm);
	return shunt_overlay_attach(&desc, &c);
}

/* Prepares for a child's handle that comes after the call's return: then the real NCCL writes it to *real_handle_pp. */
static struct shunt_pending_child *expect_child(
    struct shunt_entry **child_p, ncclComm_t parent, bool blocking, ncclComm_t *newcomm, ncclComm_t **real_handle_pp)
{
	const void *group = shunt_group_open();
	struct shunt_pending_child *pending;

	*real_handle_pp = newcomm;
	if (!*child_p || !newcomm || (!group && blocking))
		return NULL;
	*newcomm = NULL;
	pending = shunt_pending_child_add(*child_p, newcomm, parent, group, !blocking);
	*child_p = NULL; /* the list has it */
	if (!pending)
		return NULL;
	*real_handle_pp = shunt_pending_child_place(pending);
	return pending;
}

/* To be called after the real call. */
static ncclResult_t publish_child(
    struct shunt_entry *child, struct shunt_pending_child *pending, const ncclComm_t *newcomm, ncclResult_t result)
{
	if (pending && !succeeded(result))
		shunt_pending_child_cancel(pending);
	if (child && succeeded(result) && *newcomm) {
		shunt_attach_ready(child, *newcomm);
		shunt_entry_publish(child, *newcomm);
	} else {
		shunt_entry_put(child);
	}
	return result;
}

ncclResult_t shunt_overlay_CommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	struct shunt_entry *parent, *child = NULL;
	struct shunt_pending_child *pending;
	bool blocking = true;
	ncclComm_t *real_handle_p;

	if (shunt_attach_not_ready(comm, "ncclCommSplit"))
		return shunt_group_result(shunt_to_nccl(-EINVAL));
	parent = shunt_entry_find(comm);
	if (parent) {
		/* Every rank counts the split, with a colour or without. */
		struct shunt_id id = shunt_child_split(parent, color);
		if (color != NCCL_SPLIT_NOCOLOR)
			child = prepare_child(parent, comm, id, config);
		blocking = parent->config.blocking;
		shunt_comm_note_function(parent->comm);
		shunt_entry_put(parent);
	}
	pending = expect_child(&child, comm, blocking, newcomm, &real_handle_p);
	return publish_child(child, pending, newcomm, real_CommSplit(comm, color, key, real_handle_p, config));
}

ncclResult_t shunt_overlay_CommShrink(
    ncclComm_t comm, int *excluded, int nexcluded, ncclComm_t *newcomm, ncclConfig_t *config, int flags)
{
	struct shunt_entry *parent, *child = NULL;
	struct shunt_pending_child *pending;
	bool blocking = true, aborts = flags & NCCL_SHRINK_ABORT, in_progress;
	ncclComm_t *real_handle_p;

	if (!comm) { /* NCCL 2.28 reads from it before it checks it */
		shunt_warn("ncclCommShrink: the communicator is NULL");
		return shunt_group_result(shunt_to_nccl(-EINVAL));
	}
	if (!aborts && shunt_attach_not_ready(comm, "ncclCommShrink"))
		return shunt_group_result(shunt_to_nccl(-EINVAL));
	in_progress = aborts && shunt_attach_in_progress(comm);
	/* NCCL before 2.27 refuses, and then nothing is aborted. */
	parent = excluded && nexcluded > 0 && shunt_real_symbol("ncclCommShrink") ? shunt_entry_find(comm) : NULL;
	/* NCCL judges a number of ranks that cannot be. The array may be shorter than that: it is not read here. */
	if (parent && nexcluded >= shunt_comm_nranks(parent->comm)) {
		shunt_entry_put(parent);
		parent = NULL;
	}
	if (parent) {
		/*
		 * NCCL's abort ends what is in progress, even if NCCL refuses the shrink since it was: then the program
		 * calls again, as it may have to for the first time on other ranks, and this call does not count.
		 */
		if (!in_progress)
			child = prepare_child(parent, comm, shunt_child_shrunk(parent, excluded, nexcluded), config);
		if (aborts) { /* stops what runs on the parent, whose dead ranks keep our kernels off from now on */
			shunt_life_stop(&parent->life);
			shunt_comm_abort(parent->comm);
		}
		blocking = parent->config.blocking;
		shunt_comm_note_function(parent->comm);
		shunt_entry_put(parent);
	}
	pending = expect_child(&child, comm, blocking, newcomm, &real_handle_p);
	return publish_child(
	    child, pending, newcomm, real_CommShrink(comm, excluded, nexcluded, real_handle_p, config, flags));
}

/*
 * Shunt's part of the id is a secret that is derived from the communicator's own: the old ranks know it, and the new
 * ones find it in the id.
 */
ncclResult_t shunt_overlay_CommGetUniqueId(ncclComm_t comm, ncclUniqueId *id)
{
	struct shunt_entry *e;
	ncclResult_t result;

	result = real_CommGetUniqueId(comm, id);
	e = result == ncclSuccess ? shunt_entry_find(comm) : NULL;
	if (e && !e->forward_reason)
		shunt_child_grow_id(e, NULL, id);
	shunt_entry_put(e);
	return result;
}

static struct shunt_entry *prepare_grown(
    ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, const ncclConfig_t *config)
{
	struct shunt_comm_desc desc = { .rank = rank, .nmembers = nranks, .nranks = nranks, .device = -1 };
	struct shunt_entry *parent = comm ? shunt_entry_find(comm) : NULL, *e = NULL;
	struct shunt_directory_tail tail;
	struct shunt_comm_config c;
	char reason[128];

	if (nranks < 1 || (comm && !parent) ||
	    shunt_comm_config_read(config, parent ? &parent->config : NULL, &c, reason, sizeof(reason)))
		goto out;
	if (parent) {
		desc.id = shunt_child_grown(parent);
		desc.forward_reason = parent->forward_reason;
		if (!shunt_attach_ready(parent, comm))
			goto out;
		desc.rank = shunt_comm_rank(parent->comm);
		desc.directory = shunt_comm_directory(parent->comm);
	} else if (!id || rank < 0 || rank >= nranks) {
		goto out;
	} else {
		desc.forward_reason = shunt_child_grown_by_id(id, &desc.id);
		tail = shunt_directory_tail_of((const uint8_t *)id->internal);
		desc.directory = &tail;
	}
	desc.member = desc.rank;
	desc.members_are_ranks = true;
	e = shunt_overlay_attach(&desc, &c);
out:
	shunt_entry_put(parent);
	return e;
}

ncclResult_t shunt_overlay_CommGrow(
    ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm, ncclConfig_t *config)
{
	struct shunt_entry *e;

	if (newcomm)
		*newcomm = NULL;
	if (comm && shunt_attach_not_ready(comm, "ncclCommGrow"))
		return shunt_group_result(shunt_to_nccl(-EINVAL));
	e = prepare_grown(comm, nranks, id, rank, config);
	return publish_rank(e, -1, newcomm, real_CommGrow(comm, nranks, id, rank, newcomm, config));
}
