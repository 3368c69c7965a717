/* SPDX-License-Identifier: MIT */
/*
 * Dispatch of normal mode. Channel c has the tokens c, c + channels, ... of each rank. A token's row is loaded once and
 * goes to the rings of all peers that have one of its experts, and straight to its place on this rank. Its place is
 * known before: behind the rows of earlier ranks, and of earlier tokens.
 *
 * A warp that receives takes a row from whichever ring has one, and waits for nothing else, so a warp that sends may
 * wait for a ring.
 */
#include "kernels/ep_rings.h"
#include "kernels/kernel_list.h"

/* ---- a row's place in the outputs */

/* Word i of those in front of a row. */
GPU_FN void ep_store_word(const struct shunt_kargs_ep &a, uint64_t row, uint32_t i, uint64_t word)
{
	if (i < 2) {
		if (i == 0 && a.src_idx)
			a.src_idx[row] = (int32_t)(word >> 32);
		return;
	}
	i -= 2;
	if (i < a.topk) {
		uint32_t local = a.experts / a.k.nranks, expert = (uint32_t)word - a.k.rank * local;
		bool here = (int32_t)word >= 0 && expert < local;

		a.recv_topk_idx[row * a.topk + i] = here ? (int64_t)expert : -1;
		if (a.recv_topk_weights)
			a.recv_topk_weights[row * a.topk + i] = here ? gpu_float((uint32_t)(word >> 32)) : 0;
		return;
	}
	i = (i - a.topk) * 2;
	for (uint32_t j = 0; j < 2 && i + j < a.scales; j++)
		((uint32_t *)a.recv_scales)[row * a.scales + i + j] = (uint32_t)(word >> 32 * j);
}

/* This lane's bytes of slot i. A row for which there is no room is left out. */
GPU_NOINLINE void ep_store_pack(
    const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t row, uint32_t i, struct gpu_v16 v)
{
	uint32_t lines = ep_slot_lines(w.lines, i), at = ep_at(lines, i), width = ep_width(lines);

	if (row >= a.room || !width)
		return;
	if (at >= a.front) {
		store_user<u8>((char *)a.k.recv + (uint64_t)row * a.row_bytes, at - a.front, width, a.row_bytes,
		    a.k.flags & SHUNT_K_ALIGNED, v);
		return;
	}
	ep_store_word(a, row, at / 8, v.lo);
	if (width > 8)
		ep_store_word(a, row, at / 8 + 1, v.hi);
}

/* ---- send */

/* Waits until the rings to these ranks have room; false: one does not get any. By a warp. */
GPU_FN bool ep_wait_rings(const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t ranks)
{
	uint32_t p = gpu_lane() % SHUNT_KARGS_MAX_RANKS;
	bool waits = ranks >> gpu_lane() & 1;
	struct spin spin;

	spin_init(&spin, progress_ctrl(a.k));
	for (;;) {
		bool on = true;

		waits = waits && !ep_ring_has_room(a, w, p);
		if (gpu_warp_all(!waits))
			return true;
		if (waits)
			on = ep_try_again(&spin, a.k, p, SHUNT_CHECK_CHANNEL, ep_flag(w, w.step[p] + 1 - a.slots),
			    &ep_normal(a.k, a.k.rank)->taken[p][w.channel]);
		if (!gpu_warp_all(on))
			return false;
	}
}

/* The place of a token among this rank's rows of each rank that gets it, by lane; -1: it does not get it. */
GPU_FN int32_t ep_send_row(const struct shunt_kargs_ep &a, uint32_t token)
{
	return gpu_lane() < a.k.nranks ? a.send_row_in[(uint64_t)token * a.k.nranks + gpu_lane()] : -1;
}

