/* SPDX-License-Identifier: MIT */
/*
 * Algorithms in which all ranks hear from each other in every round: all-reduces, a reduce-scatter, and pairwise
 * exchanges.
 */
#include <string.h>
#include "algos/algos.h"

static uint64_t slots(const struct shunt_sel_key *key, uint64_t bytes)
{
	return key->staged ? (bytes + SHUNT_SECTOR_SLOT_DATA - 1) / SHUNT_SECTOR_SLOT_DATA :
	                     (bytes + SHUNT_LL128_SLOT_DATA - 1) / SHUNT_LL128_SLOT_DATA;
}

void shunt_oneshot_geometry(const struct shunt_limits *limits, uint64_t bytes, struct shunt_work *work)
{
	shunt_grid_fit_wide(limits, slots(limits->key, bytes), work);
}

void shunt_twoshot_geometry(const struct shunt_limits *limits, uint64_t bytes, struct shunt_work *work)
{
	shunt_grid_fit_wide(limits, (slots(limits->key, bytes) + limits->key->nranks - 1) / limits->key->nranks, work);
}

/*
 * The kernel for messages of whole packs, if there is one for this size. Between two ranks the general kernel is faster
 * for large reduce-scatters.
 */
static unsigned packs_kernel(unsigned kernel, uint64_t bytes)
{
	static const struct {
		enum shunt_shape shape;
		uint64_t upto;
	} packs[SHUNT_NSHAPES] = {
		[SHUNT_SHAPE_oneshot2] = { SHUNT_SHAPE_oneshot2_packs, UINT64_MAX },
		[SHUNT_SHAPE_oneshot4] = { SHUNT_SHAPE_oneshot4_packs, UINT64_MAX },
		[SHUNT_SHAPE_twoshot4] = { SHUNT_SHAPE_twoshot4_packs, UINT64_MAX },
		[SHUNT_SHAPE_reduce_scatter2] = { SHUNT_SHAPE_reduce_scatter2_packs, 1 << 20 },
		[SHUNT_SHAPE_reduce_scatter4] = { SHUNT_SHAPE_reduce_scatter4_packs, UINT64_MAX },
	};
	const unsigned shape = SHUNT_SHAPE_OF(kernel);

	if (!packs[shape].upto || bytes > packs[shape].upto)
		return kernel;
	return kernel - SHUNT_KERNEL(shape, 0, 0) + SHUNT_KERNEL(packs[shape].shape, 0, 0);
}

static int enqueue_one(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision, const struct shunt_coll *coll)
{
	struct shunt_work work;
	struct shunt_kargs *k = &work.args.k;
	uint64_t bytes = shunt_coll_bytes(coll),
	         part = shunt_kind_has_each(coll->kind, SHUNT_SIDE_SEND) ? bytes : 0; /* of the input */

	work.kernel = decision->kernel;
	*k = *enqueue->base;
	k->send = coll->send;
	k->recv = coll->recv;
	k->count = coll->count;
	shunt_algo_set_op(k, decision, coll);
	k->root = (uint32_t)coll->root;
	if (!(((uintptr_t)coll->send | (uintptr_t)coll->recv | part) & 15))
		k->flags |= SHUNT_K_ALIGNED;
	if ((k->flags & SHUNT_K_ALIGNED) && !(bytes & 15))
		work.kernel = packs_kernel(work.kernel, bytes);
	decision->algo->geometry(&enqueue->limits, bytes, &work);
	return enqueue->emit(enqueue->ctx, &work);
}

/* Two ranks have no work to divide, and no slots for a second hop: they run the row that this one uses. */
static const struct shunt_algo *ll128_algo(const struct shunt_sel_key *sel_key, const struct shunt_algo *algo)
{
	return sel_key->nranks == 2 && algo->among == SHUNT_AMONG_MORE ? algo->uses : algo;
}

