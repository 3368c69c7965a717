/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Simple: large messages of the p2p engine, in chunks of 4 KB. Chunks are to Simple what slots are to LL128 in p2p.h:
 * chunk k of a message travels on channel k mod c, and a slot of a ring holds one chunk.
 *
 * The data has no flags. The receiver waits for a counter of the chunks in its own scratch. The counter may be raised
 * only when a chunk has certainly arrived. On a full link it takes microseconds to make sure of that, in which a
 * sending warp should send. So the last warp of each block is a proxy warp. The other warps publish in shared memory
 * how many chunks they have handled. The proxy warp makes sure of all published chunks at once and passes the counts
 * on to the peers: for receivers, of chunks in the ring; for senders, of chunks out of the ring.
 */
#include "kernels/p2p.h"

#define CHUNK_PACKS (SHUNT_SIMPLE_CHUNK / 512u) /* packs of a chunk that a lane holds, 512 bytes apart */

/* A warp publishes the number of chunks that it has handled in this launch, with this bit when that is all. */
#define PUBLISHED_ALL (1u << 31)

/*
 * In a large message between two ranks the proxy warp backs off between two rounds, so that a round has more to pass
 * on: a release waits for all accesses that its SM has under way, and each counter is a packet. The rings of two
 * ranks last that long. Those of a pair among more ranks would not.
 */
#define PROXY_BACKOFF_RANKS 2u /* back off among at most this many ranks */
/*
 * Back off when each warp has handled this many chunks. Backing off at the end of less than 100 MB costs more than it
 * gains.
 */
#define PROXY_BACKOFF_CHUNKS 64u
#define SEND_BACKOFF_NS 2000u
#define RECV_BACKOFF_NS 500u

struct simple {
	struct p2p x;
	uint32_t *post;        /* this warp's count, for the proxy warp */
	uint32_t moved_chunks; /* the count published last */
	uint64_t at;           /* offset of the rings in every rank's scratch */
	uint32_t per_peer;     /* rings of a pair of ranks */
	uint32_t ring;         /* slots of a ring */
	uint32_t ahead;        /* slots that a sender fills before the first is taken out again */
	uint32_t far;          /* the same when proxy warps back off */
};

/* One message, as the warp's channel sees it. */
struct simple_message {
	const char *from;
	char *to;
	uint64_t bytes, n;
	uint32_t channels;
	bool aligned; /* `from` and `to`, as far as the message has them */
};

template <typename A> GPU_FN bool simple_travels(const A &a, uint32_t i)
{
	return a.message[i].bytes & SHUNT_MESSAGE_SIMPLE;
}

template <typename A> GPU_FN struct simple_message simple_message(const A &a, uint32_t i)
{
	struct simple_message p;

	p.from = (const char *)a.message[i].from;
	p.to = (char *)a.message[i].to;
	p.bytes = message_bytes(a.message[i]);
	p.n = (p.bytes + SHUNT_SIMPLE_CHUNK - 1) / SHUNT_SIMPLE_CHUNK;
	p.channels = p.n < a.k.simple_channels ? (uint32_t)p.n : a.k.simple_channels;
	p.aligned = !(((uintptr_t)p.from | (uintptr_t)p.to) & 15);
	return p;
}

/* First chunk of the warp's channel; n if the message has fewer channels. */
GPU_FN uint64_t simple_first_chunk(const struct simple &c, const struct simple_message &p)
{
	return c.x.channel < p.channels ? c.x.channel : p.n;
}

/*
 * Offset of this lane's first pack of a chunk in the message. simple_whole(): the chunk is whole and aligned, so it
 * needs no checks.
 */
GPU_FN uint64_t simple_offset(uint64_t chunk) { return chunk * SHUNT_SIMPLE_CHUNK + gpu_lane() * 16; }
GPU_FN bool simple_whole(const struct simple_message &p, uint64_t chunk)
{
	return p.aligned && (chunk + 1) * SHUNT_SIMPLE_CHUNK <= p.bytes;
}

/* Does the message reach pack u of the first lane? The same for all lanes. */
GPU_FN bool simple_has_pack(const struct simple_message &p, uint64_t chunk, uint32_t u)
{
	return u < CHUNK_PACKS && chunk * SHUNT_SIMPLE_CHUNK + u * 512 < p.bytes;
}

