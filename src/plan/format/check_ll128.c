/* SPDX-License-Identifier: MIT */
/*
 * Decides from the writers and readers of packets whether these may travel as LL128, in other pieces than the format's.
 * In the format it does no harm to write packets over equal ones while these are read. With LL128 it might.
 */
#include <stdlib.h>
#include "plan/format/plan_priv.h"

/* A range of packets in one rank's scratch: part `part` of `parts` of its chunks. */
struct access_range {
	uint32_t rank, part, parts;
	bool written;
	uint64_t index, size;
};

struct access_ranges {
	struct access_range *v;
	size_t n;
	bool excluded; /* scratch has other data, or a loop writes packets */
};

static void add_slice(struct access_ranges *u, const struct shunt_plan_gpu *gpu, const struct shunt_plan_op *op,
    const struct shunt_plan_slice *s, bool written)
{
	const uint32_t *ranks;
	uint32_t n = shunt_plan_slice_ranks(gpu, s, &ranks);

	if (s->buffer != SHUNT_PLAN_SCRATCH)
		return;
	u->excluded |= !s->packet || (written && op->inner != SHUNT_PLAN_NIL);
	for (uint32_t i = 0; i < n; i++) {
		if (u->v)
			u->v[u->n] = (struct access_range){ ranks[i], op->part, op->parts, written, s->index, s->size };
		u->n++;
	}
}

static void add_all_slices(struct access_ranges *u, const struct shunt_plan *plan)
{
	u->n = 0;
	for (uint32_t r = 0; r < plan->nranks; r++)
		for (uint32_t b = 0; b < plan->gpus[r].nblocks; b++)
			for (uint32_t i = 0; i < plan->gpus[r].blocks[b].nops; i++) {
				const struct shunt_plan_op *op = &plan->gpus[r].blocks[b].ops[i];

				for (uint32_t j = 0; j < op->nsrc; j++)
					add_slice(u, &plan->gpus[r], op, &op->src[j], false);
				for (uint32_t j = 0; j < op->ndst; j++)
					add_slice(u, &plan->gpus[r], op, &op->dst[j], true);
			}
}

static int compare_ranges(const void *x, const void *y)
{
	const struct access_range *a = x, *b = y;

	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	if (a->index != b->index)
		return a->index < b->index ? -1 : 1;
	if (a->part != b->part)
		return a->part < b->part ? -1 : 1;
	return b->written - a->written;
}

/*
 * True if ranges that overlap have the same chunks and number of parts, and no part is written twice. Different parts
 * do not overlap then.
 */
static bool ranges_match(struct access_ranges *u)
{
	qsort(u->v, u->n, sizeof(*u->v), compare_ranges);
	for (size_t i = 1; i < u->n; i++) {
		const struct access_range *a = &u->v[i - 1], *b = &u->v[i];
		bool overlap = a->rank == b->rank && b->index < a->index + a->size;
		bool equal = a->index == b->index && a->size == b->size && a->parts == b->parts;
		bool twice = a->part == b->part && a->written && b->written;

		if (overlap && (!equal || twice))
			return false;
	}
	return true;
}

int shunt_plan_check_ll128(struct shunt_plan_log *log, struct shunt_plan *plan)
{
	/* Units of 64 bytes. */
	uint64_t units = plan->alignment < 64 ? (64 + plan->alignment - 1) / plan->alignment : 1;
	struct access_ranges u = { 0 };

	plan->ll128 = false;
	plan->dense = 1;
	if (!plan->ll)
		return 0;
	add_all_slices(&u, plan);
	if (!u.n || u.excluded)
		return 0;
	u.v = calloc(u.n, sizeof(*u.v));
	if (shunt_plan_no_memory(log, u.v))
		return -ENOMEM;
	add_all_slices(&u, plan);
	plan->ll128 = ranges_match(&u);
	for (size_t i = 0; i < u.n && plan->ll128; i++) {
		/* size * chunk / parts, rounded down, must be at least `units`. */
		uint64_t least = (units * u.v[i].parts + u.v[i].size - 1) / u.v[i].size;

		plan->dense = least > plan->dense ? least : plan->dense;
	}
	free(u.v);
	return 0;
}
