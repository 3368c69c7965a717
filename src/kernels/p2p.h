/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_P2P_H
#define SHUNT_KERNELS_P2P_H
/*
 * Everything that is not an all-reduce by LL128: each rank sends parts to some ranks and hears from some. What comes in
 * is stored (all-gather, all-to-all, broadcast, gather, scatter, send and receive) or reduced in rank order
 * (reduce-scatter, reduce).
 *
 * A warp has one role on one channel. It goes through the role's messages in order, and of each through the slots that
 * are its channel's: slot u of a message travels on channel u mod c, where c follows from the message's size alone. So
 * sender and receiver of a pair agree about every slot even if they issue the messages in different groups.
 *
 * A channel of a pair is a ring of slots in the receiver's scratch. Not every rank hears from every other here, so a
 * sender must not run ahead of the receiver: it waits until the receiver has taken what stands in the slot, which the
 * receiver tells it by a counter in the sender's own scratch.
 *
 * Messages travel in LL128 or in chunks (simple.h), which both ends know by their size; either has rings and counters
 * of its own. This file is about lines: a slot is 480 bytes of the message, and has a flag in each of its lines that
 * counts on over all launches.
 */
#include "kernels/check_messages.h"
#include "kernels/ll128.h"

struct p2p {
	struct shunt_ctrl *ctrl;
	char *inbox; /* our own scratch */
	uint32_t channel;
	uint32_t width, at; /* of this lane in a slot, as in ll128.h */
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
 * The how manyth of its role a warp is: warp / roles, as long as there are no more than 1024 warps and 15 roles.
 * per_role: 65536 / roles, rounded up.
 */
GPU_FN uint32_t p2p_warp_channel(uint32_t warp, uint32_t per_role) { return (warp * per_role) >> 16; }

template <typename A> GPU_FN struct p2p p2p_init(const A &a, uint32_t channel)
{
	struct p2p x;
	uint32_t lane = gpu_lane(), line = lane / 8;

	x.inbox = a.k.peer[a.k.rank];
	x.ctrl = (struct shunt_ctrl *)x.inbox;
	x.channel = channel;
	x.width = GPU_LL128_FLAG_LANE ? 8 : 16;
	x.at = GPU_LL128_FLAG_LANE ? 448 + line * 8 : (line * 7 + lane % 8) * 16;
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

/* The first slot of the warp's channel; none if the message has fewer channels. */
GPU_FN uint64_t p2p_first_slot(const struct p2p &x, const struct p2p_message &p)
{
	return x.channel < p.channels ? x.channel : p.nslots;
}

/* Our channel's number among those of rank `owner`'s with its peer. */
GPU_FN uint32_t p2p_index(const struct p2p &x, uint32_t owner, uint32_t peer)
{
	return (peer - (peer > owner)) * x.per_peer + x.channel;
}

/* Offset of our channel's ring in the scratch of the rank that receives from `source`, and of a slot in a ring. */
GPU_FN uint64_t p2p_ring_at(const struct p2p &x, uint32_t receiver, uint32_t source)
{
	return SHUNT_P2P_AT + (uint64_t)p2p_index(x, receiver, source) * SHUNT_P2P_RING * SHUNT_LL128_SLOT_WIRE;
}
GPU_FN uint32_t p2p_slot_at(uint64_t slot) { return (uint32_t)slot % SHUNT_P2P_RING * SHUNT_LL128_SLOT_WIRE; }

/* How many slots of this channel are in a batch of at most B that starts at slot `first` of the part. */
template <int B> GPU_FN uint32_t p2p_batch(const struct p2p_message &p, uint64_t first)
{
	uint32_t n = 1;

	while (n < B && first + (uint64_t)n * p.channels < p.nslots)
		n++;
	return n;
}

/* Whether a batch is full, and all of its slots whole. */
template <int B> GPU_FN bool p2p_whole(const struct p2p_message &p, uint64_t first, uint32_t n)
{
	return n == B && (first + (uint64_t)(B - 1) * p.channels + 1) * SHUNT_LL128_SLOT_DATA <= p.bytes;
}

/*
 * The n slots of a batch that starts at slot `first`. In the middle of a large message no load waits for another one;
 * elsewhere each slot's end and alignment is looked at, and the loads come one after the other.
 */
template <typename T, int B>
GPU_FN void p2p_load(const struct p2p &x, const struct p2p_message &p, uint64_t first, uint32_t n, struct gpu_v16 v[B])
{
	if constexpr (is_same<T, v16>::value) { /* for what is not there, the first slot's beginning */
		GPU_UNROLL
		for (uint32_t k = 0; k < B; k++) {
			uint64_t at = (first + (uint64_t)k * p.channels) * SHUNT_LL128_SLOT_DATA + ll128_pack_at();

			v[k] = gpu_ld16_stream(p.from + (at < p.bytes ? at : first * SHUNT_LL128_SLOT_DATA));
		}
		GPU_UNROLL
		for (uint32_t k = 0; k < B; k++)
			ll128_unpack_half(&v[k]);
		return;
	}
	if (p.from_aligned && p2p_whole<B>(p, first, n)) {
		const char *from[B];

		GPU_UNROLL
		for (uint32_t k = 0; k < B; k++)
			from[k] = p.from + (first + (uint64_t)k * p.channels) * SHUNT_LL128_SLOT_DATA;
		ll128_load_slots<B>(from, v);
		return;
	}
	GPU_UNROLL
	for (uint32_t k = 0; k < B; k++)
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

		GPU_UNROLL
		for (uint32_t k = 0; k < B; k++)
			ll128_store_slot(to + (uint64_t)k * p.channels * SHUNT_LL128_SLOT_DATA, v[k]);
		return;
	}
	GPU_UNROLL
	for (uint32_t k = 0; k < B; k++)
		if (k < n)
			store_user<T>(p.to, (first + (uint64_t)k * p.channels) * SHUNT_LL128_SLOT_DATA + x.at, x.width,
			    p.bytes, p.to_aligned, v[k]);
}

/* Collective over the warp; false: gave up. Lane 7 looks for all. */
GPU_FN bool p2p_spin(struct spin *s) { return gpu_warp_all(gpu_lane() != 7 || !spin_expired(s)); }

GPU_NOINLINE void p2p_give_up(
    struct shunt_ctrl *ctrl, uint32_t rank, uint32_t peer, uint32_t channel, uint64_t expected, uint64_t seen)
{
	uint32_t reason = spin_reason(ctrl);

