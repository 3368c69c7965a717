/* SPDX-License-Identifier: MIT */
/*
 * LL shapes (packets): each block processes its part of every slice. A packet carries the launch's flag, so no signals
 * are needed. Scratch is double: after a rank has data from all ranks in launch f, it may overwrite what it sent in
 * launch f - 1, since they have read it. Every slice is read as it was written, so Shunt can send it as LL128. A block
 * costs little, and with more blocks each has less to send before its data arrives: there are as many as in our own
 * kernels.
 *
 * Packet operations reduce this rank's own operand last. A one-shot all-reduce takes the same rank's operand as the
 * last one on all ranks, so results have the same bits everywhere.
 */
#include "tools/plan/shapes/shapes.h"

/*
 * Copies the slots of all other ranks from scratch, starting at `from`, to buffer, starting at 0; one by one, as they
 * were written.
 */
static void unpack_from_all(struct plan_writer *w, unsigned from, char buffer)
{
	unsigned peers[PLAN_SHAPE_RANKS], n = plan_other_ranks(w, (unsigned)w->part, peers);

	for (unsigned i = 0; i < n; i++) {
		struct plan_slice src = plan_local_slice('s', from + peers[i]),
		                  dst = plan_local_slice(buffer, peers[i]);

		plan_write_data(w, "upkt", &src, 1, &dst, 1);
	}
}

/* Sends packets to every peer, into its slot `rank`: chunk first + peer * step of `buffer`. */
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

/* Each block processes its part of every slice. */
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
	/* On all ranks the plain operand is rank n - 1's; with two ranks the order does not matter. */
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

/* ---- two shots: rank p reduces chunk p; slots 0 .. n - 1 hold operands, n .. 2n - 1 results */

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
