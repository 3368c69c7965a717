/* SPDX-License-Identifier: MIT */
/*
 * Collectives by copy engines: every rank copies straight into the memory of the peers, or out of it, and no
 * multiprocessor has a part in that but for a barrier of one warp before and after. For calls whose buffers lie in
 * windows that all ranks have mapped.
 *
 * Who knows where: the ranks' receive buffers lie at the same place of the same window, so whoever sends puts it there.
 * Of a gather only the root need have one, so there the root gets from the send buffers. Where a rooted collective is
 * in place at the root, so it is everywhere: rank p's part lies at the place of part p.
 */
#include "algos/algos.h"

/* Broadcasts go in pieces, so that passing one on overlaps with the next. Not measured yet. */
#define PIECE ((uint64_t)16 << 20)
#define MAX_PIECES 8u

static char *at(const void *base, uint64_t offset)
{
	return (char *)(uintptr_t)base + offset;
}

static int put(const struct shunt_issue *issue, int peer, const void *there, const void *from, uint64_t bytes)
{
	const struct shunt_copy copy = { .peer = peer, .to = (void *)(uintptr_t)there, .from = from, .bytes = bytes };

	return bytes && (peer != issue->base->rank || there != from) ? issue->copy(issue->ctx, &copy) : 0;
}

static int get(const struct shunt_issue *issue, int peer, void *to, const void *there, uint64_t bytes)
{
	const struct shunt_copy copy = { .peer = peer, .to = to, .from = there, .bytes = bytes, .pulls = true };

	return issue->copy(issue->ctx, &copy);
}

/* Between two ranks one hop is all there is to it. */
static unsigned pieces(const struct shunt_issue *issue, const struct shunt_coll *c)
{
	uint64_t n = shunt_coll_bytes(c) / PIECE;

	if (c->kind != SHUNT_BROADCAST || issue->scope->nranks == 2)
		return 0;
	return n < 1 ? 1 : n > MAX_PIECES ? MAX_PIECES : (unsigned)n;
}

/* How many steps a call takes, with a barrier after each. */
static unsigned steps(const struct shunt_issue *issue, const struct shunt_coll *c)
{
	return pieces(issue, c) + 1;
}

/*
 * In step s the root hands out piece s, to each of the others a share; they pass on to each other what they got of
 * piece s - 1. So every link carries the message once.
 */
static int broadcast_step(const struct shunt_issue *issue, const struct shunt_coll *c, unsigned s)
{
	unsigned n = (unsigned)issue->scope->nranks, rank = issue->base->rank, root = (unsigned)c->root,
	         count = pieces(issue, c);
	uint64_t all = shunt_coll_bytes(c), from, to, first, last;
	int err = 0;

	if (!count) {
		if (rank != root)
			return 0;
		err = put(issue, (int)rank, c->recv, c->send, all);
		return err ? err : put(issue, (int)(1 - rank), c->recv, c->send, all);
	}
	if (rank == root && s < count) {
		shunt_share(0, all, s, count, &from, &to);
		err = put(issue, (int)rank, at(c->recv, from), at(c->send, from), to - from);
		for (unsigned i = 1; i < n && !err; i++) {
			shunt_share(from, to, i - 1, n - 1, &first, &last);
			err = put(issue, (int)((root + i) % n), at(c->recv, first), at(c->send, first), last - first);
		}
	} else if (rank != root && s) {
		shunt_share(0, all, s - 1, count, &from, &to);
		shunt_share(from, to, (rank + n - root) % n - 1, n - 1, &first, &last);
		for (unsigned i = 1; i < n && !err; i++)
			if ((rank + i) % n != root)
				err = put(
				    issue, (int)((rank + i) % n), at(c->recv, first), at(c->recv, first), last - first);
	}
	return err;
}

/* Everything but a broadcast is done in its first step. Our own part first, as it goes beside the others. */
static int step(const struct shunt_issue *issue, const struct shunt_coll *c, unsigned s)
{
	int n = issue->scope->nranks, rank = issue->base->rank, err = 0;
	uint64_t part = shunt_coll_bytes(c), own = part * (unsigned)rank;

	if (c->kind == SHUNT_BROADCAST)
		return s < steps(issue, c) ? broadcast_step(issue, c, s) : 0;
	if (s || (shunt_kind_has_root(c->kind) && rank != c->root))
		return 0;
	for (int i = 0; i < n && !err; i++) {
		int p = (rank + i) % n; /* ranks do not all begin with the same peer */
		uint64_t theirs = part * (unsigned)p;

		switch (c->kind) {
		case SHUNT_ALLGATHER:
			err = put(issue, p, at(c->recv, own), c->send, part);
			break;
		case SHUNT_ALLTOALL:
			err = put(issue, p, at(c->recv, own), at(c->send, theirs), part);
			break;
		case SHUNT_SCATTER:
			err = put(issue, p, shunt_window_expected(c, rank, p, c->recv), at(c->send, theirs), part);
			break;
		default:
			err = p == rank ?
			    put(issue, p, at(c->recv, own), c->send, part) :
			    get(issue, p, at(c->recv, theirs), shunt_window_expected(c, rank, p, c->send), part);
			break;
		}
	}
	return err;
}

static int copies_issue(const struct shunt_issue *issue, const struct shunt_pick *pick,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	unsigned most = 1;
	int err;

	(void)pick;
	for (size_t i = 0; i < ncalls; i++)
		if (steps(issue, calls[i]) > most)
			most = steps(issue, calls[i]);
	err = shunt_barrier_issue(issue, calls, ncalls, SHUNT_K_OPENS);
	for (unsigned s = 0; s < most && !err; s++) {
		for (size_t i = 0; i < ncalls && !err; i++)
			err = step(issue, calls[i], s);
		if (!err)
			err = shunt_barrier_issue(issue, calls, ncalls, s + 1 == most ? SHUNT_K_CLOSES : 0);
	}
	return err;
}

#define BARRIER { SHUNT_SHAPE_barrier, SHUNT_SHAPE_barrier, SHUNT_SHAPE_barrier }
#define COPIES(which, text) \
	{ .name = "copies", \
		.doc = "windows, no SMs: " text, \
		.kind = which, \
		.fuse = SHUNT_FUSE_WINDOWS, \
		.shapes = BARRIER, \
		.issue = copies_issue }
const struct shunt_algo shunt_copies_algos[] = {
	COPIES(SHUNT_ALLGATHER, "copy engines put every rank's part into all"),
	COPIES(SHUNT_ALLTOALL, "copy engines put part r into rank r"),
	COPIES(SHUNT_BROADCAST, "the root's copy engine hands out shares, which the others put into each other"),
	COPIES(SHUNT_GATHER, "the root's copy engine gets all parts"),
	COPIES(SHUNT_SCATTER, "the root's copy engine puts part r into rank r"),
	{ 0 },
};
