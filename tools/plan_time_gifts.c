/* SPDX-License-Identifier: MIT */
/*
 * What blocks of a played launch give each other, without data: signals, values of semaphores, and who comes to a
 * barrier.
 */
#include <errno.h>
#include <stdlib.h>
#include "plan_time.h"

/* Something that was given, and by which step; NIL: it was there. */
struct gift {
	double time;
	uint32_t step;
};

struct gifts {
	struct gift *v;
	size_t n, room, taken;
};

/* The meetings at one barrier. */
struct meeting {
	uint32_t arrived, rounds;
	double time, over; /* of the last to come now; and when the round before was over */
	size_t done;       /* rounds that are over, for those who wait */
	uint32_t last;     /* the step of who came last */
};

/* What one rank's blocks wait for. */
struct rank_gifts {
	struct gifts *signals[2], *semaphores; /* signals: by type and channel */
	struct meeting *meetings;
};

struct time_gifts {
	struct rank_gifts *of;
};

static void give(struct time_play *p, struct gifts *g, double time, uint32_t step)
{
	struct gift *at = plan_time_more(p, &g->v, g->n, &g->room, sizeof(*at));

	if (at) {
		*at = (struct gift){ time, step };
		g->n++;
	}
}

int plan_time_gifts_init(struct time_play *p)
{
	const struct shunt_plan *plan = p->plan;

	p->gifts = calloc(1, sizeof(*p->gifts));
	if (p->gifts)
		p->gifts->of = calloc(plan->nranks, sizeof(*p->gifts->of));
	if (!p->gifts || !p->gifts->of)
		return -ENOMEM;
	for (uint32_t r = 0; r < plan->nranks; r++) {
		const struct shunt_plan_gpu *gpu = &plan->gpus[r];
		struct rank_gifts *g = &p->gifts->of[r];

		for (int type = 0; type < 2; type++)
			g->signals[type] = calloc(gpu->nchannels[type] + 1, sizeof(*g->signals[type]));
		g->semaphores = calloc(gpu->nsemaphores + 1, sizeof(*g->semaphores));
		g->meetings = calloc(gpu->nbarriers + 1, sizeof(*g->meetings));
		if (!g->signals[0] || !g->signals[1] || !g->semaphores || !g->meetings)
			return -ENOMEM;
		for (uint32_t i = 0; i < gpu->nsemaphores; i++)
			for (uint32_t k = 0; k < gpu->semaphores[i] && k < TIME_MAX_STEPS; k++)
				give(p, &g->semaphores[i], 0, SHUNT_PLAN_NIL);
	}
	return p->err;
}

static void gifts_free(struct gifts *g, uint32_t n)
{
	for (uint32_t i = 0; g && i < n; i++)
		free(g[i].v);
	free(g);
}

void plan_time_gifts_finish(struct time_play *p)
{
	for (uint32_t r = 0; p->gifts && p->gifts->of && r < p->plan->nranks; r++) {
		const struct shunt_plan_gpu *gpu = &p->plan->gpus[r];
		struct rank_gifts *g = &p->gifts->of[r];

		for (int type = 0; type < 2; type++)
			gifts_free(g->signals[type], gpu->nchannels[type]);
		gifts_free(g->semaphores, gpu->nsemaphores);
		free(g->meetings);
	}
	if (p->gifts)
		free(p->gifts->of);
	free(p->gifts);
}

static bool is_wait(const struct shunt_plan_op *op)
{
	return op->code == SHUNT_PLAN_WAIT || op->code == SHUNT_PLAN_RLXWAIT || op->code == SHUNT_PLAN_SEM_ACQUIRE;
}

/* The j-th thing that a wait or an acquire takes. */
static struct gifts *source_of(
    struct time_play *p, const struct time_actor *a, const struct shunt_plan_op *op, uint32_t j)
{
	struct rank_gifts *g = &p->gifts->of[a->rank];

	return op->code == SHUNT_PLAN_SEM_ACQUIRE ? &g->semaphores[op->ids[j]] : &g->signals[op->type][op->ids[j]];
}

/* A number may come up more than once in a list, so it counts what it takes of each. */
static bool all_given(struct time_play *p, struct time_actor *a, const struct shunt_plan_op *op, double *time_p)
{
	for (uint32_t j = 0; j < op->nids; j++) {
		struct gifts *g = source_of(p, a, op, j);
		size_t at = g->taken;

		for (uint32_t k = 0; k < j; k++)
			at += op->ids[k] == op->ids[j];
		if (at >= g->n) {
			time_watch(a, &g->n);
			return false;
		}
		time_later(time_p, g->v[at].time + (g->v[at].step == SHUNT_PLAN_NIL ? 0 : TIME_LATENCY(p)));
	}
	return true;
}

static struct meeting *meeting_of(struct time_play *p, const struct time_actor *a, const struct shunt_plan_op *op)
{
	return &p->gifts->of[a->rank].meetings[op->barrier];
}

static bool meet(struct time_play *p, struct time_actor *a, const struct shunt_plan_op *op, double *time_p)
{
	struct meeting *m = meeting_of(p, a, op);

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
		time_watch(a, &m->done);
		return false;
	}
	time_later(time_p, m->over);
	a->round = SHUNT_PLAN_NIL;
	return true;
}

bool plan_time_gifts_ready(struct time_play *p, struct time_actor *a, const struct shunt_plan_op *op, double *time_p)
{
	if (op->code == SHUNT_PLAN_BARRIER)
		return meet(p, a, op, time_p);
	return !is_wait(op) || all_given(p, a, op, time_p);
}

void plan_time_gifts_note(
    struct time_play *p, const struct time_actor *a, const struct shunt_plan_op *op, uint32_t step)
{
	enum plan_arrow_kind kind = op->code == SHUNT_PLAN_SEM_ACQUIRE ? PLAN_ARROW_SEMAPHORE : PLAN_ARROW_SIGNAL;
	double end = p->t->steps[step].end;

	for (uint32_t j = 0; is_wait(op) && j < op->nids; j++) {
		struct gifts *g = source_of(p, a, op, j);

		plan_time_arrow(p, kind, g->v[g->taken++].step, step);
	}
	for (uint32_t j = 0; shunt_plan_op_signals(op->code) && j < op->nids; j++) {
		const struct shunt_plan_channel *c = &p->plan->gpus[a->rank].channels[op->type][op->ids[j]];

		give(p, &p->gifts->of[c->peer].signals[op->type][c->pair], end, step);
	}
	for (uint32_t j = 0; op->code == SHUNT_PLAN_SEM_RELEASE && j < op->nids; j++)
		give(p, &p->gifts->of[a->rank].semaphores[op->ids[j]], end, step);
	if (op->code == SHUNT_PLAN_BARRIER) {
		uint32_t *last = &meeting_of(p, a, op)->last;

		plan_time_arrow(p, PLAN_ARROW_BARRIER, *last, step);
		*last = *last == SHUNT_PLAN_NIL ? step : *last;
	}
}
