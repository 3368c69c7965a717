/* SPDX-License-Identifier: MIT */
/*
 * The times of a launch for its picture. They follow a simulation of the launch (plan/verify/simulate.h): an operation
 * starts when its block has ended the operation before, and the signals for which it waits have come. The order follows
 * from the plan; the durations are invented.
 */
#include "tools/common/libc.h"
#include "plan/format/op_rows.h"
#include "plan/verify/simulate.h"
#include "tools/plan/plan.h"

#define MOST_STEPS 20000u              /* of a picture */
#define MOST_WORK 30000000u            /* of the simulation: more than so many steps take */
#define WINDOWS(n) ((n) > 4 ? 2u : 3u) /* of the first pipeline, with n ranks */
#define CHUNK_UNITS 64u                /* without pipelines */
/* Durations. A signal or packet takes T_LATENCY; with many ranks that is longer, to leave room for their arrows. */
#define T_SYNC 3.5
#define T_NOP 1.0
#define T_DATA 5.0
#define T_LATENCY(n) (1.5 + 0.4 * ((n) < 12 ? (n) : 12))

/* A deed of a step: a signal or release; or a write or read of units [low, high) of a buffer. */
struct deed {
	uint64_t low, high;
	uint32_t step;
	uint8_t buffer;
};

struct deed_list {
	struct deed *v;
	size_t n, room;
};

struct resource_times {
	struct deed_list events; /* signals and releases */
	uint64_t taken;
	struct {
		double time;
		uint32_t step;
	} came, over; /* of a barrier: the step that came last in this round, and in the round before */
};

struct block_times {
	double end; /* of the last step that has run */
	uint32_t step;
	bool waits; /* `step` has not run: it waits */
};

struct rank_deeds {
	struct deed_list packets;
	struct deed_list writes, reads; /* of plain data; writes by others */
};

struct follower {
	struct simulation sim;
	struct plan_timeline *t;
	size_t steps_room, arrows_room;
	struct resource_times *resources;
	struct block_times *blocks;
	struct rank_deeds *ranks;
	int err;
};

/* Makes room for one more element of *array_p. NULL: f->err is set. */
static void *array_grow(struct follower *f, void *array_p, size_t n, size_t *room, size_t size)
{
	void **array = array_p;

	if (n == *room) {
		size_t up = *room ? 2 * *room : 16;
		void *grown = reallocarray(*array, up, size);

		if (!grown) {
			f->err = -ENOMEM;
			return NULL;
		}
		*array = grown;
		*room = up;
	}
	return (char *)*array + n * size;
}

static void deed_add(struct follower *f, struct deed_list *l, struct deed what)
{
	struct deed *at = array_grow(f, &l->v, l->n, &l->room, sizeof(*at));

	if (at) {
		*at = what;
		l->n++;
	}
}

/* An arrow between steps, unless both are of one block. */
static void arrow_add(struct follower *f, enum plan_arrow_kind kind, uint32_t from, uint32_t to)
{
	struct plan_timeline *t = f->t;
	struct plan_arrow *at;

	if (t->steps[from].row == t->steps[to].row)
		return;
	at = array_grow(f, &t->arrows, t->narrows, &f->arrows_room, sizeof(*at));
	if (at) {
		*at = (struct plan_arrow){ kind, from, to };
		t->narrows++;
	}
}

static void time_max(double *time_p, double time)
{
	*time_p = time > *time_p ? time : *time_p;
}

/* The step of the block's operation, perhaps a new one. NULL: f->err is set. */
static struct plan_step *step_of(struct follower *f, const struct block_state *a)
{
	uint32_t row = (uint32_t)(a - f->sim.states);
	struct block_times *b = &f->blocks[row];
	const struct shunt_plan_op *ops = a->block->ops;
	struct plan_step *step;

	if (f->err || b->waits)
		return f->err ? NULL : &f->t->steps[b->step];
	if (f->t->nsteps == MOST_STEPS)
		f->err = -EFBIG;
	step = f->err ? NULL : array_grow(f, &f->t->steps, f->t->nsteps, &f->steps_room, sizeof(*step));
	if (!step)
		return NULL;
	*step = (struct plan_step){ .op = &ops[a->pc], .row = row, .ready_at = b->end, .start = b->end };
	if (a->pipeline != SHUNT_PLAN_NIL)
		step->window =
		    (uint32_t)(shunt_plan_windows(f->sim.plan, &ops[a->pipeline], f->sim.chunk_units) - a->windows);
	b->step = (uint32_t)f->t->nsteps++;
	b->waits = true;
	return step;
}

