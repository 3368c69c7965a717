/* SPDX-License-Identifier: MIT */
/* The errors that a proof finds: races, wrong values, and scratch that the next launch may overwrite. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "plan/format/op_rows.h"
#include "plan/verify/prove.h"

/* The rank and the buffer of a cell. */
static void describe(const struct proof *p, const struct proof_cell *c, char text[96])
{
	uint32_t i = p->plan->nranks * PROOF_NSPACES - 1;

	while (i && (p->spaces[i] > c || (size_t)(c - p->spaces[i]) >= p->extents[i]))
		i--;
	shunt_proof_describe_cell(p, i / PROOF_NSPACES, i % PROOF_NSPACES, (uint64_t)(c - p->spaces[i]), text);
}

static void describe_step(const struct proof *p, uint32_t step, char text[512])
{
	const struct proof_step *s = &p->steps[step];
	const struct block_state *a = &p->sim->states[s->block];
	char inner[16] = "";

	if (s->op->inner != SHUNT_PLAN_NIL)
		snprintf(inner, sizeof(inner), ".%u", s->op->inner);
	snprintf(text, 512, "rank %u, block %u, operation %u%s (%s%s%.300s)", a->rank, a->number, s->op->at, inner,
	    shunt_plan_op_names[s->op->code], s->op->lines ? ", " : "", s->op->lines ? s->op->lines : "");
}

static void locate(struct proof *p, uint32_t step)
{
	const struct proof_step *s = &p->steps[step];
	const struct block_state *a = &p->sim->states[s->block];

	p->sim->log->at = (struct shunt_plan_location){ a->rank, a->number, s->op->at, s->op->inner,
		shunt_plan_op_names[s->op->code], s->op->lines };
}

/* What to expect: an order; or if all that lacks is that what a port puts has come, a signal behind it. */
static const char *expected_order(
    const struct proof *p, struct proof_access x, const uint32_t *clock, const char *order)
{
	bool lacks_arrival = p->steps[x.step].at != p->steps[x.step].block && shunt_proof_over_by_stores(p, x, clock);

	return lacks_arrival ?
	    "a signal behind the put, on a port from its rank to the same peer: on different hosts nothing "
	    "else says that the data has come" :
	    order;
}

void shunt_proof_report_race(
    struct proof *p, const struct proof_cell *c, struct proof_access x, struct proof_access y, const char *what)
{
	char cell[96], other[512];
	bool writes = c->last.step == x.step && c->last.element == x.element;

	if (p->failed)
		return;
	describe(p, c, cell);
	describe_step(p, x.step, other);
	locate(p, y.step);
	shunt_json_fail(&p->sim->log->json, EINVAL, "a race: %ss %s, which %s %ss; expected %s", what, cell, other,
	    writes ? "write" : "read",
	    expected_order(p, x, p->steps[y.step].clock, "a nop, barrier, semaphore or signal that orders the two"));
	p->failed = true;
}

static void report_value(struct proof *p, uint32_t rank, const struct proof_cell *c, uint32_t expected)
{
	char cell[96], has[1200], wants[1200], by[512] = "no operation writes it";

	describe(p, c, cell);
	shunt_proof_describe_value(p, c->value, has, sizeof(has));
	shunt_proof_describe_value(p, expected, wants, sizeof(wants));
	if (c->last.step)
		describe_step(p, c->last.step, by);
	p->sim->log->at =
	    (struct shunt_plan_location){ .rank = rank, SHUNT_PLAN_NIL, SHUNT_PLAN_NIL, SHUNT_PLAN_NIL, NULL, NULL };
	shunt_json_fail(&p->sim->log->json, EINVAL,
	    "the result is wrong: %s holds %s, expected %s; last written by: %s", cell, has, wants, by);
	p->failed = true;
}

