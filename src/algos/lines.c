/* SPDX-License-Identifier: MIT */
/* The algorithms by which all ranks hear from each other in every round: all-reduces and a reduce-scatter. */
#include <string.h>
#include "algos/algos.h"

static uint64_t units(uint64_t bytes)
{
	return (bytes + SHUNT_UNIT_DATA - 1) / SHUNT_UNIT_DATA;
}

static void oneshot_geometry(const struct shunt_scope *scope, uint64_t bytes, struct shunt_work *work)
{
	shunt_spread_wide(scope, units(bytes), work);
}

static void twoshot_geometry(const struct shunt_scope *scope, uint64_t bytes, struct shunt_work *work)
{
	shunt_spread_wide(scope, (units(bytes) + scope->nranks - 1) / scope->nranks, work);
}

/*
 * The kernel for a message of whole packs, if there is one for its size. Large reduce-scatters between two ranks are
 * faster by the general one.
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

static int issue_one(const struct shunt_issue *issue, const struct shunt_pick *pick, const struct shunt_coll *coll)
{
	struct shunt_work work;
	struct shunt_kargs *k = &work.args.k;
	uint64_t bytes = shunt_coll_bytes(coll),
	         part = coll->kind == SHUNT_REDUCESCATTER ? bytes : 0; /* where each rank's part begins */

	work.kernel = pick->kernel;
	*k = *issue->base;
	k->send = coll->send;
	k->recv = coll->recv;
	k->count = coll->count;
	k->scalar = pick->scalar;
	k->flags = pick->flags;
	k->root = (uint32_t)coll->root;
	if (!(((uintptr_t)coll->send | (uintptr_t)coll->recv | part) & 15))
		k->flags |= SHUNT_K_ALIGNED;
	if ((k->flags & SHUNT_K_ALIGNED) && !(bytes & 15))
		work.kernel = packs_kernel(work.kernel, bytes);
	pick->algo->geometry(issue->scope, bytes, &work);
	return issue->emit(issue->ctx, &work);
}

/* Two ranks have nothing to share out, and no slots for a second hop: they always take one. */
static const struct shunt_algo *lines_algo(const struct shunt_scope *scope, const struct shunt_algo *algo)
{
	return scope->nranks == 2 && algo->among == SHUNT_AMONG_MORE ? shunt_lines_algos : algo;
}

/* Up to SHUNT_FEW_MESSAGES calls in one launch, as if they were one message of their sizes' sum. */
static int issue_few(const struct shunt_issue *issue, const struct shunt_pick *pick,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	const struct shunt_scope *scope = issue->scope;
	struct shunt_coll all = *calls[0];
	struct shunt_pick sum = *pick;
	struct shunt_work work;
	struct shunt_kargs_few *few = &work.args.few;
	uint32_t sum_units = 0;
	enum shunt_why why;

	few->k = *issue->base;
	few->k.scalar = pick->scalar;
	few->k.flags = pick->flags;
	memset(few->unit, 0xff, sizeof(few->unit));
	for (size_t i = 0; i < ncalls; i++) {
		size_t bytes = shunt_coll_bytes(calls[i]);

		few->message[i] =
		    (struct shunt_message){ .from = calls[i]->send, .to = calls[i]->recv, .bytes = bytes };
		few->unit[i] = sum_units;
		sum_units += (uint32_t)units(bytes);
	}
	few->unit[SHUNT_FEW_MESSAGES] = sum_units;
	/* Each message has its own units: count the last one as full. */
	all.count = (size_t)sum_units * SHUNT_UNIT_DATA / shunt_dtype_bytes[all.dtype];
	if (!shunt_select(scope, &all, &sum, &why) || sum.algo->fuse != SHUNT_FUSE_LINES)
		sum = *pick;
	sum.algo = lines_algo(scope, sum.algo);
	work.kernel = SHUNT_KERNEL(sum.algo->few[(scope->nranks > 2) + (scope->nranks > 4)], SHUNT_KOP_SUM, all.dtype);
	sum.algo->geometry(scope, all.count * shunt_dtype_bytes[all.dtype], &work);
	return issue->emit(issue->ctx, &work);
}

static int lines_issue(const struct shunt_issue *issue, const struct shunt_pick *pick,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	const struct shunt_coll *c = calls[0];
	bool few = ncalls > 1 && shunt_algo_hot(c->redop, c->dtype);
	size_t step = few ? SHUNT_FEW_MESSAGES : 1;
	const struct shunt_algo *algo = lines_algo(issue->scope, pick->algo);
	struct shunt_pick one_hop;
	int err = 0;

	if (algo != pick->algo) {
		one_hop = *pick;
		one_hop.algo = algo;
		one_hop.kernel = shunt_algo_kernel(algo, c->kind, 2, c->redop, c->dtype);
		pick = &one_hop;
	}
	for (size_t i = 0; i < ncalls && !err; i += step)
		err = few && i + 1 < ncalls ? issue_few(issue, pick, calls + i, ncalls - i < step ? ncalls - i : step) :
		                              issue_one(issue, pick, calls[i]);
	return err;
}

