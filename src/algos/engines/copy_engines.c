/* SPDX-License-Identifier: MIT */
/*
 * Collectives by copy engines, for calls whose buffers lie in windows that all ranks have mapped. Ranks copy straight
 * into their peers' memory, or out of it. Multiprocessors only run a barrier of one warp before and after.
 *
 * The ranks' receive buffers lie at the same offset of the same window, so the sender knows where to put its data. In a
 * gather only the root needs a receive buffer, so the root gets from the send buffers. If a rooted collective is in
 * place at the root, it is in place on all ranks: rank p's buffer lies where the root has part p.
 */
#include "algos/algos.h"

/* Broadcasts go in segments, so that forwarding one overlaps with sending the next. Not measured yet. */
#define SEGMENT ((uint64_t)16 << 20)
#define MAX_SEGMENTS 8u

static char *at(const void *base, uint64_t offset)
{
	return (char *)(uintptr_t)base + offset;
}

static int put(const struct shunt_enqueue_ctx *enqueue, int peer, const void *remote, const void *from, uint64_t bytes)
{
	const struct shunt_copy copy = { .peer = peer, .to = (void *)(uintptr_t)remote, .from = from, .bytes = bytes };

	return bytes && (peer != enqueue->base->rank || remote != from) ? enqueue->copy(enqueue->ctx, &copy) : 0;
}

static int get(const struct shunt_enqueue_ctx *enqueue, int peer, void *to, const void *remote, uint64_t bytes)
{
	const struct shunt_copy copy = { .peer = peer, .to = to, .from = remote, .bytes = bytes, .is_get = true };

	return enqueue->copy(enqueue->ctx, &copy);
}

/* Segments of a broadcast in two hops; 0: one hop, which is enough between two ranks. */
static unsigned segments(const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *c)
{
	uint64_t n = shunt_coll_bytes(c) / SEGMENT;

	if (c->kind != SHUNT_BROADCAST || enqueue->sel_key->nranks == 2)
		return 0;
	return n < 1 ? 1 : n > MAX_SEGMENTS ? MAX_SEGMENTS : (unsigned)n;
}

/* Steps of a call, with a barrier after each. */
static unsigned steps(const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *c)
{
	return segments(enqueue, c) + 1;
}

/*
 * In step s the root sends each other rank a share of segment s, and the others send each other their shares of segment
 * s - 1. So every link carries the message once.
 */
static int broadcast_step(const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *c, unsigned s)
{
	unsigned n = (unsigned)enqueue->sel_key->nranks, rank = enqueue->base->rank, root = (unsigned)c->root,
	         count = segments(enqueue, c);
	uint64_t all = shunt_coll_bytes(c), from, to, first, last;
	int err = 0;

	if (!count) {
		if (rank != root)
			return 0;
		err = put(enqueue, (int)rank, c->recv, c->send, all);
		return err ? err : put(enqueue, (int)(1 - rank), c->recv, c->send, all);
	}
	if (rank == root && s < count) {
		shunt_partition(0, all, s, count, &from, &to);
		err = put(enqueue, (int)rank, at(c->recv, from), at(c->send, from), to - from);
		for (unsigned i = 1; i < n && !err; i++) {
			shunt_partition(from, to, i - 1, n - 1, &first, &last);
			err = put(enqueue, (int)((root + i) % n), at(c->recv, first), at(c->send, first), last - first);
		}
	} else if (rank != root && s) {
		shunt_partition(0, all, s - 1, count, &from, &to);
		shunt_partition(from, to, (rank + n - root) % n - 1, n - 1, &first, &last);
		for (unsigned i = 1; i < n && !err; i++)
			if ((rank + i) % n != root)
				err = put(enqueue, (int)((rank + i) % n), at(c->recv, first), at(c->recv, first),
				    last - first);
	}
	return err;
}

/*
 * Step s of a call. Only a broadcast has more than one. The rank's own part comes first, because it is copied at the
 * same time as the others.
 */
static int step(const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *c, unsigned s)
{
	int n = enqueue->sel_key->nranks, rank = enqueue->base->rank, err = 0;
	bool gets = shunt_kind_rows[c->kind].ranks == SHUNT_RANKS_TO_ROOT;
	uint64_t part = shunt_coll_bytes(c);

	if (c->kind == SHUNT_BROADCAST)
		return s < steps(enqueue, c) ? broadcast_step(enqueue, c, s) : 0;
	if (s || (shunt_kind_has_root(c->kind) && rank != c->root))
		return 0;
	for (int i = 0; i < n && !err; i++) {
		int p = (rank + i) % n; /* ranks do not all begin with the same peer */
		char *to = at(c->recv, shunt_kind_part_of(c->kind, SHUNT_SIDE_RECV, gets ? p : rank) * part);
		const char *from = at(c->send, shunt_kind_part_of(c->kind, SHUNT_SIDE_SEND, p) * part);

		if (gets && p != rank)
			err = get(enqueue, p, to, shunt_symmem_expected(c, rank, p, from), part);
		else
			err = put(enqueue, p, gets ? to : shunt_symmem_expected(c, rank, p, to), from, part);
	}
	return err;
}

