/* SPDX-License-Identifier: MIT */
/* The hash of a plan's content: every field that matters, in a fixed order, as 64-bit little-endian numbers. */
#include <string.h>
#include "base/hash.h"
#include "plan/format/plan_priv.h"

static uint64_t hash_u64(uint64_t h, uint64_t value)
{
	uint8_t bytes[8];

	for (int i = 0; i < 8; i++)
		bytes[i] = (uint8_t)(value >> (8 * i));
	return shunt_fnv1a(h, bytes, sizeof(bytes));
}

static uint64_t hash_ids(uint64_t h, const uint32_t *ids, uint32_t n)
{
	h = hash_u64(h, n);
	for (uint32_t i = 0; i < n; i++)
		h = hash_u64(h, ids[i]);
	return h;
}

static uint64_t hash_slices(uint64_t h, const struct shunt_plan_slice *slices, uint32_t n)
{
	h = hash_u64(h, n);
	for (uint32_t i = 0; i < n; i++) {
		const struct shunt_plan_slice *s = &slices[i];

		h = hash_u64(hash_u64(hash_u64(h, s->place), s->buffer), s->packet);
		h = hash_u64(hash_u64(hash_u64(h, s->target), s->index), s->size);
	}
	return h;
}

static uint64_t hash_op(uint64_t h, const struct shunt_plan_op *op)
{
	h = hash_u64(hash_u64(hash_u64(h, op->code), op->type), op->redop);
	h = hash_u64(hash_u64(hash_u64(h, op->part), op->parts), op->barrier);
	h = hash_u64(hash_u64(h, op->nblocks), op->nbody);
	h = hash_u64(hash_u64(h, op->unit_size), op->num_chunks);
	h = hash_slices(h, op->src, op->nsrc);
	h = hash_slices(h, op->dst, op->ndst);
	return hash_ids(h, op->ids, op->nids);
}

static uint64_t hash_gpu(uint64_t h, const struct shunt_plan_gpu *gpu)
{
	for (int b = 0; b < SHUNT_PLAN_NBUFFERS; b++)
		h = hash_u64(h, gpu->chunks[b]);
	for (int t = 0; t < 2; t++) {
		h = hash_u64(h, gpu->nchannels[t]);
		for (uint32_t i = 0; i < gpu->nchannels[t]; i++)
			h = hash_u64(hash_u64(h, gpu->channels[t][i].peer), gpu->channels[t][i].pair);
	}
	h = hash_u64(h, gpu->nswitches);
	for (uint32_t i = 0; i < gpu->nswitches; i++)
		h = hash_ids(hash_u64(h, gpu->switches[i].buffer), gpu->switches[i].ranks, gpu->switches[i].nranks);
	h = hash_u64(h, gpu->nremotes);
	for (uint32_t i = 0; i < gpu->nremotes; i++)
		h = hash_u64(
		    hash_u64(hash_u64(h, gpu->remotes[i].rank), gpu->remotes[i].buffer), gpu->remotes[i].types);
	h = hash_ids(h, gpu->semaphores, gpu->nsemaphores);
	h = hash_u64(hash_u64(h, gpu->nbarriers), gpu->nblocks);
	for (uint32_t b = 0; b < gpu->nblocks; b++) {
		h = hash_u64(h, gpu->blocks[b].nops);
		for (uint32_t i = 0; i < gpu->blocks[b].nops; i++)
			h = hash_op(h, &gpu->blocks[b].ops[i]);
	}
	return h;
}

void shunt_plan_finalize(struct shunt_plan *plan)
{
	uint64_t h = shunt_fnv1a(0, plan->name, strlen(plan->name) + 1);

	h = hash_u64(hash_u64(h, plan->collective), plan->ll);
	h = hash_u64(hash_u64(hash_u64(h, plan->inplace), plan->reuse_resources), plan->double_scratch);
	h = hash_u64(hash_u64(h, plan->alignment), plan->threads);
	h = hash_u64(hash_u64(h, plan->min_bytes), plan->max_bytes);
	h = hash_u64(hash_u64(h, plan->ranks_per_node), plan->dtypes);
	h = hash_u64(hash_u64(h, (uint64_t)(int64_t)plan->priority), plan->automatic);
	h = hash_u64(h, plan->nranks);
	for (uint32_t r = 0; r < plan->nranks; r++)
		h = hash_gpu(h, &plan->gpus[r]);
	plan->hash = h ? h : 1;
}
