/* SPDX-License-Identifier: MIT */
/*
 * Reductions on symmetric memory. Between two barriers, each rank that needs a result loads all inputs where they lie
 * and reduces them. In an all-reduce each rank does so for its part, and stores it into every rank's output.
 */
#include <errno.h>
#include "algos/algos.h"

#define PACKS_PER_THREAD 4u /* loads that a thread has under way, from each rank */

/* The part of every input that this rank reduces. */
static void own_part(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *c, uint64_t *first_p, uint64_t *bytes_p)
{
	unsigned n = (unsigned)enqueue->sel_key->nranks, rank = enqueue->base->rank;
	uint64_t all = shunt_coll_bytes(c), last;

	if (c->kind == SHUNT_ALLREDUCE) {
		shunt_partition(0, all, rank, n, first_p, &last);
		*bytes_p = last - *first_p;
	} else {
		*first_p = shunt_kind_part_of(c->kind, SHUNT_SIDE_SEND, (int)rank) * all;
		*bytes_p = shunt_kind_has_side(c->kind, SHUNT_SIDE_RECV, (int)rank == c->root) ? all : 0;
	}
}

/* One warp for each PACKS_PER_THREAD * 32 packs, up to all warps of a launch: the link is full from 48 blocks on. */
static void geometry(const struct shunt_limits *limits, uint64_t bytes, struct shunt_work *work)
{
	shunt_grid_fit_wide(limits, (bytes / 16 + PACKS_PER_THREAD * 32 - 1) / (PACKS_PER_THREAD * 32), work);
}

/* -EINVAL: a buffer lies in no window, which the caller should have made sure of. */
static int find_buffers(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *c, struct shunt_kargs_direct *a, uint64_t first)
{
	int n = enqueue->sel_key->nranks, rank = enqueue->base->rank;
	bool everywhere = c->kind == SHUNT_ALLREDUCE;
	const char *in[SHUNT_KARGS_MAX_RANKS] = { 0 };
	char *out[SHUNT_KARGS_MAX_RANKS] = { 0 };
	const void *ptr = NULL;
	uint64_t bytes = 0;
	uintptr_t odd = 0;

	shunt_symmem_buffer(c, n, 0, &ptr, &bytes);
	for (int p = 0; p < n; p++) {
		in[p] = p == rank ? c->send : enqueue->peer_ptr(enqueue->ctx, c->send, bytes, p);
		if (everywhere || p == rank)
			out[p] = p == rank ? c->recv : enqueue->peer_ptr(enqueue->ctx, c->recv, bytes, p);
		if (!in[p] || (everywhere && !out[p]))
			return -EINVAL;
		a->from[p] = in[p] + first;
		a->to[p] = out[p] ? out[p] + (everywhere ? first : 0) : NULL;
		odd |= (uintptr_t)a->from[p] | (uintptr_t)a->to[p];
	}
	a->k.flags |= odd & 15 ? 0 : SHUNT_K_ALIGNED;
	return 0;
}

static int direct(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision, const struct shunt_coll *c)
{
	struct shunt_work work;
	struct shunt_kargs_direct *a = &work.args.direct;
	uint64_t first;
	int err;

	*a = (struct shunt_kargs_direct){ .k = *enqueue->base };
	own_part(enqueue, c, &first, &a->bytes);
	if (!a->bytes)
		return 0;
	shunt_algo_set_op(&a->k, decision, c);
	err = find_buffers(enqueue, c, a, first);
	if (err)
		return err;
	work.kernel = decision->kernel;
	geometry(&enqueue->limits, a->bytes, &work);
	work.uncounted = true;
	return enqueue->emit(enqueue->ctx, &work);
}

int shunt_direct_enqueue(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	int err = shunt_barrier_enqueue(enqueue, calls, ncalls, SHUNT_K_FIRST_BARRIER);

	for (size_t i = 0; i < ncalls && !err; i++)
		err = direct(enqueue, decision, calls[i]);
	return err ? err : shunt_barrier_enqueue(enqueue, calls, ncalls, SHUNT_K_LAST_BARRIER);
}