/* ---- what the simulation tells */

static void on_release(void *follower, const struct block_state *a, uint32_t operand, size_t resource)
{
	struct follower *f = follower;

	deed_add(f, &f->resources[resource].events, (struct deed){ .step = f->blocks[a - f->sim.states].step });
}

static void on_acquire(void *follower, const struct block_state *a, uint32_t operand, size_t resource, uint64_t initial)
{
	struct follower *f = follower;
	struct resource_times *g = &f->resources[resource];
	struct plan_step *step = step_of(f, a);
	uint64_t k = g->taken++;

	if (!step || k < initial || k - initial >= g->events.n)
		return;
	k = g->events.v[k - initial].step;
	time_max(&step->start, f->t->steps[k].end + T_LATENCY(f->sim.plan->nranks));
	arrow_add(f, shunt_plan_op_does(step->op, SHUNT_PLAN_ACQUIRES) ? PLAN_ARROW_SEMAPHORE : PLAN_ARROW_SIGNAL,
	    (uint32_t)k, f->blocks[step->row].step);
}

static void on_arrive(void *follower, const struct block_state *a, size_t resource)
{
	struct follower *f = follower;
	struct resource_times *g = &f->resources[resource];
	const struct plan_step *step = step_of(f, a);

	if (!step || step->ready_at < g->came.time)
		return;
	g->came.time = step->ready_at;
	g->came.step = f->blocks[step->row].step;
}

static void on_synchronize(void *follower, const struct block_state *a, size_t resource)
{
	struct resource_times *g = &((struct follower *)follower)->resources[resource];

	g->over = g->came;
	g->came.time = 0;
}

/* Units of a slice that the step handles. */
static struct shunt_plan_units units_of(const struct follower *f, const struct block_state *a,
    const struct plan_step *step, const struct shunt_plan_slice *s)
{
	struct shunt_plan_window w = { .chunk_units = f->sim.chunk_units };

	if (a->pipeline != SHUNT_PLAN_NIL) {
		w.units = a->block->ops[a->pipeline].unit_size / f->sim.plan->alignment;
		w.number = step->window;
	}
	return shunt_plan_slice_units(step->op, s, &w);
}

static double arrival(const struct follower *f, const struct deed *d)
{
	return f->t->steps[d->step].end + T_LATENCY(f->sim.plan->nranks);
}

/* The step waits until each unit has come once; arrows from all packets that came by then. */
static void packets_read(struct follower *f, uint32_t rank, struct plan_step *step, struct deed what)
{
	const struct deed_list *l = &f->ranks[rank].packets;
	const struct deed *next;

	for (uint64_t at = what.low; at < what.high; at = next->high) {
		next = NULL;
		for (const struct deed *d = l->v; d < l->v + l->n; d++)
			if (d->low <= at && at < d->high && (!next || arrival(f, d) < arrival(f, next)))
				next = d;
		if (!next)
			break;
		time_max(&step->start, arrival(f, next));
	}
	for (const struct deed *d = l->v; d < l->v + l->n; d++)
		if (d->low < what.high && what.low < d->high && arrival(f, d) <= step->start)
			arrow_add(f, PLAN_ARROW_DATA, d->step, what.step);
}

/* Notes the step's access to one of its slices. */
static void slice_note(struct follower *f, const struct block_state *a, struct plan_step *step,
    const struct shunt_plan_slice *s, bool reads)
{
	struct shunt_plan_units u = units_of(f, a, step, s);
	struct deed what = { u.low, u.high, f->blocks[step->row].step, s->buffer };
	const uint32_t *ranks;
	uint32_t n;

	if (u.low == u.high)
		return;
	if (reads && s->packet) {
		packets_read(f, a->rank, step, what);
		return;
	}
	n = shunt_plan_slice_ranks(&f->sim.plan->gpus[a->rank], s, &ranks);
	for (uint32_t m = 0; m < n; m++) {
		struct rank_deeds *d = &f->ranks[ranks[m]];

		if (reads || s->packet || s->place != SHUNT_PLAN_LOCAL)
			deed_add(f, reads ? &d->reads : s->packet ? &d->packets : &d->writes, what);
	}
}

