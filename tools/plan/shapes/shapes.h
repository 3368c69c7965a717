/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Common functions of the shapes for new plans. On one host all shapes write to peers' scratch only. The slot of a
 * chunk follows from its sender, so a rank need not know the peers' layouts. Sums are in the order of ranks where slots
 * can be listed in it.
 */
#include "tools/plan/plan.h"

enum { PLAN_SHAPE_RANKS = 8 };

/* ---- slices */

static inline struct plan_slice plan_local_slice(char buffer, unsigned index)
{
	return (struct plan_slice){ buffer, -1, index, 1 };
}

static inline struct plan_slice plan_peer_slice(unsigned peer, unsigned index)
{
	return (struct plan_slice){ 's', (int)peer, index, 1 };
}

static inline void plan_write_copy(struct plan_writer *w, struct plan_slice src, struct plan_slice dst)
{
	plan_write_data(w, "copy", &src, 1, &dst, 1);
}

/* ---- peers */

/* The other ranks in ring order, starting `turn` + 1 after this one. */
static inline unsigned plan_other_ranks(const struct plan_writer *w, unsigned turn, unsigned peers[PLAN_SHAPE_RANKS])
{
	unsigned n = w->recipe->nranks, count = 0;

	for (; count + 1 < n; count++)
		peers[count] = (w->rank + 1 + (turn + count) % (n - 1)) % n;
	return count;
}

/* ---- instances: blocks with chunks of their own */

struct plan_instance {
	struct plan_writer *w;
	unsigned instance, instances;
	unsigned peers[PLAN_SHAPE_RANKS], npeers; /* pipelines: in the instance's order */
};

/* Chunk c of the instance. */
static inline unsigned instance_chunk(const struct plan_instance *l, unsigned c)
{
	return c * l->instances + l->instance;
}

static inline struct plan_slice instance_own(const struct plan_instance *l, char buffer, unsigned c)
{
	return plan_local_slice(buffer, instance_chunk(l, c));
}

static inline struct plan_slice instance_at_peer(const struct plan_instance *l, unsigned peer, unsigned c)
{
	return plan_peer_slice(peer, instance_chunk(l, c));
}

/* Waits until these peers have signalled; then all threads may read their data. */
static inline void instance_wait(struct plan_instance *l, unsigned link, const unsigned *peers, unsigned n)
{
	plan_write_sync(l->w, "wait", link, peers, n);
	plan_write_nop(l->w);
}

/* Signals these peers, which may then read the data of all threads. */
static inline void instance_signal(struct plan_instance *l, unsigned link, const unsigned *peers, unsigned n)
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
void plan_shape_allreduce_hosts(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_allreduce_hosts_ll(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_allgather_hosts(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_allgather_hosts_ll(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_reducescatter_hosts(struct plan_writer *w, const struct plan_recipe *r);
void plan_shape_reducescatter_hosts_ll(struct plan_writer *w, const struct plan_recipe *r);
