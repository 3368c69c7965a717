/* SPDX-License-Identifier: MIT */
/*
 * Simulates one launch of a plan for its picture. The block with the earliest time always runs next, unless its
 * operation waits.
 */
#include "tools/plan/timing.h"
#include "plan/format/op_rows.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WINDOWS(plan) ((plan)->nranks > 4 ? 2 : 3) /* of the first pipeline */
#define CHUNK_UNITS 64u                            /* without pipelines */
/* Durations. TIME_LATENCY is the delay of a signal or packet. */
#define T_SYNC 3.5
#define T_NOP 1.0
#define T_DATA 5.0

void *plan_time_array_grow(struct time_simulation *p, void *array_p, size_t n, size_t *room, size_t size)
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

void plan_time_arrow(struct time_simulation *p, enum plan_arrow_kind kind, uint32_t from, uint32_t to)
{
	struct plan_timeline *t = p->t;
	struct plan_arrow *at;

	if (from == SHUNT_PLAN_NIL || t->steps[from].row == t->steps[to].row)
		return;
	at = plan_time_array_grow(p, &t->arrows, t->narrows, &p->arrows_room, sizeof(*at));
	if (at) {
		*at = (struct plan_arrow){ kind, from, to };
		t->narrows++;
	}
}

static double duration(const struct shunt_plan_op *op)
{
	return shunt_plan_op_does(op, SHUNT_PLAN_SYNCS) ? T_NOP : op->nsrc ? T_DATA : T_SYNC;
}

/* Runs block a's next operation, if it need not wait. */
static bool run_op(struct time_simulation *p, struct time_block *a, const struct shunt_plan_op *op)
{
	struct plan_timeline *t = p->t;
	uint32_t number = (uint32_t)t->nsteps;
	struct plan_step *step;
	double start = a->time;

	if (!plan_time_events_ready(p, a, op, &start) || !plan_time_data_ready(p, a, op, &start))
		return false;
	if (number == TIME_MAX_STEPS)
		p->err = -EFBIG;
	step = p->err ? NULL : plan_time_array_grow(p, &t->steps, t->nsteps, &p->steps_room, sizeof(*step));
	if (!step)
		return false;
	*step = (struct plan_step){ op, a->row, a->pipeline == SHUNT_PLAN_NIL ? 0 : a->window, a->time, start,
		start + duration(op) };
	t->nsteps++;
	a->time = step->end;
	time_max(&t->end, a->time);
	plan_time_events_note(p, a, op, number);
	plan_time_data_note(p, a, op, number);
	return true;
}

/* Goes to the next operation; a pipeline repeats for each window. */
static void advance(struct time_simulation *p, struct time_block *a)
{
	const struct shunt_plan_op *ops = a->block->ops;

	a->pc++;
	if (a->pipeline != SHUNT_PLAN_NIL && a->pc == a->pipeline + 1 + ops[a->pipeline].nbody) {
		a->window++;
		if (a->window < a->windows)
			a->pc = a->pipeline + 1;
		else
			a->pipeline = SHUNT_PLAN_NIL;
	}
	while (a->pipeline == SHUNT_PLAN_NIL && a->pc < a->block->nops &&
	    shunt_plan_op_does(&ops[a->pc], SHUNT_PLAN_REPEATS)) {
		a->windows = shunt_plan_windows(p->plan, &ops[a->pc], p->units);
		a->window = 0;
		a->pipeline = a->windows ? a->pc : SHUNT_PLAN_NIL;
		a->pc += a->windows ? 1 : 1 + ops[a->pc].nbody;
	}
}

static bool finished(const struct time_block *a)
{
	return a->pc >= a->block->nops; /* NOLINT(clang-analyzer-core.NullDereference): every simulated block has one */
}

/* Runs the block with the earliest time, until all blocks have finished. */
static int simulate_all(struct time_simulation *p)
{
	for (;;) {
		struct time_block *next = NULL;
		bool left = false;

		for (uint32_t i = 0; i < p->t->nrows; i++) {
			struct time_block *a = &p->time_blocks[i];

			left |= !finished(a);
			if (finished(a) || (a->wait_counter && *a->wait_counter == a->seen) ||
			    (next && next->time <= a->time))
				continue;
			next = a;
		}
		if (!next)
			return left ? -EDEADLK : 0;
		next->wait_counter = NULL;
		if (run_op(p, next, &next->block->ops[next->pc]))
			advance(p, next);
		if (p->err)
			return p->err;
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
				units = WINDOWS(plan) * (op->unit_size / plan->alignment) / op->num_chunks;
			}
	units = most && units > most ? most : units;
	return units ? units : 1;
}

static int prepare(struct time_simulation *p)
{
	const struct shunt_plan *plan = p->plan;
	size_t rows = 0;
	int err = plan_time_events_init(p);

	if (!err)
		err = plan_time_data_init(p);
	for (uint32_t r = 0; r < plan->nranks; r++)
		rows += plan->gpus[r].nblocks;
	p->time_blocks = calloc(rows + 1, sizeof(*p->time_blocks));
	p->t->rows = calloc(rows + 1, sizeof(*p->t->rows));
	if (err || !p->time_blocks || !p->t->rows)
		return -ENOMEM;
	for (uint32_t r = 0; r < plan->nranks; r++)
		for (uint32_t b = 0; b < plan->gpus[r].nblocks; b++) {
			uint32_t row = p->t->nrows++;

			p->t->rows[row] = (struct plan_row){ r, b };
			p->time_blocks[row] = (struct time_block){ .block = &plan->gpus[r].blocks[b],
				.rank = r,
				.row = row,
				.pc = SHUNT_PLAN_NIL,
				.pipeline = SHUNT_PLAN_NIL,
				.round = SHUNT_PLAN_NIL };
			advance(p, &p->time_blocks[row]); /* starts before the first operation */
		}
	return 0;
}

int plan_timeline_init(struct plan_timeline *t, const struct shunt_plan *plan)
{
	struct time_simulation p = { .plan = plan, .t = t, .units = choose_units(plan) };
	int err;

	memset(t, 0, sizeof(*t));
	err = prepare(&p);
	if (!err)
		err = simulate_all(&p);
	if (!err) {
		plan_time_data_arrows(&p);
		err = p.err;
	}
	plan_time_events_finish(&p);
	plan_time_data_finish(&p);
	free(p.time_blocks);
	return err;
}

void plan_timeline_finish(struct plan_timeline *t)
{
	free(t->rows);
	free(t->steps);
	free(t->arrows);
}