static void on_data(void *follower, const struct block_state *a, const struct shunt_plan_op *op)
{
	struct follower *f = follower;
	struct plan_step *step = step_of(f, a);

	if (!step)
		return;
	struct block_times *b = &f->blocks[step->row];

	if (shunt_plan_op_does(op, SHUNT_PLAN_SYNCS_BLOCKS)) {
		struct resource_times *g =
		    &f->resources[resource_index(&f->sim, RESOURCE_BARRIERS, a->rank, op->barrier)];

		time_max(&step->start, g->over.time);
		arrow_add(f, PLAN_ARROW_BARRIER, g->over.step, b->step);
	}
	for (uint32_t i = 0; i < op->nsrc; i++)
		slice_note(f, a, step, &op->src[i], true);
	for (uint32_t i = 0; i < op->ndst; i++)
		slice_note(f, a, step, &op->dst[i], false);
	step->end = step->start + (shunt_plan_op_does(op, SHUNT_PLAN_SYNCS) ? T_NOP : op->nsrc ? T_DATA : T_SYNC);
	b->end = step->end;
	b->waits = false;
	time_max(&f->t->end, b->end);
}

static bool has_failed(const void *follower)
{
	return ((const struct follower *)follower)->err;
}

static const struct simulation_watch watch = {
	.release = on_release,
	.acquire = on_acquire,
	.arrive = on_arrive,
	.synchronize = on_synchronize,
	.data = on_data,
	.failed = has_failed,
};

/* ---- a launch */

static bool starts_before(const struct plan_step *a, const struct plan_step *b)
{
	return a->start < b->start || (a->start == b->start && a->row < b->row);
}

/* Arrows of plain data, from the writer into another rank's buffer to its first reader there. */
static void data_arrows(struct follower *f, const struct rank_deeds *rank)
{
	const struct plan_step *steps = f->t->steps;

	for (size_t i = 0; i < rank->writes.n; i++) {
		const struct deed *w = &rank->writes.v[i], *first = NULL;

		for (const struct deed *d = rank->reads.v; d < rank->reads.v + rank->reads.n; d++)
			if (d->buffer == w->buffer && d->low < w->high && w->low < d->high &&
			    steps[d->step].start >= steps[w->step].end &&
			    (!first || starts_before(&steps[d->step], &steps[first->step])))
				first = d;
		if (first)
			arrow_add(f, PLAN_ARROW_DATA, w->step, first->step);
	}
}

/* Chunk size, so that pipelines have a few windows. */
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
				if (!shunt_plan_op_does(op, SHUNT_PLAN_REPEATS) || found)
					continue;
				found = true;
				units = WINDOWS(plan->nranks) * (op->unit_size / plan->alignment) / op->num_chunks;
			}
	units = most && units > most ? most : units;
	return units ? units : 1;
}

static int follow(struct follower *f)
{
	const struct simulation *sim = &f->sim;
	int err;

	f->resources = calloc(sim->nresources + 1, sizeof(*f->resources));
	f->blocks = calloc(sim->nstates + 1, sizeof(*f->blocks));
	f->ranks = calloc(sim->plan->nranks, sizeof(*f->ranks));
	f->t->rows = calloc(sim->nstates + 1, sizeof(*f->t->rows));
	if (!f->resources || !f->blocks || !f->ranks || !f->t->rows)
		return -ENOMEM;
	for (uint32_t i = 0; i < sim->nstates; i++)
		f->t->rows[f->t->nrows++] = (struct plan_row){ sim->states[i].rank, sim->states[i].number };
	err = shunt_simulation_launch(&f->sim, choose_units(sim->plan));
	if (!err && !f->err && sim->overrun)
		err = -EFBIG;
	for (uint32_t r = 0; !err && !f->err && r < sim->plan->nranks; r++)
		data_arrows(f, &f->ranks[r]);
	return err ? err : f->err;
}

int plan_timeline_init(struct plan_timeline *t, const struct shunt_plan *plan)
{
	struct shunt_plan_log log = shunt_plan_log_init(plan->name, NULL, 0);
	struct follower f = { .t = t };
	int err;

	memset(t, 0, sizeof(*t));
	err = shunt_simulation_init(&f.sim, &log, plan);
	f.sim.watch = &watch;
	f.sim.follower = &f;
	f.sim.steps = MOST_WORK;
	if (!err)
		err = follow(&f);
	for (size_t i = 0; f.resources && i < f.sim.nresources; i++)
		free(f.resources[i].events.v);
	for (uint32_t r = 0; f.ranks && r < plan->nranks; r++) {
		free(f.ranks[r].packets.v);
		free(f.ranks[r].writes.v);
		free(f.ranks[r].reads.v);
	}
	free(f.resources);
	free(f.blocks);
	free(f.ranks);
	shunt_simulation_finish(&f.sim);
	return err;
}

void plan_timeline_finish(struct plan_timeline *t)
{
	free(t->rows);
	free(t->steps);
	free(t->arrows);
}
