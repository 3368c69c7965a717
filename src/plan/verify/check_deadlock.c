/* SPDX-License-Identifier: MIT */
/*
 * Checks that a plan runs to its end. The units of a chunk decide how often a pipeline runs and where the parts of a
 * group begin, so several sizes are simulated. The work is limited by MAX_STEPS, and linear in the plan's size
 * otherwise.
 */
#include "plan/verify/check_deadlock.h"
#include <errno.h>
#include <inttypes.h>
#include "plan/format/op_rows.h"
#include "plan/verify/simulate.h"
#include "plan/verify/size_list.h"

#define MAX_STEPS ((uint64_t)30000000)
#define MAX_SIZES 32

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
static struct size_list choose_sizes(const struct simulation *p)
{
	uint64_t low = shunt_plan_chunk_units(p->plan, p->plan->min_bytes),
	         high = shunt_plan_chunk_units(p->plan, p->plan->max_bytes);
	uint64_t fits = ((uint64_t)1 << 62) / (p->plan->scratch_chunks + 1);
	struct size_list sizes = { .most = MAX_SIZES, .low = low, .high = high < fits ? high : fits };
	const struct shunt_plan_op *last = NULL;
	uint32_t parts = 1;

	for (uint32_t i = 0; i < p->nstates; i++)
		for (uint32_t pc = 0; pc < p->states[i].block->nops; pc++)
			if (p->states[i].block->ops[pc].parts > parts)
				parts = p->states[i].block->ops[pc].parts;
	size_list_add(&sizes, 1);
	size_list_add(&sizes, 7);
	size_list_add(&sizes, 64);
	size_list_add(&sizes, parts);
	for (uint64_t units = 2; units <= parts && units <= 8; units++)
		size_list_add(&sizes, units);
	for (uint32_t i = 0; i < p->nstates && sizes.n < MAX_SIZES; i++)
		for (uint32_t pc = 0; pc < p->states[i].block->nops && sizes.n < MAX_SIZES; pc++) {
			const struct shunt_plan_op *op = &p->states[i].block->ops[pc];

			if (!shunt_plan_op_does(op, SHUNT_PLAN_REPEATS) ||
			    (last && last->unit_size == op->unit_size && last->num_chunks == op->num_chunks))
				continue;
			for (uint64_t windows = 1; windows <= 2; windows++)
				size_list_add(
				    &sizes, op->unit_size / p->plan->alignment * windows / op->num_chunks + 1);
			if (last)
				size_list_add(&sizes, first_difference(p->plan, last, op));
			last = op;
		}
	return sizes;
}

int shunt_plan_check_deadlock(struct shunt_plan_log *log, const struct shunt_plan *plan)
{
	struct simulation p;
	struct size_list sizes = { .n = 0 };
	uint64_t steps = MAX_STEPS;
	int err = shunt_simulation_init(&p, log, plan);

	if (!err)
		sizes = choose_sizes(&p);
	for (unsigned i = 0; !err && i < sizes.n; i++) {
		/* Each size may use half of the steps that are left, so that a long one does not hide the next. */
		uint64_t rest = steps / 2;

		p.steps = steps - rest;
		err = shunt_simulation_launch(&p, sizes.units[i]);
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
