/* SPDX-License-Identifier: MIT */
/*
 * Rings: a lane is a block with chunks of its own, which goes through all steps. Data goes to the next rank, through
 * slot k in step k.
 */
#include "plan_shapes.h"

static unsigned next_rank(const struct plan_lane *l)
{
	return (l->w->rank + 1) % l->w->recipe->nranks;
}

static unsigned behind(const struct plan_lane *l, unsigned steps)
{
	unsigned n = l->w->recipe->nranks;

	return (l->w->rank + 2 * n - steps) % n;
}

static void from_last(struct plan_lane *l)
{
	unsigned last = behind(l, 1);

	lane_wait(l, 0, &last, 1);
}

static void to_next(struct plan_lane *l)
{
	unsigned next = next_rank(l);

	lane_signal(l, 0, &next, 1);
}

static void put_next(struct plan_lane *l, struct plan_at src, unsigned slot)
{
	struct plan_at dst = lane_at_peer(l, next_rank(l), slot);

	plan_write_data(l->w, "put", &src, 1, &dst, 1);
	to_next(l);
}

/* Both neighbours have begun this launch, so nobody is in their scratch any more. */
static void ring_begin(struct plan_lane *l)
{
	unsigned next = next_rank(l), last = behind(l, 1);

	plan_write_sync(l->w, "signal", 0, &last, 1);
	lane_wait(l, 0, &next, 1);
}

/*
 * Every chunk goes once around and is added to; the last rank that does so is the chunk's, which writes the result to
 * dst[0], and to dst[1] if ndst is 2.
 */
static void ring_reduce(struct plan_lane *l, struct plan_at *dst, unsigned ndst)
{
	struct plan_writer *w = l->w;
	unsigned n = w->recipe->nranks, next = next_rank(l);

	put_next(l, lane_own(l, 'i', behind(l, 1)), 0);
	for (unsigned k = 0; k + 1 < n; k++) {
		struct plan_at src[2] = { lane_own(l, 's', k), lane_own(l, 'i', behind(l, k + 2)) };
		struct plan_at on[2] = { src[0], lane_at_peer(l, next, k + 1) };

		from_last(l);
		if (k + 2 < n) {
			plan_write_data(w, "res", src, 2, on, 2);
			to_next(l);
		} else {
			plan_write_data(w, ndst == 1 ? "re" : "res", src, 2, dst, ndst);
		}
	}
}

/* What comes is handed on, and copied to its place. slots: where the first of them is. */
static void ring_gather(struct plan_lane *l, unsigned slots, char to)
{
	unsigned n = l->w->recipe->nranks;

	for (unsigned k = 0; k + 1 < n; k++) {
		from_last(l);
		if (k + 2 < n)
			put_next(l, lane_own(l, 's', slots + k), slots + k + 1);
		plan_write_copy(l->w, lane_own(l, 's', slots + k), lane_own(l, to, behind(l, k + 1)));
	}
}

/* Block l does lane l. */
static void ringed(
    struct plan_writer *w, const struct plan_recipe *r, const unsigned parts[3], void (*lane)(struct plan_lane *l))
{
	const unsigned chunks[3] = { parts[0] * r->lanes, parts[1] * r->lanes, parts[2] * r->lanes };

	for (unsigned rank = 0; rank < r->nranks; rank++) {
		plan_write_rank(w, rank, chunks, true, r->lanes);
		for (unsigned i = 0; i < r->lanes; i++) {
			struct plan_lane l = { .w = w, .lane = i, .lanes = r->lanes };

			plan_write_block(w, i, i, 1);
			ring_begin(&l);
			lane(&l);
			plan_write_block_end(w);
		}
		plan_write_rank_end(w);
	}
}

static void allreduce_ring_lane(struct plan_lane *l)
{
	unsigned n = l->w->recipe->nranks, rank = l->w->rank;
	char result = l->w->recipe->inplace ? 'i' : 'o';
	struct plan_at dst[2] = { lane_own(l, result, rank), lane_at_peer(l, next_rank(l), n - 1) };

	ring_reduce(l, dst, 2);
	to_next(l);
	ring_gather(l, n - 1, result);
}

void plan_shape_allreduce_ring(struct plan_writer *w, const struct plan_recipe *r)
{
	ringed(w, r, (const unsigned[]){ r->nranks, r->nranks, 2 * (r->nranks - 1) }, allreduce_ring_lane);
}

static void allgather_ring_lane(struct plan_lane *l)
{
	struct plan_writer *w = l->w;
	struct plan_at mine = w->recipe->inplace ? lane_own(l, 'o', w->rank) : lane_own(l, 'i', 0);

	put_next(l, mine, 0);
	if (!w->recipe->inplace)
		plan_write_copy(w, mine, lane_own(l, 'o', w->rank));
	ring_gather(l, 0, 'o');
}

void plan_shape_allgather_ring(struct plan_writer *w, const struct plan_recipe *r)
{
	ringed(w, r, (const unsigned[]){ 1, r->nranks, r->nranks - 1 }, allgather_ring_lane);
}

static void reducescatter_ring_lane(struct plan_lane *l)
{
	struct plan_at dst = l->w->recipe->inplace ? lane_own(l, 'i', l->w->rank) : lane_own(l, 'o', 0);

	ring_reduce(l, &dst, 1);
}

void plan_shape_reducescatter_ring(struct plan_writer *w, const struct plan_recipe *r)
{
	ringed(w, r, (const unsigned[]){ r->nranks, 1, r->nranks - 1 }, reducescatter_ring_lane);
}
