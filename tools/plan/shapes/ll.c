/* SPDX-License-Identifier: MIT */
/*
 * Shapes of packets (LL): every block does the same to its part of every slice. A packet carries the launch's flag, so
 * nobody signals. Scratch is double: a rank that has heard from all in launch f may overwrite what it sent in launch f
 * - 1, since they have read it. What is read is read as it was written, slice by slice: then Shunt sends it as LL128.
 * Blocks cost little, and the more there are, the less each has to send before its data arrives: as many as our own
 * kernels have.
 *
 * In packet operations our own operand comes last, so an all-reduce in one shot takes the same rank's on all ranks for
 * that one: results are equal to the bit everywhere.
 */
#include "tools/plan/shapes/shapes.h"

/* All ranks' slots but ours: from scratch, `from` on, to buffer, 0 on; one by one, as they were written. */
static void unpack_from_all(struct plan_writer *w, unsigned from, char buffer)
{
	unsigned peers[PLAN_SHAPE_RANKS], n = plan_other_ranks(w, (unsigned)w->part, peers);

	for (unsigned i = 0; i < n; i++) {
		struct plan_slice src = plan_local_slice('s', from + peers[i]),
		                  dst = plan_local_slice(buffer, peers[i]);

		plan_write_data(w, "upkt", &src, 1, &dst, 1);
	}
}

/* To every peer, as packets, from `buffer`: chunk 0 + peer * step; into slot `rank` there. */
static void put_packets_to_all(struct plan_writer *w, char buffer, unsigned first, unsigned step)
{
	struct plan_slice src[PLAN_SHAPE_RANKS], dst[PLAN_SHAPE_RANKS];
	unsigned peers[PLAN_SHAPE_RANKS], n = plan_other_ranks(w, (unsigned)w->part, peers);

	for (unsigned i = 0; i < n; i++) {
		src[i] = plan_local_slice(buffer, first + peers[i] * step);
		dst[i] = plan_peer_slice(peers[i], w->rank);
	}
	plan_write_data(w, "ppkt", src, n, dst, n);
}

/* Blocks that all do the same to their part of every slice. */
static void write_grouped(
    struct plan_writer *w, const struct plan_recipe *r, const unsigned chunks[3], void (*block)(struct plan_writer *w))
{
	for (unsigned rank = 0; rank < r->nranks; rank++) {
		plan_write_rank(w, rank, chunks, false, 1);
		for (unsigned b = 0; b < r->blocks; b++) {
			w->part = (int)b;
			w->parts = (int)r->blocks;
			plan_write_block(w, b, 0, 1);
			block(w);
			plan_write_block_end(w);
		}
		plan_write_rank_end(w);
	}
}

/* ---- one shot */

static void allreduce_oneshot_block(struct plan_writer *w)
{
	unsigned n = w->recipe->nranks, last = n == 2 ? w->rank : n - 1, nsrc = 1;
	char result = w->recipe->inplace ? 'i' : 'o';
	struct plan_slice input = plan_local_slice('i', 0), mine = plan_local_slice('s', w->rank),
	                  sum = plan_local_slice(result, 0);
	struct plan_slice src[PLAN_SHAPE_RANKS] = { input };

	put_packets_to_all(w, 'i', 0, 0);
	/* The plain operand is rank n - 1's on all ranks; of two ranks the order does not matter. */
	if (last != w->rank) {
		struct plan_slice from = plan_local_slice('s', last);

		plan_write_data(w, "cpkt", &input, 1, &mine, 1);
		if (w->recipe->inplace)
			plan_write_nop(w);
		plan_write_data(w, "upkt", &from, 1, &sum, 1);
		src[0] = sum;
	}
	if (last != w->rank || w->recipe->inplace)
		plan_write_nop(w);
	for (unsigned p = 0; p < n; p++)
		if (p != last)
			src[nsrc++] = plan_local_slice('s', p);
	plan_write_data(w, "repkt", src, nsrc, &sum, 1);
}

void plan_shape_allreduce_oneshot(struct plan_writer *w, const struct plan_recipe *r)
{
	write_grouped(w, r, (const unsigned[]){ 1, 1, r->nranks }, allreduce_oneshot_block);
}

static void allgather_oneshot_block(struct plan_writer *w)
{
	bool inplace = w->recipe->inplace;

	put_packets_to_all(w, inplace ? 'o' : 'i', inplace ? w->rank : 0, 0);
	if (!inplace)
		plan_write_copy(w, plan_local_slice('i', 0), plan_local_slice('o', w->rank));
	unpack_from_all(w, 0, 'o');
}

void plan_shape_allgather_oneshot(struct plan_writer *w, const struct plan_recipe *r)
{
	write_grouped(w, r, (const unsigned[]){ 1, r->nranks, r->nranks }, allgather_oneshot_block);
}

static void reducescatter_oneshot_block(struct plan_writer *w)
{
	struct plan_slice dst = w->recipe->inplace ? plan_local_slice('i', w->rank) : plan_local_slice('o', 0);
	struct plan_slice src[PLAN_SHAPE_RANKS] = { plan_local_slice('i', w->rank) };
	unsigned nsrc = 1;

	put_packets_to_all(w, 'i', 0, 1);
	for (unsigned p = 0; p < w->recipe->nranks; p++)
		if (p != w->rank)
			src[nsrc++] = plan_local_slice('s', p);
	plan_write_data(w, "repkt", src, nsrc, &dst, 1);
}

void plan_shape_reducescatter_oneshot(struct plan_writer *w, const struct plan_recipe *r)
{
	write_grouped(w, r, (const unsigned[]){ r->nranks, 1, r->nranks }, reducescatter_oneshot_block);
}

static void alltoall_oneshot_block(struct plan_writer *w)
{
	put_packets_to_all(w, 'i', 0, 1);
	plan_write_copy(w, plan_local_slice('i', w->rank), plan_local_slice('o', w->rank));
	unpack_from_all(w, 0, 'o');
}

void plan_shape_alltoall_oneshot(struct plan_writer *w, const struct plan_recipe *r)
{
	write_grouped(w, r, (const unsigned[]){ r->nranks, r->nranks, r->nranks }, alltoall_oneshot_block);
}

/* ---- two shots: chunk p is reduced by rank p; slots 0 .. n - 1 are what to reduce, n .. 2n - 1 results */

static void allreduce_twoshot_block(struct plan_writer *w)
{
	unsigned n = w->recipe->nranks, peers[PLAN_SHAPE_RANKS], nsrc = 1;
	char result = w->recipe->inplace ? 'i' : 'o';
	struct plan_slice src[PLAN_SHAPE_RANKS] = { plan_local_slice('i', w->rank) },
	                  dst[1 + PLAN_SHAPE_RANKS] = { plan_local_slice(result, w->rank) };

	put_packets_to_all(w, 'i', 0, 1);
	for (unsigned p = 0; p < n; p++)
		if (p != w->rank)
			src[nsrc++] = plan_local_slice('s', p);
	plan_other_ranks(w, (unsigned)w->part, peers);
	for (unsigned i = 0; i + 1 < n; i++)
		dst[1 + i] = plan_peer_slice(peers[i], n + w->rank);
	plan_write_data(w, "respkt", src, nsrc, dst, n);
	unpack_from_all(w, n, result);
}

void plan_shape_allreduce_twoshot(struct plan_writer *w, const struct plan_recipe *r)
{
	write_grouped(w, r, (const unsigned[]){ r->nranks, r->nranks, 2 * r->nranks }, allreduce_twoshot_block);
}
