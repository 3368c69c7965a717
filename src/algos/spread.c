/* SPDX-License-Identifier: MIT */
#include "algos/algos.h"
#include "algos/tuning.h"

unsigned shunt_blocks_beside(uint32_t sms, unsigned launches)
{
	unsigned each = sms / launches;

	return each > 1 ? each - 1 : 1; /* one is left for SHUNT_CHECK's */
}

unsigned shunt_max_blocks(const struct shunt_scope *scope)
{
	unsigned most = shunt_blocks_beside(scope->sms, 2);

	return scope->sms && most < SHUNT_MAX_BLOCKS ? most : SHUNT_MAX_BLOCKS;
}

unsigned shunt_max_warps(const struct shunt_scope *scope, unsigned max_blocks, unsigned need)
{
	unsigned most = SHUNT_MAX_THREADS / 32, warps = scope->max_threads / 32;

	return warps && warps < most && max_blocks * warps >= need ? warps : most;
}

uint64_t shunt_spread(
    const struct shunt_scope *scope, uint64_t warps, unsigned max_blocks, unsigned max_warps, struct shunt_work *work)
{
	unsigned blocks, per_block;

	if (!warps) /* a question about an empty call */
		warps = 1;
	if (scope->max_ctas && (unsigned)scope->max_ctas < max_blocks)
		max_blocks = (unsigned)scope->max_ctas;
	if (warps > (uint64_t)max_blocks * max_warps)
		warps = (uint64_t)max_blocks * max_warps;
	blocks = warps < max_blocks ? (unsigned)warps : max_blocks;
	if (scope->min_ctas > 0 && blocks < (unsigned)scope->min_ctas) /* the user wants more: with less to do each */
		blocks = (unsigned)scope->min_ctas < max_blocks ? (unsigned)scope->min_ctas : max_blocks;
	/* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): nobody asks for no blocks or no warps */
	per_block = (unsigned)((warps + blocks - 1) / blocks);
	work->blocks = blocks;
	work->threads = per_block * 32;
	work->cluster = work->shared = 0;
	return warps;
}

void shunt_spread_wide(const struct shunt_scope *scope, uint64_t warps, struct shunt_work *work)
{
	if (scope->sim) /* it has few cores */
		shunt_spread(scope, warps, 2, 2, work);
	else
		shunt_spread(scope, warps, shunt_max_blocks(scope), shunt_max_warps(scope, 1, 1), work);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

void shunt_share(uint64_t from, uint64_t to, unsigned i, unsigned n, uint64_t *first_p, uint64_t *last_p)
{
	const uint64_t grain = 128;
	uint64_t each = ((to - from + n - 1) / n + grain - 1) / grain * grain;

	*first_p = smaller(from + i * each, to);
	*last_p = smaller(from + (i + 1) * each, to);
}
