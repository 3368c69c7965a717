/* SPDX-License-Identifier: MIT */
/*
 * Plays one launch of a plan for its picture: when each operation of each block would begin and end if operations took the times
 * below. What waits for what is the plan's; the times are made up. A chunk is as large as lets pipelines run a few windows.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "plan.h"

#define NIL SHUNT_PLAN_NIL
#define WINDOWS(plan) ((plan)->nranks > 4 ? 2 : 3) /* of the first pipeline that there is */
#define MAX_STEPS 20000u                           /* more cannot be drawn */
#define CHUNK_UNITS 64u                            /* without pipelines */
/* Durations. Until a signal or packet is seen it takes longer among many ranks, so that there is room for their arrows. */
#define T_SYNC 3.5
#define T_NOP 1.0
#define T_DATA 5.0
#define LATENCY(p) (1.5 + 0.4 * ((p)->plan->nranks < 12 ? (p)->plan->nranks : 12))

/* Something that was given, and by which step; NIL: it was there. */
struct gift {
	double time;
	uint32_t step;
};

struct gifts {
	struct gift *v;
	size_t n, room, taken;
};

/* Units [low, high) of a buffer that a step wrote or reads. */
struct touch {
	uint64_t low, high;
	uint32_t step;
	uint8_t buffer;
};

struct touches {
	struct touch *v;
	size_t n, room;
};

struct actor {
	const struct shunt_plan_block *block;
	uint32_t rank, row, pc, pipeline, window;
	uint64_t windows;
	double time;
	size_t *watched, seen; /* it waits until *watched is not seen any more */
	uint32_t round;        /* of the barrier at which it is; NIL: none */
};

/* One meeting at a barrier. */
struct meeting {
	uint32_t arrived, rounds;
	double time, over; /* of the last to come now; and when the round before was over */
	size_t done;       /* rounds that are over, for those who wait */
	uint32_t last;     /* the step of who came last */
};

struct play {
	const struct shunt_plan *plan;
	struct plan_timeline *t;
	size_t steps_room, arrows_room;
	uint64_t units;
	struct actor *actors;
	struct gifts *signals[2], *semaphores;                      /* of all ranks' channels by type; of all ranks' semaphores */
	size_t *first_channel[2], *first_semaphore, *first_meeting; /* of each rank */
	struct meeting *meetings;
	struct touches *packets, *writes,
	    *reads; /* of each rank: packets written; plain data that others wrote; plain data that is read */
	int err;
};

/* Room for one more, or NULL and p->err. */
static void *more(struct play *p, void *array_p, size_t n, size_t *room, size_t size)
{
	void **array = array_p;

	if (n == *room) {
		size_t up = *room ? 2 * *room : 16;
		void *grown = reallocarray(*array, up, size);

		if (!grown) {
			p->err = -ENOMEM;
			return NULL;
		}
		*array = grown;
		*room = up;
	}
	return (char *)*array + n * size;
}

static void give(struct play *p, struct gifts *g, double time, uint32_t step)
{
	struct gift *at = more(p, &g->v, g->n, &g->room, sizeof(*at));

	if (at) {
		*at = (struct gift){time, step};
		g->n++;
	}
}

static void touch(struct play *p, struct touches *t, struct touch what)
{
	struct touch *at = more(p, &t->v, t->n, &t->room, sizeof(*at));

	if (at) {
		*at = what;
		t->n++;
	}
}

static void arrow(struct play *p, enum plan_arrow_kind kind, uint32_t from, uint32_t to)
{
	struct plan_timeline *t = p->t;
	struct plan_arrow *at;

	if (from == NIL || t->steps[from].row == t->steps[to].row)
		return;
	at = more(p, &t->arrows, t->narrows, &p->arrows_room, sizeof(*at));
	if (at) {
		*at = (struct plan_arrow){kind, from, to};
		t->narrows++;
	}
}

/* ---- what an operation touches */

