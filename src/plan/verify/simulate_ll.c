/* SPDX-License-Identifier: MIT */
/*
 * Packets of a simulation: blocks wait for packets that are not written yet. The ends of all packet slices divide each
 * rank's scratch into segments, which are written as a whole. Union-find leads from any segment to the next one that is
 * not valid.
 */
#include <stdlib.h>
#include <string.h>
#include "plan/verify/simulate.h"

struct segments {
	size_t first, end;
};

/* The operation's part of a slice of packets, which no window cuts. */
static struct shunt_plan_units slice_units(
    const struct simulation *p, const struct shunt_plan_op *op, const struct shunt_plan_slice *s)
{
	return shunt_plan_slice_units(op, s, &(struct shunt_plan_window){ .chunk_units = p->chunk_units });
}

static size_t find_end(const struct simulation *p, uint32_t rank, uint64_t unit)
{
	size_t low = p->base[RESOURCE_SEGMENTS][rank] - p->nresources, high = low + p->nends_of[rank];

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (p->ends[middle] < unit)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The segments of a slice on one rank; it covers all of them entirely. */
static struct segments slice_segments(
    const struct simulation *p, const struct shunt_plan_op *op, uint32_t rank, const struct shunt_plan_slice *s)
{
	struct shunt_plan_units u = slice_units(p, op, s);

	return u.low == u.high ? (struct segments){ 0, 0 } :
	                         (struct segments){ find_end(p, rank, u.low), find_end(p, rank, u.high) };
}

static size_t first_invalid(struct simulation *p, size_t i)
{
	while (p->valid[i] != i) {
		p->valid[i] = p->valid[p->valid[i]];
		i = p->valid[i];
	}
	return i;
}

bool shunt_simulation_ll_ready(struct simulation *p, struct block_state *a, const struct shunt_plan_op *op)
{
	for (uint32_t i = 0; i < op->nsrc; i++) {
		struct segments r;
		size_t hole;

		if (!op->src[i].packet)
			continue;
		r = slice_segments(p, op, a->rank, &op->src[i]);
		if (r.first == r.end)
			continue;
		hole = first_invalid(p, r.first);
		if (hole < r.end) {
			shunt_simulation_block(p, a, p->nresources + hole);
			return false;
		}
		for (size_t s = r.first; p->ordering && s < r.end && shunt_simulation_spend(p, 1); s++)
			ordering_note(p, a->rank, p->writer[s], ORDERING_OBSERVES);
	}
	return true;
}

void shunt_simulation_ll_write(struct simulation *p, const struct block_state *a, const struct shunt_plan_op *op)
{
	for (uint32_t i = 0; i < op->ndst; i++) {
		const uint32_t *ranks;
		uint32_t n;

		if (!op->dst[i].packet)
			continue;
		n = shunt_plan_slice_ranks(&p->plan->gpus[a->rank], &op->dst[i], &ranks);
		for (uint32_t m = 0; m < n && shunt_simulation_spend(p, 8); m++) {
			struct segments r = slice_segments(p, op, ranks[m], &op->dst[i]);

			if (r.first < r.end)
				ordering_note(p, a->rank, ranks[m], ORDERING_WRITES);
			for (size_t s = r.first == r.end ? r.end : first_invalid(p, r.first); s < r.end;
			    s = first_invalid(p, s)) {
				p->valid[s] = s + 1;
				p->writer[s] = a->rank;
				shunt_simulation_wake(p, p->nresources + s, 0);
			}
		}
	}
}

bool shunt_simulation_ll_provides(const struct simulation *p, const struct block_state *a,
    const struct shunt_plan_op *op, uint32_t rank, size_t segment)
{
	for (uint32_t d = 0; d < op->ndst; d++) {
		const uint32_t *ranks;
		uint32_t n;

		if (!op->dst[d].packet)
			continue;
		n = shunt_plan_slice_ranks(&p->plan->gpus[a->rank], &op->dst[d], &ranks);
		for (uint32_t m = 0; m < n; m++) {
			struct segments r;

			if (ranks[m] != rank)
				continue;
			r = slice_segments(p, op, rank, &op->dst[d]);
			if (r.first <= segment && segment < r.end)
				return true;
		}
	}
	return false;
}

static int compare_units(const void *x, const void *y)
{
	uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

	return a < b ? -1 : a > b;
}

/* Adds the ends of all packet slices to p->ends or, while that is NULL, counts them in nends_of. False: overrun. */
static bool collect_ends(struct simulation *p)
{
	memset(p->nends_of, 0, p->plan->nranks * sizeof(*p->nends_of));
	for (uint32_t n = 0; n < p->nstates; n++) {
		const struct block_state *a = &p->states[n];

		for (uint32_t pc = 0; pc < a->block->nops; pc++) {
			const struct shunt_plan_op *op = &a->block->ops[pc];

			for (uint32_t i = 0; i < op->nsrc + op->ndst; i++) {
				const struct shunt_plan_slice *s = i < op->nsrc ? &op->src[i] : &op->dst[i - op->nsrc];
				const uint32_t *ranks;
				struct shunt_plan_units u;
				uint32_t nranks;

				if (!s->packet)
					continue;
				nranks = shunt_plan_slice_ranks(&p->plan->gpus[a->rank], s, &ranks);
				if (!shunt_simulation_spend(p, nranks))
					return false;
				u = slice_units(p, op, s);
				for (uint32_t m = 0; m < nranks; m++) {
					size_t *have = &p->nends_of[ranks[m]], at;

					if (p->ends) {
						at = p->base[RESOURCE_SEGMENTS][ranks[m]] - p->nresources + *have;
						p->ends[at] = u.low;
						p->ends[at + 1] = u.high;
					}
					*have += 2;
				}
			}
		}
	}
	return true;
}

int shunt_simulation_ll_init(struct simulation *p)
{
	size_t at = 0;

	free(p->ends);
	free(p->valid);
	free(p->waiters);
	free(p->writer);
	p->ends = NULL;
	p->writer = NULL;
	p->valid = NULL;
	p->waiters = NULL;
	if (!collect_ends(p))
		return 0;
	for (uint32_t r = 0; r < p->plan->nranks; r++) {
		p->base[RESOURCE_SEGMENTS][r] = p->nresources + at;
		at += p->nends_of[r];
	}
	p->nends = at;
	p->ends = calloc(at ? at : 1, sizeof(*p->ends));
	p->valid = calloc(at ? at : 1, sizeof(*p->valid));
	p->writer = calloc(at ? at : 1, sizeof(*p->writer));
	p->waiters = calloc(p->nresources + at ? p->nresources + at : 1, sizeof(*p->waiters));
	if (shunt_plan_no_memory(p->log, p->ends) || shunt_plan_no_memory(p->log, p->valid) ||
	    shunt_plan_no_memory(p->log, p->writer) || shunt_plan_no_memory(p->log, p->waiters))
		return -ENOMEM;
	if (!collect_ends(p))
		return 0;
	for (size_t i = 0; i < at; i++)
		p->valid[i] = i;
	for (uint32_t r = 0; r < p->plan->nranks; r++) {
		uint64_t *ends = p->ends + p->base[RESOURCE_SEGMENTS][r] - p->nresources;
		size_t n = 0;

		qsort(ends, p->nends_of[r], sizeof(*ends), compare_units);
		for (size_t i = 0; i < p->nends_of[r]; i++)
			if (!n || ends[n - 1] != ends[i])
				ends[n++] = ends[i];
		p->nends_of[r] = n;
	}
	return 0;
}
