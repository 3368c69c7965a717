/* SPDX-License-Identifier: MIT */
/*
 * Dispatch of normal mode. Channel c has the tokens c, c + channels, ... of each rank. A token's row is loaded once and
 * goes to the rings of all peers that have one of its experts, and straight to its place on this rank. Its place is
 * known before: behind the rows of earlier ranks, and of earlier tokens.
 *
 * A warp that receives takes a row from whichever ring has one, and waits for nothing else, so a warp that sends may
 * wait for a ring. That holds for rings between hosts, too.
 */
#include "kernels/ep_far.h"
#include "kernels/kernel_list.h"

/* ---- a row's place in the outputs */

/* Word i of those in front of a row. */
template <typename W>
GPU_FN void ep_store_word(const struct shunt_kargs_ep &a, const W &w, uint64_t row, uint32_t i, uint64_t word)
{
	if (i < 2) {
		if (i == 0 && a.src_idx)
			a.src_idx[row] = (int32_t)(word >> 32);
		return;
	}
	i -= 2;
	if (i < a.topk) {
		uint32_t local = a.experts / ep_all(a, w), expert = (uint32_t)word - ep_rank_of(w, a.k.rank) * local;
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
template <typename W>
GPU_NOINLINE void ep_store_pack(const struct shunt_kargs_ep &a, const W &w, uint32_t row, uint32_t i, struct gpu_v16 v)
{
	uint32_t lines = ep_slot_lines(w.lines, i), at = ep_at(lines, i), width = ep_width(lines);

	if (row >= a.room || !width)
		return;
	if (at >= a.front) {
		store_user<u8>((char *)a.k.recv + (uint64_t)row * a.row_bytes, at - a.front, width, a.row_bytes,
		    a.k.flags & SHUNT_K_ALIGNED, v);
		return;
	}
	ep_store_word(a, w, row, at / 8, v.lo);
	if (width > 8)
		ep_store_word(a, w, row, at / 8 + 1, v.hi);
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

/* The place of a token among this rank's rows of a rank; -1: it does not get it, or is none. */
template <typename W>
GPU_FN int32_t ep_send_row(const struct shunt_kargs_ep &a, const W &w, uint32_t token, uint32_t ordinal)
{
	return ordinal < ep_all(a, w) ? a.send_row_in[(uint64_t)token * ep_all(a, w) + ep_rank_of(w, ordinal)] : -1;
}

/* The ranks that get a token. rows: its places there. By a warp. */
GPU_FN uint32_t ep_find_ranks(const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t token, uint32_t *rows)
{
	int32_t row = ep_send_row(a, w, token, gpu_lane());
	uint32_t ranks = gpu_ballot(row >= 0);

	if (ranks && gpu_lane() < a.k.nranks)
		rows[gpu_lane()] = (uint32_t)row;
	gpu_warp_sync();
	return ranks;
}

GPU_FN uint64_t ep_find_ranks(
    const struct shunt_kargs_ep &a, const struct ep_far_warp &w, uint32_t token, uint32_t *rows)
{
	uint64_t ranks = ep_far_which(UINT64_MAX, [&](uint32_t ordinal) {
		int32_t row = ep_send_row(a, w, token, ordinal);

		rows[ordinal] = (uint32_t)row;
		return row >= 0;
	});

	gpu_warp_sync();
	return ranks;
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

/* To ranks of other hosts: waits until their rings have room; stores slots of a token; all slots are stored. */
GPU_FN bool ep_far_wait_rings(const struct ep_warp &, uint32_t) { return true; }
template <int D>
GPU_FN void ep_far_send_slots(
    const struct ep_warp &, uint32_t, uint32_t, const uint32_t *, uint32_t, const struct gpu_v16 *)
{
}
GPU_FN void ep_far_sent(const struct ep_warp &, uint32_t) {}

GPU_FN bool ep_far_wait_rings(const struct ep_far_warp &w, uint64_t ranks)
{
	return ep_far_each(
	    w, ranks >> w.far->ep.k.nranks, SHUNT_EP_FAR_CREDIT(w.channel),
	    [&](uint32_t c) { return ep_far_room_at(w, c); }, [](uint32_t) { return true; });
}

template <int D>
GPU_FN void ep_far_send_slots(const struct ep_far_warp &w, uint32_t token, uint64_t ranks, const uint32_t *rows,
    uint32_t i, const struct gpu_v16 v[D])
{
	uint32_t near = w.far->ep.k.nranks;

	for (uint64_t bits = ranks >> near; bits; bits &= bits - 1) {
		uint32_t c = ep_first_bit(bits);
		char *to = ep_far_out(w, c, ep_far_slot_at(w, w.step[near + c]));
		struct gpu_v16 mine[D];

		GPU_UNROLL for (uint32_t k = 0; k < D; k++)
			mine[k] = v[k];
		if (i == 0 && gpu_lane() == 0)
			mine[0].lo = rows[near + c] | (uint64_t)token << 32;
		ep_far_store_slots<D>(w, to, i, mine);
	}
}

GPU_FN void ep_far_sent(const struct ep_far_warp &w, uint64_t ranks)
{
	for (uint64_t bits = ranks >> w.far->ep.k.nranks; bits; bits &= bits - 1)
		ep_far_stored(w, ep_first_bit(bits));
}

template <typename W>
GPU_FN void ep_send_token(
    const struct shunt_kargs_ep &a, const W &w, uint32_t token, typename W::set ranks, const uint32_t *rows)
{
	uint32_t peers = (uint32_t)ranks & ep_peers(a.k), row = 0;
	bool here = ranks >> a.k.rank & 1;

	if (here)
		row = ep_section(a, w, ep_rank_of(w, a.k.rank), ep_rank_of(w, a.k.rank)) + rows[a.k.rank];
	for (uint32_t i = w.plain; i < w.plain_end; i += EP_ROW_DEPTH) {
		char *to = (char *)ep_plain_at(a, a.k.recv, row, i);
		struct gpu_v16 v[EP_ROW_DEPTH];

		ep_load_slots<EP_ROW_DEPTH>(a, w, a.k.send, token, i, v);
		GPU_UNROLL for (uint32_t k = 0; k < EP_ROW_DEPTH; k++)
			if (here && row < a.room && i + k < w.plain_end)
				ll128_store_slot(to + k * EP_SLOT_DATA, v[k]);
		ep_send_slots<EP_ROW_DEPTH>(a, w, token, peers, rows, i, v);
		ep_far_send_slots<EP_ROW_DEPTH>(w, token, ranks, rows, i, v);
	}
	for (uint32_t i = ep_first_edge(w); i < w.slots; i = ep_next_edge(w, i)) {
		struct gpu_v16 v = ep_load_pack<u8>(a, w, token, i);

		if (i == 0 && gpu_lane() == 0)
			v.lo = row | (uint64_t)token << 32;
		if (here)
			ep_store_pack(a, w, row, i, v);
		ep_send_slots<1>(a, w, token, peers, rows, i, &v);
		ep_far_send_slots<1>(w, token, ranks, rows, i, &v);
	}
	gpu_warp_sync();
	if (peers >> gpu_lane() & 1)
		w.step[gpu_lane()]++;
	gpu_warp_sync();
	ep_far_sent(w, ranks);
}

/* rows: of the warp, in shared memory. */
template <typename W> GPU_FN void ep_send(const struct shunt_kargs_ep &a, const W &w, uint32_t *rows)
{
	for (uint32_t ordinal = gpu_lane(); ordinal < ep_all(a, w); ordinal += 32) {
		uint32_t mine = 0;

		for (uint32_t t = w.channel; t < a.tokens; t += w.channels)
			mine += ep_send_row(a, w, t, ordinal) >= 0;
		rows[ordinal] = mine;
	}
	gpu_warp_sync();
	if (!ep_send_heads(a, w, rows))
		return;
	for (uint32_t t = w.channel; t < a.tokens; t += w.channels) {
		typename W::set ranks = ep_find_ranks(a, w, t, rows);

		if (!ranks)
			continue;
		if (!ep_wait_rings(a, w, (uint32_t)ranks & ep_peers(a.k)) || !ep_far_wait_rings(w, ranks))
			return;
		ep_send_token(a, w, t, ranks, rows);
	}
	ep_far_flush(w);
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
template <typename W> GPU_FN bool ep_take_row(const struct shunt_kargs_ep &a, const W &w, uint32_t source)
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
			row = ep_section(a, w, ep_rank_of(w, a.k.rank), ep_rank_of(w, source)) +
			    ep_first_lane((uint32_t)v.lo);
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

/* Of ranks of other hosts: which have more rows; which of them have come; a wait in vain; a row that has come. */
GPU_FN uint32_t ep_far_open(const struct ep_warp &) { return 0; }
GPU_FN uint32_t ep_far_come(const struct ep_warp &, uint32_t) { return 0; }
GPU_FN bool ep_far_wait(const struct ep_warp &, struct spin *, uint32_t) { return true; }
GPU_FN void ep_far_take_row(const struct ep_warp &, uint32_t) {}

GPU_FN uint64_t ep_far_open(const struct ep_far_warp &w)
{
	uint32_t near = w.far->ep.k.nranks;

	return ep_far_which(ep_far_peers(w), [&](uint32_t c) { return w.step[near + c] < w.head[near + c].rows; });
}

GPU_FN uint64_t ep_far_come(const struct ep_far_warp &w, uint64_t open)
{
	return ep_far_which(open, [&](uint32_t c) { return ep_far_has_row(w, c); });
}

GPU_FN bool ep_far_wait(const struct ep_far_warp &w, struct spin *spin, uint64_t open)
{
	return ep_far_try_again(w, spin, open, SHUNT_EP_FAR_DATA(w.channel), SHUNT_CHECK_CHANNEL,
	    [&](uint32_t c) { return ep_far_row_at(w, c); });
}

GPU_FN void ep_far_take_row(const struct ep_far_warp &w, uint32_t c)
{
	const struct shunt_kargs_ep &a = w.far->ep;
	uint32_t ordinal = a.k.nranks + c, row = 0;
	const char *from = ep_far_in(w, c, ep_far_slot_at(w, w.step[ordinal]));

	for (uint32_t i = ep_first_edge(w); i < w.slots; i = ep_next_edge(w, i)) {
		struct gpu_v16 v = ep_far_load_pack(w, from, i);

		if (i == 0)
			row = ep_section(a, w, ep_rank_of(w, a.k.rank), ep_rank_of(w, ordinal)) +
			    ep_first_lane((uint32_t)v.lo);
		ep_store_pack(a, w, row, i, v);
	}
	for (uint32_t i = w.plain; i < w.plain_end; i += EP_ROW_DEPTH) {
		char *to = (char *)ep_plain_at(a, a.k.recv, row, i);
		struct gpu_v16 v[EP_ROW_DEPTH];

		ep_far_load_slots<EP_ROW_DEPTH>(w, from, i, v);
		GPU_UNROLL for (uint32_t k = 0; k < EP_ROW_DEPTH; k++)
			if (i + k < w.plain_end && row < a.room)
				ll128_store_slot(to + k * EP_SLOT_DATA, v[k]);
	}
	ep_far_took(w, c);
}

template <typename W> GPU_FN void ep_receive(const struct shunt_kargs_ep &a, const W &w)
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
		typename W::set far = ep_far_open(w), far_ready;
		uint32_t ready;

		if (open)
			word = (const uint64_t *)(ep_ring_at(a, w, a.k.rank, source, step) + SHUNT_EP_LINE_DATA);
		if (gpu_warp_all(!open) && !far)
			return;
		ready = gpu_ballot(open && gpu_ld_relaxed(word) == ep_flag(w, step + 1));
		far_ready = ep_far_come(w, far);
		if (!ready && !far_ready &&
		    !(gpu_warp_all(
		          !open || ep_try_again(&spin, a.k, source, SHUNT_CHECK_CHANNEL, ep_flag(w, step + 1), word)) &&
		        ep_far_wait(w, &spin, far)))
			return;
		if (ready || far_ready)
			spin_init(&spin, progress_ctrl(a.k));
		for (; far_ready; far_ready &= far_ready - 1)
			ep_far_take_row(w, ep_first_bit(far_ready));
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

GPU_FN void ep_dispatch_hosts(const struct shunt_kargs_ep_far &f)
{
	EP_FAR_SHARED(shared);
	GPU_SHARED(uint32_t, rows, EP_FAR_WARPS *SHUNT_NET_MAX_RANKS);
	struct ep_far_warp w = EP_FAR_WARP(shared, f);

	if (ep_warp_sends())
		ep_send(f.ep, w, rows);
	else
		ep_receive(f.ep, w);
	if (f.ep.k.flags & SHUNT_K_EP_PAD)
		ep_pad(f.ep);
	ep_far_end(w, !ep_warp_sends(), 0);
}

#define INSTANCE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_ep) a) \
	    PROGRESS(a, ep_dispatch(a))
#define INSTANCE_HOSTS(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_ep_far) a) \
	    PROGRESS(a, ep_dispatch_hosts(a))
SHUNT_BARRIER_ROW(INSTANCE, ep_dispatch)
SHUNT_BARRIER_ROW(INSTANCE_HOSTS, ep_dispatch_hosts)
