/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The p2p engine: each rank sends parts to some ranks and receives parts from some ranks. A part that comes in is
 * stored (all-gather, all-to-all, broadcast, gather, scatter, send and receive) or reduced in rank order
 * (reduce-scatter, reduce).
 *
 * A warp has one role on one channel. It handles the messages of the role in order, and of each message the slots of
 * its channel: slot u of a message travels on channel u mod c. The message's size alone determines c, so sender and
 * receiver of a pair agree about every slot even if they issue the messages in different groups.
 *
 * A channel of a pair is a ring of slots in the receiver's scratch. A rank does not hear from every other rank here,
 * so the ring has credits: the receiver counts the slots that it has taken out, in the sender's scratch, and the
 * sender waits for that count before it writes a slot again.
 *
 * Messages travel in LL128 or in Simple (simple.h), which follows from their size. Each protocol has rings and
 * counters of its own. This file is about LL128: a slot is 480 bytes of the message. Each of its lines has a flag,
 * which counts on over all launches.
 */
#include "kernels/check_messages.h"
#include "kernels/ll128.h"

struct p2p {
	struct shunt_ctrl *ctrl;
	char *inbox; /* this rank's scratch */
	uint32_t channel;
	uint32_t width, at; /* this lane's bytes in a slot, as in ll128.h */
	uint32_t per_peer;
};

/* One message, as the warp's channel sees it. */
struct p2p_message {
	const char *from;
	char *to;
	uint64_t bytes, nslots;
	uint32_t channels;
	bool from_aligned, to_aligned;
};

/*
 * Index of a warp among the warps of its role: warp / roles. Right for up to 1024 warps and 15 roles.
 * per_role: 65536 / roles, rounded up.
 */
GPU_FN uint32_t p2p_warp_channel(uint32_t warp, uint32_t per_role) { return (warp * per_role) >> 16; }

template <typename A> GPU_FN struct p2p p2p_init(const A &a, uint32_t channel)
{
	struct p2p x;
	uint32_t lane = gpu_lane(), line = lane / LINE_LANES;

	x.ctrl = (struct shunt_ctrl *)a.k.peer[a.k.rank];
	x.inbox = (char *)spin_inbox(x.ctrl);
	x.channel = channel;
	x.width = GPU_LL128_FLAG_LANE ? 8 : 16;
	x.at = GPU_LL128_FLAG_LANE ? LINE_PACKS + line * 8 : (line * (LINE_LANES - 1) + lane % LINE_LANES) * 16;
	x.per_peer = SHUNT_P2P_PER_PEER(a.k.nranks);
	return x;
}

template <typename A> GPU_FN struct p2p_message p2p_message(const A &a, uint32_t i)
{
	struct p2p_message p;

	p.from = (const char *)a.message[i].from;
	p.to = (char *)a.message[i].to;
	p.bytes = a.message[i].bytes;
	p.nslots = ll128_slots(p.bytes);
	p.channels = p.nslots < a.k.channels ? (uint32_t)p.nslots : a.k.channels;
	p.from_aligned = !((uintptr_t)p.from & 15);
	p.to_aligned = !((uintptr_t)p.to & 15);
	return p;
}

/* First slot of the warp's channel; nslots if the message has fewer channels. */
GPU_FN uint64_t p2p_first_slot(const struct p2p &x, const struct p2p_message &p)
{
	return x.channel < p.channels ? x.channel : p.nslots;
}

/* Index of this channel among rank `owner`'s channels with all its peers. */
GPU_FN uint32_t p2p_index(const struct p2p &x, uint32_t owner, uint32_t peer)
{
	return (peer - (peer > owner)) * x.per_peer + x.channel;
}

/* Offset of this channel's ring in the scratch of the rank that receives from `source`. Offset of a slot in a ring. */
GPU_FN uint64_t p2p_ring_at(const struct p2p &x, uint32_t receiver, uint32_t source)
{
	return SHUNT_P2P_AT + (uint64_t)p2p_index(x, receiver, source) * SHUNT_P2P_RING * SHUNT_LL128_SLOT_WIRE;
}
GPU_FN uint32_t p2p_slot_at(uint64_t slot) { return (uint32_t)slot % SHUNT_P2P_RING * SHUNT_LL128_SLOT_WIRE; }

/* Number of this channel's slots in a batch of at most B that starts at slot `first` of the message. */
template <int B> GPU_FN uint32_t p2p_batch(const struct p2p_message &p, uint64_t first)
{
	uint32_t n = 1;

	while (n < B && first + (uint64_t)n * p.channels < p.nslots)
		n++;
	return n;
}

