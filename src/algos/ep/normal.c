/* SPDX-License-Identifier: MIT */
#include "algos/ep/normal.h"
#include <errno.h>
#include "algos/algos.h"
#include "base/coll.h"
#include "kernels/ep.h"

_Static_assert(SHUNT_EP_ALL_EXPERTS == SHUNT_EP_MAX_EXPERTS, "counts of all experts have room");

#define MAX_ROW (1 << 26) /* bytes */
#define MAX_SCALES 65535
#define MAX_ALIGNMENT 65536

#define CHECK_POINTERS(why, names, pointers) \
	shunt_ep_check_pointers(why, names, pointers, sizeof(names) / sizeof((names)[0]))

static int check_common(const struct shunt_ep_room *room, int64_t tokens, int64_t topk, int64_t from, int64_t blocks,
    struct shunt_ep_why *why)
{
	int err = shunt_ep_check_range(why, "tokens", tokens, 0, SHUNT_EP_MAX_TOKENS);

	if (!err)
		err = shunt_ep_check_range(why, "topk", topk, from, SHUNT_EP_MAX_TOPK);
	if (!err)
		err = shunt_ep_check_range(why, "blocks", blocks, 0, SHUNT_MAX_BLOCKS);
	return err;
}

static int check_memory(const struct shunt_ep_room *room, struct shunt_ep_why *why)
{
	return room->normal_bytes ?
	    0 :
	    shunt_ep_refuse(why, -ENOSPC, "the group was made with normal_bytes 0, so it has no calls of normal mode");
}

/* shape, over_hosts: of the kernel for one host, and for several. */
static struct shunt_kargs_ep *begin_work(const struct shunt_ep_room *room, unsigned shape, unsigned over_hosts,
    unsigned op, unsigned dtype, struct shunt_work *work)
{
	*work = (struct shunt_work){ .kernel = SHUNT_KERNEL(room->hosts ? over_hosts : shape, op, dtype) };
	if (room->hosts) {
		work->args.ep_far.hosts = *room->hosts;
		work->args.ep_far.at = shunt_ep_far_at(room);
		work->args.ep_far.part = shunt_ep_normal_part(room);
	}
	return &work->args.ep;
}

static uint32_t flags_of(const struct shunt_ep_room *room, uintptr_t addresses)
{
	return (room->flags & SHUNT_EP_DROP ? SHUNT_K_EP_DROP : 0) | (addresses % 16 ? 0 : SHUNT_K_ALIGNED);
}

int shunt_ep_layout_work(const struct shunt_ep_room *room, const struct shunt_ep_layout *c, struct shunt_work *work,
    struct shunt_ep_why *why)
{
	static const char *const names[] = { "per_rank", "per_expert", "topk_idx", "in_rank" };
	const void *pointers[] = { c->per_rank, c->per_expert, c->tokens ? (const void *)c->topk_idx : c->per_rank,
		c->tokens ? (const void *)c->in_rank : c->per_rank };
	struct shunt_limits limits = shunt_limits_of(room->key);
	struct shunt_kargs_ep *a;
	uint64_t items;
	int err = check_common(room, c->tokens, c->topk, 1, 0, why);

	if (!err)
		err = shunt_ep_check_experts(why, c->experts, room->nranks);
	if (!err && c->per_host && !room->hosts)
		err = shunt_ep_refuse(why, -EINVAL, "per_host is not NULL, and the ranks are on one host");
	if (!err)
		err = CHECK_POINTERS(why, names, pointers);
	if (err)
		return err;
	a = begin_work(room, SHUNT_SHAPE_ep_notify_layout, SHUNT_SHAPE_ep_notify_layout_hosts, 0, SHUNT_U8, work);
	/* A block for 32 experts, and for each rank and host. */
	items =
	    (uint64_t)((c->experts + 31) / 32 + room->nranks + (c->per_host && room->hosts ? room->hosts->nhosts : 0));
	shunt_grid_fit_wide(&limits, items * SHUNT_MAX_THREADS / 32, work);
	a->received = c->per_host;
	a->tokens = (uint32_t)c->tokens;
	a->topk = (uint32_t)c->topk;
	a->experts = (uint32_t)c->experts;
	a->topk_idx = c->topk_idx;
	a->per_rank = c->per_rank;
	a->per_expert = c->per_expert;
	a->in_rank = c->in_rank;
	return 0;
}

int shunt_ep_notify_work(const struct shunt_ep_room *room, const struct shunt_ep_notify *c, struct shunt_work *work,
    struct shunt_ep_why *why)
{
	static const char *const names[] = { "per_rank", "rank_prefix", "received", "in_rank", "send_row" };
	const void *pointers[] = { c->per_rank, c->rank_prefix, c->received,
		c->tokens ? (const void *)c->in_rank : c->per_rank, c->tokens ? c->send_row : c->per_rank };
	struct shunt_kargs_ep *a;
	int err = check_memory(room, why);