/* The part of a slice that the operation handles now. False: nothing. */
static bool slice_units(const struct play *p, const struct actor *a, const struct shunt_plan_op *op,
    const struct shunt_plan_slice *s, uint64_t *low_p, uint64_t *high_p)
{
	uint64_t size = s->size * p->units, first = 0, n;
	bool packets = false;

	for (uint32_t i = 0; i < op->nsrc + op->ndst; i++)
		packets |= (i < op->nsrc ? op->src[i] : op->dst[i - op->nsrc]).packet;
	if (a->pipeline != NIL && !packets) {
		uint64_t unit = a->block->ops[a->pipeline].unit_size / p->plan->alignment;

		first = unit * a->window < size ? unit * a->window : size;
		size = size - first < unit ? size - first : unit;
	}
	shunt_plan_group_part(size, op->part, op->parts, low_p, &n);
	*low_p += first + s->index * p->units;
	*high_p = *low_p + n;
	return n;
}

/* The ranks whose buffer a slice is in. */
static uint32_t slice_ranks(const struct play *p, uint32_t rank, const struct shunt_plan_slice *s, const uint32_t **ranks_p)
{
	if (s->place != SHUNT_PLAN_MULTI) {
		*ranks_p = &s->target;
		return 1;
	}
	*ranks_p = p->plan->gpus[rank].switches[s->target].ranks;
	return p->plan->gpus[rank].switches[s->target].nranks;
}

static int by_low(const void *x, const void *y)
{
	const struct touch *a = x, *b = y;

	return a->low < b->low ? -1 : a->low > b->low;
}

/* When all packets of the operation's sources are there; false: some are not, and a waits for others. */
static bool packets_ready(struct play *p, struct actor *a, const struct shunt_plan_op *op, double *time_p)
{
	struct touches *t = &p->packets[a->rank];

	for (uint32_t i = 0; i < op->nsrc; i++) {
		uint64_t low, high, at;

		if (!op->src[i].packet || !slice_units(p, a, op, &op->src[i], &low, &high))
			continue;
		qsort(t->v, t->n, sizeof(*t->v), by_low);
		at = low;
		for (size_t k = 0; k < t->n && at < high; k++) {
			if (t->v[k].low > at || t->v[k].high <= at)
				continue;
			at = t->v[k].high;
			double time = p->t->steps[t->v[k].step].end + LATENCY(p);
			*time_p = time > *time_p ? time : *time_p;
		}
		if (at < high) {
			a->watched = &t->n;
			a->seen = t->n;
			return false;
		}
	}
	return true;
}

static void data_note(struct play *p, const struct actor *a, const struct shunt_plan_op *op, uint32_t step)
{
	const uint32_t *ranks;
	uint64_t low, high;

	for (uint32_t i = 0; i < op->nsrc; i++) {
		const struct shunt_plan_slice *s = &op->src[i];
		struct touches *t = &p->packets[a->rank];

		if (!slice_units(p, a, op, s, &low, &high))
			continue;
		for (size_t k = 0; s->packet && k < t->n; k++)
			if (t->v[k].low < high && low < t->v[k].high)
				arrow(p, PLAN_ARROW_DATA, t->v[k].step, step);
		uint32_t n = slice_ranks(p, a->rank, s, &ranks);
		for (uint32_t m = 0; !s->packet && m < n; m++)
			touch(p, &p->reads[ranks[m]], (struct touch){low, high, step, s->buffer});
	}
	for (uint32_t i = 0; i < op->ndst; i++) {
		const struct shunt_plan_slice *s = &op->dst[i];

		if (!slice_units(p, a, op, s, &low, &high))
			continue;
		uint32_t n = slice_ranks(p, a->rank, s, &ranks);
		for (uint32_t m = 0; m < n; m++)
			if (s->packet)
				touch(p, &p->packets[ranks[m]], (struct touch){low, high, step, s->buffer});
			else if (s->place != SHUNT_PLAN_LOCAL)
				touch(p, &p->writes[ranks[m]], (struct touch){low, high, step, s->buffer});
	}
}