/* True: the batch has B slots, and all of them are whole. */
template <int B> GPU_FN bool p2p_whole(const struct p2p_message &p, uint64_t first, uint32_t n)
{
	return n == B && (first + (uint64_t)(B - 1) * p.channels + 1) * SHUNT_LL128_SLOT_DATA <= p.bytes;
}

/*
 * Loads the n slots of a batch that starts at slot `first`. In the middle of a large message no load waits for
 * another one. Elsewhere each slot's end and alignment is checked, and the loads come one after the other.
 */
template <typename T, int B>
GPU_FN void p2p_load(const struct p2p &x, const struct p2p_message &p, uint64_t first, uint32_t n, struct gpu_v16 v[B])
{
	if constexpr (is_same<T, v16>::value) { /* beyond the message's end, load the first slot's beginning */
		GPU_UNROLL for (uint32_t k = 0; k < B; k++) {
			uint64_t at = (first + (uint64_t)k * p.channels) * SHUNT_LL128_SLOT_DATA + ll128_pack_at();

			v[k] = gpu_ld16_stream(p.from + (at < p.bytes ? at : first * SHUNT_LL128_SLOT_DATA));
		}
		GPU_UNROLL for (uint32_t k = 0; k < B; k++)
			ll128_unpack_half(&v[k]);
		return;
	}
	if (p.from_aligned && p2p_whole<B>(p, first, n)) {
		const char *from[B];

		GPU_UNROLL for (uint32_t k = 0; k < B; k++)
			from[k] = p.from + (first + (uint64_t)k * p.channels) * SHUNT_LL128_SLOT_DATA;
		ll128_load_slots<B>(from, v);
		return;
	}
	GPU_UNROLL for (uint32_t k = 0; k < B; k++)
		if (k < n)
			v[k] = load_user<T>(p.from, (first + (uint64_t)k * p.channels) * SHUNT_LL128_SLOT_DATA + x.at,
			    x.width, p.bytes, p.from_aligned);
}

template <typename T, int B>
GPU_FN void p2p_store(
    const struct p2p &x, const struct p2p_message &p, uint64_t first, uint32_t n, const struct gpu_v16 v[B])
{
	if (!is_same<T, v16>::value && p.to_aligned && p2p_whole<B>(p, first, n)) {
		char *to = p.to + first * SHUNT_LL128_SLOT_DATA;

		GPU_UNROLL for (uint32_t k = 0; k < B; k++)
			ll128_store_slot(to + (uint64_t)k * p.channels * SHUNT_LL128_SLOT_DATA, v[k]);
		return;
	}
	GPU_UNROLL for (uint32_t k = 0; k < B; k++)
		if (k < n)
			store_user<T>(p.to, (first + (uint64_t)k * p.channels) * SHUNT_LL128_SLOT_DATA + x.at, x.width,
			    p.bytes, p.to_aligned, v[k]);
}

/* Collective over the warp; false: gave up. Lane 7 checks for all lanes. */
GPU_FN bool p2p_spin(struct spin *s) { return gpu_warp_all(gpu_lane() != 7 || !spin_expired(s)); }

GPU_NOINLINE void p2p_give_up(
    struct shunt_ctrl *ctrl, uint32_t rank, uint32_t peer, uint32_t channel, uint64_t expected, uint64_t seen)
{
	uint32_t reason = spin_reason(ctrl);

	if (gpu_lane() == 7)
		spin_report(ctrl, reason, rank, peer, channel, expected, seen);
}

/* The counters that peers write. */
GPU_FN struct shunt_ctrl *p2p_told(const struct p2p &x) { return (struct shunt_ctrl *)x.inbox; }

/* ---- send */

/* Waits until a ring has room for the slots up to `end`; false: gave up. */
template <typename A>
GPU_FN bool p2p_wait_credit(
    const struct p2p &x, const A &a, uint32_t peer, const uint64_t *head, uint64_t end, uint64_t *credit)
{
	struct spin spin;

	if (gpu_warp_all(end <= *credit)) /* lanes may have read different counts */
		return true;
	spin_init(&spin, x.ctrl);
	while (!gpu_warp_all(end <= (*credit = gpu_ld_credit(head) + SHUNT_P2P_RING)))
		if (!p2p_spin(&spin)) {
			p2p_give_up(x.ctrl, a.k.rank, peer, x.channel, end, *credit);
			return false;
		}
	return true;
}

