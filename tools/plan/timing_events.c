/* SPDX-License-Identifier: MIT */
/* Synchronization of a simulated launch's blocks: signals, semaphores and barriers. */
#include <errno.h>
#include <stdlib.h>
#include "plan/format/op_rows.h"
#include "tools/plan/timing.h"

/* A signal or a release, and its step. */
struct event {
	double time;
	uint32_t step;
};

struct events {
	uint32_t initial; /* of a semaphore: that many can be taken before v[0] */
	struct event *v;
	size_t n, room, taken;
};

/* The rounds of one barrier. */
struct barrier_state {
	uint32_t arrived, rounds;
	double time, over; /* of the last block that came in this round; end of the round before */
	size_t done;       /* finished rounds; blocks that wait look at it */
	uint32_t last;     /* the step of the first block that left the barrier */
};

/* Events for one rank's blocks. */
struct rank_events {
	struct events *signals[2], *semaphores; /* signals: by type and channel */
	struct barrier_state *barrier_states;
};

struct time_events {
	struct rank_events *of;
};

static void add_event(struct time_simulation *p, struct events *g, double time, uint32_t step)
{
	struct event *at = plan_time_array_grow(p, &g->v, g->n, &g->room, sizeof(*at));

	if (at) {
		*at = (struct event){ time, step };
		g->n++;
	}
}

int plan_time_events_init(struct time_simulation *p)
{
	const struct shunt_plan *plan = p->plan;

	p->events = calloc(1, sizeof(*p->events));
	if (p->events)
		p->events->of = calloc(plan->nranks, sizeof(*p->events->of));
	if (!p->events || !p->events->of)
		return -ENOMEM;
	for (uint32_t r = 0; r < plan->nranks; r++) {
		const struct shunt_plan_gpu *gpu = &plan->gpus[r];
		struct rank_events *g = &p->events->of[r];

		for (int type = 0; type < 2; type++)
			g->signals[type] = calloc(gpu->nchannels[type] + 1, sizeof(*g->signals[type]));
		g->semaphores = calloc(gpu->nsemaphores + 1, sizeof(*g->semaphores));
		g->barrier_states = calloc(gpu->nbarriers + 1, sizeof(*g->barrier_states));
		if (!g->signals[0] || !g->signals[1] || !g->semaphores || !g->barrier_states)
			return -ENOMEM;
		for (uint32_t i = 0; i < gpu->nsemaphores; i++)
			g->semaphores[i].initial = gpu->semaphores[i];
	}
	return 0;
}

static void events_free(struct events *g, uint32_t n)
{
	for (uint32_t i = 0; g && i < n; i++)
		free(g[i].v);
	free(g);
}

void plan_time_events_finish(struct time_simulation *p)
{
	for (uint32_t r = 0; p->events && p->events->of && r < p->plan->nranks; r++) {
		const struct shunt_plan_gpu *gpu = &p->plan->gpus[r];
		struct rank_events *g = &p->events->of[r];

		for (int type = 0; type < 2; type++)
			events_free(g->signals[type], gpu->nchannels[type]);
		events_free(g->semaphores, gpu->nsemaphores);
		free(g->barrier_states);
	}
	if (p->events)
		free(p->events->of);
	free(p->events);
}

static bool is_wait(const struct shunt_plan_op *op)
{
	return shunt_plan_op_does(op, SHUNT_PLAN_WAITS | SHUNT_PLAN_ACQUIRES);
}

/* The events for the j-th id of a wait or an acquire. */
static struct events *events_of(
    struct time_simulation *p, const struct time_block *a, const struct shunt_plan_op *op, uint32_t j)
{
	struct rank_events *g = &p->events->of[a->rank];

	return shunt_plan_op_does(op, SHUNT_PLAN_ACQUIRES) ? &g->semaphores[op->ids[j]] :
	                                                     &g->signals[op->type][op->ids[j]];
}

/* True: events for all ids. An id may occur several times in a list, and takes an event each time. */
static bool all_available(
    struct time_simulation *p, struct time_block *a, const struct shunt_plan_op *op, double *time_p)
{
	for (uint32_t j = 0; j < op->nids; j++) {
		struct events *g = events_of(p, a, op, j);
		size_t at = g->taken;

		for (uint32_t k = 0; k < j; k++)
			at += op->ids[k] == op->ids[j];
		if (at < g->initial)
			continue;
		at -= g->initial;
		if (at >= g->n) {
			time_wait_on(a, &g->n);
			return false;
		}
		time_max(time_p, g->v[at].time + TIME_LATENCY(p));
	}
	return true;
}

static struct barrier_state *barrier_of(
    struct time_simulation *p, const struct time_block *a, const struct shunt_plan_op *op)
{
	return &p->events->of[a->rank].barrier_states[op->barrier];
}

static bool enter_barrier(
    struct time_simulation *p, struct time_block *a, const struct shunt_plan_op *op, double *time_p)
{
	struct barrier_state *m = barrier_of(p, a, op);

	if (a->round == SHUNT_PLAN_NIL) {
		a->round = m->rounds;
		m->time = m->arrived && m->time > a->time ? m->time : a->time;
		if (++m->arrived == op->nblocks) {
			m->arrived = 0;
			m->rounds++;
			m->done++;
			m->over = m->time;
			m->last = SHUNT_PLAN_NIL;
		}
	}
	if (a->round == m->rounds) {
		time_wait_on(a, &m->done);
		return false;
	}
	time_max(time_p, m->over);
	a->round = SHUNT_PLAN_NIL;
	return true;
}

bool plan_time_events_ready(
    struct time_simulation *p, struct time_block *a, const struct shunt_plan_op *op, double *time_p)
{
	if (shunt_plan_op_does(op, SHUNT_PLAN_SYNCS_BLOCKS))
		return enter_barrier(p, a, op, time_p);
	return !is_wait(op) || all_available(p, a, op, time_p);
}

void plan_time_events_note(
    struct time_simulation *p, const struct time_block *a, const struct shunt_plan_op *op, uint32_t step)
{
	enum plan_arrow_kind kind =
	    shunt_plan_op_does(op, SHUNT_PLAN_ACQUIRES) ? PLAN_ARROW_SEMAPHORE : PLAN_ARROW_SIGNAL;
	double end = p->t->steps[step].end;

	for (uint32_t j = 0; is_wait(op) && j < op->nids; j++) {
		struct events *g = events_of(p, a, op, j);
		size_t at = g->taken++;

		if (at >= g->initial)
			plan_time_arrow(p, kind, g->v[at - g->initial].step, step);
	}
	for (uint32_t j = 0; shunt_plan_op_does(op, SHUNT_PLAN_SIGNALS) && j < op->nids; j++) {
		const struct shunt_plan_channel *c = &p->plan->gpus[a->rank].channels[op->type][op->ids[j]];

		add_event(p, &p->events->of[c->peer].signals[op->type][c->pair], end, step);
	}
	for (uint32_t j = 0; shunt_plan_op_does(op, SHUNT_PLAN_RELEASES) && j < op->nids; j++)
		add_event(p, &p->events->of[a->rank].semaphores[op->ids[j]], end, step);
	if (shunt_plan_op_does(op, SHUNT_PLAN_SYNCS_BLOCKS)) {
		uint32_t *last = &barrier_of(p, a, op)->last;

		plan_time_arrow(p, PLAN_ARROW_BARRIER, *last, step);
		*last = *last == SHUNT_PLAN_NIL ? step : *last;
	}
}