/* Plain data: from who wrote it into another rank's buffer to who reads it there first. */
static void data_arrows(struct play *p)
{
	for (uint32_t r = 0; r < p->plan->nranks; r++)
		for (size_t i = 0; i < p->writes[r].n; i++) {
			const struct touch *w = &p->writes[r].v[i], *first = NULL;

			for (size_t k = 0; k < p->reads[r].n; k++) {
				const struct touch *t = &p->reads[r].v[k];

				if (t->buffer != w->buffer || t->low >= w->high || w->low >= t->high ||
				    p->t->steps[t->step].start < p->t->steps[w->step].end)
					continue;
				if (!first || p->t->steps[t->step].start < p->t->steps[first->step].start)
					first = t;
			}
			if (first)
				arrow(p, PLAN_ARROW_DATA, w->step, first->step);
		}
}

/* ---- one operation */

static struct gifts *channel_at(struct play *p, uint32_t type, uint32_t rank, uint32_t channel)
{
	return &p->signals[type][p->first_channel[type][rank] + channel];
}

/* The id-th thing that a wait or an acquire takes. */
static struct gifts *source_of(struct play *p, const struct actor *a, const struct shunt_plan_op *op, uint32_t j)
{
	if (op->code == SHUNT_PLAN_SEM_ACQUIRE)
		return &p->semaphores[p->first_semaphore[a->rank] + op->ids[j]];
	return channel_at(p, op->type, a->rank, op->ids[j]);
}

static bool is_wait(const struct shunt_plan_op *op)
{
	return op->code == SHUNT_PLAN_WAIT || op->code == SHUNT_PLAN_RLXWAIT || op->code == SHUNT_PLAN_SEM_ACQUIRE;
}

static bool is_signal(const struct shunt_plan_op *op)
{
	return op->code == SHUNT_PLAN_SIGNAL || op->code == SHUNT_PLAN_RLXSIGNAL || op->code == SHUNT_PLAN_PWS ||
	       op->code == SHUNT_PLAN_PWSF;
}

/* Can it go on, and from when? A number may come up more than once in a list, so it counts what it takes of each. */
static bool gifts_ready(struct play *p, struct actor *a, const struct shunt_plan_op *op, double *time_p)
{
	for (uint32_t j = 0; j < op->nids; j++) {
		struct gifts *g = source_of(p, a, op, j);
		size_t at = g->taken;

		for (uint32_t k = 0; k < j; k++)
			at += op->ids[k] == op->ids[j];
		if (at >= g->n) {
			a->watched = &g->n;
			a->seen = g->n;
			return false;
		}
		double time = g->v[at].time + (g->v[at].step == NIL ? 0 : LATENCY(p));
		*time_p = time > *time_p ? time : *time_p;
	}
	return true;
}

/* A block comes to a barrier. False: it waits there. */
static bool meet(struct play *p, struct actor *a, const struct shunt_plan_op *op, double *time_p)
{
	struct meeting *m = &p->meetings[p->first_meeting[a->rank] + op->barrier];

	if (a->round == NIL) {
		a->round = m->rounds;
		m->time = m->arrived && m->time > a->time ? m->time : a->time;
		if (++m->arrived == op->nblocks) {
			m->arrived = 0;
			m->rounds++;
			m->done++;
			m->over = m->time;
			m->last = NIL;
		}
	}
	if (a->round == m->rounds) {
		a->watched = &m->done;
		a->seen = m->done;
		return false;
	}
	*time_p = m->over > *time_p ? m->over : *time_p;
	a->round = NIL;
	return true;
}

static double duration(const struct shunt_plan_op *op)
{
	return op->code == SHUNT_PLAN_NOP ? T_NOP : op->nsrc ? T_DATA : T_SYNC;
}

