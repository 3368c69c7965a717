/* SPDX-License-Identifier: MIT */
/* The collectives, and patterns of messages: offsets and sources of blocks follow from a row's sides. */
#include "tools/common/libc.h"
#include "base/nearest.h"
#include "shim/nccl/coll_params.h"
#include "tools/bench/bench.h"

/* name_call and name_configured of each collective. */
#define CALLS(id, op_name, long_name, name, ranks, sends, recvs, operator, ...) \
	CALL(name, ranks, operator) SHUNT_IF_CONFIG(ranks, CONFIGURED(name, ranks, operator))
#define CALL(name, ranks, operator) \
	static ncclResult_t name##_call(const struct bench_nccl *nccl, const struct bench_args *a) \
	{ \
		ARGUMENTS; \
		return nccl->name(SHUNT_COLL_ARGS(ranks, operator)); \
	}
#define CONFIGURED(name, ranks, operator) \
	static ncclResult_t name##_configured(const struct bench_nccl *nccl, const struct bench_args *a) \
	{ \
		ARGUMENTS; \
		return nccl->name##Config(SHUNT_COLL_ARGS(ranks, operator), a->config); \
	}
#define ARGUMENTS \
	const void *send = a->send; \
	void *recv = a->recv; \
	size_t count = a->count; \
	ncclDataType_t dtype = a->dtype; \
	ncclRedOp_t op = a->redop; \
	int root = a->root; \
	ncclComm_t comm = a->comm; \
	cudaStream_t stream = a->stream; \
	(void)send, (void)recv, (void)op, (void)root
SHUNT_COLLECTIVE_LIST(CALLS)

static ncclResult_t Bcast_call(const struct bench_nccl *nccl, const struct bench_args *a)
{
	return nccl->Bcast(a->recv, a->count, a->dtype, a->root, a->comm, a->stream);
}

/* A ring: sends to the next rank, receives from the previous one. */
static ncclResult_t ring_call(const struct bench_nccl *nccl, const struct bench_args *a)
{
	ncclResult_t result = nccl->GroupStart(), end;

	if (result)
		return result;
	result = nccl->Send(a->send, a->count, a->dtype, (a->rank + 1) % a->nranks, a->comm, a->stream);
	if (!result)
		result =
		    nccl->Recv(a->recv, a->count, a->dtype, (a->rank + a->nranks - 1) % a->nranks, a->comm, a->stream);
	end = nccl->GroupEnd();
	return result ? result : end;
}

uint64_t bench_coll_weight(int from, int to, int nranks)
{
	return (uint64_t)((to - from + nranks) % nranks) + 1;
}

/* An all-to-all with uneven splits, as programs make it: a group of messages. */
static ncclResult_t uneven_call(const struct bench_nccl *nccl, const struct bench_args *a)
{
	ncclResult_t result = nccl->GroupStart(), end;
	const char *send = a->send;
	char *recv = a->recv;

	if (result)
		return result;
	for (int peer = 0; peer < a->nranks && !result; peer++) {
		size_t out = a->count * bench_coll_weight(a->rank, peer, a->nranks),
		       in = a->count * bench_coll_weight(peer, a->rank, a->nranks);

		result = nccl->Send(send, out, a->dtype, peer, a->comm, a->stream);
		if (!result)
			result = nccl->Recv(recv, in, a->dtype, peer, a->comm, a->stream);
		send += out * shunt_dtype_bytes[a->dtype];
		recv += in * shunt_dtype_bytes[a->dtype];
	}
	end = nccl->GroupEnd();
	return result ? result : end;
}

/* Columns of collectives.def as fields. */
enum {
	IS_MOVES,
	IS_REDUCES,
	IS_APART = 0,
	IS_IN_PLACE,
	HAS_NONE = 0,
	HAS_ONE = 0,
	HAS_EACH,
};
#define ROOTED(ranks) (SHUNT_RANKS_##ranks == SHUNT_RANKS_FROM_ROOT || SHUNT_RANKS_##ranks == SHUNT_RANKS_TO_ROOT)
#define FACTS(ranks, send, recv, operator, place) \
	.reduces = IS_##operator, .rooted = ROOTED(ranks), .send_many = HAS_##send, .recv_many = HAS_##recv, \
	.send_root = SHUNT_RANKS_##ranks == SHUNT_RANKS_FROM_ROOT, \
	.recv_root = SHUNT_RANKS_##ranks == SHUNT_RANKS_TO_ROOT, .in_place = IS_##place
#define CONFIG_OF(name) .configured = name##_configured, .configured_name = #name "Config",
#define ROW(id, op_name, long_name, name, ranks, send, recv, operator, place, ...) \
	[BENCH_COLL_##id] = { long_name, op_name, .needs = { #name }, .call = name##_call, \
		SHUNT_IF_CONFIG(ranks, CONFIG_OF(name)).conform_only = SHUNT_RANKS_##ranks >= SHUNT_RANKS_TO_PEER, \
		FACTS(ranks, send, recv, operator, place) },
