/* SPDX-License-Identifier: MIT */
/*
 * Reductions in windows: between two barriers, whoever needs a result loads all inputs where they lie and folds them.
 * Each rank's part of an all-reduce is its own work, which it stores into every rank's output as well.
 */
#include <errno.h>
#include "algos/algos.h"

#define UNIT 4u /* packs that a thread has under way of each rank */

/* What this rank folds of every input: from where on, and how much. */
static void own_share(const struct shunt_issue *issue, const struct shunt_coll *c, uint64_t *first_p, uint64_t *bytes_p)
{
	unsigned n = (unsigned)issue->scope->nranks, rank = issue->base->rank;
	uint64_t all = shunt_coll_bytes(c), last;

	if (c->kind == SHUNT_ALLREDUCE) {
		shunt_share(0, all, rank, n, first_p, &last);
		*bytes_p = last - *first_p;
	} else {
		*first_p = c->kind == SHUNT_REDUCESCATTER ? rank * all : 0;
		*bytes_p = c->kind == SHUNT_REDUCE && (int)rank != c->root ? 0 : all;
	}
}

/* As many warps as have whole units, up to all there are: the link is full from 48 blocks on. */
static void geometry(const struct shunt_scope *scope, uint64_t bytes, struct shunt_work *work)
{
	shunt_spread_wide(scope, (bytes / 16 + UNIT * 32 - 1) / (UNIT * 32), work);
}

/* -EINVAL: a buffer lies in no window any more; the caller has seen to it that it does. */
static int find_buffers(
    const struct shunt_issue *issue, const struct shunt_coll *c, struct shunt_kargs_pull *a, uint64_t first)
{
	int n = issue->scope->nranks, rank = issue->base->rank;
	bool everywhere = c->kind == SHUNT_ALLREDUCE;
	const char *in[SHUNT_KARGS_MAX_RANKS] = { 0 };
	char *out[SHUNT_KARGS_MAX_RANKS] = { 0 };
	const void *ptr = NULL;
	uint64_t bytes = 0;
	uintptr_t odd = 0;

	shunt_window_buffer(c, n, 0, &ptr, &bytes);
	for (int p = 0; p < n; p++) {
		in[p] = p == rank ? c->send : issue->there(issue->ctx, c->send, bytes, p);
		if (everywhere || p == rank)
			out[p] = p == rank ? c->recv : issue->there(issue->ctx, c->recv, bytes, p);
		if (!in[p] || (everywhere && !out[p]))
			return -EINVAL;
		a->from[p] = in[p] + first;
		a->to[p] = out[p] ? out[p] + (everywhere ? first : 0) : NULL;
		odd |= (uintptr_t)a->from[p] | (uintptr_t)a->to[p];
	}
	a->k.flags |= odd & 15 ? 0 : SHUNT_K_ALIGNED;
	return 0;
}

static int pull(const struct shunt_issue *issue, const struct shunt_pick *pick, const struct shunt_coll *c)
{
	struct shunt_work work;
	struct shunt_kargs_pull *a = &work.args.pull;
	uint64_t first;
	int err;

	*a = (struct shunt_kargs_pull){ .k = *issue->base };
	own_share(issue, c, &first, &a->bytes);
	if (!a->bytes)
		return 0;
	a->k.flags = pick->flags;
	a->k.scalar = pick->scalar;
	err = find_buffers(issue, c, a, first);
	if (err)
		return err;
	work.kernel = pick->kernel;
	geometry(issue->scope, a->bytes, &work);
	return issue->emit(issue->ctx, &work);
}

static int pulls_issue(const struct shunt_issue *issue, const struct shunt_pick *pick,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	int err = shunt_barrier_issue(issue, calls, ncalls, SHUNT_K_OPENS);

	for (size_t i = 0; i < ncalls && !err; i++)
		err = pull(issue, pick, calls[i]);
	return err ? err : shunt_barrier_issue(issue, calls, ncalls, SHUNT_K_CLOSES);
}

#define SHAPES { SHUNT_SHAPE_pulls2, SHUNT_SHAPE_pulls4, SHUNT_SHAPE_pulls8 }
#define PULLS(which, text) \
	{ .name = "pulls", \
		.doc = "windows, zero copy: " text, \
		.kind = which, \
		.fuse = SHUNT_FUSE_WINDOWS, \
		.shapes = SHAPES, \
		.issue = pulls_issue }
const struct shunt_algo shunt_pulls_algos[] = {
	PULLS(SHUNT_ALLREDUCE, "every rank folds its part of all inputs, and stores it into all outputs"),
	PULLS(SHUNT_REDUCESCATTER, "rank r folds part r of all inputs where they lie"),
	PULLS(SHUNT_REDUCE, "the root folds all inputs where they lie"),
	{ 0 },
};