/* Runs a's next operation if it can. */
static bool perform(struct play *p, struct actor *a, const struct shunt_plan_op *op)
{
	struct plan_timeline *t = p->t;
	uint32_t number = (uint32_t)t->nsteps;
	struct plan_step *step;
	double start = a->time;

	if ((op->code == SHUNT_PLAN_BARRIER && !meet(p, a, op, &start)) || (is_wait(op) && !gifts_ready(p, a, op, &start)) ||
	    !packets_ready(p, a, op, &start))
		return false;
	if (number == MAX_STEPS)
		p->err = -EFBIG;
	step = p->err ? NULL : more(p, &t->steps, t->nsteps, &p->steps_room, sizeof(*step));
	if (!step)
		return false;
	*step = (struct plan_step){op, a->row, a->pipeline == NIL ? 0 : a->window, a->time, start, start + duration(op)};
	t->nsteps++;
	for (uint32_t j = 0; is_wait(op) && j < op->nids; j++) {
		struct gifts *g = source_of(p, a, op, j);

		arrow(p, op->code == SHUNT_PLAN_SEM_ACQUIRE ? PLAN_ARROW_SEMAPHORE : PLAN_ARROW_SIGNAL, g->v[g->taken++].step,
		    number);
	}
	for (uint32_t j = 0; is_signal(op) && j < op->nids; j++) {
		const struct shunt_plan_channel *c = &p->plan->gpus[a->rank].channels[op->type][op->ids[j]];

		give(p, channel_at(p, op->type, c->peer, c->pair), t->steps[number].end, number);
	}
	for (uint32_t j = 0; op->code == SHUNT_PLAN_SEM_RELEASE && j < op->nids; j++)
		give(p, &p->semaphores[p->first_semaphore[a->rank] + op->ids[j]], t->steps[number].end, number);
	if (op->code == SHUNT_PLAN_BARRIER) {
		uint32_t *last = &p->meetings[p->first_meeting[a->rank] + op->barrier].last;

		arrow(p, PLAN_ARROW_BARRIER, *last, number);
		*last = *last == NIL ? number : *last;
	}
	data_note(p, a, op, number);
	a->time = t->steps[number].end;
	t->end = a->time > t->end ? a->time : t->end;
	return true;
}

/* The operation after this one; pipelines come around again. */
static void advance(struct play *p, struct actor *a)
{
	const struct shunt_plan_op *ops = a->block->ops;

	a->pc++;
	if (a->pipeline != NIL && a->pc == a->pipeline + 1 + ops[a->pipeline].nbody) {
		a->window++;
		if (a->window < a->windows)
			a->pc = a->pipeline + 1;
		else
			a->pipeline = NIL;
	}
	while (a->pipeline == NIL && a->pc < a->block->nops && ops[a->pc].code == SHUNT_PLAN_PIPELINE) {
		a->windows = shunt_plan_windows(p->plan, &ops[a->pc], p->units);
		a->window = 0;
		a->pipeline = a->windows ? a->pc : NIL;
		a->pc += a->windows ? 1 : 1 + ops[a->pc].nbody;
	}
}

static bool finished(const struct actor *a)
{
	return a->pc >= a->block->nops; /* NOLINT(clang-analyzer-core.NullDereference): every actor has a block */
}

/* The block that is behind the others goes first. */
static int play_all(struct play *p)
{
	for (;;) {
		struct actor *next = NULL;
		bool left = false;

		for (uint32_t i = 0; i < p->t->nrows; i++) {
			struct actor *a = &p->actors[i];

			left |= !finished(a);
			if (finished(a) || (a->watched && *a->watched == a->seen) || (next && next->time <= a->time))
				continue;
			next = a;
		}
		if (!next)
			return left ? -EDEADLK : 0;
		next->watched = NULL;
		if (perform(p, next, &next->block->ops[next->pc]))
			advance(p, next);
		if (p->err)
			return p->err;
	}
}

/* ---- */

static uint64_t choose_units(const struct shunt_plan *plan)
{
	uint64_t units = CHUNK_UNITS, most = shunt_plan_chunk_units(plan, plan->max_bytes);
	bool found = false;

	for (uint32_t r = 0; r < plan->nranks; r++)
		for (uint32_t b = 0; b < plan->gpus[r].nblocks; b++)
			for (uint32_t i = 0; i < plan->gpus[r].blocks[b].nops; i++) {
				const struct shunt_plan_op *op = &plan->gpus[r].blocks[b].ops[i];

				if (op->parts > units && !found)
					units = op->parts;
				if (op->code != SHUNT_PLAN_PIPELINE || found)
					continue;
				found = true;
				units = WINDOWS(plan) * (op->unit_size / plan->alignment) / op->num_chunks;
			}
	units = most && units > most ? most : units;
	return units ? units : 1;
}