template <typename T> GPU_FN struct gpu_v16 simple_load(const struct simple_message &p, uint64_t chunk, uint32_t u)
{
	return load_user<T>(p.from, simple_offset(chunk) + u * 512, 16, p.bytes, p.aligned);
}

template <typename T>
GPU_FN void simple_store(const struct simple_message &p, uint64_t chunk, uint32_t u, struct gpu_v16 v)
{
	store_user<T>(p.to, simple_offset(chunk) + u * 512, 16, p.bytes, p.aligned, v);
}

/* B packs of a lane, 512 bytes apart. */
template <int B> GPU_FN void packs_load(const char *from, struct gpu_v16 v[B])
{
	GPU_UNROLL for (uint32_t k = 0; k < B; k++)
		v[k] = gpu_ld16_stream(from + k * 512);
}

template <int B> GPU_FN void packs_store(char *to, const struct gpu_v16 v[B])
{
	GPU_UNROLL for (uint32_t k = 0; k < B; k++)
		gpu_st16_stream(to + k * 512, v[k]);
}

/* Offset of this lane's first pack of a ring's slot, in the scratch of the rank that receives from `source`. */
GPU_FN uint64_t simple_slot_at(const struct simple &c, uint32_t receiver, uint32_t source, uint64_t number)
{
	uint64_t slots = ((source - (source > receiver)) * c.per_peer + c.x.channel) * (uint64_t)c.ring;

	return c.at + (slots + ((uint32_t)number & (c.ring - 1))) * SHUNT_SIMPLE_CHUNK + gpu_lane() * 16;
}

GPU_FN void simple_publish(struct simple &c)
{
	if (++c.moved_chunks == PROXY_BACKOFF_CHUNKS)
		c.ahead = c.far;
	gpu_warp_sync();
	if (gpu_lane() == 0)
		gpu_st_release_block32(c.post, c.moved_chunks);
}

/* ---- send */

/* Waits until a ring has room for one more chunk; false: gave up. */
GPU_FN bool simple_wait_credit(const struct simple &c, const struct shunt_kargs &a, uint32_t peer, const uint64_t *head,
    uint64_t sent, uint64_t *credit)
{
	struct spin spin;

	if (gpu_warp_all(sent < *credit)) /* lanes may have read different counts */
		return true;
	spin_init(&spin, c.x.ctrl);
	while (!gpu_warp_all(sent < (*credit = gpu_ld_credit(head) + c.ahead)))
		if (!p2p_spin(&spin)) {
			p2p_give_up(c.x.ctrl, a.rank, peer, c.x.channel, sent + 1, *credit);
			return false;
		}
	return true;
}

template <typename T, typename Op, typename A>
GPU_FN bool simple_send(struct simple &c, const A &a, uint32_t peer, uint32_t message, uint32_t nmessages)
{
	struct shunt_rings *rings = &c.x.ctrl->simple;
	uint32_t index = p2p_index(c.x, a.k.rank, peer);
	const uint64_t *head = &p2p_told(c.x)->simple.head[index];
	uint64_t sent = rings->sent[index], credit = gpu_ld_credit(head) + c.ahead;

	GPU_ROLL for (uint32_t i = message; i < message + nmessages; i++) {
		struct simple_message p = simple_message(a, i);

		GPU_ROLL for (uint64_t chunk = simple_first_chunk(c, p); chunk < p.n; chunk += p.channels) {
			char *slot = a.k.peer[peer] + simple_slot_at(c, peer, a.k.rank, sent);

			if (simple_whole(p, chunk)) {
				struct gpu_v16 v[CHUNK_PACKS];

				packs_load<CHUNK_PACKS>(p.from + simple_offset(chunk), v);
				ll128_scale<T, Op, CHUNK_PACKS>(a.k, v);
				if (!simple_wait_credit(c, a.k, peer, head, sent, &credit))
					return false;
				packs_store<CHUNK_PACKS>(slot, v);
			} else {
				if (!simple_wait_credit(c, a.k, peer, head, sent, &credit))
					return false;
				GPU_ROLL for (uint32_t u = 0; simple_has_pack(p, chunk, u); u++) {
					struct gpu_v16 v[1] = { simple_load<T>(p, chunk, u) };

					ll128_scale<T, Op, 1>(a.k, v);
					gpu_st16(slot + u * 512, v[0]);
				}
			}
			sent++;
			simple_publish(c);
		}
	}
	gpu_warp_sync();
	if (gpu_lane() == 0 && !(a.k.flags & SHUNT_K_OVER_SENT_INPUT))
		rings->sent[index] = sent;
	return true;
}

