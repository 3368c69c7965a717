/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_EXCHANGE_H
#define SHUNT_KERNELS_EXCHANGE_H
/*
 * Everything that is not an all-reduce by lines: each rank sends parts to some ranks and hears from some. What comes in
 * is stored (all-gather, all-to-all, broadcast, gather, scatter, send and receive) or folded in rank order
 * (reduce-scatter, reduce).
 *
 * A warp has one role on one channel. It goes through the role's messages in order, and of each through the units that
 * are its channel's: unit u of a message travels on channel u mod c, where c follows from the message's size alone. So
 * sender and receiver of a pair agree about every unit even if they issue the messages in different groups.
 *
 * A channel of a pair is a ring of slots in the receiver's scratch. Not every rank hears from every other here, so a
 * sender must not run ahead of the receiver: it waits until the receiver has taken what stands in the slot, which the
 * receiver tells it by a counter in the sender's own scratch.
 *
 * Messages travel in lines or in chunks (chunks.h), which both ends know by their size; either has rings and counters
 * of its own. This file is about lines: a unit is 480 bytes of the message, and has a flag in each of its lines that
 * counts on over all launches.
 */
#include "kernels/check_messages.h"
#include "kernels/lines.h"

struct xchg {
	struct shunt_ctrl *ctrl;
	char *inbox; /* our own scratch */
	uint32_t channel;
	uint32_t width, at; /* of this lane in a unit, as in lines.h */
	uint32_t per_peer;
};

/* One message, as the warp's channel sees it. */
struct xchg_part {
	const char *from;
	char *to;
	uint64_t bytes, units;
	uint32_t channels;
	bool from_aligned, to_aligned;
};

/*
 * The how manyth of its role a warp is: warp / roles, as long as there are no more than 1024 warps and 15 roles.
 * per_role: 65536 / roles, rounded up.
 */
GPU_FN uint32_t xchg_turn(uint32_t warp, uint32_t per_role) { return (warp * per_role) >> 16; }

template <typename A> GPU_FN struct xchg xchg_init(const A &a, uint32_t channel)
{
	struct xchg x;
	uint32_t lane = gpu_lane(), line = lane / 8;

	x.inbox = a.k.peer[a.k.rank];
	x.ctrl = (struct shunt_ctrl *)x.inbox;
	x.channel = channel;
	x.width = GPU_LINE_LAST ? 8 : 16;
	x.at = GPU_LINE_LAST ? 448 + line * 8 : (line * 7 + lane % 8) * 16;
	x.per_peer = SHUNT_XCHG_PER_PEER(a.k.nranks);
	return x;
}

template <typename A> GPU_FN struct xchg_part xchg_part(const A &a, uint32_t i)
{
	struct xchg_part p;

	p.from = (const char *)a.message[i].from;
	p.to = (char *)a.message[i].to;
	p.bytes = a.message[i].bytes;
	p.units = units_of(p.bytes);
	p.channels = p.units < a.k.channels ? (uint32_t)p.units : a.k.channels;
	p.from_aligned = !((uintptr_t)p.from & 15);
	p.to_aligned = !((uintptr_t)p.to & 15);
	return p;
}

/* The first unit of the warp's channel; none if the message has fewer channels. */
GPU_FN uint64_t xchg_first(const struct xchg &x, const struct xchg_part &p)
{
	return x.channel < p.channels ? x.channel : p.units;
}

/* Our channel's number among those of rank `owner`'s with its peer. */
GPU_FN uint32_t xchg_index(const struct xchg &x, uint32_t owner, uint32_t peer)
{
	return (peer - (peer > owner)) * x.per_peer + x.channel;
}

/*
 * Offset of our channel's ring in the scratch of the rank that receives from `source`, and of a unit's slot in a ring.
 */
GPU_FN uint64_t xchg_ring(const struct xchg &x, uint32_t receiver, uint32_t source)
{
	return SHUNT_XCHG_AT + (uint64_t)xchg_index(x, receiver, source) * SHUNT_XCHG_RING * SHUNT_UNIT_WIRE;
}
GPU_FN uint32_t xchg_slot(uint64_t unit) { return (uint32_t)unit % SHUNT_XCHG_RING * SHUNT_UNIT_WIRE; }

