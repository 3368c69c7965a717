/* SPDX-License-Identifier: MIT */
/* The state of a simulation: blocks, and the resources that they wait for. */
#include <stdlib.h>
#include "plan/verify/simulate.h"

int shunt_simulation_init(struct simulation *p, struct shunt_plan_log *log, const struct shunt_plan *plan)
{
	size_t n = 0;

	*p = (struct simulation){ .log = log, .plan = plan };
	for (int kind = 0; kind < RESOURCE_NKINDS; kind++) {
		p->base[kind] = calloc(plan->nranks, sizeof(*p->base[kind]));
		if (shunt_plan_no_memory(p->log, p->base[kind]))
			return -ENOMEM;
		for (uint32_t r = 0; kind < RESOURCE_SEGMENTS && r < plan->nranks; r++) {
			const struct shunt_plan_gpu *gpu = &plan->gpus[r];
			const uint32_t counts[] = { gpu->nchannels[0], gpu->nchannels[1], gpu->nsemaphores,
				gpu->nbarriers };

			p->base[kind][r] = n;
			n += counts[kind];
			if (!kind)
				p->nstates += gpu->nblocks;
		}
	}
	p->nresources = n;
	p->count = calloc(n ? n : 1, sizeof(*p->count));
	p->taken = calloc(n ? n : 1, sizeof(*p->taken));
	p->states = calloc(p->nstates ? p->nstates : 1, sizeof(*p->states));
	p->ready = calloc(p->nstates ? p->nstates : 1, sizeof(*p->ready));
	p->nends_of = calloc(plan->nranks, sizeof(*p->nends_of));
	/*
	 * Other plans synchronize the ranks, or must ensure the order themselves (program_buffers.c). Plans of more
	 * ranks do not run here.
	 */
	if (plan->double_scratch && plan->collective < SHUNT_PLAN_SENDRECV && plan->nranks <= 64) {
		p->ordering = calloc((size_t)plan->nranks * plan->nranks, sizeof(*p->ordering));
		if (shunt_plan_no_memory(p->log, p->ordering))
			return -ENOMEM;
	}
	if (shunt_plan_no_memory(p->log, p->count) || shunt_plan_no_memory(p->log, p->taken) ||
	    shunt_plan_no_memory(p->log, p->states) || shunt_plan_no_memory(p->log, p->ready) ||
	    shunt_plan_no_memory(p->log, p->nends_of))
		return -ENOMEM;
	n = 0;
	for (uint32_t r = 0; r < plan->nranks; r++)
		for (uint32_t b = 0; b < plan->gpus[r].nblocks; b++)
			p->states[n++] =
			    (struct block_state){ .block = &plan->gpus[r].blocks[b], .rank = r, .number = b };
	return 0;
}

void shunt_simulation_finish(struct simulation *p)
{
	for (int kind = 0; kind < RESOURCE_NKINDS; kind++)
		free(p->base[kind]);
	free(p->states);
	free(p->ready);
	free(p->count);
	free(p->taken);
	free(p->waiters);
	free(p->nends_of);
	free(p->ends);
	free(p->valid);
	free(p->writer);
	free(p->ordering);
}

bool shunt_simulation_spend(struct simulation *p, uint64_t steps)
{
	if (p->steps < steps) {
		p->overrun = true;
		return false;
	}
	p->steps -= steps;
	return true;
}

void shunt_simulation_block(struct simulation *p, struct block_state *a, size_t resource)
{
	a->resource = resource;
	a->next = p->waiters[resource];
	p->waiters[resource] = (uint32_t)(a - p->states);
}

void shunt_simulation_wake(struct simulation *p, size_t resource, uint32_t nserved)
{
	uint32_t next;

	for (uint32_t i = p->waiters[resource]; i != SHUNT_PLAN_NIL; i = next) {
		next = p->states[i].next;
		if (nserved)
			p->states[i].nserved = nserved;
		p->ready[p->nready++] = i;
		p->steps -= p->steps > 0;
	}
	p->waiters[resource] = SHUNT_PLAN_NIL;
}