/* ---- receive */

template <typename T, typename A>
GPU_FN bool simple_recv(struct simple &c, const A &a, uint32_t peer, uint32_t message, uint32_t nmessages)
{
	struct shunt_rings *rings = &c.x.ctrl->simple;
	uint32_t index = p2p_index(c.x, a.k.rank, peer);
	const uint64_t *arrived = &p2p_told(c.x)->simple.tail[index];
	uint64_t received = rings->received[index], tail = received;

	GPU_ROLL for (uint32_t i = message; i < message + nmessages; i++) {
		struct simple_message p = simple_message(a, i);

		GPU_ROLL for (uint64_t chunk = simple_first_chunk(c, p); chunk < p.n; chunk += p.channels) {
			const char *slot = c.x.inbox + simple_slot_at(c, a.k.rank, peer, received);
			struct spin spin;

			spin_init(&spin, c.x.ctrl);
			while (!gpu_warp_all(received < tail || received < (tail = gpu_ld_acquire(arrived))))
				if (!p2p_spin(&spin)) {
					p2p_give_up(c.x.ctrl, a.k.rank, peer, c.x.channel, received + 1, received);
					return false;
				}
			if (simple_whole(p, chunk)) {
				struct gpu_v16 v[CHUNK_PACKS];

				packs_load<CHUNK_PACKS>(slot, v);
				packs_store<CHUNK_PACKS>(p.to + simple_offset(chunk), v);
			} else {
				GPU_ROLL for (uint32_t u = 0; simple_has_pack(p, chunk, u); u++)
					simple_store<T>(p, chunk, u, gpu_ld16_stream(slot + u * 512));
			}
			received++;
			simple_publish(c);
		}
	}
	gpu_warp_sync(); /* all lanes have read the counter */
	if (gpu_lane() == 0)
		rings->received[index] = received;
	return true;
}

/* ---- reduce: a chunk from all sources at once; N and sources as in p2p.h */

/*
 * Lane s polls source s's counter. With SHUNT_K_OVER_SENT_INPUT the next lane polls the counter of this rank's
 * sending warp, which must have read a chunk before the result overwrites the chunk. The reducing warp then also
 * stores the sender's count of all launches at its end: only it knows that the sender has ended.
 */

struct simple_sources {
	const uint64_t *counter; /* NULL: this lane polls nothing */
	uint64_t *before;        /* the count of all launches */
	uint32_t rank;
	uint64_t received, tail;
};

template <typename A> GPU_FN struct simple_sources simple_sources(const struct simple &c, const A &a)
{
	struct shunt_rings *rings = &c.x.ctrl->simple;
	uint32_t lane = gpu_lane(), index;
	bool sender = lane == 1 && (a.k.flags & SHUNT_K_OVER_SENT_INPUT);
	struct simple_sources in = { 0 };

	if (lane + 1u < a.k.nranks || sender) {
		in.rank = p2p_source(sender ? 0 : lane, a.k.rank);
		index = p2p_index(c.x, a.k.rank, in.rank);
		in.counter = sender ? &rings->read[index] : &p2p_told(c.x)->simple.tail[index];
		in.before = sender ? &rings->sent[index] : &rings->received[index];
		in.received = in.tail = *in.before;
	}
	return in;
}

/* Waits until the next chunk of every source has arrived; false: gave up. */
template <typename A> GPU_FN bool simple_wait(const struct simple &c, const A &a, struct simple_sources *in)
{
	struct spin spin;

	spin_init(&spin, c.x.ctrl);
	while (!gpu_warp_all(
	    !in->counter || in->received < in->tail || in->received < (in->tail = gpu_ld_acquire(in->counter))))
		if (!p2p_spin(&spin)) {
			if (in->counter && in->received >= in->tail)
				spin_report(c.x.ctrl, spin_reason(c.x.ctrl), a.k.rank, in->rank, c.x.channel,
				    in->received + 1, in->received);
			return false;
		}
	gpu_warp_sync(); /* all lanes may read the chunks that any lane has waited for */
	return true;
}

