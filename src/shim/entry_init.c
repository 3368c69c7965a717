/* SPDX-License-Identifier: MIT */
/* Calls that make communicators. The real NCCL makes the program's; ours is created beside it, before, so that peers find it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "core/log.h"
#include "shim/group.h"
#include "shim/pending.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/standalone.h"

/* Beyond any machine; keeps a wild ndev from us. */
#define MAX_LOCAL 64

static bool went_well(ncclResult_t result)
{
	return result == ncclSuccess || result == ncclInProgress;
}

ncclResult_t pncclGetUniqueId(ncclUniqueId *id)
{
	return shunt_mode() == SHUNT_STANDALONE ? shunt_alone_unique_id(id) : real_GetUniqueId(id);
}
SHUNT_TWIN(GetUniqueId);

/* NCCL_COMM_ID gives every communicator the same id, marked so; members of two of them would take each other for their own. */
static const char *id_is_shared(const ncclUniqueId *id)
{
	const uint64_t mark = SHUNT_NCCL_COMM_MAGIC;

	return memcmp(id->internal, &mark, sizeof(mark)) ? NULL : "its unique id is NCCL_COMM_ID's and not its own";
}

/* Our side of a communicator of which this is a rank; NULL: it is not for us. */
static struct shunt_entry *prepare_rank(int nranks, int rank, const ncclUniqueId *id, const ncclConfig_t *config)
{
	struct shunt_comm_desc desc = {.slot = rank, .nslots = nranks, .rank = rank, .nranks = nranks, .device = -1};
	struct shunt_settings settings;

	if (!id || nranks < 1 || rank < 0 || rank >= nranks || shunt_settings_read(config, NULL, &settings))
		return NULL; /* the real NCCL will say so */
	desc.id = shunt_id_derive(id->internal, sizeof(id->internal), "init", 0, 0);
	desc.forward_why = id_is_shared(id);
	return shunt_attach(&desc, &settings);
}

/* The handle is there as soon as the call returns, even where the real NCCL still works on it. */
static ncclResult_t publish_rank(struct shunt_entry *e, int rank, const ncclComm_t *newcomm, ncclResult_t result)
{
	ncclComm_t handle = newcomm && went_well(result) ? *newcomm : NULL;

	if (!e || !handle) {
		shunt_entry_put(e);
		return result;
	}
	if (!shunt_entry_publish(e, handle) && shunt_group_open())
		shunt_group_born(handle);
	shunt_attach_banner(rank, -1);
	return result;
}

ncclResult_t pncclCommInitRank(ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_entry *e;

	if (mode == SHUNT_STANDALONE)
		return shunt_alone_init(newcomm, nranks, &id, rank, NULL);
	e = mode == SHUNT_INSIDE ? NULL : prepare_rank(nranks, rank, &id, NULL);
	return publish_rank(e, rank, newcomm, real_CommInitRank(newcomm, nranks, id, rank));
}
SHUNT_TWIN(CommInitRank);

ncclResult_t pncclCommInitRankConfig(ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_entry *e;

	if (mode == SHUNT_STANDALONE)
		return shunt_alone_init(newcomm, nranks, &id, rank, config);
	e = mode == SHUNT_INSIDE ? NULL : prepare_rank(nranks, rank, &id, config);
	return publish_rank(e, rank, newcomm, real_CommInitRankConfig(newcomm, nranks, id, rank, config));
}
SHUNT_TWIN(CommInitRankConfig);

ncclResult_t pncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_entry *e;

	if (mode == SHUNT_STANDALONE && ids && nids == 1)
		return shunt_alone_init(newcomm, nranks, ids, rank, config);
	e = mode != SHUNT_OVERLAY || nids < 1 ? NULL : prepare_rank(nranks, rank, ids, config);
	return publish_rank(e, rank, newcomm, real_CommInitRankScalable(newcomm, nranks, rank, nids, ids, config));
}
SHUNT_TWIN(CommInitRankScalable);

ncclResult_t pncclCommInitAll(ncclComm_t *comms, int ndev, const int *devlist)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_settings settings;
	struct shunt_entry **entries = NULL;
	uint8_t secret[32];
	ncclResult_t result;

	if (mode == SHUNT_STANDALONE)
		return shunt_alone_init_all(comms, ndev, devlist);
	if (mode == SHUNT_OVERLAY && comms && ndev > 0 && ndev <= MAX_LOCAL && getrandom(secret, sizeof(secret), 0) == sizeof(secret))
		entries = calloc(ndev, sizeof(*entries));
	shunt_settings_read(NULL, NULL, &settings);
	for (int i = 0; entries && i < ndev; i++) {
		struct shunt_comm_desc desc = {.id = shunt_id_derive(secret, sizeof(secret), "all", 0, 0), .slot = i, .nslots = ndev,
			.rank = i, .nranks = ndev, .device = devlist ? devlist[i] : i};
		entries[i] = shunt_attach(&desc, &settings);
	}
	result = real_CommInitAll(comms, ndev, devlist);
	for (int i = 0; entries && i < ndev; i++)
		publish_rank(entries[i], i, &comms[i], result);
	free(entries);
	return result;
}
SHUNT_TWIN(CommInitAll);

