/* SPDX-License-Identifier: MIT */
#include "algos/ep/low_latency.h"
#include <errno.h>
#include "algos/algos.h"
#include "kernels/ep.h"

_Static_assert((int)SHUNT_EP_AS_IS == SHUNT_EP_FORM_AS_IS && (int)SHUNT_EP_FP8 == SHUNT_EP_FORM_FP8 &&
        (int)SHUNT_EP_FP8_ROUND == SHUNT_EP_FORM_FP8_ROUND && (int)SHUNT_EP_FP8_UE8M0 == SHUNT_EP_FORM_FP8_UE8M0,
    "kernels know the forms by the same numbers");

/* What both kinds of calls say. */
struct sizes {
	uint32_t phases;
	int64_t tokens, max_tokens, hidden, topk, experts, blocks;
};

static int check_sizes(const struct shunt_ep_room *room, const struct sizes *s, struct shunt_ep_why *why)
{
	int err = shunt_ep_check_range(why, "phases", s->phases, 1, SHUNT_EP_SEND | SHUNT_EP_RECEIVE);

	if (!err)
		err = shunt_ep_check_range(why, "max_tokens", s->max_tokens, 1, SHUNT_EP_MAX_LL_TOKENS);
	if (!err)
		err = shunt_ep_check_range(why, "tokens", s->tokens, 0, s->max_tokens);
	if (!err)
		err = shunt_ep_check_range(why, "hidden", s->hidden, 8, SHUNT_EP_MAX_LL_HIDDEN);
	if (!err && s->hidden % 8)
		err = shunt_ep_refuse(why, -EINVAL, "hidden is %lld, which is no multiple of 8", (long long)s->hidden);
	if (!err)
		err = shunt_ep_check_range(why, "topk", s->topk, 1, room->most_topk);
	if (!err)
		err = shunt_ep_check_experts(why, s->experts, room->nranks);
	if (!err)
		err = shunt_ep_check_range(why, "blocks", s->blocks, 0, SHUNT_MAX_BLOCKS);
	return err;
}

/* As many blocks as may run at a time, or as the call says. On the sim few suffice. */
static void choose_grid(const struct shunt_ep_room *room, int64_t blocks, struct shunt_work *work)
{
	struct shunt_limits limits = shunt_limits_of(room->key);

	limits.min_ctas = (int)blocks;
	limits.max_ctas = shunt_limit_min(limits.max_ctas, (int)blocks);
	if (blocks && room->key->sim)
		shunt_grid_fit(&limits, UINT32_MAX, shunt_grid_max_blocks(&limits), 2, work);
	else
		shunt_grid_fit_wide(&limits, UINT32_MAX, work);
}

/*
 * Twice the blocks, of half the threads each: they find room wherever the others do, and spread over all
 * multiprocessors. Not where something bounds their number.
 */
static void spread(const struct shunt_ep_room *room, const struct sizes *s, struct shunt_work *work)
{
	if (room->key->sim || room->hosts || s->blocks || room->key->max_ctas || room->key->few_ctas ||
	    work->threads % 64)
		return;
	work->blocks *= 2;
	work->threads /= 2;
}

/*
 * A launch of both phases: half of its blocks send, and the others receive meanwhile. Over hosts all blocks do both, as
 * they share stages by number. False: the launch stays as it is.
 */
static bool share(const struct shunt_ep_room *room, const struct sizes *s, struct shunt_work *work)
{
	if (room->hosts || s->phases != (SHUNT_EP_SEND | SHUNT_EP_RECEIVE))
		return false;
	spread(room, s, work);
	work->args.ep_ll.senders = work->blocks / 2;
	return true;
}

/* Heads and rows must fit. */
static int check_room(const struct shunt_ep_room *room, const struct sizes *s, struct shunt_ep_why *why)
{
	uint64_t needed = shunt_ep_ll_needed(room, s->max_tokens, s->hidden);

	return needed <= room->ll_bytes ?
	    0 :
	    shunt_ep_refuse(why, -ENOSPC,
	        "calls of %lld tokens of %lld elements need %llu bytes of low latency memory, and the group has %llu",
	        (long long)s->max_tokens, (long long)s->hidden, (unsigned long long)needed,
	        (unsigned long long)room->ll_bytes);
}

/* Fills in what both kinds have. key: an address, or NULL where a call has no data. */
static void begin_work(
    const struct shunt_ep_room *room, const struct sizes *s, const void *key, struct shunt_work *work)
{
	struct shunt_kargs_ep_ll *a = &work->args.ep_ll;

	if (room->hosts)
		work->args.ep_hosts.hosts = *room->hosts;
	choose_grid(room, s->blocks, work);
	*a = (struct shunt_kargs_ep_ll){ .ll_at = shunt_ep_ll_at(room),
		.unit = shunt_ep_ll_unit(room),
		.weights_at = room->rank_sums ? shunt_ep_weights_at(room) : 0,
		.key = (uintptr_t)key | 1,
		.tokens = (uint32_t)s->tokens,
		.max_tokens = (uint32_t)s->max_tokens,
		.hidden = (uint32_t)s->hidden,
		.experts = (uint32_t)s->experts,
		.topk = (uint16_t)s->topk,
		.most_topk = (uint8_t)room->most_topk };
	a->k.flags = (room->flags & SHUNT_EP_MASKS ? SHUNT_K_EP_MASKS : 0) |
	    (s->phases & SHUNT_EP_SEND ? SHUNT_K_EP_SEND : 0) | (s->phases & SHUNT_EP_RECEIVE ? SHUNT_K_EP_RECEIVE : 0);
}

