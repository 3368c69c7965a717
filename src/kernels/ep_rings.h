/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Calls of normal mode (kernels/ep.h): their numbers, their heads, and their rings of rows.
 *
 * A warp sends its head to a peer when the peer has ended the call before, and rows when it has done so with all peers.
 * A warp that has the heads of all sources knows that their calls are like this one.
 */
#include "kernels/ep_fault.h"
#include "kernels/ep_rows.h"

#define EP_MOST_WARPS (SHUNT_MAX_THREADS / 32)
#define EP_ROW_DEPTH 8 /* slots of a row whose loads a warp has under way together */

struct ep_warp {
	uint64_t number; /* of the call */
	uint32_t channel, channels;
	uint32_t slots; /* of a row: groups of four lines */
	uint32_t lines; /* of a row */
	uint32_t plain,
	    plain_end; /* slots that have four lines of the caller's aligned bytes; the others have few of them */
	struct shunt_ep_head *head; /* of each rank. Shared memory of the warp, as is the next */
	uint32_t *step;             /* rows that went to each rank, or came from it */

	using set = uint32_t; /* of ranks, as bits */
	static constexpr uint32_t MOST = SHUNT_KARGS_MAX_RANKS;
};

/* Shared memory of the block's warps. */
#define EP_SHARED(name) \
	GPU_SHARED(struct shunt_ep_head, name##_heads, EP_MOST_WARPS *SHUNT_KARGS_MAX_RANKS); \
	GPU_SHARED(uint32_t, name##_steps, EP_MOST_WARPS *SHUNT_KARGS_MAX_RANKS)
#define EP_WARP(name, a) ep_warp_begin(a, name##_heads, name##_steps, SHUNT_KARGS_MAX_RANKS)

GPU_FN struct shunt_ep_normal *ep_normal(const struct shunt_kargs &a, uint32_t rank)
{
	return &ep_ctrl(a, rank)->normal;
}

/* The first half of a block's warps send. */
GPU_FN bool ep_warp_sends(void) { return gpu_tid() / 32 < gpu_ntid() / 64; }

/*
 * A warp numbers the ranks by ordinals. These functions, and others in pairs, have another form for warps over hosts
 * (kernels/ep_far.h): which rank an ordinal is, and how many ranks there are.
 */
GPU_FN uint32_t ep_rank_of(const struct ep_warp &, uint32_t ordinal) { return ordinal; }
GPU_FN uint32_t ep_all(const struct shunt_kargs_ep &a, const struct ep_warp &) { return a.k.nranks; }

/* most: ranks that the arrays are for. */
GPU_FN struct ep_warp ep_warp_begin(
    const struct shunt_kargs_ep &a, struct shunt_ep_head *heads, uint32_t *steps, uint32_t most)
{
	uint32_t warp = gpu_tid() / 32, half = gpu_ntid() / 64, lines = ep_lines(a.front + a.row_bytes);
	uint32_t plain = (a.front + EP_SLOT_DATA - 1) / EP_SLOT_DATA, end = (a.front + a.row_bytes) / EP_SLOT_DATA;
	struct ep_warp w = { ep_normal(a.k, a.k.rank)->number + 1,
		gpu_bid() * half + (warp < half ? warp : warp - half), gpu_nbid() * half, ep_slots(lines), lines, plain,
		a.k.flags & SHUNT_K_ALIGNED && plain < end ? end : plain, heads + warp * most, steps + warp * most };

	for (uint32_t i = gpu_lane(); i < (most > 32 ? most : a.k.nranks); i += 32)
		w.step[i] = 0;
	gpu_warp_sync();
	return w;
}

GPU_FN uint32_t ep_first_bit(uint32_t bits) { return gpu_popc((bits & -bits) - 1); }
GPU_FN uint32_t ep_first_bit(uint64_t bits)
{
	return (uint32_t)bits ? ep_first_bit((uint32_t)bits) : 32 + ep_first_bit((uint32_t)(bits >> 32));
}
GPU_FN uint32_t ep_peers(const struct shunt_kargs &a) { return ((1u << a.nranks) - 1) & ~(1u << a.rank); }
GPU_FN uint64_t ep_flag(const struct ep_warp &w, uint32_t step) { return w.number << SHUNT_EP_STEP_BITS | step; }

/* The rows of rank `to` begin with those of the ranks before `source`. */
template <typename W>
GPU_FN uint32_t ep_section(const struct shunt_kargs_ep &a, const W &w, uint32_t to, uint32_t source)
{
	return source ? (uint32_t)a.rank_prefix_in[(source - 1) * ep_all(a, w) + to] : 0;
}

/* ---- heads */

GPU_FN char *ep_head_at(const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t rank, uint32_t source)
{
	return a.k.peer[rank] + SHUNT_EP_NORMAL_AT + (w.channel * a.k.nranks + source) * SHUNT_EP_LINE;
}

GPU_FN void ep_send_head(const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t peer, uint32_t rows)
{
	struct gpu_v16 v = { a.same[0] | (uint64_t)a.same[1] << 32, a.same[2] | (uint64_t)a.same[3] << 32 };

	if (gpu_lane() == 1)
		v = { a.same[4] | (uint64_t)a.same[5] << 32, rows | (uint64_t)a.tokens << 32 };
	if (gpu_lane() == 2)
		v = { a.room, 0 };
	gpu_ll128_st(ep_head_at(a, w, peer, a.k.rank), v, ep_flag(w, 0), 1);
}

/* The heads of this call say what breaks the group. Only the first call that breaks it counts. */
GPU_FN void ep_refuse(const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t reason, uint32_t rank,
    uint32_t value, uint64_t expected, uint64_t seen)
{
	if (!ep_broken(a.k))
		gpu_st_relaxed(&ep_normal(a.k, a.k.rank)->refused, w.number);
	ep_fault(a.k, reason, rank, a.same[0], value, expected, seen);
}

/*
 * began: when the wait for the peer began; 0: it has not looked at the clock. Returns it, or EP_GIVE_UP. By one thread.
 */
GPU_NOINLINE uint64_t ep_check_refused(
    struct shunt_ctrl *ctrl, const uint64_t *refused, uint64_t number, uint32_t peer, uint64_t began)
{
	uint64_t limit = gpu_ld_relaxed(&ctrl->host_ctrl->limit_ns), now = gpu_clock_ns();

	gpu_ld_acquire((const uint64_t *)&ctrl->abort);
	if (gpu_ld_relaxed(refused) != number || limit == SHUNT_LIMIT_ABORT ||
	    gpu_ld_relaxed(&ctrl->host_ctrl->gone) >> peer & 1)
		return EP_GIVE_UP;
	if (!began)
		began = now;
	return limit && now - began > limit ? EP_GIVE_UP : began;
}

/*
 * As ep_try_again(), in a wait for a peer that is to get this call's head. Where this call is what breaks the group,
 * the wait goes on, since the peer learns from the head what is wrong, and would report a late rank without it. The
 * wait ends at its deadline, by an abort of the host, and by the end of the peer's process.
 */
GPU_FN bool ep_try_to_tell(struct spin *spin, const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t peer,
    uint64_t expected, const uint64_t *word)
{
	uint64_t began = spin->began;

	if (ep_try_again(spin, a.k, peer, SHUNT_CHECK_CHANNEL, expected, word))
		return true;
	spin->began = ep_check_refused(progress_ctrl(a.k), &ep_normal(a.k, a.k.rank)->refused, w.number, peer, began);
	return spin->began != EP_GIVE_UP;
}

/* Ranks of other hosts: those that get heads; as in ep_far.h. */
GPU_FN uint32_t ep_far_peers(const struct ep_warp &) { return 0; }
GPU_FN uint32_t ep_far_ended(const struct ep_warp &, uint32_t) { return 0; }
GPU_FN bool ep_far_try_to_tell(const struct ep_warp &, struct spin *, uint32_t) { return true; }
GPU_FN void ep_far_send_head(const struct ep_warp &, uint32_t, uint32_t) {}

/*
 * rows: for each rank, in shared memory; NULL: none. False: a peer does not end the call before. Peers that have ended
 * it get the head even where the group is broken. By a warp.
 */
template <typename W> GPU_FN bool ep_send_heads(const struct shunt_kargs_ep &a, const W &w, const uint32_t *rows)
{
	const uint64_t *word = &ep_normal(a.k, a.k.rank)->read[gpu_lane() % SHUNT_KARGS_MAX_RANKS];
	uint32_t left = ep_peers(a.k);
	typename W::set far = ep_far_peers(w);
	bool on = true;
	struct spin spin;

	spin_init(&spin, progress_ctrl(a.k));
	while (left || far) {
		bool waits = left >> gpu_lane() & 1;
		uint32_t ready = gpu_ballot(waits && gpu_ld_credit(word) + 1 >= w.number);
		typename W::set ended = ep_far_ended(w, far);

		for (uint32_t bits = ready; bits; bits &= bits - 1) {
			uint32_t p = ep_first_bit(bits);

			ep_send_head(a, w, p, rows ? rows[p] : 0);
		}
		for (typename W::set bits = ended; bits; bits &= bits - 1) {
			uint32_t c = ep_first_bit(bits);

			ep_far_send_head(w, c, rows ? rows[a.k.nranks + c] : 0);
		}
		left &= ~ready;
		far &= ~ended;
		if (!on)
			break;
		/* A peer may have ended its call since the look: it is looked at once more before this rank gives up.
		 */
		on = ready || ended ||
		    gpu_warp_all(waits ? ep_try_to_tell(&spin, a, w, gpu_lane(), w.number - 1, word) :
		                         ep_far_try_to_tell(w, &spin, far));
	}
	return !left && !far;
}

/* False: the rank has no room for its rows. */
template <typename W> GPU_FN bool ep_has_room(const struct shunt_kargs_ep &a, const W &w, uint32_t rank, uint32_t room)
{
	uint32_t rows = a.rank_prefix_in ? ep_section(a, w, ep_rank_of(w, rank), ep_all(a, w)) : 0;

	if (rows <= room || a.k.flags & SHUNT_K_EP_DROP)
		return true;
	if (gpu_lane() == 0)
		ep_refuse(a, w, SHUNT_FAULT_OVERFLOW, rank, 0, room, rows);
	return false;
}

/* False: the head is that of another call. By a warp. */
GPU_FN bool ep_head_fits(
    const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t source, const struct shunt_ep_head *head)
{
	uint32_t i = gpu_lane(), other = gpu_ballot(i < SHUNT_EP_SAME && head->same[i] != a.same[i]);

	if (!other)
		return true;
	i = ep_first_bit(other);
	if (gpu_lane() == 0)
		ep_refuse(a, w, SHUNT_FAULT_DIFFERS, source, i, a.same[i], head->same[i]);
	return false;
}

/*
 * Waits for the heads of all sources, whichever comes first. False: one does not come or does not fit, or a rank has no
 * room. By a warp.
 */
template <typename W> GPU_FN bool ep_take_heads_here(const struct shunt_kargs_ep &a, const W &w)
{
	uint32_t left = ep_peers(a.k), source = gpu_lane() < a.k.nranks ? gpu_lane() : a.k.rank;
	const uint64_t *word = (const uint64_t *)(ep_head_at(a, w, a.k.rank, source) + SHUNT_EP_LINE_DATA);
	struct spin spin;
	struct gpu_v16 v;

	if (gpu_lane() == 0) {
		w.head[a.k.rank].tokens = a.tokens;
		w.head[a.k.rank].room = a.room;
	}
	spin_init(&spin, progress_ctrl(a.k));
	while (left) {
		bool waits = left >> gpu_lane() & 1;
		uint32_t ready = gpu_ballot(waits && gpu_ld_relaxed(word) == ep_flag(w, 0));

		for (uint32_t bits = ready; bits; bits &= bits - 1) {
			uint32_t s = ep_first_bit(bits);

			if (!ep_wait_slot(a.k, ep_head_at(a, w, a.k.rank, s), 1, ep_flag(w, 0), s, &v))
				return false;
			if (gpu_lane() < sizeof(struct shunt_ep_head) / 16)
				((struct gpu_v16 *)&w.head[s])[gpu_lane()] = v;
			gpu_warp_sync();
			if (!ep_head_fits(a, w, s, &w.head[s]) || !ep_has_room(a, w, s, w.head[s].room))
				return false;
		}
		left &= ~ready;
		if (!ready &&
		    !gpu_warp_all(
		        !waits || ep_try_again(&spin, a.k, gpu_lane(), SHUNT_CHECK_CHANNEL, ep_flag(w, 0), word)))
			return false;
	}
	gpu_warp_sync();
	return ep_has_room(a, w, a.k.rank, a.room);
}

GPU_FN bool ep_take_heads(const struct shunt_kargs_ep &a, const struct ep_warp &w) { return ep_take_heads_here(a, w); }

/*
 * Called last in a launch, by the whole block. The last block of the launch answers for all: peers may send the next
 * call. True: the calling thread is the one that did so.
 */
GPU_FN bool ep_normal_end(const struct shunt_kargs_ep &a, uint64_t number)
{
	struct shunt_ep_normal *n = ep_normal(a.k, a.k.rank);

	gpu_sync();
	if (gpu_tid() || gpu_fetch_add_acq_rel(&n->blocks, 1) + 1 < gpu_nbid())
		return false;
	n->blocks = 0;
	n->number = number;
	for (uint32_t p = 0; p < a.k.nranks && !ep_broken(a.k); p++)
		gpu_st_credit(&ep_normal(a.k, p)->read[a.k.rank], number);
	return true;
}

/* ---- rings */

/* The slot of a ring for a step, in the memory of the rank that reads it. */
GPU_FN char *ep_ring_at(
    const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t reader, uint32_t source, uint32_t step)
{
	uint64_t ring = (uint64_t)w.channel * (a.k.nranks - 1) + source - (source > reader);

	return a.k.peer[reader] + a.rings_at + (ring * a.slots + step % a.slots) * a.slot_bytes;
}

/* True: the ring to the peer has room for one more row. */
GPU_FN bool ep_ring_has_room(const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t peer)
{
	uint32_t step = w.step[peer];

	return step < a.slots ||
	    gpu_ld_credit(&ep_normal(a.k, a.k.rank)->taken[peer][w.channel]) >= ep_flag(w, step + 1 - a.slots);
}

/* By one lane, when the warp has read a row. */
GPU_FN void ep_ring_took(const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t source)
{
	gpu_st_credit(&ep_normal(a.k, source)->taken[a.k.rank][w.channel], ep_flag(w, ++w.step[source]));
}

/* ---- rows on the wire */

/* Word i of those in front of a row of the program, without the first. */
GPU_FN uint64_t ep_front_word(const struct shunt_kargs_ep &a, uint64_t row, uint32_t i)
{
	uint64_t word = 0;

	if (i < 2)
		return 0;
	i -= 2;
	if (i < a.topk) {
		int64_t id = a.topk_idx ? a.topk_idx[row * a.topk + i] : -1;

		if ((uint64_t)id >= a.experts)
			id = -1;
		return (uint32_t)id | (uint64_t)(a.topk_weights ? gpu_bits(a.topk_weights[row * a.topk + i]) : 0) << 32;
	}
	i = (i - a.topk) * 2;
	for (uint32_t j = 0; j < 2 && i + j < a.scales; j++)
		word |= (uint64_t)((
		            const uint32_t *)a.scale)[(int64_t)row * a.scale_token_stride + (i + j) * a.scale_stride]
		    << 32 * j;
	return word;
}

/*
 * A row is loaded and stored slot by slot. Nearly all slots are plain, and go by short code, D at a time. What the
 * other slots need is out of line: a multiprocessor waits for code that it has not run for long.
 */

/*
 * This lane's bytes of slot i of a row. Out of line, as are the other accesses of slots that are not plain. A template,
 * as ep_notify.cu has no use for it.
 */
template <typename T>
GPU_NOINLINE struct gpu_v16 ep_load_pack(
    const struct shunt_kargs_ep &a, const struct ep_warp &w, uint64_t row, uint32_t i)
{
	uint32_t lines = ep_slot_lines(w.lines, i), at = ep_at(lines, i), width = ep_width(lines);
	struct gpu_v16 v = { 0, 0 };

	if (width && at >= a.front)
		return load_user<T>((const char *)a.k.send + row * a.row_bytes, at - a.front, width, a.row_bytes,
		    a.k.flags & SHUNT_K_ALIGNED);
	if (width)
		v.lo = ep_front_word(a, row, at / 8);
	if (width > 8)
		v.hi = ep_front_word(a, row, at / 8 + 1);
	return v;
}

/* The slots that are not plain, one after the other; w.slots: there are no more. The first slot is one of them. */
GPU_FN uint32_t ep_next_edge(const struct ep_warp &w, uint32_t i) { return i + 1 == w.plain ? w.plain_end : i + 1; }
GPU_FN uint32_t ep_first_edge(const struct ep_warp &w) { return w.plain ? 0 : w.plain_end; }

/* Where a plain slot begins in rows of the caller. */
GPU_FN const char *ep_plain_at(const struct shunt_kargs_ep &a, const void *rows, uint64_t row, uint32_t i)
{
	return (const char *)rows + row * a.row_bytes + i * EP_SLOT_DATA - a.front;
}

/* D plain slots of a row, from slot i on; behind the last plain slot it again, as all loads are to go at once. */
template <int D>
GPU_FN void ep_load_slots(const struct shunt_kargs_ep &a, const struct ep_warp &w, const void *rows, uint64_t row,
    uint32_t i, struct gpu_v16 v[D])
{
	const char *p[D], *from = ep_plain_at(a, rows, row, i);
	uint32_t last = w.plain_end - 1 - i;

	GPU_UNROLL for (uint32_t k = 0; k < D; k++)
		p[k] = from + (k < last ? k : last) * EP_SLOT_DATA;
	ll128_load_slots<D>(p, v);
}