/* Our side of a child; NULL without a parent that we know well. The parent keeps its place in mind: slots are the parent's ranks. */
static struct shunt_entry *prepare_child(struct shunt_entry *parent, ncclComm_t comm, struct shunt_id id, const ncclConfig_t *config)
{
	struct shunt_comm_desc desc = {.id = id, .rank = -1, .nranks = -1, .device = -1, .forward_why = parent->forward_why};
	struct shunt_settings settings;

	if (shunt_settings_read(config, parent, &settings) || !shunt_attach_ready(parent, comm))
		return NULL;
	desc.slot = shunt_comm_rank(parent->comm);
	desc.nslots = shunt_comm_nranks(parent->comm);
	return shunt_attach(&desc, &settings);
}

/* The real call has returned: the handle is there, or it comes later. */
static ncclResult_t publish_child(struct shunt_entry *child, ncclComm_t parent, ncclComm_t *newcomm, ncclResult_t result)
{
	const void *group = shunt_group_open();
	ncclComm_t handle;

	if (!child || !newcomm || !went_well(result)) {
		shunt_entry_put(child);
		return result;
	}
	handle = group ? NULL : __atomic_load_n(newcomm, __ATOMIC_ACQUIRE);
	if (handle)
		shunt_entry_publish(child, handle);
	else if (group || result == ncclInProgress || !child->blocking)
		shunt_pending_add(child, newcomm, parent, group);
	else
		shunt_entry_put(child);
	return result;
}

ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_entry *parent, *child = NULL;

	if (mode == SHUNT_STANDALONE)
		return shunt_alone_split(comm, color, key, newcomm, config);
	parent = mode == SHUNT_INSIDE ? NULL : shunt_entry_find(comm);
	if (parent) {
		/* Counted by every rank, with a colour or without. */
		struct shunt_id id = shunt_id_derive(&parent->id, sizeof(parent->id), "split", parent->splits++, (uint64_t)color);
		if (color != NCCL_SPLIT_NOCOLOR)
			child = prepare_child(parent, comm, id, config);
		shunt_entry_put(parent);
	}
	return publish_child(child, comm, newcomm, real_CommSplit(comm, color, key, newcomm, config));
}
SHUNT_TWIN(CommSplit);

static int compare_ints(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	return (x > y) - (x < y);
}

/* Names a set of ranks whatever the order in which it is given. */
static uint64_t hash_ranks(const int *ranks, int n)
{
	int *sorted = malloc(n * sizeof(*sorted));
	uint64_t hash = 0xcbf29ce484222325u;

	if (!sorted)
		return 0; /* the peers will not find us: forward-only */
	memcpy(sorted, ranks, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), compare_ints);
	for (int i = 0; i < n; i++)
		hash = (hash ^ (uint32_t)sorted[i]) * 0x100000001b3u;
	free(sorted);
	return hash;
}

ncclResult_t pncclCommShrink(ncclComm_t comm, int *excluded, int nexcluded, ncclComm_t *newcomm, ncclConfig_t *config, int flags)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_entry *parent, *child = NULL;

	parent = mode == SHUNT_OVERLAY && excluded && nexcluded > 0 ? shunt_entry_find(comm) : NULL;
	if (parent) {
		child = prepare_child(parent, comm, shunt_id_derive(&parent->id, sizeof(parent->id), "shrink", parent->shrinks++,
			hash_ranks(excluded, nexcluded)), config);
		if (flags & NCCL_SHRINK_ABORT) { /* stops what runs on the parent, which has dead ranks: not for our kernels any more */
			atomic_fetch_or(&parent->off, SHUNT_OFF_REVOKED);
			shunt_comm_abort(parent->comm);
		}
		shunt_entry_put(parent);
	}
	return publish_child(child, comm, newcomm, real_CommShrink(comm, excluded, nexcluded, newcomm, config, flags));
}
SHUNT_TWIN(CommShrink);

/* New ranks have no parent and know no secret of the old ones, so the grown communicator is NCCL's. */
ncclResult_t pncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm, ncclConfig_t *config)
{
	struct shunt_comm_desc desc = {.nslots = 1, .rank = -1, .nranks = -1, .device = -1, .forward_why = "it was made by ncclCommGrow"};
	enum shunt_mode mode = shunt_mode();
	struct shunt_settings settings;
	struct shunt_entry *e = NULL;

	shunt_settings_read(config, NULL, &settings);
	if (mode == SHUNT_OVERLAY)
		e = shunt_attach(&desc, &settings);
	return publish_rank(e, -1, newcomm, real_CommGrow(comm, nranks, id, rank, newcomm, config));
}
SHUNT_TWIN(CommGrow);
