/* SPDX-License-Identifier: MIT */
/*
 * Rings: an instance is a block with chunks of its own, which does all steps. In step k it sends data to slot k of the
 * next rank.
 */
#include "tools/plan/shapes/shapes.h"

static unsigned next_rank(const struct plan_instance *l)
{
	return (l->w->rank + 1) % l->w->recipe->nranks;
}

static unsigned rank_behind(const struct plan_instance *l, unsigned steps)
{
	unsigned n = l->w->recipe->nranks;

	return (l->w->rank + 2 * n - steps) % n;
}

static void wait_prev(struct plan_instance *l)
{
	unsigned last = rank_behind(l, 1);

	instance_wait(l, 0, &last, 1);
}

static void signal_next(struct plan_instance *l)
{
	unsigned next = next_rank(l);

	instance_signal(l, 0, &next, 1);
}

static void put_next(struct plan_instance *l, struct plan_slice src, unsigned slot)
{
	struct plan_slice dst = instance_at_peer(l, next_rank(l), slot);

	plan_write_data(l->w, "put", &src, 1, &dst, 1);
	signal_next(l);
}

/* Both neighbours have begun this launch: no earlier launch uses their scratch. */
static void ring_begin(struct plan_instance *l)
{
	unsigned next = next_rank(l), last = rank_behind(l, 1);

	plan_write_sync(l->w, "signal", 0, &last, 1);
	instance_wait(l, 0, &next, 1);
}

/*
 * Every chunk goes around the ring once, and every rank adds its part. The last rank owns the chunk: it writes the
 * result to dst[0], and to dst[1] if ndst is 2.
 */
static void ring_reduce(struct plan_instance *l, struct plan_slice *dst, unsigned ndst)
{
	struct plan_writer *w = l->w;
	unsigned n = w->recipe->nranks, next = next_rank(l);

	put_next(l, instance_own(l, 'i', rank_behind(l, 1)), 0);
	for (unsigned k = 0; k + 1 < n; k++) {
		struct plan_slice src[2] = { instance_own(l, 's', k), instance_own(l, 'i', rank_behind(l, k + 2)) };
		struct plan_slice on[2] = { src[0], instance_at_peer(l, next, k + 1) };

		wait_prev(l);
		if (k + 2 < n) {
			plan_write_data(w, "res", src, 2, on, 2);
			signal_next(l);
		} else {
			plan_write_data(w, ndst == 1 ? "re" : "res", src, 2, dst, ndst);
		}
	}
}

/* Forwards each arriving chunk, and copies it to its place. slots: the first slot. */
static void ring_gather(struct plan_instance *l, unsigned slots, char to)
{
	unsigned n = l->w->recipe->nranks;

	for (unsigned k = 0; k + 1 < n; k++) {
		wait_prev(l);
		if (k + 2 < n)
			put_next(l, instance_own(l, 's', slots + k), slots + k + 1);
		plan_write_copy(l->w, instance_own(l, 's', slots + k), instance_own(l, to, rank_behind(l, k + 1)));
	}
}

/* Block i runs instance i. */
static void write_ring(struct plan_writer *w, const struct plan_recipe *r, const unsigned parts[3],
    void (*instance)(struct plan_instance *l))
{
	const unsigned chunks[3] = { parts[0] * r->instances, parts[1] * r->instances, parts[2] * r->instances };

	for (unsigned rank = 0; rank < r->nranks; rank++) {
		plan_write_rank(w, rank, chunks, true, r->instances);
		for (unsigned i = 0; i < r->instances; i++) {
			struct plan_instance l = { .w = w, .instance = i, .instances = r->instances };

			plan_write_block(w, i, i, 1);
			ring_begin(&l);
			instance(&l);
			plan_write_block_end(w);
		}
		plan_write_rank_end(w);
	}
}

static void allreduce_ring_instance(struct plan_instance *l)
{
	unsigned n = l->w->recipe->nranks, rank = l->w->rank;
	char result = l->w->recipe->inplace ? 'i' : 'o';
	struct plan_slice dst[2] = { instance_own(l, result, rank), instance_at_peer(l, next_rank(l), n - 1) };

	ring_reduce(l, dst, 2);
	signal_next(l);
	ring_gather(l, n - 1, result);
}

void plan_shape_allreduce_ring(struct plan_writer *w, const struct plan_recipe *r)
{
	write_ring(w, r, (const unsigned[]){ r->nranks, r->nranks, 2 * (r->nranks - 1) }, allreduce_ring_instance);
}

static void allgather_ring_instance(struct plan_instance *l)
{
	struct plan_writer *w = l->w;
	struct plan_slice mine = w->recipe->inplace ? instance_own(l, 'o', w->rank) : instance_own(l, 'i', 0);

	put_next(l, mine, 0);
	if (!w->recipe->inplace)
		plan_write_copy(w, mine, instance_own(l, 'o', w->rank));
	ring_gather(l, 0, 'o');
}

void plan_shape_allgather_ring(struct plan_writer *w, const struct plan_recipe *r)
{
	write_ring(w, r, (const unsigned[]){ 1, r->nranks, r->nranks - 1 }, allgather_ring_instance);
}

static void reducescatter_ring_instance(struct plan_instance *l)
{
	struct plan_slice dst = l->w->recipe->inplace ? instance_own(l, 'i', l->w->rank) : instance_own(l, 'o', 0);

	ring_reduce(l, &dst, 1);
}

void plan_shape_reducescatter_ring(struct plan_writer *w, const struct plan_recipe *r)
{
	write_ring(w, r, (const unsigned[]){ r->nranks, 1, r->nranks - 1 }, reducescatter_ring_instance);
}
