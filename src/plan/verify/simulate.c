/* SPDX-License-Identifier: MIT */
/* The simulation: blocks, and the resources that they wait for and provide. */
#include <stdlib.h>
#include <string.h>
#include "plan/format/op_rows.h"
#include "plan/verify/prove.h"
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

static void signal_ids(struct simulation *p, struct block_state *a, const struct shunt_plan_op *op)
{
	const struct shunt_plan_gpu *gpu = &p->plan->gpus[a->rank];

	for (uint32_t j = 0; j < op->nids; j++) {
		const struct shunt_plan_channel *c = &gpu->channels[op->type][op->ids[j]];
		size_t resource = resource_index(p, channel_resource_kind(op->type), c->peer, c->pair);

		p->count[resource]++;
		shunt_proof_release(p->proof, a, j, resource);
		shunt_simulation_wake(p, resource, 0);
	}
}

static bool wait_ids(struct simulation *p, struct block_state *a, const struct shunt_plan_op *op)
{
	for (; a->nserved < op->nids; a->nserved++) {
		size_t resource = resource_index(p, channel_resource_kind(op->type), a->rank, op->ids[a->nserved]);

		if (p->taken[resource] == p->count[resource]) {
			shunt_simulation_block(p, a, resource);
			return false;
		}
		p->taken[resource]++;
		shunt_proof_acquire(p->proof, a, a->nserved, resource, 0);
		ordering_note(
		    p, a->rank, p->plan->gpus[a->rank].channels[op->type][op->ids[a->nserved]].peer, ORDERING_OBSERVES);
	}
	return true;
}

static bool acquire_ids(struct simulation *p, struct block_state *a, const struct shunt_plan_op *op)
{
	for (; a->nserved < op->nids; a->nserved++) {
		size_t resource = resource_index(p, RESOURCE_SEMAPHORES, a->rank, op->ids[a->nserved]);

		if (!p->count[resource]) {
			shunt_simulation_block(p, a, resource);
			return false;
		}
		p->count[resource]--;
		shunt_proof_acquire(
		    p->proof, a, a->nserved, resource, p->plan->gpus[a->rank].semaphores[op->ids[a->nserved]]);
	}
	return true;
}

static void release_ids(struct simulation *p, struct block_state *a, const struct shunt_plan_op *op)
{
	for (uint32_t j = 0; j < op->nids; j++) {
		size_t resource = resource_index(p, RESOURCE_SEMAPHORES, a->rank, op->ids[j]);

		p->count[resource]++;
		shunt_proof_release(p->proof, a, j, resource);
		shunt_simulation_wake(p, resource, 0);
	}
}

static bool enter_barrier(struct simulation *p, struct block_state *a, const struct shunt_plan_op *op)
{
	size_t resource = resource_index(p, RESOURCE_BARRIERS, a->rank, op->barrier);

	if (a->nserved == 2)
		return true;
	shunt_proof_arrive(p->proof, a, resource);
	if (++p->count[resource] < op->nblocks) {
		a->nserved = 1;
		shunt_simulation_block(p, a, resource);
		return false;
	}
	p->count[resource] = 0;
	shunt_proof_synchronize(p->proof, a, resource);
	shunt_simulation_wake(p, resource, 2);
	return true;
}

/* True if the operation is complete; false: the block waits. An operation waits for events of one kind only. */
static bool run_op(struct simulation *p, struct block_state *a, const struct shunt_plan_op *op)
{
	unsigned effects = shunt_plan_op_rows[op->code].effects;

	if ((effects & SHUNT_PLAN_SYNCS_BLOCKS && !enter_barrier(p, a, op)) ||
	    (effects & SHUNT_PLAN_WAITS && !wait_ids(p, a, op)) ||
	    (effects & SHUNT_PLAN_ACQUIRES && !acquire_ids(p, a, op)) || !shunt_simulation_ll_ready(p, a, op))
		return false;
	/* As the compiler puts them (program_ops.c): threads synchronize around what is sent on a port. */
	if (effects & (SHUNT_PLAN_SYNCS | SHUNT_PLAN_COMPLETES) ||
	    (op->type == SHUNT_PLAN_PORT && (op->nsrc || effects & SHUNT_PLAN_SIGNALS)))
		shunt_proof_sync(p->proof, a);
	shunt_proof_data(p->proof, a, op);
	shunt_simulation_ll_write(p, a, op);
	if (effects & SHUNT_PLAN_SIGNALS && op->nsrc)
		shunt_proof_sync(p->proof, a);
	if (p->proof && p->proof->failed)
		p->overrun = true;
	if (effects & SHUNT_PLAN_SIGNALS)
		signal_ids(p, a, op);
	if (effects & SHUNT_PLAN_RELEASES)
		release_ids(p, a, op);
	return true;
}

/* Runs a block as far as possible. */
static void run_block(struct simulation *p, struct block_state *a)
{
	while (!block_done(a)) {
		const struct shunt_plan_op *op = &a->block->ops[a->pc];

		if (!shunt_simulation_spend(p, 1 + op->nids + op->nsrc + op->ndst))
			return;
		if (shunt_plan_op_does(op, SHUNT_PLAN_REPEATS)) {
			a->windows = shunt_plan_windows(p->plan, op, p->chunk_units);
			if (a->windows) {
				a->pipeline = a->pc;
				a->pc++;
			} else {
				a->pc += 1 + op->nbody;
			}
			continue;
		}
		if (!run_op(p, a, op) || p->overrun)
			return;
		a->nserved = 0;
		a->pc++;
		if (a->pipeline != SHUNT_PLAN_NIL && a->pc == a->pipeline + 1 + a->block->ops[a->pipeline].nbody) {
			if (--a->windows)
				a->pc = a->pipeline + 1;
			else
				a->pipeline = SHUNT_PLAN_NIL;
		}
	}
}

int shunt_simulation_launch(struct simulation *p, uint64_t chunk_units)
{
	int err;

	p->chunk_units = chunk_units;
	p->overrun = false;
	err = shunt_simulation_ll_init(p);
	if (err || p->overrun)
		return err;
	if (p->ordering)
		memset(p->ordering, 0, (size_t)p->plan->nranks * p->plan->nranks);
	memset(p->taken, 0, p->nresources * sizeof(*p->taken));
	memset(p->count, 0, p->nresources * sizeof(*p->count));
	memset(p->waiters, 0xff, (p->nresources + p->nends) * sizeof(*p->waiters));
	for (uint32_t r = 0; r < p->plan->nranks; r++)
		for (uint32_t i = 0; i < p->plan->gpus[r].nsemaphores; i++)
			p->count[resource_index(p, RESOURCE_SEMAPHORES, r, i)] = p->plan->gpus[r].semaphores[i];
	p->nready = 0;
	for (uint32_t i = p->nstates; i-- > 0;) {
		struct block_state *a = &p->states[i];

		a->pc = a->nserved = 0;
		a->pipeline = SHUNT_PLAN_NIL;
		a->resource = SIZE_MAX;
		p->ready[p->nready++] = i;
	}
	while (p->nready && !p->overrun) {
		struct block_state *a = &p->states[p->ready[--p->nready]];

		a->resource = SIZE_MAX;
		run_block(p, a);
	}
	if (p->overrun)
		return 0;
	for (uint32_t i = 0; i < p->nstates; i++)
		if (!block_done(&p->states[i]))
			return shunt_simulation_report_deadlock(p);
	err = shunt_simulation_check_balance(p);
	return err ? err : shunt_simulation_check_ordering(p);
}