/* How many units of this channel are in a batch of at most B that starts at unit `first` of the part. */
template <int B> GPU_FN uint32_t xchg_batch(const struct xchg_part &p, uint64_t first)
{
	uint32_t n = 1;

	while (n < B && first + (uint64_t)n * p.channels < p.units)
		n++;
	return n;
}

/* Whether a batch is full, and all of its units whole. */
template <int B> GPU_FN bool xchg_whole(const struct xchg_part &p, uint64_t first, uint32_t n)
{
	return n == B && (first + (uint64_t)(B - 1) * p.channels + 1) * SHUNT_UNIT_DATA <= p.bytes;
}

/*
 * The n units of a batch that starts at unit `first`. In the middle of a large message no load waits for another one;
 * elsewhere each unit's end and alignment is looked at, and the loads come one after the other.
 */
template <typename T, int B>
GPU_FN void xchg_load(const struct xchg &x, const struct xchg_part &p, uint64_t first, uint32_t n, struct gpu_v16 v[B])
{
	if constexpr (is_same<T, v16>::value) { /* for what is not there, the first unit's beginning */
		GPU_UNROLL
		for (uint32_t k = 0; k < B; k++) {
			uint64_t at = (first + (uint64_t)k * p.channels) * SHUNT_UNIT_DATA + unit_pack();

			v[k] = gpu_ld16_stream(p.from + (at < p.bytes ? at : first * SHUNT_UNIT_DATA));
		}
		GPU_UNROLL
		for (uint32_t k = 0; k < B; k++)
			unit_loaded(&v[k]);
		return;
	}
	if (p.from_aligned && xchg_whole<B>(p, first, n)) {
		const char *from[B];

		GPU_UNROLL
		for (uint32_t k = 0; k < B; k++)
			from[k] = p.from + (first + (uint64_t)k * p.channels) * SHUNT_UNIT_DATA;
		units_load<B>(from, v);
		return;
	}
	GPU_UNROLL
	for (uint32_t k = 0; k < B; k++)
		if (k < n)
			v[k] = load_user<T>(p.from, (first + (uint64_t)k * p.channels) * SHUNT_UNIT_DATA + x.at,
			    x.width, p.bytes, p.from_aligned);
}

template <typename T, int B>
GPU_FN void xchg_store(
    const struct xchg &x, const struct xchg_part &p, uint64_t first, uint32_t n, const struct gpu_v16 v[B])
{
	if (!is_same<T, v16>::value && p.to_aligned && xchg_whole<B>(p, first, n)) {
		char *to = p.to + first * SHUNT_UNIT_DATA;

		GPU_UNROLL
		for (uint32_t k = 0; k < B; k++)
			unit_store(to + (uint64_t)k * p.channels * SHUNT_UNIT_DATA, v[k]);
		return;
	}
	GPU_UNROLL
	for (uint32_t k = 0; k < B; k++)
		if (k < n)
			store_user<T>(p.to, (first + (uint64_t)k * p.channels) * SHUNT_UNIT_DATA + x.at, x.width,
			    p.bytes, p.to_aligned, v[k]);
}

/* Collective over the warp; false: gave up. Lane 7 looks for all. */
GPU_FN bool xchg_spin(struct spin *s) { return gpu_warp_all(gpu_lane() != 7 || !spin_expired(s)); }

GPU_NOINLINE void xchg_give_up(
    struct shunt_ctrl *ctrl, uint32_t rank, uint32_t peer, uint32_t channel, uint64_t expected, uint64_t seen)
{
	uint32_t reason = spin_reason(ctrl);

	if (gpu_lane() == 7)
		spin_report(ctrl, reason, rank, peer, channel, expected, seen);
}

/* ---- sending */

/* Waits until a ring has room for n units more; false: gave up. */
template <typename A>
GPU_FN bool xchg_wait_room(
    const struct xchg &x, const A &a, uint32_t peer, const uint64_t *taken, uint64_t end, uint64_t *free_to)
{
	struct spin spin;

	if (gpu_warp_all(end <= *free_to)) /* lanes may have read different counts */
		return true;
	spin_init(&spin, x.ctrl);
	while (!gpu_warp_all(end <= (*free_to = gpu_ld_taken(taken) + SHUNT_XCHG_RING)))
		if (!xchg_spin(&spin)) {
			xchg_give_up(x.ctrl, a.k.rank, peer, x.channel, end, *free_to);
			return false;
		}
	return true;
}

