/* SPDX-License-Identifier: MIT */
/* A launch: each block goes through its operations as far as their resources let it. */
#include <string.h>
#include "plan/format/op_rows.h"
#include "plan/verify/simulate.h"

#define WATCH(p, what, ...) \
	do { \
		if ((p)->watch && (p)->watch->what) \
			(p)->watch->what((p)->follower, __VA_ARGS__); \
	} while (0)

static void signal_ids(struct simulation *p, struct block_state *a, const struct shunt_plan_op *op)
{
	const struct shunt_plan_gpu *gpu = &p->plan->gpus[a->rank];

	for (uint32_t j = 0; j < op->nids; j++) {
		const struct shunt_plan_channel *c = &gpu->channels[op->type][op->ids[j]];
		size_t resource = resource_index(p, channel_resource_kind(op->type), c->peer, c->pair);

		p->count[resource]++;
		WATCH(p, release, a, j, resource);
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
		WATCH(p, acquire, a, a->nserved, resource, 0);
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
		WATCH(p, acquire, a, a->nserved, resource, p->plan->gpus[a->rank].semaphores[op->ids[a->nserved]]);
	}
	return true;
}

static void release_ids(struct simulation *p, struct block_state *a, const struct shunt_plan_op *op)
{
	for (uint32_t j = 0; j < op->nids; j++) {
		size_t resource = resource_index(p, RESOURCE_SEMAPHORES, a->rank, op->ids[j]);

		p->count[resource]++;
		WATCH(p, release, a, j, resource);
		shunt_simulation_wake(p, resource, 0);
	}
}

static bool enter_barrier(struct simulation *p, struct block_state *a, const struct shunt_plan_op *op)
{
	size_t resource = resource_index(p, RESOURCE_BARRIERS, a->rank, op->barrier);

	if (a->nserved == 2)
		return true;
	WATCH(p, arrive, a, resource);
	if (++p->count[resource] < op->nblocks) {
		a->nserved = 1;
		shunt_simulation_block(p, a, resource);
		return false;
	}
	p->count[resource] = 0;
	WATCH(p, synchronize, a, resource);
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
		WATCH(p, sync, a);
	WATCH(p, data, a, op);
	shunt_simulation_ll_write(p, a, op);
	if (effects & SHUNT_PLAN_SIGNALS && op->nsrc)
		WATCH(p, sync, a);
	if (p->watch && p->watch->failed(p->follower))
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