/* Up to SHUNT_FEW_MESSAGES calls in one launch, which has the geometry of one message of their total size. */
static int enqueue_few(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	const struct shunt_sel_key *sel_key = enqueue->sel_key;
	struct shunt_coll all = *calls[0];
	struct shunt_decision sum = *decision;
	struct shunt_work work;
	struct shunt_kargs_few *few = &work.args.few;
	uint32_t sum_slots = 0;

	few->k = *enqueue->base;
	shunt_algo_set_op(&few->k, decision, calls[0]);
	memset(few->first_slot, 0xff, sizeof(few->first_slot));
	for (size_t i = 0; i < ncalls; i++) {
		size_t bytes = shunt_coll_bytes(calls[i]);

		few->message[i] =
		    (struct shunt_message){ .from = calls[i]->send, .to = calls[i]->recv, .bytes = bytes };
		few->first_slot[i] = sum_slots;
		sum_slots += (uint32_t)slots(sel_key, bytes);
	}
	few->first_slot[SHUNT_FEW_MESSAGES] = sum_slots;
	/* Each message has slots of its own: count the last slot as full. */
	all.count = (size_t)sum_slots * shunt_slot_data(sel_key) / shunt_dtype_bytes[all.dtype];
	if (!enqueue->select(&(struct shunt_sel){ .key = sel_key }, &all, &sum) || sum.algo->fuse != SHUNT_FUSE_LL128)
		sum = *decision;
	sum.algo = ll128_algo(sel_key, sum.algo);
	work.kernel =
	    SHUNT_KERNEL(sum.algo->few[(sel_key->nranks > 2) + (sel_key->nranks > 4)], SHUNT_KOP_SUM, all.dtype);
	sum.algo->geometry(&enqueue->limits, all.count * shunt_dtype_bytes[all.dtype], &work);
	return enqueue->emit(enqueue->ctx, &work);
}

int shunt_ll128_enqueue(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	const struct shunt_coll *c = calls[0];
	bool few = ncalls > 1 && shunt_algo_hot(c->redop, c->dtype);
	size_t step = few ? SHUNT_FEW_MESSAGES : 1;
	const struct shunt_algo *algo = ll128_algo(enqueue->sel_key, decision->algo);
	struct shunt_decision one_hop;
	int err = 0;

	if (algo != decision->algo) {
		one_hop = *decision;
		one_hop.algo = algo;
		one_hop.kernel = shunt_algo_kernel(algo, c->kind, 2, c->redop, c->dtype);
		decision = &one_hop;
	}
	for (size_t i = 0; i < ncalls && !err; i += step)
		err = few && i + 1 < ncalls ?
		    enqueue_few(enqueue, decision, calls + i, ncalls - i < step ? ncalls - i : step) :
		    enqueue_one(enqueue, decision, calls[i]);
	return err;
}

/* One call by an exchange. Several calls go to the p2p engine, which has one launch for all. */
int shunt_pairwise_enqueue(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	const struct shunt_coll *c = calls[0];
	uint64_t bytes = shunt_coll_bytes(c);
	struct shunt_work work;
	struct shunt_kargs *k = &work.args.k;

	if (ncalls > 1 || (enqueue->sel_key->nranks == 2) != (decisions->algo->among == SHUNT_AMONG_TWO))
		return shunt_p2p_enqueue(enqueue, decisions, calls, ncalls);
	work.kernel = SHUNT_KERNEL(decisions->algo->shapes[1 + (enqueue->sel_key->nranks > 4)], SHUNT_KOP_COPY,
	    shunt_copy_type((uintptr_t)c->send | (uintptr_t)c->recv | bytes));
	*k = *enqueue->base;
	k->send = c->send;
	k->recv = c->recv;
	k->part = bytes;
	k->flags = decisions->flags;
	decisions->algo->geometry(&enqueue->limits, bytes, &work);
	return enqueue->emit(enqueue->ctx, &work);
}

int shunt_reduce_twoshot(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision, const struct shunt_coll *coll)
{
	struct shunt_decision two = *decision;
	struct shunt_coll c = *coll;

	two.algo = decision->algo->uses;
	two.kernel = shunt_algo_kernel(two.algo, SHUNT_ALLREDUCE, enqueue->sel_key->nranks, c.redop, c.dtype);
	two.flags |= SHUNT_K_TO_ROOT;
	if (c.root != enqueue->base->rank)
		c.recv = NULL; /* only the root has one */
	return enqueue_one(enqueue, &two, &c);
}
