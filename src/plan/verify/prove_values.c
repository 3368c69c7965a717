/* SPDX-License-Identifier: MIT */
/* Values of a proof: sets of names of inputs, each set once; and what a plan's result must be. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "plan/verify/prove.h"

#define BUCKETS 65536u
#define NESTED ((uint64_t)1 << 63) /* a name that is a value: a reduction by another operator */
#define MAX_NAMES 4096

/* The number of a value with these names, in this order. */
static uint32_t intern(struct proof *p, uint8_t redop, const uint64_t *names, uint32_t n)
{
	uint64_t hash = shunt_fnv1a(redop + 1, names, n * sizeof(*names));
	struct proof_value *v;
	uint32_t *list;

	if (!p->buckets)
		p->buckets = shunt_proof_alloc(p, BUCKETS, sizeof(*p->buckets));
	if (!p->buckets)
		return 0;
	list = &p->buckets[(hash ^ hash >> 32) % BUCKETS];
	for (uint32_t i = *list; i; i = p->values[i].next)
		if (p->values[i].n == n && p->values[i].redop == redop &&
		    !memcmp(p->values[i].names, names, n * sizeof(*names)))
			return i;
	if (p->nvalues + 1 >= p->max_values) {
		uint32_t more = p->max_values ? 2 * p->max_values : 1024;
		struct proof_value *values = shunt_proof_alloc(p, more, sizeof(*values));

		if (!values)
			return 0;
		if (p->nvalues)
			memcpy(values, p->values, (p->nvalues + 1) * sizeof(*values));
		p->values = values;
		p->max_values = more;
	}
	v = &p->values[++p->nvalues];
	*v = (struct proof_value){
		.n = n, .next = *list, .redop = redop, .names = shunt_proof_alloc(p, n, sizeof(*names))
	};
	if (!v->names)
		return 0;
	memcpy(v->names, names, n * sizeof(*names));
	return *list = p->nvalues;
}

uint32_t shunt_proof_name(struct proof *p, uint32_t rank, unsigned space, uint64_t cell)
{
	uint64_t name = (uint64_t)rank << 48 | (uint64_t)space << 40 | cell;

	return intern(p, SHUNT_SUM, &name, 1);
}

static int compare_names(const void *x, const void *y)
{
	uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

	return a < b ? -1 : a > b;
}

uint32_t shunt_proof_reduce(struct proof *p, enum shunt_redop redop, const uint32_t *values, uint32_t n)
{
	uint64_t names[MAX_NAMES];
	uint32_t count = 0, kept = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct proof_value *v = &p->values[values[i]];
		bool flat;

		if (!values[i])
			return 0;
		flat = v->n == 1 || v->redop == redop;
		if (count + (flat ? v->n : 1) > MAX_NAMES) {
			p->undecided = true;
			return 0;
		}
		for (uint32_t k = 0; k < (flat ? v->n : 1); k++)
			names[count++] = flat ? v->names[k] : NESTED | values[i];
	}
	/* cppcheck-suppress uninitvar; the loop above fills as many as it counts */
	qsort(names, count, sizeof(*names), compare_names);
	for (uint32_t i = 0; i < count; i++)
		if ((redop != SHUNT_MAX && redop != SHUNT_MIN) || !i || names[i] != names[i - 1])
			names[kept++] = names[i];
	return intern(p, (uint8_t)(kept == 1 ? SHUNT_SUM : redop), names, kept);
}

void shunt_proof_describe_value(const struct proof *p, uint32_t value, char *text, size_t bytes)
{
	const struct proof_value *v = value ? &p->values[value] : NULL;
	size_t len;

	if (!v) {
		snprintf(text, bytes, "nothing that an input gives");
		return;
	}
	snprintf(text, bytes, "%s", v->n > 1 ? "a reduction of " : "");
	for (uint32_t i = 0; i < v->n && i < 8; i++) {
		char cell[96] = "a reduction";

		if (!(v->names[i] & NESTED))
			shunt_proof_describe_cell(p, (uint32_t)(v->names[i] >> 48), v->names[i] >> 40 & 0xff,
			    v->names[i] & 0xffffffffff, cell);
		len = strlen(text);
		snprintf(text + len, bytes - len, "%s%s", i ? ", " : "", cell);
	}
	len = strlen(text);
	if (v->n > 8)
		snprintf(text + len, bytes - len, " and %u more", v->n - 8);
}

/* The first cell of a buffer's part, as input or output of the rank. */
static uint64_t locate(const struct proof *p, enum shunt_plan_buffer buffer, uint32_t rank, unsigned *space_p)
{
	uint64_t base;
	struct shunt_plan_slice s = { .place = SHUNT_PLAN_LOCAL, .buffer = (uint8_t)buffer, .target = rank };

	*space_p = shunt_proof_space(p, &s, rank, &base);
	return base;
}

uint64_t shunt_proof_cells_of(const struct proof *p, enum shunt_plan_buffer buffer)
{
	return p->plan->parts[buffer] * p->plan->part_chunks * p->chunk;
}

uint32_t shunt_proof_expected(struct proof *p, uint32_t rank, uint64_t i, unsigned *space_p, uint64_t *cell_p)
{
	const struct shunt_plan *plan = p->plan;
	enum shunt_redop redop = plan->redops ? (enum shunt_redop)__builtin_ctz(plan->redops) : SHUNT_SUM;
	uint32_t names[SHUNT_PLAN_MAX_RANKS];
	uint64_t part = plan->part_chunks * p->chunk;
	unsigned space;

	*cell_p = locate(p, SHUNT_PLAN_OUTPUT, rank, space_p) + i;
	switch (plan->collective) {
	case SHUNT_PLAN_ALLREDUCE:
	case SHUNT_PLAN_REDUCESCATTER:
		for (uint32_t r = 0; r < plan->nranks; r++) {
			uint64_t base = locate(p, SHUNT_PLAN_INPUT, r, &space);
			bool scatters = plan->collective == SHUNT_PLAN_REDUCESCATTER;

			names[r] = shunt_proof_name(p, r, space, base + (scatters ? rank * part : 0) + i);
		}
		return shunt_proof_reduce(p, redop, names, plan->nranks);
	case SHUNT_PLAN_ALLGATHER:
	case SHUNT_PLAN_ALLTOALL: {
		uint32_t from = (uint32_t)(i / part);
		uint64_t base = locate(p, SHUNT_PLAN_INPUT, from, &space);
		bool all = plan->collective == SHUNT_PLAN_ALLTOALL;

		return shunt_proof_name(p, from, space, base + (all ? rank * part : 0) + i % part);
	}
	default:
		return UINT32_MAX;
	}
}

/* Gives each cell of all inputs its name. */
void shunt_proof_name_inputs(struct proof *p)
{
	for (uint32_t r = 0; r < p->plan->nranks; r++) {
		unsigned space;
		uint64_t base = locate(p, SHUNT_PLAN_INPUT, r, &space), n = shunt_proof_cells_of(p, SHUNT_PLAN_INPUT);

		if (shunt_plan_is_custom(p->plan->collective) || n > p->extents[r * PROOF_NSPACES + space] - base)
			n = p->extents[r * PROOF_NSPACES + space] - base;
		for (uint64_t i = 0; i < n && !p->failed; i++)
			proof_cells(p, r, space)[base + i].value = shunt_proof_name(p, r, space, base + i);
	}
}
