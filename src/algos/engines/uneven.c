/* SPDX-License-Identifier: MIT */
/*
 * Groups of a broadcast, or of a reduce, for each root: all-gathers and reduce-scatters whose parts differ from rank to
 * rank, as expert parallel programs and PyTorch's uneven collectives make them. One launch does the whole group in one
 * hop (kernels/uneven.cu).
 */
#include <string.h>
#include "algos/algos.h"

const struct shunt_algo shunt_allgatherv_algo = { .name = "allgatherv",
	.doc = "a group of broadcasts: every rank sends its part to all, in one launch",
	.kind = SHUNT_BROADCAST,
	.fuse = SHUNT_FUSE_UNEVEN,
	.geometry = shunt_oneshot_geometry,
	.enqueue = shunt_uneven_enqueue };
const struct shunt_algo shunt_reduce_scatterv_algo = { .name = "reduce_scatterv",
	.doc = "a group of reduces: every rank sends part r to rank r, which reduces, in one launch",
	.kind = SHUNT_REDUCE,
	.fuse = SHUNT_FUSE_UNEVEN,
	.geometry = shunt_oneshot_geometry,
	.enqueue = shunt_uneven_enqueue };

/* The call becomes a part. Returns its address bits that the kernel reads or writes here. */
static uint64_t add_part(struct shunt_kargs_few *few, const struct shunt_coll *c)
{
	struct shunt_message *m = &few->message[c->root];
	bool root = c->root == few->k.rank, reduces = shunt_kind_reduces(c->kind);
	uint32_t slots;

	m->bytes = shunt_coll_bytes(c);
	m->from = reduces || root ? c->send : NULL;
	m->to = !reduces || root ? c->recv : NULL;
	slots = (uint32_t)((m->bytes + SHUNT_LL128_SLOT_DATA - 1) / SHUNT_LL128_SLOT_DATA);
	few->first_slot[c->root] = slots;
	if (slots > few->first_slot[SHUNT_FEW_MESSAGES])
		few->first_slot[SHUNT_FEW_MESSAGES] = slots;
	return (uintptr_t)m->from | (uintptr_t)m->to | m->bytes;
}

static int emit_parts(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *first, uint64_t align, struct shunt_work *work)
{
	bool four = enqueue->sel_key->nranks == 3 || enqueue->sel_key->nranks == 4;

	if (shunt_kind_reduces(first->kind))
		work->kernel = SHUNT_KERNEL(
		    four ? SHUNT_SHAPE_reduce_scatterv4 : SHUNT_SHAPE_reduce_scatterv8, SHUNT_KOP_SUM, first->dtype);
	else
		work->kernel = SHUNT_KERNEL(four ? SHUNT_SHAPE_allgatherv4 : SHUNT_SHAPE_allgatherv8, SHUNT_KOP_COPY,
		    align & 15 ? SHUNT_U8 : SHUNT_I64);
	shunt_oneshot_geometry(
	    &enqueue->limits, (uint64_t)work->args.few.first_slot[SHUNT_FEW_MESSAGES] * SHUNT_LL128_SLOT_DATA, work);
	return enqueue->emit(enqueue->ctx, work);
}

/* A second call of one root begins a second launch. */
int shunt_uneven_enqueue(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	struct shunt_work work;
	struct shunt_kargs_few *few = &work.args.few;
	int err = 0;

	for (size_t i = 0; i < ncalls && !err;) {
		const struct shunt_coll *first = calls[i];
		uint32_t roots = 0;
		uint64_t align = 0;

		memset(few, 0, sizeof(*few));
		few->k = *enqueue->base;
		shunt_algo_set_op(&few->k, &decisions[i], first);
		for (; i < ncalls && !(roots >> calls[i]->root & 1); i++) {
			roots |= 1u << calls[i]->root;
			align |= add_part(few, calls[i]);
		}
		err = emit_parts(enqueue, first, align, &work);
	}
	return err;
}