/* The result of a rank: its values, and that the rank knows that they are there. */
static void check_result(struct proof *p, uint32_t rank)
{
	uint64_t n = shunt_proof_cells_of(p, SHUNT_PLAN_OUTPUT);

	for (uint64_t i = 0; i < n && !p->failed; i++) {
		unsigned space;
		uint64_t at;
		uint32_t expected = shunt_proof_expected(p, rank, i, &space, &at);
		const struct proof_cell *c = &proof_cells(p, rank, space)[at];
		char cell[96];

		if (expected != UINT32_MAX && c->value != expected) {
			report_value(p, rank, c, expected);
			return;
		}
		if (!c->last.step || shunt_proof_over_at_end(p, c->last, rank, false))
			continue;
		describe(p, c, cell);
		locate(p, c->last.step);
		shunt_json_fail(&p->sim->log->json, EINVAL, "writes %s, and rank %u may end before: expected %s", cell,
		    rank, expected_order(p, c->last, p->ends[rank], "a signal behind it, and a wait for that there"));
		p->failed = true;
	}
}

/* True if a rank that has surely begun the next launch when `next` happens knows that x of this launch is over. */
static bool known_before(struct proof *p, struct proof_access x, bool read, uint64_t started)
{
	for (uint32_t r = 0; r < p->plan->nranks; r++)
		if (started >> r & 1 && shunt_proof_over_at_end(p, x, r, read))
			return true;
	return false;
}

/* The first write of the next launch against the last accesses of this one. */
static void check_next_launch(struct proof *p, const struct proof_cell *c)
{
	struct proof_access x = c->last;
	const struct proof_reader *r = c->readers;
	char cell[96], other[512];

	if (known_before(p, x, false, c->first_started)) {
		for (; r && known_before(p, r->by, true, c->first_started); r = r->next)
			;
		if (!r)
			return;
		x = r->by;
	}
	describe(p, c, cell);
	describe_step(p, x.step, other);
	locate(p, c->first.step);
	shunt_json_fail(&p->sim->log->json, EINVAL,
	    "a race of two launches: writes %s, which %s may still use in the launch before; expected a signal before "
	    "this, or a wait at the end, that orders the two",
	    cell, other);
	p->failed = true;
}

/* Data in scratch that no operation reads is not wrong, but hardly meant. */
static void find_unread(struct proof *p)
{
	uint32_t n = p->plan->nranks * PROOF_NSPACES;

	for (uint32_t i = 0; i < n && !*p->unread; i++) {
		if (i % PROOF_NSPACES < PROOF_SCRATCH)
			continue;
		for (uint64_t k = 0; k < p->extents[i] && !*p->unread && shunt_simulation_spend(p->sim, 1); k++) {
			const struct proof_cell *c = &p->spaces[i][k];
			char cell[96], by[512];

			if (!c->last.step || c->readers)
				continue;
			describe(p, c, cell);
			describe_step(p, c->last.step, by);
			snprintf(p->unread, PROOF_TEXT, "%s: writes %s, which no operation reads", by, cell);
		}
	}
}

int shunt_proof_check_end(struct proof *p)
{
	uint32_t n = p->plan->nranks * PROOF_NSPACES;

	if (!shunt_plan_is_custom(p->plan->collective))
		for (uint32_t r = 0; r < p->plan->nranks && !p->failed; r++)
			check_result(p, r);
	for (uint32_t i = 0; i < n && !p->staged && !p->failed; i++) {
		unsigned space = i % PROOF_NSPACES;

		if (space < PROOF_SCRATCH || (space == PROOF_PACKETS && p->plan->double_scratch))
			continue;
		for (uint64_t k = 0; k < p->extents[i] && !p->failed && shunt_simulation_spend(p->sim, 1); k++)
			if (p->spaces[i][k].first.step)
				check_next_launch(p, &p->spaces[i][k]);
	}
	if (p->failed)
		return -p->sim->log->json.err;
	find_unread(p);
	return 0;
}
