/* SPDX-License-Identifier: MIT */
/* Helpers for all files of a proof: its memory, the cells of a buffer, and the names of cells. */
#include <inttypes.h>
#include <stdio.h>
#include "plan/verify/prove.h"

static const char *const space_names[] = { "input", "output", "scratch", "packets" };

void *shunt_proof_alloc(struct proof *p, size_t n, size_t each)
{
	void *at = shunt_arena_alloc(&p->arena, n, each);

	if (shunt_plan_no_memory(p->sim->log, at))
		p->failed = true;
	return at;
}

unsigned shunt_proof_space(const struct proof *p, const struct shunt_plan_slice *s, uint32_t rank, uint64_t *base_p)
{
	const struct shunt_plan *plan = p->plan;
	bool gathers = shunt_plan_gathers(plan->collective), scatters = shunt_plan_scatters(plan->collective);
	unsigned into;

	*base_p = 0;
	if (s->buffer == SHUNT_PLAN_SCRATCH)
		return s->packet ? PROOF_PACKETS : PROOF_SCRATCH;
	if (!plan->inplace)
		return s->buffer;
	/* As program_buffers.c merges them. */
	into = gathers ||
	    (!scatters && plan->gpus[rank].chunks[SHUNT_PLAN_OUTPUT] > plan->gpus[rank].chunks[SHUNT_PLAN_INPUT]);
	if (s->buffer != into && (gathers || scatters))
		*base_p = rank * plan->part_chunks * p->chunk;
	return into;
}

void shunt_proof_describe_cell(const struct proof *p, uint32_t rank, unsigned space, uint64_t cell, char text[96])
{
	snprintf(text, 96, "rank %u's %s[%" PRIu64 "]", rank, space_names[space % PROOF_NSPACES], cell / p->chunk);
}