/* Reduces packs u, u + 1, ... of all sources into `own`. slot: this lane's first pack of each source. */
template <typename T, typename Op, int N, int B, typename A>
GPU_FN void simple_reduce_packs(const A &a, const char *const slot[N - 1], uint32_t u, struct gpu_v16 own[B])
{
	struct gpu_v16 v[B * (N - 1)];

	GPU_UNROLL for (uint32_t s = 0; s < N - 1; s++) GPU_UNROLL
		for (uint32_t k = 0; k < B; k++)
			if (HAS_SOURCE(s, a.k))
				v[k * (N - 1) + s] = gpu_ld16_stream(slot[s] + (u + k) * 512);
	GPU_UNROLL for (uint32_t k = 0; k < B; k++)
		own[k] = p2p_reduce_packs<T, Op, N>(a.k, &v[k * (N - 1)], own[k]);
}

template <typename T, typename Op, int N, typename A>
GPU_FN bool simple_reduce(struct simple &c, const A &a, uint32_t message, uint32_t nmessages)
{
	const int B = N == 2 ? 8 : N == 4 ? 2 : 1; /* packs of each rank held in registers */
	struct simple_sources in = simple_sources(c, a);
	uint32_t next[N - 1]; /* chunk of each source, modulo 2^32: it only selects the slot */

	GPU_UNROLL for (uint32_t s = 0; s < N - 1; s++)
		next[s] = HAS_SOURCE(s, a.k) ?
		    (uint32_t)c.x.ctrl->simple.received[p2p_index(c.x, a.k.rank, p2p_source(s, a.k.rank))] :
		    0;
	GPU_ROLL for (uint32_t i = message; i < message + nmessages; i++) {
		struct simple_message p = simple_message(a, i);

		GPU_ROLL for (uint64_t chunk = simple_first_chunk(c, p); chunk < p.n; chunk += p.channels) {
			bool whole = simple_whole(p, chunk);
			const char *slot[N - 1];
			struct gpu_v16 own[B];

			GPU_UNROLL for (uint32_t s = 0; s < N - 1; s++)
				slot[s] = c.x.inbox + simple_slot_at(c, a.k.rank, p2p_source(s, a.k.rank), next[s]++);
			if (whole) /* load while waiting for the sources */
				packs_load<B>(p.from + simple_offset(chunk), own);
			if (!simple_wait(c, a, &in))
				return false;
			if (whole) {
				GPU_ROLL for (uint32_t u = 0;;) {
					ll128_scale<T, Op, B>(a.k, own);
					simple_reduce_packs<T, Op, N, B>(a, slot, u, own);
					packs_store<B>(p.to + simple_offset(chunk) + u * 512, own);
					u += B;
					if (u == CHUNK_PACKS)
						break;
					packs_load<B>(p.from + simple_offset(chunk) + u * 512, own);
				}
			} else {
				GPU_ROLL for (uint32_t u = 0; simple_has_pack(p, chunk, u); u++) {
					struct gpu_v16 v[1] = { simple_load<T>(p, chunk, u) };

					ll128_scale<T, Op, 1>(a.k, v);
					simple_reduce_packs<T, Op, N, 1>(a, slot, u, v);
					simple_store<T>(p, chunk, u, v[0]);
				}
			}
			in.received++;
			simple_publish(c);
		}
	}
	gpu_warp_sync(); /* all lanes have read the counters */
	if (in.counter)
		*in.before = in.received;
	return true;
}

/* ---- copy */

template <typename T, typename A>
GPU_FN void simple_copy(const struct simple &c, const A &a, const struct shunt_role &role)
{
	GPU_ROLL for (uint32_t i = role.first; i < (uint32_t)role.first + role.count; i++) {
		struct simple_message p = simple_message(a, i);

		GPU_ROLL for (uint64_t chunk = c.x.channel; chunk < p.n; chunk += role.channels) {
			if (simple_whole(p, chunk)) {
				struct gpu_v16 v[CHUNK_PACKS];

				packs_load<CHUNK_PACKS>(p.from + simple_offset(chunk), v);
				packs_store<CHUNK_PACKS>(p.to + simple_offset(chunk), v);
			} else {
				GPU_ROLL for (uint32_t u = 0; simple_has_pack(p, chunk, u); u++)
					simple_store<T>(p, chunk, u, simple_load<T>(p, chunk, u));
			}
		}
	}
}

