/* SPDX-License-Identifier: MIT */
/* The all-reduce algorithms. */
#include "algos/algo.h"
#include "kernels/kargs.h"

/* How many blocks of how many warps for `warps` warps: spread over SMs first, then deepen. The sim has few cores. */
static void spread(const struct shunt_scope *scope, uint64_t warps, unsigned max_blocks, unsigned *blocks_p, unsigned *threads_p)
{
	unsigned per_block_max = SHUNT_MAX_THREADS / 32, blocks, per_block;

	if (scope->sim) {
		max_blocks = 2;
		per_block_max = 2;
	}
	if (scope->max_ctas && (unsigned)scope->max_ctas < max_blocks)
		max_blocks = scope->max_ctas;
	if (warps > (uint64_t)max_blocks * per_block_max)
		warps = (uint64_t)max_blocks * per_block_max;
	blocks = warps < max_blocks ? (unsigned)warps : max_blocks;
	per_block = (unsigned)((warps + blocks - 1) / blocks);
	*blocks_p = blocks;
	*threads_p = per_block * 32;
}

static uint64_t units(uint64_t bytes)
{
	return (bytes + SHUNT_UNIT_DATA - 1) / SHUNT_UNIT_DATA;
}

static void oneshot_geometry(const struct shunt_scope *scope, uint64_t bytes, unsigned *blocks_p, unsigned *threads_p)
{
	spread(scope, units(bytes), 64, blocks_p, threads_p);
}

static void twoshot_geometry(const struct shunt_scope *scope, uint64_t bytes, unsigned *blocks_p, unsigned *threads_p)
{
	spread(scope, (units(bytes) + scope->nranks - 1) / scope->nranks, 64, blocks_p, threads_p);
}

static void chunk_geometry(const struct shunt_scope *scope, uint64_t bytes, unsigned *blocks_p, unsigned *threads_p)
{
	unsigned max_blocks = scope->sim ? 2 : SHUNT_CHUNK_CHANNELS;
	uint64_t want = (bytes + SHUNT_CHUNK_STAGE - 1) / SHUNT_CHUNK_STAGE;

	if (scope->max_ctas && (unsigned)scope->max_ctas < max_blocks)
		max_blocks = scope->max_ctas;
	*blocks_p = want < max_blocks ? (unsigned)want : max_blocks;
	*threads_p = scope->sim ? 64 : SHUNT_MAX_THREADS;
}

const struct shunt_algo shunt_algos[] = {
	{ "oneshot", "every rank sends all it has to all, each reduces everything; one hop",
	    SHUNT_ALLREDUCE, { SHUNT_SHAPE_oneshot2, SHUNT_SHAPE_oneshot4, SHUNT_SHAPE_oneshot8 }, oneshot_geometry },
	{ "twoshot", "reduce-scatter, then all-gather, flags in the data; two hops",
	    SHUNT_ALLREDUCE, { SHUNT_SHAPE_twoshot4, SHUNT_SHAPE_twoshot4, SHUNT_SHAPE_twoshot8 }, twoshot_geometry },
	{ "chunk", "reduce-scatter and all-gather of chunks, pipelined through scratch",
	    SHUNT_ALLREDUCE, { SHUNT_SHAPE_chunk, SHUNT_SHAPE_chunk, SHUNT_SHAPE_chunk }, chunk_geometry },
	{ 0 },
};