static uint32_t aligned_flag(const void *a, const void *b)
{
	return ((uintptr_t)a | (uintptr_t)b) % 16 ? 0 : SHUNT_K_ALIGNED;
}

static int check_form(int form, int64_t hidden, struct shunt_ep_why *why)
{
	int err = shunt_ep_check_range(why, "form", form, SHUNT_EP_AS_IS, SHUNT_EP_FP8_UE8M0);
	int64_t multiple = form == SHUNT_EP_FP8_UE8M0 ? 512 : 128;

	if (!err && form != SHUNT_EP_AS_IS && hidden % multiple)
		err = shunt_ep_refuse(why, -EINVAL,
		    "hidden is %lld, and for this form of rows it must be a multiple of %lld", (long long)hidden,
		    (long long)multiple);
	return err;
}

int shunt_ep_ll_dispatch_work(const struct shunt_ep_room *room, const struct shunt_ep_ll_dispatch *c,
    struct shunt_work *work, struct shunt_ep_why *why)
{
	struct sizes s = { c->phases, c->tokens, c->max_tokens, c->hidden, c->topk, c->experts, c->blocks };
	static const char *const names[] = { "recv_x", "count", "src_idx", "ranges", "routing", "recv_scales", "x",
		"topk_idx" };
	const void *pointers[] = { c->recv_x, c->count, c->src_idx, c->ranges, c->routing,
		c->form == SHUNT_EP_AS_IS ? c->recv_x : c->recv_scales, c->tokens ? c->x : c->recv_x,
		c->tokens ? (const void *)c->topk_idx : c->recv_x };
	struct shunt_kargs_ep_ll *a = &work->args.ep_ll;
	int err = check_sizes(room, &s, why);

	if (!err)
		err = check_form(c->form, c->hidden, why);
	if (!err)
		err = check_room(room, &s, why);
	if (!err)
		err = shunt_ep_check_pointers(why, names, pointers, sizeof(names) / sizeof(names[0]));
	if (err)
		return err;
	begin_work(room, &s, c->recv_x, work);
	work->kernel =
	    SHUNT_KERNEL(room->hosts ? SHUNT_SHAPE_ep_ll_dispatch_hosts : SHUNT_SHAPE_ep_ll_dispatch, 0, SHUNT_U8);
	a->k.flags |= aligned_flag(c->x, c->recv_x);
	a->k.send = c->x;
	a->k.recv = c->recv_x;
	a->topk_idx = c->topk_idx;
	a->recv_scales = c->recv_scales;
	a->count = c->count;
	a->src_idx = c->src_idx;
	a->ranges = c->ranges;
	a->routing = c->routing;
	a->stats = c->stats;
	a->wait_ns = c->wait_ns;
	a->form = (uint8_t)c->form;
	a->scales = c->form == SHUNT_EP_AS_IS ? 0 : a->hidden / (c->form == SHUNT_EP_FP8_UE8M0 ? 512 : 128);
	a->row_bytes = c->form == SHUNT_EP_AS_IS ? 2 * a->hidden : a->hidden + 4 * a->scales;
	share(room, &s, work);
	return 0;
}

int shunt_ep_ll_combine_work(const struct shunt_ep_room *room, const struct shunt_ep_ll_combine *c,
    struct shunt_work *work, struct shunt_ep_why *why)
{
	struct sizes s = { c->phases, c->tokens, c->max_tokens, c->hidden, c->topk, c->experts, c->blocks };
	static const char *const names[] = { "x", "src_idx", "ranges", "routing", "topk_idx", "topk_weights", "out" };
	const void *pointers[] = { c->x, c->src_idx, c->ranges, c->routing,
		c->tokens ? (const void *)c->topk_idx : c->x, c->tokens ? (const void *)c->topk_weights : c->x,
		c->tokens ? c->out : c->x };
	struct shunt_kargs_ep_ll *a = &work->args.ep_ll;
	int err = check_sizes(room, &s, why);

	if (!err && c->dtype != SHUNT_F16 && c->dtype != SHUNT_BF16)
		err = shunt_ep_refuse(why, -EINVAL, "dtype is %d, and must be %d (float16) or %d (bfloat16)", c->dtype,
		    SHUNT_F16, SHUNT_BF16);
	if (!err)
		err = check_room(room, &s, why);
	if (!err)
		err = shunt_ep_check_pointers(why, names, pointers, sizeof(names) / sizeof(names[0]));
	if (err)
		return err;
	begin_work(room, &s, c->out, work);
	work->kernel = SHUNT_KERNEL(room->hosts ? SHUNT_SHAPE_ep_ll_combine_hosts :
	        room->rank_sums                 ? SHUNT_SHAPE_ep_ll_combine_sums :
	                                          SHUNT_SHAPE_ep_ll_combine,
	    SHUNT_KOP_SUM, (unsigned)c->dtype);
	a->k.flags |= aligned_flag(c->x, c->out);
	a->k.send = c->x;
	a->k.recv = c->out;
	a->topk_idx = c->topk_idx;
	a->topk_weights = c->topk_weights;
	a->src_idx = (int32_t *)c->src_idx;
	a->ranges = (int64_t *)c->ranges;
	a->routing = (int16_t *)c->routing;
	a->wait_ns = c->wait_ns;
	a->row_bytes = 2 * a->hidden;
	/* Rows that are sums wait for weights first, so all blocks do both. */
	if ((room->rank_sums || !share(room, &s, work)) && s.max_tokens >= work->blocks)
		spread(room, &s, work);
	return 0;
}
