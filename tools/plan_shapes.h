/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_PLAN_SHAPES_H
#define SHUNT_TOOLS_PLAN_SHAPES_H
/*
 * What the shapes of new plans share. All of them reach peers through scratch alone, where the slot of a chunk says who
 * sent it, so no rank need know where others keep their data. Sums are in the order of ranks where slots can be listed
 * in it.
 */
#include "plan.h"

enum { PLAN_SHAPE_RANKS = 8 };

/* ---- slices */

static inline struct plan_at plan_own(char buffer, unsigned index)
{
	return (struct plan_at){ buffer, -1, index, 1 };
}

static inline struct plan_at plan_at_peer(unsigned peer, unsigned index)
{
	return (struct plan_at){ 's', (int)peer, index, 1 };
}

static inline void plan_write_copy(struct plan_writer *w, struct plan_at src, struct plan_at dst)
{
	plan_write_data(w, "copy", &src, 1, &dst, 1);
}

/* ---- peers */

/* The other ranks, beginning with the one `turn` + 1 behind us. */
static inline unsigned plan_others(const struct plan_writer *w, unsigned turn, unsigned peers[PLAN_SHAPE_RANKS])
{
	unsigned n = w->recipe->nranks, count = 0;

	for (; count + 1 < n; count++)
		peers[count] = (w->rank + 1 + (turn + count) % (n - 1)) % n;
	return count;
}

/* ---- lanes: blocks that have chunks of their own */

struct plan_lane {
	struct plan_writer *w;
	unsigned lane, lanes;
	unsigned peers[PLAN_SHAPE_RANKS], npeers; /* pipelines: of the lane, in its order */
};

/* Chunk c of the lane. */
static inline unsigned lane_chunk(const struct plan_lane *l, unsigned c)
{
	return c * l->lanes + l->lane;
}

static inline struct plan_at lane_own(const struct plan_lane *l, char buffer, unsigned c)
{
	return plan_own(buffer, lane_chunk(l, c));
}

static inline struct plan_at lane_at_peer(const struct plan_lane *l, unsigned peer, unsigned c)
{
	return plan_at_peer(peer, lane_chunk(l, c));
}

/* Until all of these have signalled; what they wrote may then be read by all threads. */
static inline void lane_wait(struct plan_lane *l, unsigned link, const unsigned *peers, unsigned n)
{
	plan_write_sync(l->w, "wait", link, peers, n);
	plan_write_nop(l->w);
}

/* What all threads have written may be read by these. */
static inline void lane_signal(struct plan_lane *l, unsigned link, const unsigned *peers, unsigned n)
{
	plan_write_nop(l->w);
	plan_write_sync(l->w, "signal", link, peers, n);
}

/* ---- the shapes, each for all ranks */

void plan_shape_allreduce_oneshot(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_allreduce_twoshot(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_allreduce_pipelined(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_allreduce_ring(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_allgather_oneshot(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_allgather_pipelined(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_allgather_ring(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_reducescatter_oneshot(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_reducescatter_pipelined(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_reducescatter_ring(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_alltoall_oneshot(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_alltoall_pipelined(struct plan_writer *w, const struct plan_recipe *r);
#endif
