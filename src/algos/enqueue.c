/* SPDX-License-Identifier: MIT */
/* From a group's calls on one communicator to launches. */
#include <errno.h>
#include <stdlib.h>
#include "algos/algos.h"
#include "base/log.h"

static int plan_enqueue(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions,
    const struct shunt_coll *const *calls, size_t ncalls)
{
	struct shunt_work work;
	int err = enqueue->plan_work(enqueue->ctx, decisions->u.exec, calls[0], &work);

	return err ? err : enqueue->emit(enqueue->ctx, &work);
}

const struct shunt_algo shunt_plan_algo = {
	.name = "plan",
	.doc = "an execution plan",
	.kind = SHUNT_NKINDS,
	.fuse = SHUNT_FUSE_NONE,
	.enqueue = plan_enqueue,
};

/*
 * True: b may share a launch with a. It depends on values that all ranks share; the factor of a pre-multiplied sum is
 * not one of them. Calls must fuse in the same way, those of SHUNT_FUSE_LL128 by the same algorithm; reductions also
 * need the same type and operator.
 */
static bool fuse(const struct shunt_coll *a, const struct shunt_decision *pa, const struct shunt_coll *b,
    const struct shunt_decision *pb)
{
	if (shunt_kind_is_p2p(a->kind) ||
	    shunt_kind_is_p2p(b->kind)) /* all messages share, or ranks might wait for each other */
		return shunt_kind_is_p2p(a->kind) && shunt_kind_is_p2p(b->kind);
	if (a->min_ctas != b->min_ctas || a->max_ctas != b->max_ctas || a->cta_policy != b->cta_policy)
		return false;
	if (pa->algo->fuse == SHUNT_FUSE_NONE || pa->algo->fuse != pb->algo->fuse)
		return false;
	if (shunt_kind_reduces(a->kind) != shunt_kind_reduces(b->kind)) /* SHUNT_FUSE_SYMMEM has both */
		return false;
	if (!shunt_kind_reduces(a->kind))
		return true;
	return a->dtype == b->dtype && a->redop == b->redop && a->redop != SHUNT_PREMUL &&
	    (pa->algo->fuse != SHUNT_FUSE_LL128 || pa->algo == pb->algo);
}

/* -EBADMSG: this rank's sends to itself and receives from itself do not pair up. */
static int check_self(const struct shunt_coll *const *calls, size_t n, int rank)
{
	int ahead = 0; /* sends minus receives */

	for (size_t i = 0; i < n; i++)
		if (shunt_kind_is_p2p(calls[i]->kind) && calls[i]->root == rank && calls[i]->count)
			ahead += calls[i]->kind == SHUNT_SEND ? 1 : -1;
	if (!ahead)
		return 0;
	shunt_warn("rank %d %s itself and does not %s itself in the same group", rank,
	    ahead > 0 ? "sends to" : "receives from", ahead > 0 ? "receive from" : "send to");
	return -EBADMSG;
}

/* Enqueues calls that share launches, within their own limits on blocks and the communicator's. */
static int enqueue_bin(struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions,
    const struct shunt_coll *const *calls, size_t n)
{
	const struct shunt_sel_key *key = enqueue->sel_key;
	struct shunt_limits *limits = &enqueue->limits;
	int err;

	*limits = (struct shunt_limits){ .key = key,
		.max_ctas = shunt_limit_min(key->max_ctas, calls[0]->max_ctas),
		.min_ctas = calls[0]->min_ctas,
		.few_ctas = calls[0]->cta_policy ? calls[0]->cta_policy & SHUNT_CTAS_FEW : key->few_ctas };
	/* A message's channels follow from its size alone, because its two ends may fuse it with different calls. */
	if (!shunt_kind_is_p2p(calls[0]->kind)) {
		int blocks = (int)shunt_grid_halve(limits->few_ctas, decisions->geometry.blocks);

		limits->max_ctas = shunt_limit_min(limits->max_ctas, blocks > limits->min_ctas ? blocks : 0);
		limits->max_threads = decisions->geometry.threads;
		limits->max_channels = decisions->geometry.channels;
	}
	enqueue->select = shunt_select;
	if (enqueue->begin && (err = enqueue->begin(enqueue->ctx, calls, n)))
		return err;
	return decisions->algo->enqueue(enqueue, decisions, calls, n);
}

