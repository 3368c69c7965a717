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
	uint64_t part = shunt_coll_bytes(c), all = part * (unsigned)nranks;
	struct {
		const void *ptr;
		uint64_t bytes;
	} buffers[2] = { { 0 } };
	unsigned n = 1;

	/* The factor of a pre-multiplied sum is each rank's own: a rank that loads a peer's input does not know it. */
	if (shunt_kind_reduces(c->kind) && c->redop == SHUNT_PREMUL)
		return false;
	buffers[0].ptr = c->send;
	buffers[0].bytes = part;
	switch (c->kind) {
	case SHUNT_ALLGATHER:
	case SHUNT_ALLTOALL:
		buffers[0].ptr = c->recv;
		buffers[0].bytes = all;
		break;
	case SHUNT_BROADCAST:
	case SHUNT_SCATTER:
		buffers[0].ptr = c->recv;
		break;
	case SHUNT_REDUCESCATTER:
		buffers[0].bytes = all;
		break;
	case SHUNT_ALLREDUCE:
		buffers[n].ptr = c->recv;
		buffers[n++].bytes = part;
		break;
	case SHUNT_GATHER:
	case SHUNT_REDUCE:
		break;
	default:
		return false;
	}
	if (i >= n)
		return false;
	*ptr_p = buffers[i].ptr;
	*bytes_p = buffers[i].bytes;
	return true;
}

const void *shunt_symmem_expected(const struct shunt_coll *c, int rank, int p, const void *ptr)
{
	const char *send = c->send, *recv = c->recv;
	uint64_t part = shunt_coll_bytes(c), own = part * (unsigned)rank, theirs = part * (unsigned)p;

	if (c->kind == SHUNT_SCATTER && rank == c->root && recv == send + own)
		return send + theirs;
	if (c->kind == SHUNT_GATHER && rank == c->root && send == recv + own)
		return recv + theirs;
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
	return rank == c->root || (c->kind != SHUNT_GATHER && c->kind != SHUNT_SCATTER);
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
	*a = (struct shunt_kargs_barrier){ .k = *enqueue->base };
	a->k.flags = flags;
	if (flags & SHUNT_K_FIRST_BARRIER)
		set_offsets(enqueue, calls, ncalls, a);
	return enqueue->emit(enqueue->ctx, &work);
}
