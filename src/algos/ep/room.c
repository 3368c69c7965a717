/* SPDX-License-Identifier: MIT */
#include "algos/ep/room.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include "kernels/ep.h"

#define RING_SLOTS 4u     /* rows in a ring of normal mode */
#define BLOCK_CHANNELS 7u /* of a block that sends: its warps but one */

int shunt_ep_refuse(struct shunt_ep_why *why, int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why->text, sizeof(why->text), fmt, ap);
	va_end(ap);
	return err;
}

int shunt_ep_check_range(struct shunt_ep_why *why, const char *name, int64_t value, int64_t from, int64_t to)
{
	if (value >= from && value <= to)
		return 0;
	return shunt_ep_refuse(why, -EINVAL, "%s is %lld, which is not between %lld and %lld", name, (long long)value,
	    (long long)from, (long long)to);
}

int shunt_ep_check_experts(struct shunt_ep_why *why, int64_t experts, int nranks)
{
	int err = shunt_ep_check_range(why, "experts", experts, 1, SHUNT_EP_MAX_EXPERTS);

	if (!err && experts % nranks)
		err = shunt_ep_refuse(
		    why, -EINVAL, "experts is %lld, which is no multiple of %d ranks", (long long)experts, nranks);
	return err;
}

static uint64_t up_to(uint64_t bytes, uint64_t multiple)
{
	return (bytes + multiple - 1) / multiple * multiple;
}

static int most_topk(int topk)
{
	return topk ? topk : SHUNT_EP_MAX_TOPK;
}

/* A group of one rank has no peers, and no rings. */
static uint64_t normal_bytes(const struct shunt_ep_shape *s)
{
	uint64_t slot = up_to((uint64_t)s->hidden * (uint64_t)s->element_bytes +
	        4 * up_to((uint64_t)s->hidden, 128) / 128 + 6 * (uint64_t)most_topk(s->topk) + 16,
	    128);
	uint64_t channels = up_to((uint64_t)s->blocks, 2) / 2 * BLOCK_CHANNELS;

	return s->blocks ? SHUNT_EP_NOTIFY_BYTES(s->nranks) + channels * (uint64_t)(s->nranks - 1) * RING_SLOTS * slot :
	                   0;
}

/* Sets of both kinds, each with a unit for a rank or for a place among a token's experts. */
static uint64_t units(int nranks, int topk)
{
	return 2 * (uint64_t)(nranks + most_topk(topk));
}

static uint64_t ll_bytes(const struct shunt_ep_shape *s)
{
	uint64_t tokens = (uint64_t)s->ll_tokens;
	uint64_t head = shunt_ep_wire(SHUNT_EP_HEAD_BYTES + tokens * (uint64_t)most_topk(s->topk) * 2);
	uint64_t unit = head + tokens * shunt_ep_wire((uint64_t)s->hidden * 2);

	return tokens ? units(s->nranks, s->topk) * unit : 0;
}

int shunt_ep_room_needed(const struct shunt_ep_shape *s, uint64_t *normal_p, uint64_t *ll_p, struct shunt_ep_why *why)
{
	int err = shunt_ep_check_range(why, "nranks", s->nranks, 1, SHUNT_KARGS_MAX_RANKS);

	if (!err)
		err = shunt_ep_check_range(why, "topk", s->topk, 0, SHUNT_EP_MAX_TOPK);
	if (!err)
		err = shunt_ep_check_range(why, "hidden", s->hidden, 1, 1 << 24);
	if (!err)
		err = shunt_ep_check_range(why, "element_bytes", s->element_bytes, 1, 8);
	if (!err)
		err = shunt_ep_check_range(why, "ll_tokens", s->ll_tokens, 0, SHUNT_EP_MAX_LL_TOKENS);
	if (!err && s->ll_tokens)
		err = shunt_ep_check_range(why, "hidden", s->hidden, 1, SHUNT_EP_MAX_LL_HIDDEN);
	if (!err)
		err = shunt_ep_check_range(why, "blocks", s->blocks, 0, SHUNT_MAX_BLOCKS);
	if (err)
		return err;
	if (normal_p)
		*normal_p = normal_bytes(s);
	if (ll_p)
		*ll_p = ll_bytes(s);
	return 0;
}

uint64_t shunt_ep_ll_unit(const struct shunt_ep_room *room)
{
	return room->ll_bytes / units(room->nranks, room->most_topk) / SHUNT_EP_LINE * SHUNT_EP_LINE;
}

uint64_t shunt_ep_ll_at(const struct shunt_ep_room *room)
{
	return SHUNT_EP_NORMAL_AT + up_to(room->normal_bytes, SHUNT_EP_LINE);
}

uint64_t shunt_ep_weights_at(const struct shunt_ep_room *room)
{
	return shunt_ep_ll_at(room) + up_to(room->ll_bytes, SHUNT_EP_LINE);
}

uint64_t shunt_ep_own_bytes(uint64_t normal_bytes, uint64_t ll_bytes, int nranks, bool rank_sums)
{
	uint64_t bytes = SHUNT_EP_CTRL_BYTES + up_to(normal_bytes, SHUNT_EP_LINE) + ll_bytes;

	return rank_sums && ll_bytes ? up_to(bytes, SHUNT_EP_LINE) + SHUNT_EP_WEIGHTS_BYTES((unsigned)nranks) : bytes;
}
