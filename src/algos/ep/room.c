/* SPDX-License-Identifier: MIT */
#include "algos/ep/room.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include "algos/algos.h"
#include "kernels/ep.h"

/* Of a call of normal mode, where the caller leaves it to Shunt. */
#define BLOCKS 24u
#define SIM_BLOCKS 2u /* few cores */

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

int shunt_ep_check_pointers(struct shunt_ep_why *why, const char *const *names, const void *const *pointers, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!pointers[i])
			return shunt_ep_refuse(why, -EINVAL, "%s is NULL", names[i]);
	return 0;
}

static uint64_t up_to(uint64_t bytes, uint64_t multiple)
{
	return (bytes + multiple - 1) / multiple * multiple;
}

static int most_topk(int topk)
{
	return topk ? topk : SHUNT_EP_MAX_TOPK;
}

uint32_t shunt_ep_front(uint32_t topk, uint32_t scales)
{
	return (uint32_t)up_to(8 * (2 + topk + (scales + 1) / 2), 16);
}

/* Bytes of one block's heads, without its rings; and of its rings with so many slots. */
static uint64_t heads_of(int nranks, unsigned threads)
{
	return (uint64_t)threads / 64 * (unsigned)nranks * SHUNT_EP_LINE;
}

static uint64_t rings_of(int nranks, unsigned threads, uint32_t slots, uint32_t lines)
{
	return (uint64_t)threads / 64 * (unsigned)(nranks - 1) * slots * lines * SHUNT_EP_LINE;
}

static uint32_t most_slots(int nranks)
{
	return nranks > 4 ? 2 : 4;
}

/* ---- over hosts */

/* Threads of a block, which is a channel then: so the few channels are spread over multiprocessors. */
#define FAR_THREADS 64
#define FAR_SLOTS 4u /* of a ring to another host */

uint64_t shunt_ep_notify_part(int nranks)
{
	return SHUNT_EP_FAR_HEADS + shunt_ep_wire(4 * ((uint64_t)nranks + SHUNT_EP_ALL_EXPERTS / (uint64_t)nranks));
}

/* Bytes for calls of so many blocks and rows of so many lines. */
static uint64_t part_of(unsigned blocks, uint32_t slots, uint32_t lines)
{
	return SHUNT_EP_FAR_HEADS + blocks * (1 + (uint64_t)slots * lines) * SHUNT_EP_LINE;
}

/* How many such parts a group has: one for a rank of the host, two for a rank of another one. */
static uint64_t parts(int local, int sources)
{
	return (uint64_t)(local + 2 * sources);
}

uint64_t shunt_ep_normal_part(const struct shunt_ep_room *room)
{
	return room->normal_bytes / parts(room->local, room->sources) / SHUNT_EP_LINE * SHUNT_EP_LINE;
}

uint64_t shunt_ep_normal_least(const struct shunt_ep_room *room)
{
	return parts(room->local, room->sources) * (shunt_ep_notify_part(room->nranks) + SHUNT_EP_LINE);
}

/* ... of device memory. */
static uint64_t normal_here(const struct shunt_ep_room *room)
{
	return room->sources ? shunt_ep_normal_part(room) * (unsigned)room->local : room->normal_bytes;
}

/* If the ranks are spread evenly. */
static int local_of(const struct shunt_ep_shape *s)
{
	int hosts = s->hosts > 1 ? s->hosts : 1;

	return (s->nranks + hosts - 1) / hosts;
}

static int sources_of(const struct shunt_ep_shape *s)
{
	return s->hosts > 1 ? s->nranks - s->nranks / s->hosts : 0;
}

static uint64_t normal_bytes(const struct shunt_ep_shape *s)
{
	uint32_t front = shunt_ep_front((uint32_t)most_topk(s->topk), (uint32_t)(s->hidden + 127) / 128);
	uint32_t lines =
	    (uint32_t)(shunt_ep_wire(front + (uint64_t)s->hidden * (uint64_t)s->element_bytes) / SHUNT_EP_LINE);
	uint64_t calls = (uint64_t)s->blocks *
	    (heads_of(s->nranks, SHUNT_MAX_THREADS) +
	        rings_of(s->nranks, SHUNT_MAX_THREADS, most_slots(s->nranks), lines));
	uint64_t notify = SHUNT_EP_NOTIFY_BYTES(s->nranks);

	if (s->hosts > 1) {
		unsigned blocks = s->blocks < (int)SHUNT_EP_FAR_CHANNELS ? (unsigned)s->blocks : SHUNT_EP_FAR_CHANNELS;
		uint64_t n = parts(local_of(s), sources_of(s));

		calls = n * part_of(blocks, FAR_SLOTS, lines);
		/* If hosts have fewer ranks than the largest, ranks have more experts each. */
		notify = n * (shunt_ep_notify_part(local_of(s) + s->hosts - 1) + SHUNT_EP_LINE);
	}
	return !s->blocks ? 0 : calls > notify ? calls : notify;
}

