/* SPDX-License-Identifier: MIT */
/* Layout of the resources: counters, the staging buffers, scratch. The same on all ranks. */
#include <errno.h>
#include <string.h>
#include "plan/compile/program_priv.h"

/* Each counter has its own cache line. There are enough for any rank. */
int shunt_program_layout_counters(
    const struct shunt_plan *plan, struct shunt_prog_head *h, struct shunt_program *program)
{
	uint64_t blocks = 1, slots = 0, semaphores = 0, barriers = 0, at;

	for (uint32_t r = 0; r < plan->nranks; r++) {
		const struct shunt_plan_gpu *g = &plan->gpus[r];
		uint64_t channels = (uint64_t)g->nchannels[0] + g->nchannels[1];

		blocks = g->nblocks > blocks ? g->nblocks : blocks;
		slots = channels > slots ? channels : slots;
		semaphores = g->nsemaphores > semaphores ? g->nsemaphores : semaphores;
		barriers = g->nbarriers > barriers ? g->nbarriers : barriers;
	}
	at = blocks * sizeof(struct shunt_plan_state);
	if (at + (plan->nranks + slots + semaphores + barriers) * 64 + 4096 > UINT32_MAX)
		return -E2BIG;
	h->grid_at = (uint32_t)at;
	at += sizeof(struct shunt_plan_grid);
	h->peers_at = (uint32_t)at;
	at += plan->nranks * sizeof(struct shunt_plan_peer);
	h->slots_at = (uint32_t)at;
	at += slots * sizeof(struct shunt_plan_slot);
	h->semaphores_at = (uint32_t)at;
	at += semaphores * 64;
	h->barriers_at = (uint32_t)at;
	at += barriers * 64;
	program->slots = (uint32_t)slots;
	program->counters_bytes = (uint32_t)((at + 511) / 512 * 512);
	return 0;
}

/*
 * Bytes of one half of scratch, for chunks of up to `units` units, and where packets begin in it. Plain data and
 * packets have separate regions, whatever the size of chunks is. In a common one, packets of one size of chunks would
 * lie where another size had plain data, which may look like packets. Captured graphs keep their regions for good.
 */
static bool scratch_half_bytes(const struct shunt_program *p, const struct shunt_plan *plan, uint64_t units,
    uint64_t limit, uint64_t *packets_at_p, uint64_t *bytes_p)
{
	uint64_t dense, sparse = p->sparse < units ? p->sparse : units, plain;

	if (__builtin_mul_overflow(units * plan->alignment, p->scratch, &dense) ||
	    __builtin_mul_overflow(
	        units * plan->alignment, p->plain && p->packets ? plan->scratch_chunks : 0, &plain) ||
	    __builtin_mul_overflow(sparse * plan->alignment, 8 * plan->scratch_chunks, &sparse))
		return false;
	if (dense > limit || plain > limit || sparse > limit)
		return false;
	*packets_at_p = (plain + 127) / 128 * 128;
	*bytes_p = *packets_at_p + ((dense > sparse ? dense : sparse) + 127) / 128 * 128;
	return true;
}

/*
 * Offsets of the parts of the resources, and of the region, in the head's fields: first both staging buffers, then
 * scratch. False: too large.
 */
static bool resources_layout(const struct shunt_program *p, const struct shunt_plan *plan, uint64_t units,
    struct shunt_prog_head *h, struct shunt_program_bytes *end)
{
	uint64_t channels = p->over_hosts ? SHUNT_PLAN_PORTS_CHANNELS(p->slots, plan->nranks) : 0, bytes, chunk;
	uint64_t at[2] = { p->counters_bytes, (channels * sizeof(uint64_t) + 511) / 512 * 512 };
	const uint64_t limit = (uint64_t)1 << 56;

	if (__builtin_mul_overflow(units, plan->alignment, &chunk))
		return false;
	for (int i = 0; i < 2; i++) {
		uint64_t n = p->staging[i] ? p->extent[i] : 0;

		h->staging_at[i] = at[p->ported[i]];
		if (__builtin_mul_overflow(n, chunk, &bytes) || bytes > limit)
			return false;
		at[p->ported[i]] += bytes;
	}
	h->scratch_at = (at[p->ported[2]] + 127) / 128 * 128;
	if (!scratch_half_bytes(p, plan, units, limit, &h->packets_at, &h->half))
		return false;
	at[p->ported[2]] = h->scratch_at + (plan->double_scratch ? 2 : 1) * h->half;
	*end = (struct shunt_program_bytes){ at[0], at[1] };
	return at[0] <= limit && at[1] <= limit;
}

bool shunt_program_resources_bytes(
    const struct shunt_program *p, const struct shunt_plan *plan, uint64_t units, struct shunt_program_bytes *bytes_p)
{
	struct shunt_prog_head head;

	return resources_layout(p, plan, units, &head, bytes_p);
}

void shunt_program_bind(struct shunt_program *p, const struct shunt_plan *plan, uint64_t units, char *const *table)
{
	for (uint32_t k = 0; k < p->nblocks; k++) {
		struct shunt_prog_head *h = (struct shunt_prog_head *)(p->bytecodes + (size_t)k * p->bytecode_bytes);
		struct shunt_program_bytes end;

		resources_layout(p, plan, units, h, &end);
		memcpy(h + 1, table, p->table * sizeof(*table));
	}
}