	if (!err)
		err = check_common(room, c->tokens, 0, 0, 0, why);
	if (!err)
		err = shunt_ep_check_experts(why, c->experts, room->nranks);
	if (!err)
		err = shunt_ep_check_range(why, "alignment", c->alignment, 1, MAX_ALIGNMENT);
	if (!err)
		err = shunt_ep_check_range(why, "counts", c->counts, 0, 1);
	if (!err)
		err = CHECK_POINTERS(why, names, pointers);
	if (err)
		return err;
	/* The first block tells the counts; there is one for each rank, too. */
	a = begin_work(room, SHUNT_SHAPE_ep_notify, SHUNT_SHAPE_ep_notify_hosts, 0, SHUNT_U8, work);
	work->blocks = 1 + (unsigned)room->nranks;
	work->threads = room->key->sim || room->hosts ? 64 : SHUNT_MAX_THREADS;
	a->row_bytes = 4 * (uint32_t)(room->nranks + c->experts / room->nranks);
	a->slot_bytes = (uint32_t)shunt_ep_wire(a->row_bytes);
	a->same[0] = SHUNT_EP_NOTIFY;
	a->same[5] = a->experts = (uint32_t)c->experts;
	a->tokens = (uint32_t)c->tokens;
	a->alignment = (uint32_t)c->alignment;
	a->per_rank = (int32_t *)c->per_rank;
	a->per_expert = (int32_t *)c->per_expert;
	a->in_rank = (uint8_t *)c->in_rank;
	a->rank_prefix = c->rank_prefix;
	a->send_row = c->send_row;
	a->received = c->received;
	return 0;
}

/* Of a dispatch and of a combine: the memory for rows of so many bytes. */
static int divide(const struct shunt_ep_room *room, int blocks, uint32_t topk, uint32_t scales, uint32_t row_bytes,
    struct shunt_work *work, struct shunt_ep_why *why)
{
	uint32_t front = shunt_ep_front(topk, scales);
	uint32_t slot = (uint32_t)shunt_ep_wire((uint64_t)front + row_bytes);
	struct shunt_ep_rings rings;
	struct shunt_kargs_ep *a = &work->args.ep;
	int err = shunt_ep_room_rings(room, blocks, slot / SHUNT_EP_LINE, &rings, why);

	if (err)
		return err;
	work->blocks = rings.blocks;
	work->threads = rings.threads;
	if (room->hosts) {
		work->args.ep_far.slot = (slot / SHUNT_EP_LINE * SHUNT_EP_LINE_DATA + 15) & ~15u;
		work->args.ep_far.slots = rings.far_slots;
	}
	a->rings_at = rings.at;
	a->slot_bytes = slot;
	a->slots = rings.slots;
	a->front = front;
	a->row_bytes = row_bytes;
	a->topk = a->same[3] = topk;
	a->scales = scales;
	a->same[1] = rings.blocks;
	return 0;
}

int shunt_ep_dispatch_work(const struct shunt_ep_room *room, const struct shunt_ep_dispatch *c, struct shunt_work *work,
    struct shunt_ep_why *why)
{
	static const char *const names[] = { "rank_prefix", "received", "send_row", "x", "topk_idx", "scales", "recv_x",
		"recv_topk_idx", "recv_scales" };
	const void *any = c->rank_prefix;
	const void *pointers[] = { c->rank_prefix, c->received, c->tokens ? c->send_row : any, c->tokens ? c->x : any,
		c->tokens && c->topk ? c->topk_idx : any, c->tokens && c->nscales ? c->scales : any,
		c->capacity ? c->recv_x : any, c->capacity && c->topk ? c->recv_topk_idx : any,
		c->capacity && c->nscales ? c->recv_scales : any };
	struct shunt_kargs_ep *a = &work->args.ep;
	int err = check_memory(room, why);