/* A swap. Several calls are an exchange, which has one launch for all. */
static int swap_issue(const struct shunt_issue *issue, const struct shunt_pick *picks,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	const struct shunt_coll *c = calls[0];
	uint64_t bytes = shunt_coll_bytes(c);
	struct shunt_work work;
	struct shunt_kargs *k = &work.args.k;

	if (ncalls > 1 || issue->scope->nranks != 2)
		return shunt_exchange_issue(issue, picks, calls, ncalls);
	work.kernel = SHUNT_KERNEL(
	    picks->algo->shapes[0], SHUNT_KOP_COPY, shunt_copy_type((uintptr_t)c->send | (uintptr_t)c->recv | bytes));
	*k = *issue->base;
	k->send = c->send;
	k->recv = c->recv;
	k->part = bytes;
	k->flags = picks->flags;
	picks->algo->geometry(issue->scope, bytes, &work);
	return issue->emit(issue->ctx, &work);
}

#define SWAP(which, shape, text) \
	{ .name = "swap", \
		.doc = "two ranks: " text, \
		.kind = which, \
		.fuse = SHUNT_FUSE_COPY, \
		.shapes = { shape, shape, shape }, \
		.geometry = oneshot_geometry, \
		.issue = swap_issue, \
		.among = SHUNT_AMONG_TWO }
const struct shunt_algo shunt_lines_algos[] = {
	/* first the one-shot all-reduce, then the two-shot one */
	{ .name = "oneshot",
	    .doc = "every rank sends all it has to all, each reduces everything; one hop",
	    .kind = SHUNT_ALLREDUCE,
	    .fuse = SHUNT_FUSE_LINES,
	    .shapes = { SHUNT_SHAPE_oneshot2, SHUNT_SHAPE_oneshot4, SHUNT_SHAPE_oneshot8 },
	    .few = { SHUNT_SHAPE_oneshot2_few, SHUNT_SHAPE_oneshot4_few, SHUNT_SHAPE_oneshot8_few },
	    .geometry = oneshot_geometry,
	    .issue = lines_issue },
	{ .name = "twoshot",
	    .doc = "reduce-scatter, then all-gather, flags in the data; two hops",
	    .kind = SHUNT_ALLREDUCE,
	    .fuse = SHUNT_FUSE_LINES,
	    .shapes = { SHUNT_SHAPE_twoshot4, SHUNT_SHAPE_twoshot4, SHUNT_SHAPE_twoshot8 },
	    .few = { SHUNT_SHAPE_twoshot4_few, SHUNT_SHAPE_twoshot4_few, SHUNT_SHAPE_twoshot8_few },
	    .geometry = twoshot_geometry,
	    .issue = lines_issue,
	    .among = SHUNT_AMONG_MORE },
	{ .name = "oneshot",
	    .doc = "every rank sends to each its part, which that one reduces; one hop",
	    .kind = SHUNT_REDUCESCATTER,
	    .fuse = SHUNT_FUSE_LINES,
	    .shapes = { SHUNT_SHAPE_reduce_scatter2, SHUNT_SHAPE_reduce_scatter4, SHUNT_SHAPE_reduce_scatter8 },
	    .few = { SHUNT_SHAPE_reduce_scatter2_few, SHUNT_SHAPE_reduce_scatter4_few,
	        SHUNT_SHAPE_reduce_scatter8_few },
	    .geometry = oneshot_geometry,
	    .issue = lines_issue },
	SWAP(SHUNT_ALLGATHER, SHUNT_SHAPE_swap,
	    "a channel sends its lines of our part, and stores those of the other's"),
	SWAP(SHUNT_ALLTOALL, SHUNT_SHAPE_swap_parts,
	    "a channel sends its lines of the other's part, and stores those of ours"),
	{ 0 },
};

int shunt_reduce_in_two(const struct shunt_issue *issue, const struct shunt_pick *pick, const struct shunt_coll *coll)
{
	struct shunt_pick two = *pick;
	struct shunt_coll c = *coll;

	two.algo = &shunt_lines_algos[1];
	two.kernel = shunt_algo_kernel(two.algo, SHUNT_ALLREDUCE, issue->scope->nranks, c.redop, c.dtype);
	two.flags |= SHUNT_K_TO_ROOT;
	if (c.root != issue->base->rank)
		c.recv = NULL; /* means nothing */
	return issue_one(issue, &two, &c);
}