static int prepare(struct play *p)
{
	const struct shunt_plan *plan = p->plan;
	size_t n = plan->nranks, channels[2] = {0}, semaphores = 0, meetings = 0, rows = 0;

	for (int type = 0; type < 2; type++)
		p->first_channel[type] = calloc(n, sizeof(size_t));
	p->first_semaphore = calloc(n, sizeof(size_t));
	p->first_meeting = calloc(n, sizeof(size_t));
	p->packets = calloc(n, sizeof(*p->packets));
	p->writes = calloc(n, sizeof(*p->writes));
	p->reads = calloc(n, sizeof(*p->reads));
	if (!p->first_channel[0] || !p->first_channel[1] || !p->first_semaphore || !p->first_meeting || !p->packets || !p->writes ||
	    !p->reads)
		return -ENOMEM;
	for (size_t r = 0; r < n; r++) {
		for (int type = 0; type < 2; type++) {
			p->first_channel[type][r] = channels[type];
			channels[type] += plan->gpus[r].nchannels[type];
		}
		p->first_semaphore[r] = semaphores;
		p->first_meeting[r] = meetings;
		semaphores += plan->gpus[r].nsemaphores;
		meetings += plan->gpus[r].nbarriers;
		rows += plan->gpus[r].nblocks;
	}
	for (int type = 0; type < 2; type++)
		p->signals[type] = calloc(channels[type] + 1, sizeof(**p->signals));
	p->semaphores = calloc(semaphores + 1, sizeof(*p->semaphores));
	p->meetings = calloc(meetings + 1, sizeof(*p->meetings));
	p->actors = calloc(rows + 1, sizeof(*p->actors));
	p->t->rows = calloc(rows + 1, sizeof(*p->t->rows));
	if (!p->signals[0] || !p->signals[1] || !p->semaphores || !p->meetings || !p->actors || !p->t->rows)
		return -ENOMEM;
	for (uint32_t r = 0; r < plan->nranks; r++) {
		for (uint32_t b = 0; b < plan->gpus[r].nblocks; b++) {
			uint32_t row = p->t->nrows++;

			p->t->rows[row] = (struct plan_row){r, b};
			p->actors[row] = (struct actor){
			    .block = &plan->gpus[r].blocks[b], .rank = r, .row = row, .pc = NIL, .pipeline = NIL, .round = NIL};
			advance(p, &p->actors[row]); /* from the one before the first */
		}
		for (uint32_t i = 0; i < plan->gpus[r].nsemaphores; i++)
			for (uint32_t k = 0; k < plan->gpus[r].semaphores[i] && k < MAX_STEPS; k++)
				give(p, &p->semaphores[p->first_semaphore[r] + i], 0, NIL);
	}
	return p->err;
}

static void gifts_free(struct gifts *g, size_t n)
{
	for (size_t i = 0; g && i < n; i++)
		free(g[i].v);
	free(g);
}

static void touches_free(struct touches *t, size_t n)
{
	for (size_t i = 0; t && i < n; i++)
		free(t[i].v);
	free(t);
}

static size_t total(const struct shunt_plan *plan, int what)
{
	size_t n = 0;

	for (uint32_t r = 0; r < plan->nranks; r++)
		n += what == 2 ? plan->gpus[r].nsemaphores : plan->gpus[r].nchannels[what];
	return n;
}

int plan_timeline_init(struct plan_timeline *t, const struct shunt_plan *plan)
{
	struct play p = {.plan = plan, .t = t, .units = choose_units(plan)};
	int err;

	memset(t, 0, sizeof(*t));
	err = prepare(&p);
	if (!err)
		err = play_all(&p);
	if (!err) {
		data_arrows(&p);
		err = p.err;
	}
	for (int type = 0; type < 2; type++) {
		gifts_free(p.signals[type], total(plan, type));
		free(p.first_channel[type]);
	}
	gifts_free(p.semaphores, total(plan, 2));
	touches_free(p.packets, plan->nranks);
	touches_free(p.writes, plan->nranks);
	touches_free(p.reads, plan->nranks);
	free(p.first_semaphore);
	free(p.first_meeting);
	free(p.meetings);
	free(p.actors);
	return err;
}

void plan_timeline_finish(struct plan_timeline *t)
{
	free(t->rows);
	free(t->steps);
	free(t->arrows);
}
