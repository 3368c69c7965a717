/* SPDX-License-Identifier: MIT */
/*
 * The communicators that programs use in addition to the world. A row has their members, their order and their origin.
 */
#include "tools/common/libc.h"
#include "tools/common/nccl_config.h"
#include "tools/conform/conform.h"

enum comm_origin { GIVEN, SPLIT, SHRINK, INIT_ASYNC };

/* Colour and key of member i of the parent's n. */
static int color_same(int i, int n)
{
	(void)i, (void)n;
	return 0;
}

static int color_halves(int i, int n)
{
	return i < (n + 1) / 2 ? 3 : 70000;
}

static int color_some(int i, int n)
{
	(void)n;
	return i % 2 ? NCCL_SPLIT_NOCOLOR : 1;
}

static int color_self(int i, int n)
{
	(void)n;
	return i;
}

static int color_but_first(int i, int n)
{
	(void)n;
	return i ? 0 : NCCL_SPLIT_NOCOLOR;
}

static int key_rank(int i, int n)
{
	(void)n;
	return i;
}

static int key_reversed(int i, int n)
{
	return n - i;
}

/* Equal keys in pairs: within a pair the parent's order counts. */
static int key_ties(int i, int n)
{
	(void)n;
	return -(i / 2);
}

static const struct row {
	const char *name;
	enum comm_origin origin;
	enum conform_comm parent;
	int (*color)(int i, int n), (*key)(int i, int n);
	const char *needs; /* functions, without "nccl" */
	int least;         /* ranks */
	bool async;
} rows[CONFORM_NCOMMS] = {
	[CONFORM_WORLD] = { "world", GIVEN, CONFORM_WORLD, color_same, key_rank, .least = 1 },
	[CONFORM_HALVES] = { "halves", SPLIT, CONFORM_WORLD, color_halves, key_rank, "CommSplit", 1 },
	[CONFORM_REVERSED] = { "reversed", SPLIT, CONFORM_WORLD, color_same, key_reversed, "CommSplit", 1 },
	[CONFORM_SOME] = { "some", SPLIT, CONFORM_WORLD, color_some, key_rank, "CommSplit", 1 },
	[CONFORM_TIES] = { "ties", SPLIT, CONFORM_WORLD, color_same, key_ties, "CommSplit", 1 },
	[CONFORM_CHILD] = { "child", SPLIT, CONFORM_HALVES, color_same, key_reversed, "CommSplit", 1 },
	[CONFORM_SHRUNK] = { "shrunk", SHRINK, CONFORM_WORLD, color_but_first, key_rank, "CommShrink", 2 },
	[CONFORM_SELF] = { "self", SPLIT, CONFORM_WORLD, color_self, key_rank, "CommSplit", 1 },
	[CONFORM_ASYNC] = { "async", INIT_ASYNC, CONFORM_WORLD, color_same, key_rank, "CommInitRankConfig", 1, true },
	[CONFORM_ASYNC_CHILD] = { "async_child", SPLIT, CONFORM_ASYNC, color_halves, key_reversed, "CommSplit", 1,
	    true },
};

const char *conform_comm_name(enum conform_comm comm)
{
	return rows[comm].name;
}

int conform_comm_least(enum conform_comm comm)
{
	return rows[comm].least;
}

enum conform_comm conform_comm_parent(enum conform_comm comm)
{
	return rows[comm].parent;
}

bool conform_comm_is_async(enum conform_comm comm)
{
	return rows[comm].async;
}

const char *conform_comm_lacks(const struct bench_nccl *nccl, enum conform_comm comm)
{
	char name[64];

	if (rows[comm].parent != comm && conform_comm_lacks(nccl, rows[comm].parent))
		return conform_comm_lacks(nccl, rows[comm].parent);
	snprintf(name, sizeof(name), "nccl%s", rows[comm].needs ? rows[comm].needs : "GetVersion");
	return dlsym(nccl->handle, name) ? NULL : rows[comm].needs;
}