	if (gpu_lane() == 7)
		spin_report(ctrl, reason, rank, peer, channel, expected, seen);
}

/* ---- sending */

/* Waits until a ring has room for n slots more; false: gave up. */
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
	GPU_UNROLL
	for (uint32_t k = 0; k < SHUNT_P2P_BATCH; k++)
		if (k < n)
			gpu_ll128_st(ring + p2p_slot_at(sent + k), v[k], sent + k + 1);
}

/* Messages message, message + 1, ... of the launch; false: gave up. So are those that follow. */
template <typename T, typename Op, typename A>
GPU_FN bool p2p_send(const struct p2p &x, const A &a, uint32_t peer, uint32_t message, uint32_t nmessages)
{
	uint32_t index = p2p_index(x, a.k.rank, peer);
	const uint64_t *head = &x.ctrl->ll128.head[index];
	char *ring = a.k.peer[peer] + p2p_ring_at(x, peer, a.k.rank);
	uint64_t sent = x.ctrl->ll128.sent[index], credit = gpu_ld_credit(head) + SHUNT_P2P_RING;

	GPU_ROLL
	for (uint32_t i = message; i < message + nmessages; i++) {
		struct p2p_message p = p2p_message(a, i);

		GPU_ROLL
		for (uint64_t first = p2p_first_slot(x, p); first < p.nslots;
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
	const uint64_t *head = &x.ctrl->ll128.head[index];
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

/* ---- passing on: slots that registers hold, to one rank or several. Lane r looks after the room in rank r's ring */

struct p2p_forward {
	uint32_t ranks;  /* bit r: to rank r */
	uint32_t passed; /* slots, in this launch */
	uint32_t room;   /* ... that there may be, by what this lane knows of its rank's ring */
};

template <typename A> GPU_FN uint32_t p2p_credit(const struct p2p &x, const A &a, uint32_t peer)
{
	uint32_t index = p2p_index(x, a.k.rank, peer);

	return (uint32_t)(gpu_ld_credit(&x.ctrl->ll128.head[index]) + SHUNT_P2P_RING - x.ctrl->ll128.sent[index]);
}

template <typename A> GPU_FN struct p2p_forward p2p_forward_init(const struct p2p &x, const A &a, uint32_t ranks)
{
	struct p2p_forward out = { ranks, 0, UINT32_MAX };

	if (ranks >> gpu_lane() & 1)
		out.room = p2p_credit(x, a, gpu_lane());
	return out;
}

/* The n slots of a batch; false: gave up. The counters of what was sent stay as they are until p2p_forward_done(). */
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
	GPU_ROLL
	for (uint32_t i = 1, r = a.k.rank; i < a.k.nranks; i++) {
		r = r + 1 == a.k.nranks ? 0 : r + 1;
		if (!(out->ranks >> r & 1))
			continue;
		uint64_t sent = x.ctrl->ll128.sent[p2p_index(x, a.k.rank, r)] + out->passed;
		char *ring = a.k.peer[r] + p2p_ring_at(x, r, a.k.rank);

		GPU_UNROLL
		for (uint32_t k = 0; k < B; k++)
			if (k < n)
				gpu_ll128_st(ring + p2p_slot_at(sent + k), v[k], sent + k + 1);
	}
	out->passed += n;
	return true;
}

template <typename A> GPU_FN void p2p_forward_done(const struct p2p &x, const A &a, const struct p2p_forward &out)
{
	gpu_warp_sync(); /* all lanes have read them */
	if (out.ranks >> gpu_lane() & 1)
		x.ctrl->ll128.sent[p2p_index(x, a.k.rank, gpu_lane())] += out.passed;
}

/* ---- taking */

/* Tells a sender that its slots up to `received` are out of the ring. */
GPU_FN void p2p_return_credit(const struct p2p &x, const struct shunt_kargs &a, uint32_t peer, uint64_t received)
{
	struct shunt_ctrl *theirs = (struct shunt_ctrl *)a.peer[peer];

	gpu_st_credit(&theirs->ll128.head[p2p_index(x, peer, a.rank)], received);
}

/* A forwarder's other ranks: neither we nor the peer it takes from. */
template <typename A> GPU_FN uint32_t p2p_forward_ranks(const A &a, uint32_t peer)
{
	return ((1u << a.k.nranks) - 1) & ~(1u << a.k.rank | 1u << peer);
}

/* Waits for n slots; false: gave up. */
template <typename A>
GPU_FN bool p2p_wait_slots(const struct p2p &x, const A &a, uint32_t peer, const char *ring, uint64_t received,
    uint32_t n, struct gpu_v16 v[SHUNT_P2P_BATCH])
{
	struct spin spin;

	spin_init(&spin, x.ctrl);
	for (;;) {
		bool here = true;

		GPU_UNROLL
		for (uint32_t k = 0; k < SHUNT_P2P_BATCH; k++)
			if (k < n)
				gpu_ll128_ld(ring + p2p_slot_at(received + k), &v[k], received + k + 1);
		GPU_UNROLL
		for (uint32_t k = 0; k < SHUNT_P2P_BATCH; k++)
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

/* ranks: to which it is to be passed on as well. */
template <typename T, typename A>
GPU_FN bool p2p_recv(
    const struct p2p &x, const A &a, uint32_t peer, uint32_t message, uint32_t nmessages, uint32_t ranks)
{
	struct p2p_forward out = p2p_forward_init(x, a, ranks);
	uint32_t index = p2p_index(x, a.k.rank, peer);
	uint64_t received = x.ctrl->ll128.received[index];
	const char *ring = x.inbox + p2p_ring_at(x, a.k.rank, peer);

	GPU_ROLL
	for (uint32_t i = message; i < message + nmessages; i++) {
		struct p2p_message p = p2p_message(a, i);

		GPU_ROLL
		for (uint64_t first = p2p_first_slot(x, p); first < p.nslots;
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
	gpu_warp_sync(); /* all lanes have read it */
	if (gpu_lane() == 0)
		x.ctrl->ll128.received[index] = received;
	p2p_forward_done(x, a, out);
	return true;
}

/*
 * ---- reducing: a batch of slots from all sources at once; N: as N ranks in ll128.h. Sources are the other ranks,
 * without a gap for ourselves
 */

/* Are there so many sources? */
#define HAS_SOURCE(s, a) (N == 2 || (s) + 1u < (a).nranks)

GPU_FN uint32_t p2p_source(uint32_t s, uint32_t rank) { return s + (s >= rank); }

/* The packs of all ranks in their order; our own is not among the sources'. */
template <typename T, typename Op, int N>
GPU_FN struct gpu_v16 p2p_reduce_packs(const struct shunt_kargs &a, const struct gpu_v16 v[N - 1], struct gpu_v16 own)
{
	struct acc<T, Op> acc;

	acc.start(a.rank == 0 ? own : v[0]);
	GPU_UNROLL
	for (uint32_t r = 1; r < N; r++)
		if (HAS_SOURCE(r - 1, a))
			acc.add(r == a.rank ? own : r < a.rank && r < N - 1 ? v[r] : v[r - 1], a.flags);
	return acc_finish(acc, a);
}

/* B: slots of each rank that registers hold. */
template <typename T, typename Op, int N, int B, typename A>
GPU_FN bool p2p_reduce(const struct p2p &x, const A &a, uint32_t message, uint32_t nmessages)
{
	const int S = N - 1;
	struct shunt_rings *rings = &x.ctrl->ll128;
	const char *ring[S];
	uint64_t received[S];

	GPU_UNROLL
	for (uint32_t s = 0; s < S; s++) {
		uint32_t r = p2p_source(s, a.k.rank);

		ring[s] = x.inbox + p2p_ring_at(x, a.k.rank, r);
		received[s] = HAS_SOURCE(s, a.k) ? rings->received[p2p_index(x, a.k.rank, r)] : 0;
	}
	GPU_ROLL
	for (uint32_t i = message; i < message + nmessages; i++) {
		struct p2p_message p = p2p_message(a, i);

		GPU_ROLL
		for (uint64_t first = p2p_first_slot(x, p); first < p.nslots; first += (uint64_t)B * p.channels) {
			uint32_t n = p2p_batch<B>(p, first);
			struct gpu_v16 own[B], v[B * S];
			struct spin spin;

			p2p_load<T, B>(x, p, first, n, own);
			ll128_scale<T, Op, B>(a.k, own);
			spin_init(&spin, x.ctrl);
			for (;;) {
				uint32_t missing = 0;

				GPU_UNROLL
				for (uint32_t k = 0; k < B; k++)
					GPU_UNROLL
				for (uint32_t s = 0; s < S; s++)
					if (k < n && HAS_SOURCE(s, a.k))
						gpu_ll128_ld(ring[s] + p2p_slot_at(received[s] + k), &v[k * S + s],
						    received[s] + k + 1);
				GPU_UNROLL
				for (uint32_t k = 0; k < B; k++)
					GPU_UNROLL
				for (uint32_t s = 0; s < S; s++)
					if (k < n && HAS_SOURCE(s, a.k) &&
					    !gpu_ll128_ready(v[k * S + s], received[s] + k + 1))
						missing |= 1u << s;
				if (gpu_warp_all(!missing))
					break;
				if (!p2p_spin(&spin)) {
					uint32_t late = 0;
					uint64_t seen = 0;

					GPU_UNROLL
					for (uint32_t s = S; s--;)
						if (missing >> s & 1) {
							late = s;
							seen = received[s];
						}
					p2p_give_up(
					    x.ctrl, a.k.rank, p2p_source(late, a.k.rank), x.channel, seen + n, seen);
					return false;
				}
			}
			GPU_UNROLL
			for (uint32_t k = 0; k < B; k++)
				if (k < n)
					own[k] = p2p_reduce_packs<T, Op, N>(a.k, &v[k * S], own[k]);
			p2p_store<T, B>(x, p, first, n, own);
			gpu_warp_sync();
			GPU_UNROLL
			for (uint32_t s = 0; s < S; s++) {
				received[s] += n;
				if (HAS_SOURCE(s, a.k) && gpu_lane() == s)
					p2p_return_credit(x, a.k, p2p_source(s, a.k.rank), received[s]);
			}
		}
	}
	gpu_warp_sync();
	GPU_UNROLL
	for (uint32_t s = 0; s < S;
	    s++) /* by one lane: s = gpu_lane() would put the counts into memory, to be indexed */
		if (HAS_SOURCE(s, a.k) && gpu_lane() == 0)
			rings->received[p2p_index(x, a.k.rank, p2p_source(s, a.k.rank))] = received[s];
	return true;
}

/* ---- our own parts */

template <typename T> GPU_FN void p2p_copy_batch(const struct p2p &x, const struct p2p_message &p, uint64_t first)
{
	uint32_t n = p2p_batch<SHUNT_P2P_BATCH>(p, first);
	struct gpu_v16 v[SHUNT_P2P_BATCH];

	p2p_load<T, SHUNT_P2P_BATCH>(x, p, first, n, v);
	gpu_warp_sync(); /* a message to ourselves may go where it came from, and lanes read more than they hold */
	p2p_store<T, SHUNT_P2P_BATCH>(x, p, first, n, v);
}

template <typename T, typename A> GPU_FN void p2p_copy(const struct p2p &x, const A &a, const struct shunt_role &role)
{
	GPU_ROLL
	for (uint32_t i = role.first; i < (uint32_t)role.first + role.count; i++) {
		struct p2p_message p = p2p_message(a, i);

		GPU_ROLL
		for (uint64_t first = p2p_first_slot(x, p); first < p.nslots;
		    first += (uint64_t)SHUNT_P2P_BATCH * p.channels)
			p2p_copy_batch<T>(x, p, first);
	}
}

/* Is this the block that compares messages, and not one of the kernel's own? Then it has done so. */
template <typename A> GPU_FN bool p2p_check_block(const A &a)
{
	if (!check_is_block(a.k, SHUNT_CHECK_MESSAGES))
		return false;
	check_messages(progress_ctrl(a), a.k.rank, a.role, a.k.roles, a.message);
	return true;
}

/* The kernels of a file that has its own p2p_copy_kernel() and p2p_reduce_kernel(): for the lists of kernel_list.h. */
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
#endif