#define MESSAGES .needs = { "Send", "Recv", "GroupStart", "GroupEnd" }
const struct bench_coll bench_colls[BENCH_NCOLLS + 1] = {
	SHUNT_COLLECTIVE_LIST(ROW)[BENCH_COLL_ALLTOALLV] = { "alltoallv", "send", MESSAGES, .call = uneven_call,
	    .uneven = true, FACTS(ALL, EACH, EACH, MOVES, APART) },
	[BENCH_COLL_SENDRECV] = { "sendrecv", "send", MESSAGES, .call = ring_call, FACTS(ALL, ONE, ONE, MOVES, APART) },
	[BENCH_COLL_BCAST] = { "bcast", "broadcast", .needs = { "Bcast" }, .call = Bcast_call, .conform_only = true,
	    FACTS(FROM_ROOT, ONE, ONE, MOVES, IN_PLACE) },
};

const struct bench_coll *bench_coll_find(const char *name)
{
	for (const struct bench_coll *c = bench_colls; c->name; c++)
		if (shunt_names_equal(name, strlen(name), c->name))
			return c;
	return NULL;
}

const char *bench_coll_maybe(const char *name, char *buf)
{
	struct shunt_nearest nearest = { .text = name };

	for (const struct bench_coll *c = bench_colls; c->name; c++)
		if (!c->conform_only)
			shunt_nearest_try(&nearest, c->name);
	return tool_maybe(&nearest, buf);
}

const char *bench_coll_missing(const struct bench_coll *c, const struct bench_nccl *nccl)
{
	for (int i = 0; i < 4 && c->needs[i]; i++) {
		char name[64];

		snprintf(name, sizeof(name), "nccl%s", c->needs[i]);
		if (!dlsym(nccl->handle, name))
			return c->needs[i];
	}
	return NULL;
}

uint64_t bench_coll_blocks(const struct bench_coll *c, bool many, int nranks)
{
	uint64_t n = (uint64_t)nranks;

	if (!many)
		return 1;
	return c->uneven ? n * (n + 1) / 2 : n;
}

double bench_coll_bus_factor(const struct bench_coll *c, int nranks)
{
	double n = nranks;

	if (c->uneven) /* without a rank's block for itself */
		n = (double)bench_coll_blocks(c, true, nranks);
	if (c->send_many || c->recv_many)
		return (n - 1) / n;
	return c->reduces && !c->rooted ? 2 * (n - 1) / n : 1;
}

uint64_t bench_coll_count(const struct bench_coll *c, uint64_t bytes, size_t element, int nranks)
{
	uint64_t count = bytes / element;

	if (c->send_many || c->recv_many)
		return count / bench_coll_blocks(c, true, nranks) / (16 / element) * (16 / element);
	return count ? count : 1;
}

uint64_t bench_coll_send_offset(const struct bench_coll *c, uint64_t count, int rank)
{
	return c->recv_many && !c->send_many ? count * (uint64_t)rank : 0;
}

uint64_t bench_coll_recv_offset(const struct bench_coll *c, uint64_t count, int rank)
{
	return c->send_many && !c->recv_many ? count * (uint64_t)rank : 0;
}

bool bench_coll_has_send(const struct bench_coll *c, int rank, int root)
{
	return !c->send_root || rank == root;
}

bool bench_coll_has_recv(const struct bench_coll *c, int rank, int root)
{
	return !c->recv_root || rank == root;
}

struct bench_source bench_coll_source(const struct bench_coll *c, int rank, int nranks, int root, int block)
{
	struct bench_source from = { .block = c->send_many ? rank : 0 };

	if (c->reduces)
		from.rank = -1;
	else if (c->recv_many)
		from.rank = block;
	else
		from.rank = c->rooted ? root : (rank + nranks - 1) % nranks;
	return from;
}

struct bench_block bench_coll_block(
    const struct bench_coll *c, int rank, int nranks, int root, int block, uint64_t count)
{
	struct bench_source from = bench_coll_source(c, rank, nranks, root, block);
	struct bench_block b = { .count = count,
		.at = (uint64_t)block * count,
		.from = from.rank,
		.from_at = (uint64_t)from.block * count };

	if (!c->uneven)
		return b;
	b.count = count * bench_coll_weight(block, rank, nranks);
	b.at = b.from_at = 0;
	for (int k = 0; k < block; k++)
		b.at += count * bench_coll_weight(k, rank, nranks);
	for (int k = 0; k < rank; k++)
		b.from_at += count * bench_coll_weight(block, k, nranks);
	return b;
}