/* ---- the proxy warp */

/* Warps of a block without the proxy warp. */
GPU_FN uint32_t simple_warps(void) { return gpu_ntid() / 32 - 1; }

/*
 * Role and first channel of a warp of this block; false: the warp has no role. If there are enough blocks, all warps of
 * a block have the same role: the proxy warp of receiving warps then waits for no stores, and the proxy warp of sending
 * warps only for their stores. Own parts are copied in blocks of their own for the same reason.
 */
template <typename A>
GPU_FN bool simple_assign(const A &a, uint32_t warp, struct shunt_role *role_p, uint32_t *channel_p)
{
	uint32_t bid = gpu_bid(), all = check_kernel_blocks(a.k), last = a.k.roles - 1, i = 0;

	if (bid >= all)
		return false;
	if (a.role[0].blocks) {
		GPU_ROLL for (; bid >= a.role[i].blocks; i++)
			bid -= a.role[i].blocks;
		warp += bid * simple_warps();
	} else if (bid >= all - a.role[last].blocks) {
		i = last;
		warp += (bid - (all - a.role[last].blocks)) * simple_warps();
	} else {
		uint32_t sharing = last + (a.role[last].blocks == 0);

		warp += bid * simple_warps();
		i = warp % sharing;
		warp /= sharing;
	}
	*role_p = a.role[i];
	*channel_p = warp;
	return warp < role_p->channels;
}

/*
 * A sending warp serves up to TURNS channels in turns. Number of channels of a warp with this role, and distance
 * between two of them.
 */
template <uint32_t TURNS, typename A>
GPU_FN uint32_t simple_channels_per_warp(const A &a, const struct shunt_role &role)
{
	return role.what == SHUNT_ROLE_SEND && a.k.simple_channels >= TURNS ? TURNS : 1;
}
template <uint32_t TURNS, typename A> GPU_FN uint32_t simple_stride(const A &a, const struct shunt_role &role)
{
	return a.k.simple_channels / simple_channels_per_warp<TURNS>(a, role);
}

#define PROXY_MAILBOXES 32u /* of a block: one for each lane of its proxy warp */

/*
 * Runs the proxy warp. True: this warp is the proxy warp, and its work is done. Called first in a kernel. N: ranks
 * that a warp may hear from, this rank included. TURNS: as above. A lane serves one channel of a warp, so lanes of a
 * warp's first channel come before those of the second one. The counters of adjacent channels are adjacent and travel
 * together. One release covers all chunks that the lanes have seen published.
 */
