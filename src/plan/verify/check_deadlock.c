/* SPDX-License-Identifier: MIT */
/*
 * Checks that a plan runs to its end. The units of a chunk decide how often a pipeline runs and where the parts of a
 * group begin, so several sizes are simulated. The work is limited by MAX_STEPS, and linear in the plan's size
 * otherwise.
 */
#include <errno.h>
#include <inttypes.h>
#include "plan/format/op_rows.h"
#include "plan/verify/simulate.h"

#define MAX_STEPS ((uint64_t)30000000)
#define MAX_SIZES 32

static void add_size(const struct shunt_plan *plan, uint64_t *sizes, unsigned *n_p, uint64_t units)
{
	uint64_t low = shunt_plan_chunk_units(plan, plan->min_bytes),
	         high = shunt_plan_chunk_units(plan, plan->max_bytes);
	uint64_t fits = ((uint64_t)1 << 62) / (plan->scratch_chunks + 1);

	units = units < low ? low : units;
	units = units > high ? high : units;
	units = units > fits ? fits : units;
	units = units ? units : 1;
	for (unsigned i = 0; i < *n_p; i++)
		if (sizes[i] == units)
			return;
	if (*n_p < MAX_SIZES)
		sizes[(*n_p)++] = units;
}

/* Units of a chunk from which on one pipeline runs more often than the other; 0: none, or too large to compute. */
static uint64_t first_difference(
    const struct shunt_plan *plan, const struct shunt_plan_op *p, const struct shunt_plan_op *q)
{
	uint64_t a = p->unit_size / plan->alignment, b = q->unit_size / plan->alignment, x, y, both;

	if (__builtin_mul_overflow(a, q->num_chunks, &x) || __builtin_mul_overflow(b, p->num_chunks, &y) || x == y ||
	    __builtin_mul_overflow(a, b, &both))
		return 0;
	return both / (x > y ? x - y : y - x) + 1;
}

/*
 * Chooses the sizes to simulate, as units of a chunk:
 * - one, and some that groups do not divide evenly,
 * - as many as the largest group has parts, and a few for which some parts are empty,
 * - numbers for which pipelines run twice, three times, and not as often as others.
 */
static unsigned choose_sizes(const struct simulation *p, uint64_t sizes[MAX_SIZES])
{
	const struct shunt_plan_op *last = NULL;
	uint32_t parts = 1;
	unsigned n = 0;

	for (uint32_t i = 0; i < p->nstates; i++)
		for (uint32_t pc = 0; pc < p->states[i].block->nops; pc++)
			if (p->states[i].block->ops[pc].parts > parts)
				parts = p->states[i].block->ops[pc].parts;
	add_size(p->plan, sizes, &n, 1);
	add_size(p->plan, sizes, &n, 7);
	add_size(p->plan, sizes, &n, 64);
	add_size(p->plan, sizes, &n, parts);
	for (uint64_t units = 2; units <= parts && units <= 8; units++)
		add_size(p->plan, sizes, &n, units);
	for (uint32_t i = 0; i < p->nstates && n < MAX_SIZES; i++)
		for (uint32_t pc = 0; pc < p->states[i].block->nops && n < MAX_SIZES; pc++) {
			const struct shunt_plan_op *op = &p->states[i].block->ops[pc];

			if (!shunt_plan_op_does(op, SHUNT_PLAN_REPEATS) ||
			    (last && last->unit_size == op->unit_size && last->num_chunks == op->num_chunks))
				continue;
			for (uint64_t windows = 1; windows <= 2; windows++)
				add_size(p->plan, sizes, &n,
				    op->unit_size / p->plan->alignment * windows / op->num_chunks + 1);
			if (last)
				add_size(p->plan, sizes, &n, first_difference(p->plan, last, op));
			last = op;
		}
	return n;
}

int shunt_plan_check_deadlock(struct shunt_plan_log *log, const struct shunt_plan *plan)
{
	struct simulation p;
	uint64_t sizes[MAX_SIZES], steps = MAX_STEPS;
	unsigned n;
	int err = shunt_simulation_init(&p, log, plan);

	n = err ? 0 : choose_sizes(&p, sizes);
	for (unsigned i = 0; !err && i < n; i++) {
		/* Each size may use half of the steps that are left, so that a long one does not hide the next. */
		uint64_t rest = steps / 2;

		p.steps = steps - rest;
		err = shunt_simulation_launch(&p, sizes[i]);
		steps = p.steps + rest;
		/* The smallest size must end. A larger one may take too long to simulate. */
		if (!err && p.overrun && !i)
			err = shunt_json_fail(&log->json, EINVAL,
			    "the smallest message takes more than %" PRIu64
			    " steps, expected fewer: is a pipeline's unit_size too small?",
			    MAX_STEPS / 2);
	}
	shunt_simulation_finish(&p);
	return err;
}
