/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_BULK_H
#define SHUNT_KERNELS_BULK_H
/*
 * Sending chunks (chunks.h) by bulk copies: into shared memory, and from there into the peer's ring. A warp has a few
 * chunks under way, starts copies and waits for them, and holds none in registers. So few SMs send what takes many
 * otherwise, and a warp serves more than one channel: its chunks of a message belong to them in turns. Who takes or
 * folds has a warp for each channel, as without: there are more of those.
 */
#include "kernels/chunks.h"

#define BULK_AHEAD (SHUNT_BULK_SLOTS - 1u) /* chunks that may be on their way in: the last slot is on its way out */

/* What a block's warps have: memory for their chunks, and a barrier for each. */
#define BULK_SHARED(name) \
	GPU_SHARED_REST(name##_slots, SHUNT_BULK_BYTES(SHUNT_MAX_THREADS / 32)); \
	GPU_SHARED(struct gpu_bar, name##_bars, SHUNT_MAX_THREADS / 32 * SHUNT_BULK_SLOTS)
#define BULK_OF_WARP(name) \
	(name##_slots + gpu_tid() / 32 * SHUNT_BULK_BYTES(1)), (name##_bars + gpu_tid() / 32 * SHUNT_BULK_SLOTS)

/* One of the warp's channels. */
struct bulk_turn {
	uint64_t sent;    /* of all launches */
	uint64_t free_to; /* there is room in the ring up to here */
	uint32_t posted;  /* of this launch, that have left shared memory: to the courier */
};

struct bulk {
	struct chunks c; /* x.channel: the warp's first one */
	char *slots;
	struct gpu_bar *bars;
	struct gpu_bulk outs;
	uint32_t peer;
	uint32_t turns,
	    width; /* channels of the warp, and how far they are from each other, as its chunks of a message are */
	uint32_t in, out;  /* slots that come next */
	uint32_t parities; /* of the slots' barriers, a bit each */
	uint32_t waited;   /* a bit for each slot that a bulk copy goes to, which is to be waited for */
	struct bulk_turn turn[SHUNT_BULK_TURNS];
};

/* Reads or changes a turn's field without an index that the compiler does not know, which would need a stack. */
#define BULK_TURN(b, t, field) ((t) == 0 ? (b).turn[0].field : (b).turn[1].field)
#define BULK_SET(b, t, field, value) ((t) == 0 ? (b).turn[0].field = (value) : (b).turn[1].field = (value))
static_assert(SHUNT_BULK_TURNS == 2, "BULK_TURN and BULK_SET know two");

GPU_FN uint32_t bulk_next(uint32_t slot) { return slot + 1 == SHUNT_BULK_SLOTS ? 0 : slot + 1; }
GPU_FN uint32_t bulk_next_turn(const struct bulk &b, uint32_t t) { return t + 1 < b.turns ? t + 1 : 0; }

/* How many chunks of the message are the warp's, and the message's chunk that is the k-th of them. */
GPU_FN uint64_t bulk_chunk(const struct bulk &b, uint32_t k) { return b.c.x.channel + (uint64_t)k * b.width; }
GPU_FN uint32_t bulk_count(const struct bulk &b, const struct chunks_part &p)
{
	return b.c.x.channel < p.n ? (uint32_t)((p.n - b.c.x.channel + b.width - 1) / b.width) : 0;
}

GPU_FN uint32_t bulk_bytes(const struct chunks_part &p, uint64_t chunk)
{
	uint64_t left = p.bytes - chunk * SHUNT_CHUNK;

	return left < SHUNT_CHUNK ? (uint32_t)left : SHUNT_CHUNK;
}

template <typename A> GPU_FN uint32_t bulk_index(const struct bulk &b, const A &a, uint32_t t)
{
	return xchg_index(b.c.x, a.k.rank, b.peer) + t * b.width;
}

/* The turn's next place in the ring, in anybody's scratch. */
template <typename A> GPU_FN uint64_t bulk_place(const struct bulk &b, const A &a, uint32_t t)
{
	struct chunks c = b.c;

	c.x.channel += t * b.width;
	return chunks_slot(c, b.peer, a.k.rank, BULK_TURN(b, t, sent)) - gpu_lane() * 16;
}

template <typename A> GPU_FN uint64_t bulk_room(const struct bulk &b, const A &a, uint32_t t)
{
	uint32_t ahead = BULK_TURN(b, t, posted) < COURIER_RESTS_FROM ? b.c.ahead : b.c.far;

	return gpu_ld_taken(&b.c.x.ctrl->chunks.taken[bulk_index(b, a, t)]) + ahead;
}

/* Waits until the turn's ring has room for one chunk more; false: gave up. */
template <typename A> GPU_FN bool bulk_wait_room(struct bulk &b, const A &a, uint32_t t)
{
	uint64_t sent = BULK_TURN(b, t, sent), free_to = BULK_TURN(b, t, free_to);
	struct spin spin;

	if (gpu_warp_all(sent < free_to)) /* lanes may have read different counts */
		return true;
	spin_init(&spin, b.c.x.ctrl);
	while (!gpu_warp_all(sent < (free_to = bulk_room(b, a, t))))
		if (!xchg_spin(&spin)) {
			xchg_give_up(b.c.x.ctrl, a.k.rank, b.peer, b.c.x.channel + t * b.width, sent + 1, free_to);
			return false;
		}
	BULK_SET(b, t, free_to, free_to);
	return true;
}

/* This lane's pack u of a slot. */
GPU_FN struct gpu_v16 *bulk_pack(const struct bulk &b, uint32_t slot, uint32_t u)
{
	return (struct gpu_v16 *)(b.slots + slot * SHUNT_CHUNK + u * 512 + gpu_lane() * 16);
}

/* The warp's k-th chunk begins its way into the next slot: by a bulk copy, if it is made of whole packs. */
template <typename T, typename A>
GPU_FN void bulk_in(struct bulk &b, const A &a, const struct chunks_part &p, uint32_t k)
{
	uint64_t chunk = bulk_chunk(b, k);
	uint32_t bytes = bulk_bytes(p, chunk);

	if (p.aligned && bytes % 16 == 0) {
		gpu_bulk_in(b.slots + b.in * SHUNT_CHUNK, p.from + chunk * SHUNT_CHUNK, bytes, &b.bars[b.in]);
		b.waited |= 1u << b.in;
	} else {
		GPU_ROLL
		for (uint32_t u = 0; chunks_has(p, chunk, u); u++)
			*bulk_pack(b, b.in, u) = chunks_load<T>(p, chunk, u);
		gpu_bulk_own();
	}
	b.in = bulk_next(b.in);
}

/* Until what is on its way into a slot is there. */
GPU_FN void bulk_wait_in(struct bulk &b, uint32_t slot)
{
	uint32_t bit = b.waited & 1u << slot;

	if (bit)
		gpu_bulk_in_wait(&b.bars[slot], b.parities & bit ? 1 : 0);
	b.parities ^= bit;
	b.waited &= ~bit;
}

/* Multiplies a chunk where it lies. */
template <typename T, typename Op, typename A>
GPU_FN void bulk_scale(const struct bulk &b, const A &a, const struct chunks_part &p, uint64_t chunk)
{
	if ((chunk + 1) * SHUNT_CHUNK <= p.bytes) {
		struct gpu_v16 v[PACKS];

		GPU_UNROLL
		for (uint32_t u = 0; u < PACKS; u++)
			v[u] = *bulk_pack(b, b.out, u);
		lines_scale<T, Op, PACKS>(a.k, v);
		GPU_UNROLL
		for (uint32_t u = 0; u < PACKS; u++)
			*bulk_pack(b, b.out, u) = v[u];
	} else {
		GPU_ROLL
		for (uint32_t u = 0; chunks_has(p, chunk, u); u++) {
			struct gpu_v16 v[1] = { *bulk_pack(b, b.out, u) };

			lines_scale<T, Op, 1>(a.k, v);
			*bulk_pack(b, b.out, u) = v[0];
		}
	}
	gpu_bulk_own();
}

/* ... and from there into the ring, which has room for it. In a slot there are whole packs. */
template <typename T, typename Op, typename A>
GPU_FN void bulk_out(struct bulk &b, const A &a, const struct chunks_part &p, uint32_t k, uint32_t t)
{
	uint64_t chunk = bulk_chunk(b, k);

	bulk_wait_in(b, b.out);
	if (is_same<Op, op_sum>::value && (a.k.flags & SHUNT_K_PREMUL))
		bulk_scale<T, Op>(b, a, p, chunk);
	gpu_bulk_out(&b.outs, a.k.peer[b.peer] + bulk_place(b, a, t), b.slots + b.out * SHUNT_CHUNK,
	    (bulk_bytes(p, chunk) + 15) & ~15u);
	BULK_SET(b, t, sent, BULK_TURN(b, t, sent) + 1);
	b.out = bulk_next(b.out);
}

GPU_FN void bulk_post(struct bulk &b, uint32_t t)
{
	uint32_t posted = BULK_TURN(b, t, posted) + 1;

	BULK_SET(b, t, posted, posted);
	if (gpu_lane() == 0)
		gpu_st_release_block32(b.c.post + t * chunks_warps(), posted);
}

/* A chunk is posted when the next one is on its way out. */
template <typename T, typename Op, typename A>
GPU_FN bool bulk_message(struct bulk &b, const A &a, const struct chunks_part &p)
{
	uint32_t n = bulk_count(b, p), begun = 0, last = 0, t = 0;

	GPU_ROLL
	for (uint32_t k = 0; k < n; k++) {
		GPU_ROLL
		for (; begun < n && begun < k + BULK_AHEAD; begun++)
			bulk_in<T>(b, a, p, begun);
		if (!bulk_wait_room(b, a, t))
			return false;
		bulk_out<T, Op>(b, a, p, k, t);
		gpu_bulk_out_wait<1>(&b.outs);
		if (k)
			bulk_post(b, last);
		last = t;
		t = bulk_next_turn(b, t);
	}
	gpu_bulk_out_wait<0>(&b.outs);
	if (n)
		bulk_post(b, last);
	return true;
}

/* All copies have ended: what is on its way into shared memory would come to the next block there. */
GPU_FN void bulk_abandon(struct bulk &b)
{
	GPU_ROLL
	for (uint32_t slot = 0; slot < SHUNT_BULK_SLOTS; slot++)
		bulk_wait_in(b, slot);
	gpu_bulk_out_wait<0>(&b.outs);
}

/* In place of chunks_send(); false: gave up. */
template <typename T, typename Op, typename A>
GPU_FN bool bulk_send(struct bulk &b, const A &a, uint32_t message, uint32_t nmessages)
{
	uint64_t *sent = b.c.x.ctrl->chunks.sent;

	GPU_UNROLL
	for (uint32_t t = 0; t < SHUNT_BULK_TURNS; t++)
		if (t < b.turns) {
			b.turn[t].sent = sent[bulk_index(b, a, t)];
			b.turn[t].free_to = bulk_room(b, a, t);
		}
	GPU_ROLL
	for (uint32_t i = message; i < message + nmessages; i++)
		if (!bulk_message<T, Op>(b, a, chunks_part(a, i))) {
			bulk_abandon(b);
			return false;
		}
	gpu_warp_sync(); /* all lanes have read the counts */
	GPU_UNROLL
	for (uint32_t t = 0; t < SHUNT_BULK_TURNS; t++)
		if (t < b.turns && gpu_lane() == 0 && !(a.k.flags & SHUNT_K_OVER_SENT))
			sent[bulk_index(b, a, t)] = b.turn[t].sent;
	return true;
}

/* c: as of the warp's first channel. */
template <typename A>
GPU_FN struct bulk bulk_init(
    const A &a, const struct shunt_role &role, const struct chunks &c, char *slots, struct gpu_bar *bars)
{
	struct bulk b;

	b.c = c;
	b.slots = slots;
	b.bars = bars;
	b.peer = role.peer;
	b.turns = chunks_turns<SHUNT_BULK_TURNS>(a, role);
	b.width = chunks_width<SHUNT_BULK_TURNS>(a, role);
	b.in = b.out = 0;
	b.parities = b.waited = 0;
	b.turn[0].posted = b.turn[1].posted = 0;
	GPU_ROLL
	for (uint32_t slot = 0; slot < SHUNT_BULK_SLOTS; slot++)
		gpu_bar_init(&bars[slot]);
	return b;
}

/* The courier need not look at the warp's posts any more. */
GPU_FN void bulk_done(const struct bulk &b)
{
	GPU_UNROLL
	for (uint32_t t = 0; t < SHUNT_BULK_TURNS; t++)
		if (t < b.turns && gpu_lane() == 0)
			gpu_st_release_block32(b.c.post + t * chunks_warps(), b.turn[t].posted | POST_DONE);
}
#endif