int shunt_ce_enqueue(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	unsigned most = 1;
	int err;

	(void)decision;
	for (size_t i = 0; i < ncalls; i++)
		if (steps(enqueue, calls[i]) > most)
			most = steps(enqueue, calls[i]);
	err = shunt_barrier_enqueue(enqueue, calls, ncalls, SHUNT_K_FIRST_BARRIER);
	for (unsigned s = 0; s < most && !err; s++) {
		for (size_t i = 0; i < ncalls && !err; i++)
			err = step(enqueue, calls[i], s);
		if (!err)
			err = shunt_barrier_enqueue(enqueue, calls, ncalls, s + 1 == most ? SHUNT_K_LAST_BARRIER : 0);
	}
	return err;
}

/* ---- shared memory of the host, in pieces: a rank's copy engine puts one there while it gets the others' one before
 */

/* A call, in one of two halves of each rank's memory. */
struct shared {
	const struct shunt_enqueue_ctx *enqueue;
	const struct shunt_coll *c;
	int n, rank;
	uint64_t half, part, piece; /* bytes: of a half; of a part; of it at a time */
	bool parts;                 /* there is one for each rank */
};

static uint64_t piece_bytes(const struct shared *s, uint64_t number)
{
	uint64_t from = number * s->piece;

	return from >= s->part ? 0 : s->part - from < s->piece ? s->part - from : s->piece;
}

/* The place of a rank's piece for another one. */
static uint64_t shared_at(const struct shared *s, uint64_t number, int from, int to)
{
	return (number & 1) * s->half + (s->parts ? (uint64_t)(to - (to > from)) * s->piece : 0);
}

static bool takes_part(const struct shared *s, enum shunt_side side, int rank)
{
	return shunt_kind_has_side(s->c->kind, side, rank == s->c->root);
}

static int shared_put(const struct shared *s, uint64_t number)
{
	struct shunt_copy copy = { .peer = s->rank, .bytes = piece_bytes(s, number) };
	int err = 0;

	for (int i = 1; i < s->n && !err && copy.bytes && takes_part(s, SHUNT_SIDE_SEND, s->rank); i++) {
		int p = (s->rank + i) % s->n;

		copy.at = shared_at(s, number, s->rank, p);
		copy.from =
		    at(s->c->send, shunt_kind_part_of(s->c->kind, SHUNT_SIDE_SEND, p) * s->part + number * s->piece);
		err = s->enqueue->copy(s->enqueue->ctx, &copy);
		if (!s->parts) /* once for all */
			break;
	}
	return err;
}

static int shared_get(const struct shared *s, uint64_t number)
{
	struct shunt_copy copy = { .is_get = true, .bytes = piece_bytes(s, number) };
	int err = 0;

	for (int i = 1; i < s->n && !err && takes_part(s, SHUNT_SIDE_RECV, s->rank); i++) {
		copy.peer = (s->rank + i) % s->n;
		if (!takes_part(s, SHUNT_SIDE_SEND, copy.peer))
			continue;
		copy.at = shared_at(s, number, copy.peer, s->rank);
		copy.to = at(s->c->recv,
		    shunt_kind_part_of(s->c->kind, SHUNT_SIDE_RECV, copy.peer) * s->part + number * s->piece);
		err = s->enqueue->copy(s->enqueue->ctx, &copy);
	}
	return err;
}

/* What this rank keeps. */
static int shared_keep(const struct shared *s)
{
	struct shunt_copy copy = { .peer = s->rank,
		.to = at(s->c->recv, shunt_kind_part_of(s->c->kind, SHUNT_SIDE_RECV, s->rank) * s->part),
		.from = at(s->c->send, shunt_kind_part_of(s->c->kind, SHUNT_SIDE_SEND, s->rank) * s->part),
		.bytes = s->part };

	return takes_part(s, SHUNT_SIDE_SEND, s->rank) && takes_part(s, SHUNT_SIDE_RECV, s->rank) &&
	        copy.to != copy.from && s->part ?
	    s->enqueue->copy(s->enqueue->ctx, &copy) :
	    0;
}

int shunt_ce_shared_enqueue(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	const struct shunt_coll *c = calls[0];
	const struct shunt_sel_key *key = enqueue->sel_key;
	struct shared s = { enqueue, c, key->nranks, enqueue->base->rank, SHUNT_COPY_BYTES(key->sim),
		shunt_coll_bytes(c), SHUNT_COPY_BYTES(key->sim), shunt_kind_has_each(c->kind, SHUNT_SIDE_SEND) };
	uint64_t pieces;
	int err;

	(void)decision;
	(void)ncalls; /* they do not fuse */
	if (s.parts)
		s.piece = s.half / (unsigned)(s.n - 1) / 128 * 128;
	pieces = s.part ? (s.part + s.piece - 1) / s.piece : 1;
	err = shared_put(&s, 0);
	if (!err)
		err = shunt_barrier_enqueue(enqueue, NULL, 0, SHUNT_K_FIRST_BARRIER);
	for (uint64_t i = 0; i < pieces && !err; i++) {
		err = shared_put(&s, i + 1); /* first: on a stream of its own, beside what follows */
		if (!err && !i)
			err = shared_keep(&s);
		if (!err)
			err = shared_get(&s, i);
		if (!err)
			err = shunt_barrier_enqueue(enqueue, NULL, 0, i + 1 == pieces ? SHUNT_K_LAST_BARRIER : 0);
	}
	return err;
}