	if (!err)
		err = check_common(room, c->tokens, c->topk, 0, c->blocks, why);
	if (!err)
		err = shunt_ep_check_range(why, "row_bytes", c->row_bytes, 1, MAX_ROW);
	if (!err)
		err = shunt_ep_check_range(why, "nscales", c->nscales, 0, MAX_SCALES);
	if (!err)
		err = shunt_ep_check_range(why, "capacity", c->capacity, 0, INT32_MAX);
	if (!err)
		err = shunt_ep_check_range(why, "pad", c->pad, 0, 1);
	if (!err)
		err = shunt_ep_check_experts(why, c->experts, room->nranks);
	if (!err)
		err = CHECK_POINTERS(why, names, pointers);
	if (err)
		return err;
	begin_work(room, SHUNT_SHAPE_ep_dispatch, SHUNT_SHAPE_ep_dispatch_hosts, 0, SHUNT_U8, work);
	err = divide(room, c->blocks, (uint32_t)c->topk, (uint32_t)c->nscales, (uint32_t)c->row_bytes, work, why);
	if (err)
		return err;
	a->k.flags = flags_of(room, (uintptr_t)c->x | (uintptr_t)c->recv_x | (uintptr_t)c->row_bytes) |
	    (c->pad && c->topk ? SHUNT_K_EP_PAD : 0);
	a->k.send = c->x;
	a->k.recv = c->recv_x;
	a->same[0] = SHUNT_EP_NORMAL_DISPATCH;
	a->same[2] = a->row_bytes;
	a->same[4] = a->scales;
	a->same[5] = a->experts = (uint32_t)c->experts;
	a->room = (uint32_t)c->capacity;
	a->tokens = (uint32_t)c->tokens;
	a->rank_prefix_in = c->rank_prefix;
	a->send_row_in = c->send_row;
	a->received = (int32_t *)c->received;
	a->topk_idx = c->topk_idx;
	a->topk_weights = c->topk_weights;
	a->scale = c->scales;
	a->scale_token_stride = c->scale_token_stride;
	a->scale_stride = c->scale_stride;
	a->recv_scales = c->recv_scales;
	a->recv_topk_idx = c->recv_topk_idx;
	a->recv_topk_weights = c->recv_topk_weights;
	a->src_idx = c->src_idx;
	return 0;
}

int shunt_ep_combine_work(const struct shunt_ep_room *room, const struct shunt_ep_combine *c, struct shunt_work *work,
    struct shunt_ep_why *why)
{
	static const char *const names[] = { "rank_prefix", "send_row", "src_idx", "x", "topk_weights", "out",
		"out_weights" };
	const void *any = c->rank_prefix;
	const void *pointers[] = { c->rank_prefix, c->tokens ? c->send_row : any, c->rows ? c->src_idx : any,
		c->rows ? c->x : any, c->rows && c->topk ? c->topk_weights : any, c->tokens ? c->out : any,
		c->tokens && c->topk ? c->out_weights : any };
	struct shunt_kargs_ep *a = &work->args.ep;
	int err = check_memory(room, why);
	uint32_t bytes = 0;

	if (!err)
		err = check_common(room, c->tokens, c->topk, 0, c->blocks, why);
	if (!err && c->dtype != SHUNT_F16 && c->dtype != SHUNT_BF16 && c->dtype != SHUNT_F32)
		err = shunt_ep_refuse(why, -EINVAL,
		    "dtype is %d, and must be %d (float16), %d (float32) or %d (bfloat16)", c->dtype, SHUNT_F16,
		    SHUNT_F32, SHUNT_BF16);
	if (!err)
		err = shunt_ep_check_range(why, "hidden", c->hidden, 1, MAX_ROW / 4);
	if (!err)
		err = shunt_ep_check_range(why, "rows", c->rows, 0, INT32_MAX);
	if (!err)
		err = CHECK_POINTERS(why, names, pointers);
	if (err)
		return err;
	bytes = (uint32_t)c->hidden * (uint32_t)shunt_dtype_bytes[c->dtype];
	begin_work(room, SHUNT_SHAPE_ep_combine, SHUNT_SHAPE_ep_combine_hosts, SHUNT_KOP_SUM, (unsigned)c->dtype, work);
	err = divide(room, c->blocks, (uint32_t)c->topk, 0, bytes, work, why);
	if (err)
		return err;
	a->k.flags =
	    flags_of(room, (uintptr_t)c->x | (uintptr_t)c->out | (uintptr_t)c->bias[0] | (uintptr_t)c->bias[1] | bytes);
	a->k.send = c->x;
	a->k.recv = c->out;
	a->same[0] = SHUNT_EP_NORMAL_COMBINE;
	a->same[2] = (uint32_t)c->hidden;
	a->same[4] = (uint32_t)c->dtype;
	a->room = (uint32_t)c->rows;
	a->tokens = (uint32_t)c->tokens;
	a->rank_prefix_in = c->rank_prefix;
	a->send_row_in = c->send_row;
	a->src_idx = (int32_t *)c->src_idx;
	a->topk_weights = c->topk_weights;
	a->recv_topk_weights = c->out_weights;
	a->bias[0] = c->bias[0];
	a->bias[1] = c->bias[1];
	return 0;
}
