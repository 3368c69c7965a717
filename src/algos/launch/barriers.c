/* SPDX-License-Identifier: MIT */
/*
 * For calls on symmetric memory: the buffers that must lie in windows, and the barriers before and after the work.
 *
 * The first barrier of an operation compares the offsets of the ranks' buffers with those that the program promised
 * (shunt_kargs_barrier), and reports the rank that broke the promise.
 */
#include "algos/algos.h"

bool shunt_symmem_buffer(const struct shunt_coll *c, int nranks, unsigned i, const void **ptr_p, uint64_t *bytes_p)
{
	/* Ranks load their peers' inputs for a reduction and for a root that gathers; else they store into outputs. */
	bool reduces = shunt_kind_reduces(c->kind),
	     loads = reduces || shunt_kind_rows[c->kind].ranks == SHUNT_RANKS_TO_ROOT;
	unsigned n = c->kind == SHUNT_ALLREDUCE ? 2 : 1; /* every rank's part of the result goes to all */
	enum shunt_side side = loads && i == 0 ? SHUNT_SIDE_SEND : SHUNT_SIDE_RECV;

	/* The factor of a pre-multiplied sum is each rank's own: a rank that loads a peer's input does not know it. */
	if (i >= n || shunt_kind_is_p2p(c->kind) || (reduces && c->redop == SHUNT_PREMUL))
		return false;
	*ptr_p = side == SHUNT_SIDE_SEND ? c->send : c->recv;
	*bytes_p = shunt_coll_bytes(c) * shunt_kind_parts(c->kind, side, nranks);
	return true;
}

/* True for a gather and a scatter: only the root knows where the parts are in place. */
static bool has_parts_at_root(enum shunt_kind kind)
{
	return shunt_kind_has_root(kind) && shunt_kind_has_parts(kind);
}

const void *shunt_symmem_expected(const struct shunt_coll *c, int rank, int p, const void *ptr)
{
	const char *parts = shunt_kind_has_each(c->kind, SHUNT_SIDE_SEND) ? c->send : c->recv;

	if (has_parts_at_root(c->kind) && rank == c->root && shunt_coll_in_place(c, rank))
		return parts + shunt_coll_bytes(c) * (unsigned)p;
	return ptr;
}

/* For one buffer its offset; for several a number that hardly agrees by chance. */
static uint64_t mix_offset(uint64_t offsets, uint64_t offset)
{
	return offsets * 0x9e3779b97f4a7c15u + offset;
}

/* True: this rank knows where the others' buffers should be. In a gather or scatter only the root does. */
static bool knows_offsets(const struct shunt_coll *c, int rank)
{
	return rank == c->root || !has_parts_at_root(c->kind);
}

static void set_offsets(const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *const *calls, size_t ncalls,
    struct shunt_kargs_barrier *a)
{
	int n = enqueue->sel_key->nranks, rank = enqueue->base->rank;
	bool knows = true;

	for (size_t i = 0; i < ncalls; i++)
		knows = knows && knows_offsets(calls[i], rank);
	for (size_t i = 0; i < ncalls; i++) {
		const void *ptr = NULL;
		uint64_t bytes;

		for (unsigned k = 0; shunt_symmem_buffer(calls[i], n, k, &ptr, &bytes); k++) {
			a->own_place = mix_offset(a->own_place, enqueue->offset(enqueue->ctx, ptr));
			for (int p = 0; p < n && knows; p++)
				if (p != rank)
					a->peer_places[p] = mix_offset(a->peer_places[p],
					    enqueue->offset(
					        enqueue->ctx, shunt_symmem_expected(calls[i], rank, p, ptr)));
		}
	}
}

int shunt_barrier_enqueue(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *const *calls, size_t ncalls, uint32_t flags)
{
	struct shunt_work work;
	struct shunt_kargs_barrier *a = &work.args.barrier;

	work.kernel = SHUNT_KERNEL(SHUNT_SHAPE_barrier, 0, SHUNT_U8);
	work.blocks = 1;
	work.threads = 32;
	work.cluster = work.shared = 0;
	work.uncounted = !(flags & SHUNT_K_FIRST_BARRIER);
	*a = (struct shunt_kargs_barrier){ .k = *enqueue->base };
	a->k.flags = flags;
	if (flags & SHUNT_K_FIRST_BARRIER)
		set_offsets(enqueue, calls, ncalls, a);
	return enqueue->emit(enqueue->ctx, &work);
}
