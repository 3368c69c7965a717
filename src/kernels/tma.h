/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Sends Simple's chunks (simple.h) by TMA copies: into shared memory, and from there into the peer's ring. A warp has
 * a few chunks under way, starts copies and waits for them, and holds no chunk in registers. So a few SMs send what
 * takes many SMs otherwise, and a sending warp serves more than one channel: its chunks of a message go to its
 * channels in turns. A warp that receives or reduces has one channel, as without TMA: there are more such warps.
 */
#include "kernels/simple.h"

#define TMA_AHEAD (SHUNT_TMA_SLOTS - 1u) /* chunks that may be on their way in: the last slot is on its way out */

/* Shared memory of a block's warps: slots for their chunks, and a barrier for each slot. */
#define TMA_SHARED(name) \
	GPU_DYNAMIC_SHARED(name##_slots, SHUNT_TMA_BYTES(SHUNT_MAX_THREADS / 32)); \
	GPU_SHARED(struct gpu_mbar, name##_bars, SHUNT_MAX_THREADS / 32 * SHUNT_TMA_SLOTS)
#define TMA_WARP_SHARED(name) \
	(name##_slots + gpu_tid() / 32 * SHUNT_TMA_BYTES(1)), (name##_bars + gpu_tid() / 32 * SHUNT_TMA_SLOTS)

/* One of the warp's channels. */
struct tma_channel {
	uint64_t sent;      /* chunks of all launches */
	uint64_t credit;    /* `sent` may grow up to this */
	uint32_t published; /* chunks of this launch that have left shared memory, as published to the proxy warp */
};

struct tma {
	struct simple c; /* x.channel: the warp's first channel */
	char *slots;
	struct gpu_mbar *bars;
	struct gpu_tma_group stores;
	uint32_t peer;
	/*
	 * Channels of the warp, and the distance between two of them. The warp's chunks of a message are as far
	 * apart.
	 */
	uint32_t nchans, width;
	uint32_t in, out;  /* next slots */
	uint32_t parities; /* of the slots' barriers: bit per slot */
	uint32_t waited;   /* bit per slot: a TMA copy into the slot has not been waited for */
	struct tma_channel chan[SHUNT_TMA_CHANNELS];
};

/* Reads or changes a field of turn t's channel. An index that the compiler does not know would need a stack. */
#define TMA_CHANNEL(b, t, field) ((t) == 0 ? (b).chan[0].field : (b).chan[1].field)
#define TMA_CHANNEL_SET(b, t, field, value) ((t) == 0 ? (b).chan[0].field = (value) : (b).chan[1].field = (value))
static_assert(SHUNT_TMA_CHANNELS == 2, "TMA_CHANNEL and TMA_CHANNEL_SET know two");

GPU_FN uint32_t tma_next_slot(uint32_t slot) { return slot + 1 == SHUNT_TMA_SLOTS ? 0 : slot + 1; }
GPU_FN uint32_t tma_next_channel(const struct tma &b, uint32_t t) { return t + 1 < b.nchans ? t + 1 : 0; }

/* tma_chunk(): the message's chunk that is the k-th of this warp. tma_chunks(): number of the warp's chunks. */
GPU_FN uint64_t tma_chunk(const struct tma &b, uint32_t k) { return b.c.x.channel + (uint64_t)k * b.width; }
GPU_FN uint32_t tma_chunks(const struct tma &b, const struct simple_message &p)
{
	return b.c.x.channel < p.n ? (uint32_t)((p.n - b.c.x.channel + b.width - 1) / b.width) : 0;
}

GPU_FN uint32_t tma_chunk_bytes(const struct simple_message &p, uint64_t chunk)
{
	uint64_t left = p.bytes - chunk * SHUNT_SIMPLE_CHUNK;

	return left < SHUNT_SIMPLE_CHUNK ? (uint32_t)left : SHUNT_SIMPLE_CHUNK;
}

template <typename A> GPU_FN uint32_t tma_index(const struct tma &b, const A &a, uint32_t t)
{
	return p2p_index(b.c.x, a.k.rank, b.peer) + t * b.width;
}

/* Offset of the turn's next slot in the ring, in every rank's scratch. */
template <typename A> GPU_FN uint64_t tma_slot_at(const struct tma &b, const A &a, uint32_t t)
{
	struct simple c = b.c;

	c.x.channel += t * b.width;
	return simple_slot_at(c, b.peer, a.k.rank, TMA_CHANNEL(b, t, sent)) - gpu_lane() * 16;
}

template <typename A> GPU_FN uint64_t tma_credit(const struct tma &b, const A &a, uint32_t t)
{
	uint32_t ahead = TMA_CHANNEL(b, t, published) < PROXY_BACKOFF_CHUNKS ? b.c.ahead : b.c.far;

	return gpu_ld_credit(&b.c.x.ctrl->simple.head[tma_index(b, a, t)]) + ahead;
}

/* Waits until the turn's ring has room for one more chunk; false: gave up. */
template <typename A> GPU_FN bool tma_wait_credit(struct tma &b, const A &a, uint32_t t)
{
	uint64_t sent = TMA_CHANNEL(b, t, sent), credit = TMA_CHANNEL(b, t, credit);
	struct spin spin;

	if (gpu_warp_all(sent < credit)) /* lanes may have read different counts */
		return true;
	spin_init(&spin, b.c.x.ctrl);
	while (!gpu_warp_all(sent < (credit = tma_credit(b, a, t)))) {
		if (gpu_lane() == 7)
			spin_account_peer(&spin, b.peer);
		if (!p2p_spin(&spin)) {
			p2p_give_up(b.c.x.ctrl, a.k.rank, b.peer, b.c.x.channel + t * b.width, sent + 1, credit);
			return false;
		}
	}
	TMA_CHANNEL_SET(b, t, credit, credit);
	return true;
}

/* This lane's pack u of a slot. */
GPU_FN struct gpu_v16 *tma_pack(const struct tma &b, uint32_t slot, uint32_t u)
{
	return (struct gpu_v16 *)(b.slots + slot * SHUNT_SIMPLE_CHUNK + u * 512 + gpu_lane() * 16);
}

/*
 * Starts to load the warp's k-th chunk into the next slot: by a TMA copy if the chunk consists of whole, aligned
 * packs.
 */
template <typename T, typename A>
GPU_FN void tma_load(struct tma &b, const A &a, const struct simple_message &p, uint32_t k)
{
	uint64_t chunk = tma_chunk(b, k);
	uint32_t bytes = tma_chunk_bytes(p, chunk);

	if (p.aligned && bytes % 16 == 0) {
		gpu_tma_load(
		    b.slots + b.in * SHUNT_SIMPLE_CHUNK, p.from + chunk * SHUNT_SIMPLE_CHUNK, bytes, &b.bars[b.in]);
		b.waited |= 1u << b.in;
	} else {
		GPU_ROLL for (uint32_t u = 0; simple_has_pack(p, chunk, u); u++)
			*tma_pack(b, b.in, u) = simple_load<T>(p, chunk, u);
		gpu_tma_fence();
	}
	b.in = tma_next_slot(b.in);
}

/* Waits until the copy into a slot has ended. */
GPU_FN void tma_wait_load(struct tma &b, uint32_t slot)
{
	uint32_t bit = b.waited & 1u << slot;

	if (bit)
		gpu_mbar_wait(&b.bars[slot], b.parities & bit ? 1 : 0);
	b.parities ^= bit;
	b.waited &= ~bit;
}

/* Multiplies a chunk in shared memory. */
template <typename T, typename Op, typename A>
GPU_FN void tma_scale(const struct tma &b, const A &a, const struct simple_message &p, uint64_t chunk)
{
	if ((chunk + 1) * SHUNT_SIMPLE_CHUNK <= p.bytes) {
		struct gpu_v16 v[CHUNK_PACKS];

		GPU_UNROLL for (uint32_t u = 0; u < CHUNK_PACKS; u++)
			v[u] = *tma_pack(b, b.out, u);
		ll128_scale<T, Op, CHUNK_PACKS>(a.k, v);
		GPU_UNROLL for (uint32_t u = 0; u < CHUNK_PACKS; u++)
			*tma_pack(b, b.out, u) = v[u];
	} else {
		GPU_ROLL for (uint32_t u = 0; simple_has_pack(p, chunk, u); u++) {
			struct gpu_v16 v[1] = { *tma_pack(b, b.out, u) };

			ll128_scale<T, Op, 1>(a.k, v);
			*tma_pack(b, b.out, u) = v[0];
		}
	}
	gpu_tma_fence();
}

/* Starts to store the warp's k-th chunk into the ring, which has room for it. A slot has whole packs. */
template <typename T, typename Op, typename A>
GPU_FN void tma_store(struct tma &b, const A &a, const struct simple_message &p, uint32_t k, uint32_t t)
{
	uint64_t chunk = tma_chunk(b, k);

	tma_wait_load(b, b.out);
	if (is_same<Op, op_sum>::value && (a.k.flags & SHUNT_K_PREMUL))
		tma_scale<T, Op>(b, a, p, chunk);
	gpu_tma_store(&b.stores, a.k.peer[b.peer] + tma_slot_at(b, a, t), b.slots + b.out * SHUNT_SIMPLE_CHUNK,
	    (tma_chunk_bytes(p, chunk) + 15) & ~15u);
	TMA_CHANNEL_SET(b, t, sent, TMA_CHANNEL(b, t, sent) + 1);
	b.out = tma_next_slot(b.out);
}

GPU_FN void tma_publish(struct tma &b, uint32_t t)
{
	uint32_t published = TMA_CHANNEL(b, t, published) + 1;

	TMA_CHANNEL_SET(b, t, published, published);
	if (gpu_lane() == 0)
		gpu_st_release_block32(b.c.post + t * simple_warps(), published);
}

/* Sends a message; false: gave up. A chunk is published when the next one is on its way out. */
template <typename T, typename Op, typename A>
GPU_FN bool tma_message(struct tma &b, const A &a, const struct simple_message &p)
{
	uint32_t n = tma_chunks(b, p), begun = 0, last = 0, t = 0;

	GPU_ROLL for (uint32_t k = 0; k < n; k++) {
		GPU_ROLL for (; begun < n && begun < k + TMA_AHEAD; begun++)
			tma_load<T>(b, a, p, begun);
		if (!tma_wait_credit(b, a, t))
			return false;
		tma_store<T, Op>(b, a, p, k, t);
		gpu_tma_store_wait<1>(&b.stores);
		if (k)
			tma_publish(b, last);
		last = t;
		t = tma_next_channel(b, t);
	}
	gpu_tma_store_wait<0>(&b.stores);
	if (n)
		tma_publish(b, last);
	return true;
}

/* Waits for all copies: one that ended later would write into the next block's shared memory. */
GPU_FN void tma_drain(struct tma &b)
{
	GPU_ROLL for (uint32_t slot = 0; slot < SHUNT_TMA_SLOTS; slot++)
		tma_wait_load(b, slot);
	gpu_tma_store_wait<0>(&b.stores);
}

/* Replaces simple_send(); false: gave up. */
template <typename T, typename Op, typename A>
GPU_FN bool tma_send(struct tma &b, const A &a, uint32_t message, uint32_t nmessages)
{
	uint64_t *sent = b.c.x.ctrl->simple.sent;

	GPU_UNROLL for (uint32_t t = 0; t < SHUNT_TMA_CHANNELS; t++)
		if (t < b.nchans) {
			b.chan[t].sent = sent[tma_index(b, a, t)];
			b.chan[t].credit = tma_credit(b, a, t);
		}
	GPU_ROLL for (uint32_t i = message; i < message + nmessages; i++)
		if (!tma_message<T, Op>(b, a, simple_message(a, i))) {
			tma_drain(b);
			return false;
		}
	gpu_warp_sync(); /* all lanes have read the counts */
	GPU_UNROLL for (uint32_t t = 0; t < SHUNT_TMA_CHANNELS; t++)
		if (t < b.nchans && gpu_lane() == 0 && !(a.k.flags & SHUNT_K_OVER_SENT_INPUT))
			sent[tma_index(b, a, t)] = b.chan[t].sent;
	return true;
}

/* c: of the warp's first channel. */
template <typename A>
GPU_FN struct tma tma_init(
    const A &a, const struct shunt_role &role, const struct simple &c, char *slots, struct gpu_mbar *bars)
{
	struct tma b;

	b.c = c;
	b.slots = slots;
	b.bars = bars;
	b.peer = role.peer;
	b.nchans = simple_channels_per_warp<SHUNT_TMA_CHANNELS>(a, role);
	b.width = simple_stride<SHUNT_TMA_CHANNELS>(a, role);
	b.in = b.out = 0;
	b.parities = b.waited = 0;
	b.chan[0].published = b.chan[1].published = 0;
	GPU_ROLL for (uint32_t slot = 0; slot < SHUNT_TMA_SLOTS; slot++)
		gpu_mbar_init(&bars[slot]);
	return b;
}

/* Tells the proxy warp that this warp has ended. */
GPU_FN void tma_done(const struct tma &b)
{
	GPU_UNROLL for (uint32_t t = 0; t < SHUNT_TMA_CHANNELS; t++)
		if (t < b.nchans && gpu_lane() == 0)
			gpu_st_release_block32(b.c.post + t * simple_warps(), b.chan[t].published | PUBLISHED_ALL);
}
