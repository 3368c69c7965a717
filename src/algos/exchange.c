/* SPDX-License-Identifier: MIT */
/* The collectives that one exchange of parts makes: who sends which part to whom, and what becomes of what comes in. */
#include "algos/algos.h"

#define BLOCKS 64
#define WARPS (SHUNT_MAX_THREADS / 32)

/* Channels of a pair: one per unit, as many as the rings, or the blocks that the user allows, have. Known to both ends alike. */
static void geometry(const struct shunt_scope *scope, uint64_t bytes, struct shunt_pick *pick)
{
	uint64_t units = (bytes + SHUNT_UNIT_DATA - 1) / SHUNT_UNIT_DATA;
	unsigned max = SHUNT_XCHG_PER_PEER(scope->nranks), roles = 2 * scope->nranks - 1;
	unsigned blocks = scope->max_ctas && scope->max_ctas < BLOCKS ? (unsigned)scope->max_ctas : BLOCKS;

	/* Every role needs its warps, and one block has enough for one channel of each of the 15 roles of 8 ranks. */
	if (max > blocks * WARPS / roles)
		max = blocks * WARPS / roles;
	if (scope->sim && max > 2)
		max = 2;
	pick->channels = units < max ? (unsigned)units : max;
	pick->blocks = pick->threads = 0; /* fill knows this rank's roles */
}

/* Who takes part how: bits of the ranks that we send to and hear from, and whether the parts differ by rank. */
static void fill(const struct shunt_scope *scope, const struct shunt_coll *coll, int rank, struct shunt_pick *pick, struct shunt_kargs *args)
{
	uint64_t part = coll->count * shunt_dtype_bytes[coll->dtype];
	unsigned all = (1u << scope->nranks) - 1, self = 1u << rank, roles;
	bool root = rank == coll->root, folds = coll->kind == SHUNT_REDUCE || coll->kind == SHUNT_REDUCESCATTER;
	unsigned to = all, from = all;

	args->send_stride = args->recv_stride = 0;
	switch (coll->kind) {
	case SHUNT_ALLGATHER:
		args->recv_stride = part;
		break;
	case SHUNT_REDUCESCATTER:
		args->send_stride = part;
		break;
	case SHUNT_ALLTOALL:
		args->send_stride = args->recv_stride = part;
		break;
	case SHUNT_BROADCAST:
		to = root ? all : 0;
		from = 1u << coll->root;
		break;
	case SHUNT_REDUCE:
		to = 1u << coll->root;
		from = root ? all : 0;
		break;
	case SHUNT_GATHER:
		to = 1u << coll->root;
		from = root ? all : 0;
		args->recv_stride = part;
		break;
	default: /* scatter */
		to = root ? all : 0;
		from = 1u << coll->root;
		args->send_stride = part;
		break;
	}
	args->send_to = (uint8_t)to;
	args->recv_from = (uint8_t)from;
	args->channels = (uint16_t)pick->channels;
	roles = (unsigned)__builtin_popcount(to & ~self);
	roles += folds ? (from & ~self) != 0 : (unsigned)__builtin_popcount(from & ~self);
	roles += !folds && (to & from & self) &&
	    (const char *)coll->send + rank * args->send_stride != (const char *)coll->recv + rank * args->recv_stride;
	pick->blocks = 0;
	if (roles)
		shunt_spread(scope, (uint64_t)roles * pick->channels, scope->sim ? 2 : BLOCKS, WARPS, pick);
}

#define ROW(kind, doc) \
	{ "exchange", doc, kind, { SHUNT_SHAPE_exchange, SHUNT_SHAPE_exchange, SHUNT_SHAPE_exchange }, geometry, fill }
const struct shunt_algo shunt_exchange_algos[] = {
	ROW(SHUNT_ALLGATHER, "every rank sends its part to all"),
	ROW(SHUNT_REDUCESCATTER, "every rank sends part r to rank r, which folds what comes in rank order"),
	ROW(SHUNT_ALLTOALL, "every rank sends part r to rank r"),
	ROW(SHUNT_BROADCAST, "the root sends to all"),
	ROW(SHUNT_REDUCE, "all send to the root, which folds in rank order"),
	ROW(SHUNT_GATHER, "all send to the root"),
	ROW(SHUNT_SCATTER, "the root sends part r to rank r"),
	{ 0 },
};
