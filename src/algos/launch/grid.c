/* SPDX-License-Identifier: MIT */
#include "algos/algos.h"

unsigned shunt_grid_coresident_blocks(uint32_t sms, unsigned launches)
{
	unsigned each = sms / launches;

	return each > 1 ? each - 1 : 1; /* one is left for SHUNT_CHECK */
}

unsigned shunt_grid_halve(bool few_ctas, unsigned blocks)
{
	return few_ctas && blocks > 1 ? blocks / 2 : blocks;
}

unsigned shunt_grid_max_blocks(const struct shunt_limits *limits)
{
	unsigned most = shunt_grid_coresident_blocks(limits->key->sms, 2);

	return shunt_grid_halve(
	    limits->few_ctas, limits->key->sms && most < SHUNT_MAX_BLOCKS ? most : SHUNT_MAX_BLOCKS);
}

unsigned shunt_grid_max_warps(const struct shunt_limits *limits, unsigned max_blocks, unsigned need)
{
	unsigned most = SHUNT_MAX_THREADS / 32, warps = limits->max_threads / 32;

	return warps && warps < most && max_blocks * warps >= need ? warps : most;
}

/*
 * CTAPolicy efficiency: warps of a block, before a launch takes another block. One warp of a small message has a block
 * of its own otherwise, which is faster, as each multiprocessor has links to memory of its own. Not measured.
 */
#define FEW_CTAS_WARPS 8u

/* The blocks for so many warps. */
static unsigned spread(const struct shunt_limits *limits, uint64_t warps, unsigned max_blocks, unsigned max_warps)
{
	unsigned each = max_warps < FEW_CTAS_WARPS ? max_warps : FEW_CTAS_WARPS;

	/* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a block has at least one warp */
	warps = limits->few_ctas ? (warps + each - 1) / each : warps;
	return warps < max_blocks ? (unsigned)warps : max_blocks;
}

uint64_t shunt_grid_fit(
    const struct shunt_limits *limits, uint64_t warps, unsigned max_blocks, unsigned max_warps, struct shunt_work *work)
{
	unsigned blocks, per_block;

	if (!warps) /* for an empty call */
		warps = 1;
	if (limits->max_ctas && (unsigned)limits->max_ctas < max_blocks)
		max_blocks = (unsigned)limits->max_ctas;
	if (warps > (uint64_t)max_blocks * max_warps)
		warps = (uint64_t)max_blocks * max_warps;
	blocks = spread(limits, warps, max_blocks, max_warps);
	if (limits->min_ctas > 0 &&
	    blocks < (unsigned)limits->min_ctas) /* the user wants more blocks: each has less to do */
		blocks = (unsigned)limits->min_ctas < max_blocks ? (unsigned)limits->min_ctas : max_blocks;
	/* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): there is at least one block and one warp */
	per_block = (unsigned)((warps + blocks - 1) / blocks);
	work->blocks = blocks;
	work->threads = per_block * 32;
	work->cluster = work->shared = 0;
	work->uncounted = false;
	return warps;
}

void shunt_grid_fit_wide(const struct shunt_limits *limits, uint64_t warps, struct shunt_work *work)
{
	if (limits->key->sim) /* few cores */
		shunt_grid_fit(limits, warps, shunt_grid_halve(limits->few_ctas, 2), 2, work);
	else
		shunt_grid_fit(limits, warps, shunt_grid_max_blocks(limits), shunt_grid_max_warps(limits, 1, 1), work);
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

void shunt_partition(uint64_t from, uint64_t to, unsigned i, unsigned n, uint64_t *first_p, uint64_t *last_p)
{
	const uint64_t grain = 128;
	uint64_t each = ((to - from + n - 1) / n + grain - 1) / grain * grain;

	*first_p = min_u64(from + i * each, to);
	*last_p = min_u64(from + (i + 1) * each, to);
}
