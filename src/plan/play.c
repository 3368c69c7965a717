/* SPDX-License-Identifier: MIT */
/* The play itself: blocks, and what they wait for and give. */
#include <stdlib.h>
#include <string.h>
#include "plan/play.h"

int shunt_play_init(struct play *p, struct shunt_plan_log *log, const struct shunt_plan *plan)
{
	size_t n = 0;

	*p = (struct play){ .log = log, .plan = plan };
	for (int kind = 0; kind < PLAY_NTHINGS; kind++) {
		p->base[kind] = calloc(plan->nranks, sizeof(*p->base[kind]));
		if (shunt_plan_no_memory(p->log, p->base[kind]))
			return -ENOMEM;
		for (uint32_t r = 0; kind < PLAY_SEGMENTS && r < plan->nranks; r++) {
			const struct shunt_plan_gpu *gpu = &plan->gpus[r];
			const uint32_t counts[] = { gpu->nchannels[0], gpu->nchannels[1], gpu->nsemaphores,
				gpu->nbarriers };

			p->base[kind][r] = n;
			n += counts[kind];
			if (!kind)
				p->nactors += gpu->nblocks;
		}
	}
	p->nthings = n;
	p->count = calloc(n ? n : 1, sizeof(*p->count));
	p->taken = calloc(n ? n : 1, sizeof(*p->taken));
	p->actors = calloc(p->nactors ? p->nactors : 1, sizeof(*p->actors));
	p->ready = calloc(p->nactors ? p->nactors : 1, sizeof(*p->ready));
	p->nends_of = calloc(plan->nranks, sizeof(*p->nends_of));
	/* Ranks of others meet, or have to see to it themselves (program_buffers.c). More ranks do not run here. */
	if (plan->double_scratch && plan->collective <= SHUNT_PLAN_ALLTOALL && plan->nranks <= 64) {
		p->contacts = calloc((size_t)plan->nranks * plan->nranks, sizeof(*p->contacts));
		if (shunt_plan_no_memory(p->log, p->contacts))
			return -ENOMEM;
	}
	if (shunt_plan_no_memory(p->log, p->count) || shunt_plan_no_memory(p->log, p->taken) ||
	    shunt_plan_no_memory(p->log, p->actors) || shunt_plan_no_memory(p->log, p->ready) ||
	    shunt_plan_no_memory(p->log, p->nends_of))
		return -ENOMEM;
	n = 0;
	for (uint32_t r = 0; r < plan->nranks; r++)
		for (uint32_t b = 0; b < plan->gpus[r].nblocks; b++)
			p->actors[n++] =
			    (struct play_actor){ .block = &plan->gpus[r].blocks[b], .rank = r, .number = b };
	return 0;
}

void shunt_play_finish(struct play *p)
{
	for (int kind = 0; kind < PLAY_NTHINGS; kind++)
		free(p->base[kind]);
	free(p->actors);
	free(p->ready);
	free(p->count);
	free(p->taken);
	free(p->waiting);
	free(p->nends_of);
	free(p->ends);
	free(p->valid);
	free(p->writer);
	free(p->contacts);
}

bool shunt_play_spend(struct play *p, uint64_t steps)
{
	if (p->steps < steps) {
		p->overrun = true;
		return false;
	}
	p->steps -= steps;
	return true;
}

void shunt_play_block(struct play *p, struct play_actor *a, size_t thing)
{
	a->thing = thing;
	a->next = p->waiting[thing];
	p->waiting[thing] = (uint32_t)(a - p->actors);
}

void shunt_play_wake(struct play *p, size_t thing, uint32_t got)
{
	uint32_t next;

	for (uint32_t i = p->waiting[thing]; i != SHUNT_PLAN_NIL; i = next) {
		next = p->actors[i].next;
		if (got)
			p->actors[i].got = got;
		p->ready[p->nready++] = i;
		p->steps -= p->steps > 0;
	}
	p->waiting[thing] = SHUNT_PLAN_NIL;
}

static void signal_ids(struct play *p, struct play_actor *a, const struct shunt_plan_op *op)
{
	const struct shunt_plan_gpu *gpu = &p->plan->gpus[a->rank];

	for (uint32_t j = 0; j < op->nids; j++) {
		const struct shunt_plan_channel *c = &gpu->channels[op->type][op->ids[j]];
		size_t thing = play_thing(p, play_channels(op->type), c->peer, c->pair);

		p->count[thing]++;
		shunt_play_wake(p, thing, 0);
	}
}

static bool wait_ids(struct play *p, struct play_actor *a, const struct shunt_plan_op *op)
{
	for (; a->got < op->nids; a->got++) {
		size_t thing = play_thing(p, play_channels(op->type), a->rank, op->ids[a->got]);

		if (p->taken[thing] == p->count[thing]) {
			shunt_play_block(p, a, thing);
			return false;
		}
		p->taken[thing]++;
		play_note(p, a->rank, p->plan->gpus[a->rank].channels[op->type][op->ids[a->got]].peer, PLAY_HEARS);
	}
	return true;
}