GPU_FN void p2p_store_slots(char *ring, uint64_t sent, uint32_t n, const struct gpu_v16 v[SHUNT_P2P_BATCH])
{
	GPU_UNROLL for (uint32_t k = 0; k < SHUNT_P2P_BATCH; k++)
		if (k < n)
			gpu_ll128_st(ring + p2p_slot_at(sent + k), v[k], sent + k + 1);
}

/* Sends nmessages messages of the launch, from `message` on; false: gave up. p2p_recv() and p2p_reduce() are alike. */
template <typename T, typename Op, typename A>
GPU_FN bool p2p_send(const struct p2p &x, const A &a, uint32_t peer, uint32_t message, uint32_t nmessages)
{
	uint32_t index = p2p_index(x, a.k.rank, peer);
	const uint64_t *head = &p2p_told(x)->ll128.head[index];
	char *ring = a.k.peer[peer] + p2p_ring_at(x, peer, a.k.rank);
	uint64_t sent = x.ctrl->ll128.sent[index], credit = gpu_ld_credit(head) + SHUNT_P2P_RING;

	GPU_ROLL for (uint32_t i = message; i < message + nmessages; i++) {
		struct p2p_message p = p2p_message(a, i);

		GPU_ROLL for (uint64_t first = p2p_first_slot(x, p); first < p.nslots;
		    first += (uint64_t)SHUNT_P2P_BATCH * p.channels) {
			uint32_t n = p2p_batch<SHUNT_P2P_BATCH>(p, first);
			struct gpu_v16 v[SHUNT_P2P_BATCH];

			p2p_load<T, SHUNT_P2P_BATCH>(x, p, first, n, v);
			ll128_scale<T, Op, SHUNT_P2P_BATCH>(a.k, v);
			if (!p2p_wait_credit(x, a, peer, head, sent + n, &credit))
				return false;
			p2p_store_slots(ring, sent, n, v);
			sent += n;
		}
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		x.ctrl->ll128.sent[index] = sent;
	return true;
}

/* A message that is one batch on each channel. */
template <typename T, typename A>
GPU_FN void p2p_send_one(const struct p2p &x, const A &a, uint32_t peer, const struct p2p_message &p)
{
	uint32_t index = p2p_index(x, a.k.rank, peer), n = p2p_batch<SHUNT_P2P_BATCH>(p, x.channel);
	const uint64_t *head = &p2p_told(x)->ll128.head[index];
	uint64_t sent = x.ctrl->ll128.sent[index], credit = gpu_ld_credit(head) + SHUNT_P2P_RING;
	struct gpu_v16 v[SHUNT_P2P_BATCH];

	p2p_load<T, SHUNT_P2P_BATCH>(x, p, x.channel, n, v);
	if (!p2p_wait_credit(x, a, peer, head, sent + n, &credit))
		return;
	p2p_store_slots(a.k.peer[peer] + p2p_ring_at(x, peer, a.k.rank), sent, n, v);
	gpu_warp_sync();
	if (gpu_lane() == 0)
		x.ctrl->ll128.sent[index] = sent + n;
}

/* ---- forward: slots that registers hold, to one rank or several */

struct p2p_forward {
	uint32_t ranks;  /* bit r: send to rank r */
	uint32_t passed; /* slots sent in this launch */
	uint32_t room;   /* lane r: most that `passed` may be, by the credit known of rank r's ring */
};

template <typename A> GPU_FN uint32_t p2p_credit(const struct p2p &x, const A &a, uint32_t peer)
{
	uint32_t index = p2p_index(x, a.k.rank, peer);

	return (uint32_t)(gpu_ld_credit(&p2p_told(x)->ll128.head[index]) + SHUNT_P2P_RING - x.ctrl->ll128.sent[index]);
}

template <typename A> GPU_FN struct p2p_forward p2p_forward_init(const struct p2p &x, const A &a, uint32_t ranks)
{
	struct p2p_forward out = { ranks, 0, UINT32_MAX };

	if (ranks >> gpu_lane() & 1)
		out.room = p2p_credit(x, a, gpu_lane());
	return out;
}

/* Sends the n slots of a batch; false: gave up. p2p_forward_done() updates the counters of sent slots. */
template <int B, typename A>
GPU_FN bool p2p_forward_slots(
    const struct p2p &x, const A &a, struct p2p_forward *out, uint32_t n, const struct gpu_v16 v[B])
{
	struct spin spin;

	spin_init(&spin, x.ctrl);
	while (!gpu_warp_all(
	    out->passed + n <= out->room || out->passed + n <= (out->room = p2p_credit(x, a, gpu_lane()))))
		if (!p2p_spin(&spin)) {
			if (out->passed + n > out->room)
				spin_report(x.ctrl, spin_reason(x.ctrl), a.k.rank, gpu_lane(), x.channel,
				    out->passed + n, out->room);
			return false;
		}
	GPU_ROLL for (uint32_t i = 1, r = a.k.rank; i < a.k.nranks; i++) {
		r = r + 1 == a.k.nranks ? 0 : r + 1;
		if (!(out->ranks >> r & 1))
			continue;
		uint64_t sent = x.ctrl->ll128.sent[p2p_index(x, a.k.rank, r)] + out->passed;
		char *ring = a.k.peer[r] + p2p_ring_at(x, r, a.k.rank);

		GPU_UNROLL for (uint32_t k = 0; k < B; k++)
			if (k < n)
				gpu_ll128_st(ring + p2p_slot_at(sent + k), v[k], sent + k + 1);
	}
	out->passed += n;
	return true;
}

template <typename A> GPU_FN void p2p_forward_done(const struct p2p &x, const A &a, const struct p2p_forward &out)
{
	gpu_warp_sync(); /* all lanes have read the counters */
	if (out.ranks >> gpu_lane() & 1)
		x.ctrl->ll128.sent[p2p_index(x, a.k.rank, gpu_lane())] += out.passed;
}

/* ---- receive */

/* Tells a sender that its slots up to `received` are out of the ring. */
GPU_FN void p2p_return_credit(const struct p2p &x, const struct shunt_kargs &a, uint32_t peer, uint64_t received)
{
	struct shunt_ctrl *theirs = (struct shunt_ctrl *)a.peer[peer];

	gpu_st_credit(&theirs->ll128.head[p2p_index(x, peer, a.rank)], received);
}

/* The ranks to which a forwarding warp sends: all but this rank and the peer from which it receives. */
template <typename A> GPU_FN uint32_t p2p_forward_ranks(const A &a, uint32_t peer)
{
	return ((1u << a.k.nranks) - 1) & ~(1u << a.k.rank | 1u << peer);
}

/* Waits for n slots and loads them; false: gave up. */
template <typename A>
GPU_FN bool p2p_wait_slots(const struct p2p &x, const A &a, uint32_t peer, const char *ring, uint64_t received,
    uint32_t n, struct gpu_v16 v[SHUNT_P2P_BATCH])
{
	struct spin spin;

	spin_init(&spin, x.ctrl);
	for (;;) {
		bool here = true;

		GPU_UNROLL for (uint32_t k = 0; k < SHUNT_P2P_BATCH; k++)
			if (k < n)
				gpu_ll128_ld(ring + p2p_slot_at(received + k), &v[k], received + k + 1);
		GPU_UNROLL for (uint32_t k = 0; k < SHUNT_P2P_BATCH; k++)
			if (k < n && !gpu_ll128_ready(v[k], received + k + 1))
				here = false;
		if (gpu_warp_all(here))
			return true;
		if (!p2p_spin(&spin)) {
			p2p_give_up(x.ctrl, a.k.rank, peer, x.channel, received + n, received);
			return false;
		}
	}
}

/* A message that is one batch on each channel. */
template <typename T, typename A>
GPU_FN void p2p_recv_one(const struct p2p &x, const A &a, uint32_t peer, const struct p2p_message &p)
{
	uint32_t index = p2p_index(x, a.k.rank, peer), n = p2p_batch<SHUNT_P2P_BATCH>(p, x.channel);
	uint64_t received = x.ctrl->ll128.received[index];
	struct gpu_v16 v[SHUNT_P2P_BATCH];

	if (!p2p_wait_slots(x, a, peer, x.inbox + p2p_ring_at(x, a.k.rank, peer), received, n, v))
		return;
	p2p_store<T, SHUNT_P2P_BATCH>(x, p, x.channel, n, v);
	gpu_warp_sync();
	if (gpu_lane() == 0) {
		p2p_return_credit(x, a.k, peer, received + n);
		x.ctrl->ll128.received[index] = received + n;
	}
}

/* ranks: ranks to pass the messages on to, a bit each. */
template <typename T, typename A>
GPU_FN bool p2p_recv(
    const struct p2p &x, const A &a, uint32_t peer, uint32_t message, uint32_t nmessages, uint32_t ranks)
{
	struct p2p_forward out = p2p_forward_init(x, a, ranks);
	uint32_t index = p2p_index(x, a.k.rank, peer);
	uint64_t received = x.ctrl->ll128.received[index];
	const char *ring = x.inbox + p2p_ring_at(x, a.k.rank, peer);

	GPU_ROLL for (uint32_t i = message; i < message + nmessages; i++) {
		struct p2p_message p = p2p_message(a, i);

		GPU_ROLL for (uint64_t first = p2p_first_slot(x, p); first < p.nslots;
		    first += (uint64_t)SHUNT_P2P_BATCH * p.channels) {
			uint32_t n = p2p_batch<SHUNT_P2P_BATCH>(p, first);
			struct gpu_v16 v[SHUNT_P2P_BATCH];

			if (!p2p_wait_slots(x, a, peer, ring, received, n, v))
				return false;
			if (ranks && !p2p_forward_slots<SHUNT_P2P_BATCH>(x, a, &out, n, v))
				return false;
			p2p_store<T, SHUNT_P2P_BATCH>(x, p, first, n, v);
			received += n;
			gpu_warp_sync();
			if (gpu_lane() == 0)
				p2p_return_credit(x, a.k, peer, received);
		}
	}
	gpu_warp_sync(); /* all lanes have read the counter */
	if (gpu_lane() == 0)
		x.ctrl->ll128.received[index] = received;
	p2p_forward_done(x, a, out);
	return true;
}

/* ---- reduce: a batch of slots from all sources at once */

/*
 * Kernels are for up to N ranks, as in ll128.h. Sources are the other ranks, numbered without a gap for this rank.
 * Does source s exist?
 */
#define HAS_SOURCE(s, a) (N == 2 || (s) + 1u < (a).nranks)

GPU_FN uint32_t p2p_source(uint32_t s, uint32_t rank) { return s + (s >= rank); }

/* Reduces the packs of all ranks in rank order; v has the sources' packs, own is this rank's. */
template <typename T, typename Op, int N>
GPU_FN struct gpu_v16 p2p_reduce_packs(const struct shunt_kargs &a, const struct gpu_v16 v[N - 1], struct gpu_v16 own)
{
	struct acc<T, Op> acc;

	acc.start(a.rank == 0 ? own : v[0], a.flags);
	GPU_UNROLL for (uint32_t r = 1; r < N; r++)
		if (HAS_SOURCE(r - 1, a))
			acc.add(r == a.rank ? own : r < a.rank && r < N - 1 ? v[r] : v[r - 1], a.flags);
	return acc_finish(acc, a);
}

/* B: slots of each rank held in registers. */
template <typename T, typename Op, int N, int B, typename A>
GPU_FN bool p2p_reduce(const struct p2p &x, const A &a, uint32_t message, uint32_t nmessages)
{
	const int S = N - 1;
	struct shunt_rings *rings = &x.ctrl->ll128;
	const char *ring[S];
	uint64_t received[S];

	GPU_UNROLL for (uint32_t s = 0; s < S; s++) {
		uint32_t r = p2p_source(s, a.k.rank);

		ring[s] = x.inbox + p2p_ring_at(x, a.k.rank, r);
		received[s] = HAS_SOURCE(s, a.k) ? rings->received[p2p_index(x, a.k.rank, r)] : 0;
	}
	GPU_ROLL for (uint32_t i = message; i < message + nmessages; i++) {
		struct p2p_message p = p2p_message(a, i);

		GPU_ROLL for (uint64_t first = p2p_first_slot(x, p); first < p.nslots;
		    first += (uint64_t)B * p.channels) {
			uint32_t n = p2p_batch<B>(p, first);
			struct gpu_v16 own[B], v[B * S];
			struct spin spin;

			p2p_load<T, B>(x, p, first, n, own);
			ll128_scale<T, Op, B>(a.k, own);
			spin_init(&spin, x.ctrl);
			for (;;) {
				uint32_t missing = 0;

				GPU_UNROLL for (uint32_t k = 0; k < B; k++) GPU_UNROLL
					for (uint32_t s = 0; s < S; s++)
						if (k < n && HAS_SOURCE(s, a.k))
							gpu_ll128_ld(ring[s] + p2p_slot_at(received[s] + k),
							    &v[k * S + s], received[s] + k + 1);
				GPU_UNROLL for (uint32_t k = 0; k < B; k++) GPU_UNROLL
					for (uint32_t s = 0; s < S; s++)
						if (k < n && HAS_SOURCE(s, a.k) &&
						    !gpu_ll128_ready(v[k * S + s], received[s] + k + 1))
							missing |= 1u << s;
				if (gpu_warp_all(!missing))
					break;
				if (!p2p_spin(&spin)) {
					uint32_t late = 0;
					uint64_t seen = 0;

					GPU_UNROLL for (uint32_t s = S; s--;)
						if (missing >> s & 1) {
							late = s;
							seen = received[s];
						}
					p2p_give_up(
					    x.ctrl, a.k.rank, p2p_source(late, a.k.rank), x.channel, seen + n, seen);
					return false;
				}
			}
			GPU_UNROLL for (uint32_t k = 0; k < B; k++)
				if (k < n)
					own[k] = p2p_reduce_packs<T, Op, N>(a.k, &v[k * S], own[k]);
			p2p_store<T, B>(x, p, first, n, own);
			gpu_warp_sync();
			GPU_UNROLL for (uint32_t s = 0; s < S; s++) {
				received[s] += n;
				if (HAS_SOURCE(s, a.k) && gpu_lane() == s)
					p2p_return_credit(x, a.k, p2p_source(s, a.k.rank), received[s]);
			}
		}
	}
	gpu_warp_sync();
	GPU_UNROLL for (uint32_t s = 0; s < S;
	    s++) /* by one lane: with s = gpu_lane() as the index the counts would be in memory */
		if (HAS_SOURCE(s, a.k) && gpu_lane() == 0)
			rings->received[p2p_index(x, a.k.rank, p2p_source(s, a.k.rank))] = received[s];
	return true;
}

/* ---- copy */

template <typename T> GPU_FN void p2p_copy_batch(const struct p2p &x, const struct p2p_message &p, uint64_t first)
{
	uint32_t n = p2p_batch<SHUNT_P2P_BATCH>(p, first);
	struct gpu_v16 v[SHUNT_P2P_BATCH];

	p2p_load<T, SHUNT_P2P_BATCH>(x, p, first, n, v);
	gpu_warp_sync(); /* a message to this rank itself may overlap its source, and lanes read more than they store */
	p2p_store<T, SHUNT_P2P_BATCH>(x, p, first, n, v);
}

template <typename T, typename A> GPU_FN void p2p_copy(const struct p2p &x, const A &a, const struct shunt_role &role)
{
	GPU_ROLL for (uint32_t i = role.first; i < (uint32_t)role.first + role.count; i++) {
		struct p2p_message p = p2p_message(a, i);

		GPU_ROLL for (uint64_t first = p2p_first_slot(x, p); first < p.nslots;
		    first += (uint64_t)SHUNT_P2P_BATCH * p.channels)
			p2p_copy_batch<T>(x, p, first);
	}
}

/* Runs SHUNT_CHECK's comparison of messages if this is its block. True: it has run, and the block has no other work. */
template <typename A> GPU_FN bool p2p_check_block(const A &a)
{
	if (!check_is_block(a.k, SHUNT_CHECK_MESSAGES))
		return false;
	check_messages(progress_ctrl(a), a.k.rank, a.role, a.k.roles, a.message);
	return true;
}

/* The kernels of a file that defines p2p_copy_kernel() and p2p_reduce_kernel(), for the lists of kernel_list.h. */
#define COPY_KERNEL(args, shape, type) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, copy, type)(GPU_ARG(struct args) a) \
	    PROGRESS(a, p2p_copy_kernel<type>(a))
#define COPY_FEW(shape, op, opn, type, typen) COPY_KERNEL(shunt_kargs_few, shape, type)
#define COPY_ONE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, copy, type)(GPU_ARG(struct shunt_kargs_few) a) \
	    PROGRESS(a, ll128_one<type>(a))
#define COPY_MANY(shape, op, opn, type, typen) COPY_KERNEL(shunt_kargs_many, shape, type)
#define REDUCE_KERNEL(n, shape, op, type) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_few) a) \
	    PROGRESS(a, p2p_reduce_kernel<type, op_##op, n>(a))
#define REDUCE2(shape, op, opn, type, typen) REDUCE_KERNEL(2, shape, op, type)
#define REDUCE4(shape, op, opn, type, typen) REDUCE_KERNEL(4, shape, op, type)
#define REDUCE8(shape, op, opn, type, typen) REDUCE_KERNEL(8, shape, op, type)
