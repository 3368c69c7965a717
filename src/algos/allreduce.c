/* SPDX-License-Identifier: MIT */
/* The all-reduce algorithms. */
#include "algos/algos.h"

/* The sim has few cores. */
static void spread(const struct shunt_scope *scope, uint64_t warps, struct shunt_pick *pick)
{
	if (scope->sim)
		shunt_spread(scope, warps, 2, 2, pick);
	else
		shunt_spread(scope, warps, 64, SHUNT_MAX_THREADS / 32, pick);
}

static uint64_t units(uint64_t bytes)
{
	return (bytes + SHUNT_UNIT_DATA - 1) / SHUNT_UNIT_DATA;
}

static void oneshot_geometry(const struct shunt_scope *scope, uint64_t bytes, struct shunt_pick *pick)
{
	spread(scope, units(bytes), pick);
}

static void twoshot_geometry(const struct shunt_scope *scope, uint64_t bytes, struct shunt_pick *pick)
{
	spread(scope, (units(bytes) + scope->nranks - 1) / scope->nranks, pick);
}

static void chunk_geometry(const struct shunt_scope *scope, uint64_t bytes, struct shunt_pick *pick)
{
	unsigned max_blocks = scope->sim ? 2 : SHUNT_CHUNK_CHANNELS;
	uint64_t want = (bytes + SHUNT_CHUNK_STAGE - 1) / SHUNT_CHUNK_STAGE;

	if (scope->max_ctas && (unsigned)scope->max_ctas < max_blocks)
		max_blocks = scope->max_ctas;
	pick->blocks = want < max_blocks ? (unsigned)want : max_blocks;
	pick->threads = scope->sim ? 64 : SHUNT_MAX_THREADS;
}

const struct shunt_algo shunt_allreduce_algos[] = {
	{ "oneshot", "every rank sends all it has to all, each reduces everything; one hop",
	    SHUNT_ALLREDUCE, { SHUNT_SHAPE_oneshot2, SHUNT_SHAPE_oneshot4, SHUNT_SHAPE_oneshot8 }, oneshot_geometry, NULL },
	{ "twoshot", "reduce-scatter, then all-gather, flags in the data; two hops",
	    SHUNT_ALLREDUCE, { SHUNT_SHAPE_twoshot4, SHUNT_SHAPE_twoshot4, SHUNT_SHAPE_twoshot8 }, twoshot_geometry, NULL },
	{ "chunk", "reduce-scatter and all-gather of chunks, pipelined through scratch",
	    SHUNT_ALLREDUCE, { SHUNT_SHAPE_chunk, SHUNT_SHAPE_chunk, SHUNT_SHAPE_chunk }, chunk_geometry, NULL },
	{ 0 },
};