static bool acquire_ids(struct play *p, struct play_actor *a, const struct shunt_plan_op *op)
{
	for (; a->got < op->nids; a->got++) {
		size_t thing = play_thing(p, PLAY_SEMAPHORES, a->rank, op->ids[a->got]);

		if (!p->count[thing]) {
			shunt_play_block(p, a, thing);
			return false;
		}
		p->count[thing]--;
	}
	return true;
}

static void release_ids(struct play *p, struct play_actor *a, const struct shunt_plan_op *op)
{
	for (uint32_t j = 0; j < op->nids; j++) {
		size_t thing = play_thing(p, PLAY_SEMAPHORES, a->rank, op->ids[j]);

		p->count[thing]++;
		shunt_play_wake(p, thing, 0);
	}
}

static bool meet(struct play *p, struct play_actor *a, const struct shunt_plan_op *op)
{
	size_t thing = play_thing(p, PLAY_BARRIERS, a->rank, op->barrier);

	if (a->got == 2)
		return true;
	if (++p->count[thing] < op->nblocks) {
		a->got = 1;
		shunt_play_block(p, a, thing);
		return false;
	}
	p->count[thing] = 0;
	shunt_play_wake(p, thing, 2);
	return true;
}

/* True if the operation is over; false: the actor waits. */
static bool perform(struct play *p, struct play_actor *a, const struct shunt_plan_op *op)
{
	switch (op->code) {
	case SHUNT_PLAN_BARRIER:
		return meet(p, a, op);
	case SHUNT_PLAN_SIGNAL:
	case SHUNT_PLAN_RLXSIGNAL:
	case SHUNT_PLAN_PWS:
	case SHUNT_PLAN_PWSF:
		signal_ids(p, a, op);
		return true;
	case SHUNT_PLAN_WAIT:
	case SHUNT_PLAN_RLXWAIT:
		return wait_ids(p, a, op);
	case SHUNT_PLAN_SEM_ACQUIRE:
		return acquire_ids(p, a, op);
	case SHUNT_PLAN_SEM_RELEASE:
		release_ids(p, a, op);
		return true;
	default:
		if (!shunt_play_packets_there(p, a, op))
			return false;
		shunt_play_packets_write(p, a, op);
		return true;
	}
}

/* As far as it gets. */
static void run_actor(struct play *p, struct play_actor *a)
{
	while (!play_over(a)) {
		const struct shunt_plan_op *op = &a->block->ops[a->pc];

		if (!shunt_play_spend(p, 1 + op->nids + op->nsrc + op->ndst))
			return;
		if (op->code == SHUNT_PLAN_PIPELINE) {
			a->windows = shunt_plan_windows(p->plan, op, p->chunk_units);
			if (a->windows) {
				a->pipeline = a->pc;
				a->pc++;
			} else {
				a->pc += 1 + op->nbody;
			}
			continue;
		}
		if (!perform(p, a, op))
			return;
		a->got = 0;
		a->pc++;
		if (a->pipeline != SHUNT_PLAN_NIL && a->pc == a->pipeline + 1 + a->block->ops[a->pipeline].nbody) {
			if (--a->windows)
				a->pc = a->pipeline + 1;
			else
				a->pipeline = SHUNT_PLAN_NIL;
		}
	}
}

int shunt_play_launch(struct play *p, uint64_t chunk_units)
{
	int err;

	p->chunk_units = chunk_units;
	p->overrun = false;
	err = shunt_play_packets_init(p);
	if (err || p->overrun)
		return err;
	if (p->contacts)
		memset(p->contacts, 0, (size_t)p->plan->nranks * p->plan->nranks);
	memset(p->taken, 0, p->nthings * sizeof(*p->taken));
	memset(p->count, 0, p->nthings * sizeof(*p->count));
	memset(p->waiting, 0xff, (p->nthings + p->nends) * sizeof(*p->waiting));
	for (uint32_t r = 0; r < p->plan->nranks; r++)
		for (uint32_t i = 0; i < p->plan->gpus[r].nsemaphores; i++)
			p->count[play_thing(p, PLAY_SEMAPHORES, r, i)] = p->plan->gpus[r].semaphores[i];
	p->nready = 0;
	for (uint32_t i = p->nactors; i-- > 0;) {
		struct play_actor *a = &p->actors[i];

		a->pc = a->got = 0;
		a->pipeline = SHUNT_PLAN_NIL;
		a->thing = SIZE_MAX;
		p->ready[p->nready++] = i;
	}
	while (p->nready && !p->overrun) {
		struct play_actor *a = &p->actors[p->ready[--p->nready]];

		a->thing = SIZE_MAX;
		run_actor(p, a);
	}
	if (p->overrun)
		return 0;
	for (uint32_t i = 0; i < p->nactors; i++)
		if (!play_over(&p->actors[i]))
			return shunt_play_report_stuck(p);
	err = shunt_play_check_balance(p);
	return err ? err : shunt_play_check_contacts(p);
}