int conform_comm_members(enum conform_comm comm, int rank, int nranks, int members[RANKS_MAX], int *me_p)
{
	const struct row *row = &rows[comm];
	int parents[RANKS_MAX], mine = 0, n, in = 0;

	if (row->origin == GIVEN) {
		for (int i = 0; i < nranks; i++)
			members[i] = i;
		*me_p = rank;
		return nranks;
	}
	n = conform_comm_members(row->parent, rank, nranks, parents, &mine);
	if (!n || row->color(mine, n) == NCCL_SPLIT_NOCOLOR)
		return 0;
	for (int i = 0; i < n; i++) {
		int at = in;

		if (row->color(i, n) != row->color(mine, n))
			continue;
		/* Behind all members with a smaller or the same key. */
		for (; at > 0; at--) {
			int before = 0;

			while (parents[before] != members[at - 1])
				before++;
			if (row->key(before, n) <= row->key(i, n))
				break;
			members[at] = members[at - 1];
		}
		members[at] = parents[i];
		in++;
	}
	for (int i = 0; i < in; i++)
		if (members[i] == rank)
			*me_p = i;
	return in;
}

ncclResult_t conform_comm_start(const struct bench_nccl *nccl, enum conform_comm comm, int rank, int nranks,
    const ncclUniqueId *id, ncclComm_t comms[CONFORM_NCOMMS])
{
	const struct row *row = &rows[comm];
	int parents[RANKS_MAX], mine = 0, n = conform_comm_members(row->parent, rank, nranks, parents, &mine);
	ncclConfig_t config = nccl_config_unset();

	if (!n)
		return ncclSuccess;
	switch (row->origin) {
	case SPLIT:
		return nccl->CommSplit(comms[row->parent], row->color(mine, n), row->key(mine, n), &comms[comm], NULL);
	case SHRINK:
		if (row->color(mine, n) == NCCL_SPLIT_NOCOLOR) /* members without a colour must not call */
			return ncclSuccess;
		return nccl->CommShrink(comms[row->parent], (int[]){ 0 }, 1, &comms[comm], NULL, NCCL_SHRINK_DEFAULT);
	case INIT_ASYNC:
		config.blocking = 0;
		return nccl->CommInitRankConfig(&comms[comm], nranks, *id, rank, &config);
	default:
		return ncclInternalError;
	}
}

ncclResult_t conform_comm_wait(const struct bench_nccl *nccl, ncclComm_t comm, ncclResult_t result)
{
	while (result == ncclInProgress) {
		ncclResult_t asked = nccl->CommGetAsyncError(comm, &result);

		if (asked)
			return asked;
		nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
	}
	return result;
}

bool conform_comm_check(const struct bench_nccl *nccl, const struct conform_made *made, char *text, size_t text_bytes)
{
	const struct row *row = &rows[made->comm];
	int members[RANKS_MAX], parents[RANKS_MAX], me = 0, mine;
	int n = conform_comm_members(made->comm, made->rank, made->nranks, members, &me);
	/* A child's state is asked of its parent. */
	ncclComm_t asked = made->comms[row->origin == INIT_ASYNC ? made->comm : row->parent], comm;
	ncclResult_t result = made->result;
	int count = -1, user = -1, where = -1;

	if (conform_comm_members(row->parent, made->rank, made->nranks, parents, &mine))
		result = conform_comm_wait(nccl, asked, row->async && !result ? ncclInProgress : result);
	if (result) {
		snprintf(text, text_bytes, "making the communicator \"%s\" returned %d: %s", row->name, (int)result,
		    nccl->GetErrorString(result));
		return false;
	}
	comm = made->comms[made->comm]; /* it may have come while we waited */
	if (!n != !comm) {
		snprintf(text, text_bytes, "the communicator \"%s\" is %sNULL on a rank that %s to it", row->name,
		    n ? "" : "not ", n ? "belongs" : "does not belong");
		return false;
	}
	if (!n || !nccl->CommCount || !nccl->CommUserRank || !nccl->CommCuDevice)
		return true;
	if (nccl->CommCount(comm, &count) || nccl->CommUserRank(comm, &user) || nccl->CommCuDevice(comm, &where) ||
	    count != n || user != me || where != made->device) {
		snprintf(text, text_bytes,
		    "the communicator \"%s\" has rank %d of %d on device %d, not rank %d of %d on device %d", row->name,
		    user, count, where, me, n, made->device);
		return false;
	}
	return true;
}