/* Kernels number the ranks of an island. */
static int own_rank(const struct shunt_enqueue_ctx *enqueue)
{
	const struct shunt_topology *t = enqueue->sel_key->topology;

	return shunt_topology_is_split(t) ? t->rank : enqueue->base->rank;
}

int shunt_enqueue_calls(struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *const *calls,
    const struct shunt_decision *decisions, size_t n)
{
	const struct shunt_coll *inline_calls[SHUNT_INLINE_CALLS], **bin = inline_calls;
	struct shunt_decision inline_decisions[SHUNT_INLINE_CALLS], *bin_decisions = inline_decisions;
	bool inline_done[SHUNT_INLINE_CALLS] = { false }, *done = inline_done;
	int err = check_self(calls, n, own_rank(enqueue));
	size_t alike = 1;

	if (err || !n)
		return err;
	while (alike < n && fuse(calls[0], &decisions[0], calls[alike], &decisions[alike]))
		alike++;
	if (alike == n) /* the usual case: one launch for all */
		return enqueue_bin(enqueue, decisions, calls, n);
	if (n > SHUNT_INLINE_CALLS) {
		bin = malloc(n * sizeof(*bin));
		bin_decisions = malloc(n * sizeof(*bin_decisions));
		done = calloc(n, sizeof(*done));
		if (!bin || !bin_decisions || !done)
			err = -ENOMEM;
	}
	for (int p2p = 0; p2p < 2; p2p++)
		for (size_t i = 0; i < n && !err; i++) {
			size_t in = 0;

			if (done[i] || shunt_kind_is_p2p(calls[i]->kind) != p2p)
				continue;
			for (size_t k = i; k < n; k++)
				if (!done[k] && (k == i || fuse(calls[i], &decisions[i], calls[k], &decisions[k]))) {
					bin_decisions[in] = decisions[k];
					bin[in++] = calls[k];
					done[k] = true;
				}
			err = enqueue_bin(enqueue, bin_decisions, bin, in);
		}
	if (n > SHUNT_INLINE_CALLS) {
		free(bin);
		free(bin_decisions);
		free(done);
	}
	return err;
}

/* ---- for tools */

static int see_blocks(void *ctx, const struct shunt_work *work)
{
	unsigned *most = ctx;

	*most = work->blocks > *most ? work->blocks : *most;
	return 0;
}

unsigned shunt_select_blocks(
    const struct shunt_sel *sel, enum shunt_kind kind, enum shunt_dtype dtype, enum shunt_redop redop, uint64_t bytes)
{
	static _Alignas(16) char in[16], out[16]; /* addresses only: what is not aligned is sent otherwise */
	const struct shunt_sel_key *sel_key = sel->key;
	const struct shunt_limits limits = shunt_limits_of(sel_key);
	struct shunt_coll coll = { .kind = kind,
		.dtype = dtype,
		.redop = redop,
		.count = bytes / shunt_dtype_bytes[dtype],
		.root = 1,
		.send = in,
		.recv = out };
	const struct shunt_kargs base = { .nranks = (uint16_t)sel_key->nranks };
	const struct shunt_coll *calls[] = { &coll };
	struct shunt_decision decision = { 0 };
	struct shunt_work work;
	unsigned most = 0;
	struct shunt_enqueue_ctx enqueue = { .sel_key = sel_key, .base = &base, .emit = see_blocks, .ctx = &most };

	if (sel_key->nranks < 2 || shunt_topology_is_split(sel_key->topology) || !shunt_select(sel, &coll, &decision))
		return 0;
	if (decision.algo->copies)
		return 0;
	if (decision.algo->fuse == SHUNT_FUSE_SYMMEM) {
		if (!decision.algo->geometry)
			return 0;
		decision.algo->geometry(&limits, bytes, &work);
		return work.blocks;
	}
	return shunt_enqueue_calls(&enqueue, calls, &decision, 1) ? 0 : most;
}