template <int N, uint32_t TURNS, typename A> GPU_FN bool proxy(const A &a, uint32_t *mailboxes)
{
	static_assert((SHUNT_MAX_THREADS / 32 - 1) * TURNS <= PROXY_MAILBOXES, "a lane for each channel of a block");
	uint32_t warp = gpu_tid() / 32, lane = gpu_lane(), turn = lane / simple_warps(), seen = PUBLISHED_ALL,
	         passed = 0, channel;
	struct shunt_role role = { SHUNT_ROLE_COPY };
	uint64_t before[N - 1], *to[N - 1] = { 0 }, *read = 0;

	if (warp == 0)
		mailboxes[lane] = 0;
	if (warp == simple_warps() && simple_assign(a, lane % simple_warps(), &role, &channel) &&
	    turn < simple_channels_per_warp<TURNS>(a, role) && role.what != SHUNT_ROLE_COPY) {
		struct shunt_rings *ours = &progress_ctrl(a)->simple;
		struct p2p x = p2p_init(a, channel + turn * simple_stride<TURNS>(a, role));
		bool reduces = role.what == SHUNT_ROLE_REDUCE, sends = role.what == SHUNT_ROLE_SEND;

		GPU_UNROLL for (uint32_t s = 0; s < N - 1; s++) {
			uint32_t peer = reduces ? p2p_source(s, a.k.rank) : role.peer;

			if (reduces ? !HAS_SOURCE(s, a.k) : s > 0)
				continue;
			uint32_t there = p2p_index(x, peer, a.k.rank), here = p2p_index(x, a.k.rank, peer);
			struct shunt_rings *theirs = &((struct shunt_ctrl *)a.k.peer[peer])->simple;

			to[s] = sends ? &theirs->tail[there] : &theirs->head[there];
			before[s] = sends ? ours->sent[here] : ours->received[here];
			if (s == 0 && sends && (a.k.flags & SHUNT_K_OVER_SENT_INPUT))
				read = &ours->read[here];
		}
	}
	gpu_sync();
	if (warp < simple_warps())
		return false;
	do {
		if (to[0])
			seen = gpu_ld_acquire_block32(&mailboxes[lane]);
		uint32_t moved_chunks = seen & ~PUBLISHED_ALL;

		gpu_warp_sync();
		if (moved_chunks > passed && role.what != SHUNT_ROLE_SEND) {
			GPU_UNROLL for (uint32_t s = 0; s < N - 1; s++)
				if (to[s])
					gpu_st_credit(to[s], before[s] + moved_chunks);
		}
		if (moved_chunks > passed && read)
			gpu_st_credit(read, before[0] + moved_chunks);
		if (moved_chunks > passed && role.what == SHUNT_ROLE_SEND)
			gpu_st_release(to[0], before[0] + moved_chunks);
		passed = moved_chunks;
		gpu_relax();
		if (a.k.nranks <= PROXY_BACKOFF_RANKS &&
		    gpu_warp_all((seen & PUBLISHED_ALL) || moved_chunks >= PROXY_BACKOFF_CHUNKS))
			gpu_nanosleep(role.what == SHUNT_ROLE_SEND ? SEND_BACKOFF_NS : RECV_BACKOFF_NS);
	} while (!gpu_warp_all(seen & PUBLISHED_ALL));
	return true;
}

/* ---- the body of kernels */

/*
 * Slots of a ring that a sender fills before the first is taken out again, and when proxy warps back off. More slots
 * would push the reduce's other data out of the cache.
 */
#define REDUCE_AHEAD 4u
#define REDUCE_AHEAD_BACKOFF 6u
#define WHOLE_RING UINT32_MAX

/* Number of the role's messages from i on that travel by the same protocol. */
template <typename A> GPU_FN uint32_t run_length(const A &a, const struct shunt_role &role, uint32_t i)
{
	uint32_t end = (uint32_t)role.first + role.count, next = i + 1;

	while (next < end && simple_travels(a, next) == simple_travels(a, i))
		next++;
	return next - i;
}

/*
 * Handles all messages of a role, run by run. A run may read the counters that the run before it has written. Ends
 * where a run gave up.
 */
#define EACH_RUN(a, role, by_simple, by_ll128) \
	{ \
		GPU_ROLL for (uint32_t i = (role).first, n; i < (uint32_t)(role).first + (role).count; i += n) { \
			n = run_length(a, role, i); \
			if (!(simple_travels(a, i) ? (by_simple) : (by_ll128))) \
				break; \
			gpu_warp_sync(); \
		} \
	}

/* The role of this warp, and *c for that role; false: the warp has no role. */
template <typename A>
GPU_FN bool simple_init(
    const A &a, uint32_t *mailboxes, uint32_t ahead, uint32_t far, struct shunt_role *role_p, struct simple *c)
{
	uint32_t warp = gpu_tid() / 32, channel;

	if (!simple_assign(a, warp, role_p, &channel))
		return false;
	c->x = p2p_init(a, channel);
	c->post = mailboxes + warp;
	c->moved_chunks = 0;
	c->at = SHUNT_SIMPLE_AT(a.k.nranks);
	c->per_peer = SHUNT_SIMPLE_PER_PEER(a.k.nranks);
	c->ring = SHUNT_SIMPLE_RING(a.k.nranks);
	c->ahead = ahead < c->ring ? ahead : c->ring;
	c->far = a.k.nranks > PROXY_BACKOFF_RANKS ? c->ahead : far < c->ring ? far : c->ring;
	return true;
}

/* Tells the proxy warp that this warp has ended. */
GPU_FN void simple_done(const struct simple &c)
{
	if (gpu_lane() == 0)
		gpu_st_release_block32(c.post, c.moved_chunks | PUBLISHED_ALL);
}