GPU_FN void xchg_put(char *ring, uint64_t sent, uint32_t n, const struct gpu_v16 v[SHUNT_XCHG_BATCH])
{
	GPU_UNROLL
	for (uint32_t k = 0; k < SHUNT_XCHG_BATCH; k++)
		if (k < n)
			gpu_line_st(ring + xchg_slot(sent + k), v[k], sent + k + 1);
}

/* Messages message, message + 1, ... of the launch; false: gave up. So are those that follow. */
template <typename T, typename Op, typename A>
GPU_FN bool xchg_send(const struct xchg &x, const A &a, uint32_t peer, uint32_t message, uint32_t nmessages)
{
	uint32_t index = xchg_index(x, a.k.rank, peer);
	const uint64_t *taken = &x.ctrl->lines.taken[index];
	char *ring = a.k.peer[peer] + xchg_ring(x, peer, a.k.rank);
	uint64_t sent = x.ctrl->lines.sent[index], free_to = gpu_ld_taken(taken) + SHUNT_XCHG_RING;

	GPU_ROLL
	for (uint32_t i = message; i < message + nmessages; i++) {
		struct xchg_part p = xchg_part(a, i);

		GPU_ROLL
		for (uint64_t first = xchg_first(x, p); first < p.units;
		    first += (uint64_t)SHUNT_XCHG_BATCH * p.channels) {
			uint32_t n = xchg_batch<SHUNT_XCHG_BATCH>(p, first);
			struct gpu_v16 v[SHUNT_XCHG_BATCH];

			xchg_load<T, SHUNT_XCHG_BATCH>(x, p, first, n, v);
			lines_scale<T, Op, SHUNT_XCHG_BATCH>(a.k, v);
			if (!xchg_wait_room(x, a, peer, taken, sent + n, &free_to))
				return false;
			xchg_put(ring, sent, n, v);
			sent += n;
		}
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		x.ctrl->lines.sent[index] = sent;
	return true;
}

/* A message that is one batch on each channel. */
template <typename T, typename A>
GPU_FN void xchg_send_one(const struct xchg &x, const A &a, uint32_t peer, const struct xchg_part &p)
{
	uint32_t index = xchg_index(x, a.k.rank, peer), n = xchg_batch<SHUNT_XCHG_BATCH>(p, x.channel);
	const uint64_t *taken = &x.ctrl->lines.taken[index];
	uint64_t sent = x.ctrl->lines.sent[index], free_to = gpu_ld_taken(taken) + SHUNT_XCHG_RING;
	struct gpu_v16 v[SHUNT_XCHG_BATCH];

	xchg_load<T, SHUNT_XCHG_BATCH>(x, p, x.channel, n, v);
	if (!xchg_wait_room(x, a, peer, taken, sent + n, &free_to))
		return;
	xchg_put(a.k.peer[peer] + xchg_ring(x, peer, a.k.rank), sent, n, v);
	gpu_warp_sync();
	if (gpu_lane() == 0)
		x.ctrl->lines.sent[index] = sent + n;
}

/* ---- passing on: units that registers hold, to one rank or several. Lane r looks after the room in rank r's ring */

struct xchg_out {
	uint32_t ranks;  /* bit r: to rank r */
	uint32_t passed; /* units, in this launch */
	uint32_t room;   /* ... that there may be, by what this lane knows of its rank's ring */
};

template <typename A> GPU_FN uint32_t xchg_room(const struct xchg &x, const A &a, uint32_t peer)
{
	uint32_t index = xchg_index(x, a.k.rank, peer);

	return (uint32_t)(gpu_ld_taken(&x.ctrl->lines.taken[index]) + SHUNT_XCHG_RING - x.ctrl->lines.sent[index]);
}

template <typename A> GPU_FN struct xchg_out xchg_out_init(const struct xchg &x, const A &a, uint32_t ranks)
{
	struct xchg_out out = { ranks, 0, UINT32_MAX };

	if (ranks >> gpu_lane() & 1)
		out.room = xchg_room(x, a, gpu_lane());
	return out;
}

/* The n units of a batch; false: gave up. The counters of what was sent stay as they are until xchg_passed(). */
template <int B, typename A>
GPU_FN bool xchg_pass(const struct xchg &x, const A &a, struct xchg_out *out, uint32_t n, const struct gpu_v16 v[B])
{
	struct spin spin;

	spin_init(&spin, x.ctrl);
	while (
	    !gpu_warp_all(out->passed + n <= out->room || out->passed + n <= (out->room = xchg_room(x, a, gpu_lane()))))
		if (!xchg_spin(&spin)) {
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
		uint64_t sent = x.ctrl->lines.sent[xchg_index(x, a.k.rank, r)] + out->passed;
		char *ring = a.k.peer[r] + xchg_ring(x, r, a.k.rank);

		GPU_UNROLL
		for (uint32_t k = 0; k < B; k++)
			if (k < n)
				gpu_line_st(ring + xchg_slot(sent + k), v[k], sent + k + 1);
	}
	out->passed += n;
	return true;
}

template <typename A> GPU_FN void xchg_passed(const struct xchg &x, const A &a, const struct xchg_out &out)
{
	gpu_warp_sync(); /* all lanes have read them */
	if (out.ranks >> gpu_lane() & 1)
		x.ctrl->lines.sent[xchg_index(x, a.k.rank, gpu_lane())] += out.passed;
}

/* ---- taking */

/* Tells a sender that its units up to `received` are out of the ring. */
GPU_FN void xchg_give_back(const struct xchg &x, const struct shunt_kargs &a, uint32_t peer, uint64_t received)
{
	struct shunt_ctrl *theirs = (struct shunt_ctrl *)a.peer[peer];

	gpu_st_taken(&theirs->lines.taken[xchg_index(x, peer, a.rank)], received);
}

/* A relay's other ranks: neither we nor the peer it takes from. */
template <typename A> GPU_FN uint32_t xchg_others(const A &a, uint32_t peer)
{
	return ((1u << a.k.nranks) - 1) & ~(1u << a.k.rank | 1u << peer);
}

/* Waits for n units; false: gave up. */
template <typename A>
GPU_FN bool xchg_get(const struct xchg &x, const A &a, uint32_t peer, const char *ring, uint64_t received, uint32_t n,
    struct gpu_v16 v[SHUNT_XCHG_BATCH])
{
	struct spin spin;

	spin_init(&spin, x.ctrl);
	for (;;) {
		bool here = true;

		GPU_UNROLL
		for (uint32_t k = 0; k < SHUNT_XCHG_BATCH; k++)
			if (k < n)
				gpu_line_ld(ring + xchg_slot(received + k), &v[k], received + k + 1);
		GPU_UNROLL
		for (uint32_t k = 0; k < SHUNT_XCHG_BATCH; k++)
			if (k < n && !gpu_line_here(v[k], received + k + 1))
				here = false;
		if (gpu_warp_all(here))
			return true;
		if (!xchg_spin(&spin)) {
			xchg_give_up(x.ctrl, a.k.rank, peer, x.channel, received + n, received);
			return false;
		}
	}
}

/* A message that is one batch on each channel. */
template <typename T, typename A>
GPU_FN void xchg_take_one(const struct xchg &x, const A &a, uint32_t peer, const struct xchg_part &p)
{
	uint32_t index = xchg_index(x, a.k.rank, peer), n = xchg_batch<SHUNT_XCHG_BATCH>(p, x.channel);
	uint64_t received = x.ctrl->lines.received[index];
	struct gpu_v16 v[SHUNT_XCHG_BATCH];

	if (!xchg_get(x, a, peer, x.inbox + xchg_ring(x, a.k.rank, peer), received, n, v))
		return;
	xchg_store<T, SHUNT_XCHG_BATCH>(x, p, x.channel, n, v);
	gpu_warp_sync();
	if (gpu_lane() == 0) {
		xchg_give_back(x, a.k, peer, received + n);
		x.ctrl->lines.received[index] = received + n;
	}
}

/* ranks: to which it is to be passed on as well. */
template <typename T, typename A>
GPU_FN bool xchg_take(
    const struct xchg &x, const A &a, uint32_t peer, uint32_t message, uint32_t nmessages, uint32_t ranks)
{
	struct xchg_out out = xchg_out_init(x, a, ranks);
	uint32_t index = xchg_index(x, a.k.rank, peer);
	uint64_t received = x.ctrl->lines.received[index];
	const char *ring = x.inbox + xchg_ring(x, a.k.rank, peer);

	GPU_ROLL
	for (uint32_t i = message; i < message + nmessages; i++) {
		struct xchg_part p = xchg_part(a, i);

		GPU_ROLL
		for (uint64_t first = xchg_first(x, p); first < p.units;
		    first += (uint64_t)SHUNT_XCHG_BATCH * p.channels) {
			uint32_t n = xchg_batch<SHUNT_XCHG_BATCH>(p, first);
			struct gpu_v16 v[SHUNT_XCHG_BATCH];

			if (!xchg_get(x, a, peer, ring, received, n, v))
				return false;
			if (ranks && !xchg_pass<SHUNT_XCHG_BATCH>(x, a, &out, n, v))
				return false;
			xchg_store<T, SHUNT_XCHG_BATCH>(x, p, first, n, v);
			received += n;
			gpu_warp_sync();
			if (gpu_lane() == 0)
				xchg_give_back(x, a.k, peer, received);
		}
	}
	gpu_warp_sync(); /* all lanes have read it */
	if (gpu_lane() == 0)
		x.ctrl->lines.received[index] = received;
	xchg_passed(x, a, out);
	return true;
}

/*
 * ---- folding: a batch of units from all sources at once; N: as N ranks in lines.h. Sources are the other ranks,
 * without a gap for ourselves
 */

/* Are there so many sources? */
#define IS_SOURCE(s, a) (N == 2 || (s) + 1u < (a).nranks)

GPU_FN uint32_t xchg_source(uint32_t s, uint32_t rank) { return s + (s >= rank); }

/* The packs of all ranks in their order; our own is not among the sources'. */
template <typename T, typename Op, int N>
GPU_FN struct gpu_v16 xchg_reduce(const struct shunt_kargs &a, const struct gpu_v16 v[N - 1], struct gpu_v16 own)
{
	struct acc<T, Op> acc;

	acc.start(a.rank == 0 ? own : v[0]);
	GPU_UNROLL
	for (uint32_t r = 1; r < N; r++)
		if (IS_SOURCE(r - 1, a))
			acc.add(r == a.rank ? own : r < a.rank && r < N - 1 ? v[r] : v[r - 1], a.flags);
	return acc_finish(acc, a);
}

/* B: units of each rank that registers hold. */
template <typename T, typename Op, int N, int B, typename A>
GPU_FN bool xchg_fold(const struct xchg &x, const A &a, uint32_t message, uint32_t nmessages)
{
	const int S = N - 1;
	struct shunt_rings *rings = &x.ctrl->lines;
	const char *ring[S];
	uint64_t received[S];

	GPU_UNROLL
	for (uint32_t s = 0; s < S; s++) {
		uint32_t r = xchg_source(s, a.k.rank);

		ring[s] = x.inbox + xchg_ring(x, a.k.rank, r);
		received[s] = IS_SOURCE(s, a.k) ? rings->received[xchg_index(x, a.k.rank, r)] : 0;
	}
	GPU_ROLL
	for (uint32_t i = message; i < message + nmessages; i++) {
		struct xchg_part p = xchg_part(a, i);

		GPU_ROLL
		for (uint64_t first = xchg_first(x, p); first < p.units; first += (uint64_t)B * p.channels) {
			uint32_t n = xchg_batch<B>(p, first);
			struct gpu_v16 own[B], v[B * S];
			struct spin spin;

			xchg_load<T, B>(x, p, first, n, own);
			lines_scale<T, Op, B>(a.k, own);
			spin_init(&spin, x.ctrl);
			for (;;) {
				uint32_t missing = 0;

				GPU_UNROLL
				for (uint32_t k = 0; k < B; k++)
					GPU_UNROLL
				for (uint32_t s = 0; s < S; s++)
					if (k < n && IS_SOURCE(s, a.k))
						gpu_line_ld(ring[s] + xchg_slot(received[s] + k), &v[k * S + s],
						    received[s] + k + 1);
				GPU_UNROLL
				for (uint32_t k = 0; k < B; k++)
					GPU_UNROLL
				for (uint32_t s = 0; s < S; s++)
					if (k < n && IS_SOURCE(s, a.k) &&
					    !gpu_line_here(v[k * S + s], received[s] + k + 1))
						missing |= 1u << s;
				if (gpu_warp_all(!missing))
					break;
				if (!xchg_spin(&spin)) {
					uint32_t late = 0;
					uint64_t seen = 0;

					GPU_UNROLL
					for (uint32_t s = S; s--;)
						if (missing >> s & 1) {
							late = s;
							seen = received[s];
						}
					xchg_give_up(
					    x.ctrl, a.k.rank, xchg_source(late, a.k.rank), x.channel, seen + n, seen);
					return false;
				}
			}
			GPU_UNROLL
			for (uint32_t k = 0; k < B; k++)
				if (k < n)
					own[k] = xchg_reduce<T, Op, N>(a.k, &v[k * S], own[k]);
			xchg_store<T, B>(x, p, first, n, own);
			gpu_warp_sync();
			GPU_UNROLL
			for (uint32_t s = 0; s < S; s++) {
				received[s] += n;
				if (IS_SOURCE(s, a.k) && gpu_lane() == s)
					xchg_give_back(x, a.k, xchg_source(s, a.k.rank), received[s]);
			}
		}
	}
	gpu_warp_sync();
	GPU_UNROLL
	for (uint32_t s = 0; s < S;
	    s++) /* by one lane: s = gpu_lane() would put the counts into memory, to be indexed */
		if (IS_SOURCE(s, a.k) && gpu_lane() == 0)
			rings->received[xchg_index(x, a.k.rank, xchg_source(s, a.k.rank))] = received[s];
	return true;
}

/* ---- our own parts */

template <typename T> GPU_FN void xchg_copy_batch(const struct xchg &x, const struct xchg_part &p, uint64_t first)
{
	uint32_t n = xchg_batch<SHUNT_XCHG_BATCH>(p, first);
	struct gpu_v16 v[SHUNT_XCHG_BATCH];

	xchg_load<T, SHUNT_XCHG_BATCH>(x, p, first, n, v);
	gpu_warp_sync(); /* a message to ourselves may go where it came from, and lanes read more than they hold */
	xchg_store<T, SHUNT_XCHG_BATCH>(x, p, first, n, v);
}

template <typename T, typename A> GPU_FN void xchg_copy(const struct xchg &x, const A &a, const struct shunt_role &role)
{
	GPU_ROLL
	for (uint32_t i = role.first; i < (uint32_t)role.first + role.count; i++) {
		struct xchg_part p = xchg_part(a, i);

		GPU_ROLL
		for (uint64_t first = xchg_first(x, p); first < p.units;
		    first += (uint64_t)SHUNT_XCHG_BATCH * p.channels)
			xchg_copy_batch<T>(x, p, first);
	}
}

/* Is this the block that compares messages, and not one of the kernel's own? Then it has done so. */
template <typename A> GPU_FN bool xchg_checks(const A &a)
{
	if (!check_is_here(a.k, SHUNT_CHECK_MESSAGES))
		return false;
	check_messages(progress_ctrl(a), a.k.rank, a.role, a.k.roles, a.message);
	return true;
}

/* The kernels of a file that has its own exchange_copy() and exchange_fold(): for the lists of kernel_list.h. */
#define COPY(args, shape, type) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, copy, type)(GPU_ARG(struct args) a) \
	    PROGRESS(a, exchange_copy<type>(a))
#define COPY_FEW(shape, op, opn, type, typen) COPY(shunt_kargs_few, shape, type)
#define COPY_ONE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, copy, type)(GPU_ARG(struct shunt_kargs_few) a) \
	    PROGRESS(a, exchange_one<type>(a))
#define COPY_MANY(shape, op, opn, type, typen) COPY(shunt_kargs_many, shape, type)
#define FOLD(n, shape, op, type) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_few) a) \
	    PROGRESS(a, exchange_fold<type, op_##op, n>(a))
#define FOLD2(shape, op, opn, type, typen) FOLD(2, shape, op, type)
#define FOLD4(shape, op, opn, type, typen) FOLD(4, shape, op, type)
#define FOLD8(shape, op, opn, type, typen) FOLD(8, shape, op, type)
#endif