/* Stores D slots of a token, from slot i on, to the rings of its peers. v: of the warp. */
template <int D>
GPU_FN void ep_send_slots(const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t token, uint32_t peers,
    const uint32_t *rows, uint32_t i, struct gpu_v16 v[D])
{
	for (uint32_t bits = peers; bits; bits &= bits - 1) {
		uint32_t p = ep_first_bit(bits), step = w.step[p];
		char *to = ep_ring_at(a, w, p, a.k.rank, step) + i * EP_SLOT_WIRE;

		if (i == 0 && gpu_lane() == 0)
			v[0].lo = rows[p] | (uint64_t)token << 32;
		GPU_UNROLL for (uint32_t k = 0; k < D; k++)
			if (D == 1 || i + k < w.plain_end)
				gpu_ll128_st(to + k * EP_SLOT_WIRE, v[k], ep_flag(w, step + 1),
				    D == 1 ? ep_slot_lines(w.lines, i) : 4);
	}
}

GPU_FN void ep_send_token(
    const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t token, uint32_t ranks, const uint32_t *rows)
{
	uint32_t peers = ranks & ~(1u << a.k.rank), row = 0;
	bool here = ranks >> a.k.rank & 1;

	if (here)
		row = ep_section(a, a.k.rank, a.k.rank) + rows[a.k.rank];
	for (uint32_t i = w.plain; i < w.plain_end; i += EP_ROW_DEPTH) {
		char *to = (char *)ep_plain_at(a, a.k.recv, row, i);
		struct gpu_v16 v[EP_ROW_DEPTH];

		ep_load_slots<EP_ROW_DEPTH>(a, w, a.k.send, token, i, v);
		GPU_UNROLL for (uint32_t k = 0; k < EP_ROW_DEPTH; k++)
			if (here && row < a.room && i + k < w.plain_end)
				ll128_store_slot(to + k * EP_SLOT_DATA, v[k]);
		ep_send_slots<EP_ROW_DEPTH>(a, w, token, peers, rows, i, v);
	}
	for (uint32_t i = ep_first_edge(w); i < w.slots; i = ep_next_edge(w, i)) {
		struct gpu_v16 v = ep_load_pack(a, w, token, i);

		if (i == 0 && gpu_lane() == 0)
			v.lo = row | (uint64_t)token << 32;
		if (here)
			ep_store_pack(a, w, row, i, v);
		ep_send_slots<1>(a, w, token, peers, rows, i, &v);
	}
	gpu_warp_sync();
	if (peers >> gpu_lane() & 1)
		w.step[gpu_lane()]++;
	gpu_warp_sync();
}

/* rows: of the warp, in shared memory. */
GPU_FN void ep_send(const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t *rows)
{
	uint32_t mine = 0;

	for (uint32_t t = w.channel; t < a.tokens; t += w.channels)
		mine += ep_send_row(a, t) >= 0;
	if (gpu_lane() < a.k.nranks)
		rows[gpu_lane()] = mine;
	gpu_warp_sync();
	if (!ep_send_heads(a, w, rows))
		return;
	for (uint32_t t = w.channel; t < a.tokens; t += w.channels) {
		int32_t row = ep_send_row(a, t);
		uint32_t ranks = gpu_ballot(row >= 0);

		if (!ranks)
			continue;
		if (gpu_lane() < a.k.nranks)
			rows[gpu_lane()] = (uint32_t)row;
		gpu_warp_sync();
		if (!ep_wait_rings(a, w, ranks & ~(1u << a.k.rank)))
			return;
		ep_send_token(a, w, t, ranks, rows);
	}
}

/* ---- receive */

/* The value of lane 0. */
GPU_FN uint32_t ep_first_lane(uint32_t value)
{
	uint32_t v = gpu_lane() ? 0 : value;

	GPU_UNROLL for (uint32_t mask = 16; mask; mask /= 2)
		v |= gpu_shfl_xor32(v, mask);
	return v;
}