int shunt_ep_room_rings(
    const struct shunt_ep_room *room, int blocks, uint32_t lines, struct shunt_ep_rings *r, struct shunt_ep_why *why)
{
	struct shunt_limits limits = shunt_limits_of(room->key);
	unsigned most = room->key->sim ? SHUNT_MAX_BLOCKS : shunt_grid_max_blocks(&limits), asked;
	uint64_t bytes = normal_here(room), part = shunt_ep_normal_part(room);
	int n = room->local;

	if (room->sources)
		most = most < SHUNT_EP_FAR_CHANNELS ? most : SHUNT_EP_FAR_CHANNELS;
	asked = blocks ? (unsigned)blocks : room->key->sim ? SIM_BLOCKS : BLOCKS;
	*r = (struct shunt_ep_rings){ .blocks = asked < most ? asked : most,
		.threads = room->sources ? FAR_THREADS :
		    room->key->sim       ? 64 :
		                           SHUNT_MAX_THREADS,
		.slots = most_slots(n),
		.far_slots = room->sources ? FAR_SLOTS : 0 };
	while (r->slots > 2 && r->blocks * (heads_of(n, r->threads) + rings_of(n, r->threads, r->slots, lines)) > bytes)
		r->slots--;
	while (r->far_slots > 2 && part_of(r->blocks, r->far_slots, lines) > part)
		r->far_slots -= 2;
	while (r->blocks &&
	    (r->blocks * (heads_of(n, r->threads) + rings_of(n, r->threads, r->slots, lines)) > bytes ||
	        (room->sources && part_of(r->blocks, r->far_slots, lines) > part)))
		r->blocks--;
	r->at = SHUNT_EP_NORMAL_AT + r->blocks * heads_of(n, r->threads);
	if (r->blocks)
		return 0;
	return shunt_ep_refuse(why, -ENOSPC,
	    "rows of %u bytes need %llu bytes of memory for normal mode, and the group has %llu", lines * SHUNT_EP_LINE,
	    (unsigned long long)(room->sources ? parts(n, room->sources) * part_of(1, 2, lines) :
	                                         heads_of(n, r->threads) + rings_of(n, r->threads, 2, lines)),
	    (unsigned long long)room->normal_bytes);
}

/* Sets of both kinds, each with a unit for a rank or for a place among a token's experts. */
static uint64_t units(int nranks, int topk)
{
	return 2 * (uint64_t)(nranks + topk);
}

/* Of page-locked memory. */
static uint64_t net_units(const struct shunt_ep_room *room)
{
	uint64_t places =
	    SHUNT_EP_FAR_PLACES(room->flags & SHUNT_EP_MASKS, (unsigned)room->sources, (unsigned)room->most_topk);

	return room->sources ? 2 * ((unsigned)room->sources + places) + SHUNT_EP_STAGE_UNITS : 0;
}

static uint64_t all_units(const struct shunt_ep_room *room)
{
	return units(room->local, room->most_topk) + net_units(room);
}

uint64_t shunt_ep_ll_needed(const struct shunt_ep_room *room, int64_t tokens, int64_t hidden)
{
	uint64_t head = shunt_ep_wire(SHUNT_EP_HEAD_BYTES + (uint64_t)tokens * (uint64_t)room->most_topk * 2);

	return tokens ? all_units(room) * (head + (uint64_t)tokens * shunt_ep_wire((uint64_t)hidden * 2)) : 0;
}

static uint64_t ll_bytes(const struct shunt_ep_shape *s)
{
	const struct shunt_ep_room room = { .most_topk = most_topk(s->topk),
		.local = local_of(s),
		.sources = sources_of(s),
		.flags = (uint32_t)s->flags };

	return shunt_ep_ll_needed(&room, s->ll_tokens, s->hidden);
}

int shunt_ep_room_needed(const struct shunt_ep_shape *s, uint64_t *normal_p, uint64_t *ll_p, struct shunt_ep_why *why)
{
	const int local = (int)SHUNT_KARGS_MAX_RANKS, total = (int)SHUNT_NET_MAX_RANKS;
	int err = shunt_ep_check_range(why, "hosts", s->hosts, 0, total), hosts = s->hosts > 1 ? s->hosts : 1;

	if (!err)
		err = shunt_ep_check_range(
		    why, "nranks", s->nranks, hosts, hosts * local < total ? hosts * local : total);
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
	if (!err)
		err = shunt_ep_check_range(why, "flags", (int64_t)s->flags, 0, SHUNT_EP_MASKS | SHUNT_EP_DROP);
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
	return room->ll_bytes / all_units(room) / SHUNT_EP_LINE * SHUNT_EP_LINE;
}

uint64_t shunt_ep_ll_at(const struct shunt_ep_room *room)
{
	return SHUNT_EP_NORMAL_AT + up_to(normal_here(room), SHUNT_EP_LINE);
}

uint64_t shunt_ep_weights_at(const struct shunt_ep_room *room)
{
	return up_to(
	    shunt_ep_ll_at(room) + units(room->local, room->most_topk) * shunt_ep_ll_unit(room), SHUNT_EP_LINE);
}

uint64_t shunt_ep_own_bytes(const struct shunt_ep_room *room)
{
	return shunt_ep_weights_at(room) - SHUNT_CTRL_BYTES +
	    (room->rank_sums && room->ll_bytes ? SHUNT_EP_WEIGHTS_BYTES((unsigned)room->nranks) : 0);
}

uint64_t shunt_ep_far_at(const struct shunt_ep_room *room)
{
	return SHUNT_NET_REMOTE_AT + net_units(room) * shunt_ep_ll_unit(room);
}

uint64_t shunt_ep_net_bytes(const struct shunt_ep_room *room)
{
	return shunt_ep_far_at(room) - SHUNT_NET_REMOTE_AT + 2 * (uint64_t)room->sources * shunt_ep_normal_part(room);
}