/* False: the row does not come. By a warp. */
GPU_FN bool ep_take_row(const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t source)
{
	const char *from = ep_ring_at(a, w, a.k.rank, source, w.step[source]);
	uint64_t flag = ep_flag(w, w.step[source] + 1);
	uint32_t row = 0;

	/* The first slot says which row it is. */
	for (uint32_t i = ep_first_edge(w); i < w.slots; i = ep_next_edge(w, i)) {
		struct gpu_v16 v;

		if (!ep_wait_slot(a.k, from + i * EP_SLOT_WIRE, ep_slot_lines(w.lines, i), flag, source, &v))
			return false;
		if (i == 0)
			row = ep_section(a, a.k.rank, source) + ep_first_lane((uint32_t)v.lo);
		ep_store_pack(a, w, row, i, v);
	}
	for (uint32_t i = w.plain; i < w.plain_end; i += EP_ROW_DEPTH) {
		char *to = (char *)ep_plain_at(a, a.k.recv, row, i);
		struct ep_slot slot[EP_ROW_DEPTH];
		struct gpu_v16 v[EP_ROW_DEPTH];

		GPU_UNROLL for (uint32_t k = 0; k < EP_ROW_DEPTH; k++)
			slot[k] = { from + (i + k) * EP_SLOT_WIRE, i + k < w.plain_end ? 4u : 0u, source };
		if (!ep_wait_slots<EP_ROW_DEPTH>(a.k, slot, flag, v))
			return false;
		GPU_UNROLL for (uint32_t k = 0; k < EP_ROW_DEPTH; k++)
			if (slot[k].lines && row < a.room)
				ll128_store_slot(to + k * EP_SLOT_DATA, v[k]);
	}
	gpu_warp_sync();
	if (gpu_lane() == 0)
		ep_ring_took(a, w, source);
	gpu_warp_sync();
	return true;
}

GPU_FN void ep_receive(const struct shunt_kargs_ep &a, const struct ep_warp &w)
{
	uint32_t source = gpu_lane() < a.k.nranks ? gpu_lane() : a.k.rank;
	struct spin spin;

	if (!ep_take_heads(a, w))
		return;
	spin_init(&spin, progress_ctrl(a.k));
	for (;;) {
		uint32_t step = w.step[source];
		bool open = gpu_lane() < a.k.nranks && source != a.k.rank && step < w.head[source].rows;
		const uint64_t *word = &ep_normal(a.k, a.k.rank)->number; /* any */
		uint32_t ready;

		if (open)
			word = (const uint64_t *)(ep_ring_at(a, w, a.k.rank, source, step) + SHUNT_EP_LINE_DATA);
		if (gpu_warp_all(!open))
			return;
		ready = gpu_ballot(open && gpu_ld_relaxed(word) == ep_flag(w, step + 1));
		if (!ready &&
		    !gpu_warp_all(
		        !open || ep_try_again(&spin, a.k, source, SHUNT_CHECK_CHANNEL, ep_flag(w, step + 1), word)))
			return;
		if (ready)
			spin_init(&spin, progress_ctrl(a.k));
		for (uint32_t bits = ready; bits; bits &= bits - 1)
			if (!ep_take_row(a, w, ep_first_bit(bits)))
				return;
	}
}

/* -1 for the experts behind the last row. By all threads of the launch. */
GPU_FN void ep_pad(const struct shunt_kargs_ep &a)
{
	uint64_t end = (uint64_t)a.room * a.topk, each = gpu_nbid() * gpu_ntid();

	for (uint64_t i = (uint64_t)*a.received * a.topk + gpu_bid() * gpu_ntid() + gpu_tid(); i < end; i += each)
		a.recv_topk_idx[i] = -1;
}

GPU_FN void ep_dispatch(const struct shunt_kargs_ep &a)
{
	EP_SHARED(shared);
	GPU_SHARED(uint32_t, rows, EP_MOST_WARPS *SHUNT_KARGS_MAX_RANKS);
	struct ep_warp w = EP_WARP(shared, a);

	if (ep_warp_sends())
		ep_send(a, w, rows + gpu_tid() / 32 * SHUNT_KARGS_MAX_RANKS);
	else
		ep_receive(a, w);
	if (a.k.flags & SHUNT_K_EP_PAD)
		ep_pad(a);
	ep_normal_end(a, w.number);
}

#define INSTANCE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_ep) a) \
	    PROGRESS(a, ep_dispatch(a))
SHUNT_BARRIER_ROW(INSTANCE, ep_dispatch)
