/* SPDX-License-Identifier: MIT */
/*
 * Combine of normal mode: the rows of a dispatch go back, and each token's are added: the biases first, then the rows
 * in the order of the ranks that they come from, in float32, rounded once. So a token's result does not depend on the
 * other tokens, nor on the number of blocks.
 *
 * A channel has a share of each rank's tokens, one behind the other, so its rows lie together in each section of the
 * rows. A warp that sends goes on with whichever ring has room. One that served peer after peer would stop for ever:
 * the warp that adds takes a row only with all rows of its token.
 *
 * Over hosts each rank's row goes back by itself, so that sums have the same order, and the same bits.
 */
#include "kernels/ep_far.h"
#include "kernels/kernel_list.h"

#define EP_SUM_DEPTH 4 /* slots of a rank's row whose loads a warp has under way together */

/* The first token of channel c, of `tokens`. */
GPU_FN uint32_t ep_first_token(uint32_t tokens, uint32_t c, const struct ep_warp &w)
{
	return (uint32_t)((uint64_t)tokens * c / w.channels);
}

/* ---- send */

/* The first of the rows [from, to) whose token is not before this one. By a warp. */
GPU_FN uint32_t ep_find_row(const struct shunt_kargs_ep &a, uint32_t from, uint32_t to, uint32_t token)
{
	while (from < to) {
		uint32_t step = (to - from + 31) / 32, at = from + gpu_lane() * step;
		uint32_t n = gpu_popc(gpu_ballot(at < to && (uint32_t)a.src_idx[at] < token));

		at = from + n * step;
		to = at < to ? at : to;
		from = n ? at - step + 1 : from;
	}
	return from;
}

GPU_FN void ep_send_row(const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t rank, uint32_t row)
{
	char *to = ep_ring_at(a, w, rank, a.k.rank, w.step[rank]);
	uint64_t flag = ep_flag(w, (uint32_t)a.src_idx[row] + 1);

	for (uint32_t i = w.plain; i < w.plain_end; i += EP_ROW_DEPTH) {
		struct gpu_v16 v[EP_ROW_DEPTH];

		ep_load_slots<EP_ROW_DEPTH>(a, w, a.k.send, row, i, v);
		GPU_UNROLL for (uint32_t k = 0; k < EP_ROW_DEPTH; k++)
			if (i + k < w.plain_end)
				gpu_ll128_st(to + (i + k) * EP_SLOT_WIRE, v[k], flag);
	}
	for (uint32_t i = ep_first_edge(w); i < w.slots; i = ep_next_edge(w, i))
		gpu_ll128_st(to + i * EP_SLOT_WIRE, ep_load_pack<u8>(a, w, row, i), flag, ep_slot_lines(w.lines, i));
	gpu_warp_sync();
	if (gpu_lane() == 0)
		w.step[rank]++;
	gpu_warp_sync();
}

/* next, end: of the warp, in shared memory: the rows that each rank gets. */
template <typename W>
GPU_FN void ep_find_rows(const struct shunt_kargs_ep &a, const W &w, uint32_t *next, uint32_t *end)
{
	for (uint32_t s = 0; s < ep_all(a, w); s++) {
		uint32_t mine = ep_rank_of(w, a.k.rank), source = ep_rank_of(w, s);
		uint32_t from = ep_section(a, w, mine, source), to = ep_section(a, w, mine, source + 1);
		uint32_t tokens = w.head[s].tokens;

		to = to < a.room ? to : a.room;
		from = ep_find_row(a, from, to, ep_first_token(tokens, w.channel, w));
		to = ep_find_row(a, from, to, ep_first_token(tokens, w.channel + 1, w));
		if (gpu_lane() == 0) {
			next[s] = from;
			end[s] = to;
		}
	}
	gpu_warp_sync();
}

/*
 * To ranks of other hosts: which get more rows; whose rings have room; a wait in vain; a row of the caller's, the next.
 */
GPU_FN uint32_t ep_far_open(const struct ep_warp &, const uint32_t *, const uint32_t *) { return 0; }
GPU_FN uint32_t ep_far_rooms(const struct ep_warp &, uint32_t) { return 0; }
GPU_FN bool ep_far_wait(const struct ep_warp &, struct spin *, uint32_t) { return true; }
GPU_FN void ep_far_send_row(const struct ep_warp &, uint32_t, uint32_t *) {}

GPU_FN uint64_t ep_far_open(const struct ep_far_warp &w, const uint32_t *next, const uint32_t *end)
{
	uint32_t near = w.far->ep.k.nranks;

	return ep_far_which(ep_far_peers(w), [&](uint32_t c) { return next[near + c] < end[near + c]; });
}

GPU_FN uint64_t ep_far_rooms(const struct ep_far_warp &w, uint64_t open)
{
	return ep_far_which(open, [&](uint32_t c) { return ep_far_has_room(w, c); });
}

GPU_FN bool ep_far_wait(const struct ep_far_warp &w, struct spin *spin, uint64_t open)
{
	return ep_far_try_again(w, spin, open, SHUNT_EP_FAR_CREDIT(w.channel), SHUNT_CHECK_CHANNEL,
	    [&](uint32_t c) { return ep_far_room_at(w, c); });
}

GPU_FN void ep_far_send_row(const struct ep_far_warp &w, uint32_t c, uint32_t *next)
{
	const struct shunt_kargs_ep &a = w.far->ep;
	uint32_t ordinal = a.k.nranks + c, row = next[ordinal];
	char *to = ep_far_out(w, c, ep_far_slot_at(w, w.step[ordinal]));

	gpu_warp_sync();
	if (gpu_lane() == 0)
		next[ordinal] = row + 1;
	for (uint32_t i = w.plain; i < w.plain_end; i += EP_ROW_DEPTH) {
		struct gpu_v16 v[EP_ROW_DEPTH];

		ep_load_slots<EP_ROW_DEPTH>(a, w, a.k.send, row, i, v);
		ep_far_store_slots<EP_ROW_DEPTH>(w, to, i, v);
	}
	for (uint32_t i = ep_first_edge(w); i < w.slots; i = ep_next_edge(w, i)) {
		struct gpu_v16 v = ep_load_pack<u8>(a, w, row, i);

		ep_far_store_slots<1>(w, to, i, &v);
	}
	ep_far_stored(w, c);
}

template <typename W> GPU_FN void ep_send(const struct shunt_kargs_ep &a, const W &w, uint32_t *next, uint32_t *end)
{
	uint32_t rank = gpu_lane() < a.k.nranks ? gpu_lane() : a.k.rank;
	const uint64_t *word = &ep_normal(a.k, a.k.rank)->taken[rank][w.channel];
	struct spin spin;

	if (!ep_send_heads(a, w, 0) || !ep_take_heads(a, w))
		return;
	ep_find_rows(a, w, next, end);
	spin_init(&spin, progress_ctrl(a.k));
	for (;;) {
		bool open = rank != a.k.rank && next[rank] < end[rank];
		typename W::set far = ep_far_open(w, next, end), far_ready;
		uint32_t ready;

		if (gpu_warp_all(!open) && !far) {
			ep_far_flush(w);
			return;
		}
		ready = gpu_ballot(open && ep_ring_has_room(a, w, rank));
		far_ready = ep_far_rooms(w, far);
		if (!ready && !far_ready) {
			ep_far_flush(w);
			if (!gpu_warp_all(!open ||
			        ep_try_again(&spin, a.k, rank, SHUNT_CHECK_CHANNEL,
			            ep_flag(w, w.step[rank] + 1 - a.slots), word)) ||
			    !ep_far_wait(w, &spin, far))
				return;
		}
		if (ready || far_ready)
			spin_init(&spin, progress_ctrl(a.k));
		for (; far_ready; far_ready &= far_ready - 1)
			ep_far_send_row(w, ep_first_bit(far_ready), next);
		for (uint32_t bits = ready; bits; bits &= bits - 1) {
			uint32_t r = ep_first_bit(bits), row = next[r];

			gpu_warp_sync();
			if (gpu_lane() == 0)
				next[r] = row + 1;
			ep_send_row(a, w, r, row);
		}
	}
}

/* ---- add */

template <typename W> struct ep_token {
	uint32_t token;
	typename W::set ranks; /* that have a row of it */
	uint64_t flag;
	uint32_t own; /* its row on this rank, if there is one */
};

/* The ranks whose rows of the token came to their room. By a warp. */
GPU_FN struct ep_token<ep_warp> ep_token_of(const struct shunt_kargs_ep &a, const struct ep_warp &w, uint32_t token)
{
	uint32_t p = gpu_lane() < a.k.nranks ? gpu_lane() : 0;
	int32_t row = gpu_lane() < a.k.nranks ? a.send_row_in[(uint64_t)token * a.k.nranks + p] : -1;
	uint32_t at = ep_section(a, w, p, a.k.rank) + (uint32_t)row;
	struct ep_token<ep_warp> t = { token, gpu_ballot(row >= 0 && at < w.head[p].room), ep_flag(w, token + 1), 0 };

	if (t.ranks >> a.k.rank & 1)
		t.own = ep_section(a, w, a.k.rank, a.k.rank) +
		    (uint32_t)a.send_row_in[(uint64_t)token * a.k.nranks + a.k.rank];
	return t;
}

/* The same over hosts, where `ranks` has ranks and not ordinals: they are added in that order. */
GPU_FN struct ep_token<ep_far_warp> ep_token_of(
    const struct shunt_kargs_ep &a, const struct ep_far_warp &w, uint32_t token)
{
	const struct shunt_ep_hosts &h = w.far->hosts;
	const int32_t *rows = a.send_row_in + (uint64_t)token * h.nranks;
	struct ep_token<ep_far_warp> t = { token, 0, ep_flag(w, token + 1), 0 };

	t.ranks = ep_far_which(UINT64_MAX, [&](uint32_t r) {
		return r < h.nranks && rows[r] >= 0 &&
		    ep_section(a, w, r, h.rank) + (uint32_t)rows[r] < w.head[h.ordinal_of[r]].room;
	});
	if (t.ranks >> h.rank & 1)
		t.own = ep_section(a, w, h.rank, h.rank) + (uint32_t)rows[h.rank];
	return t;
}

GPU_FN uint32_t ep_ordinal_of(const struct ep_warp &, uint32_t bit) { return bit; }
GPU_FN uint32_t ep_ordinal_of(const struct ep_far_warp &w, uint32_t bit) { return w.far->hosts.ordinal_of[bit]; }

/* The rows of a token from other hosts: waits for them; slots of one; returns them. */
GPU_FN bool ep_far_await_rows(const struct ep_token<ep_warp> &, const struct ep_warp &) { return true; }
template <int D> GPU_FN void ep_far_row_slots(const struct ep_warp &, uint32_t, uint32_t, struct gpu_v16 *) {}
GPU_FN void ep_took(const struct shunt_kargs_ep &a, const struct ep_warp &w, const struct ep_token<ep_warp> &t)
{
	if (t.ranks >> gpu_lane() & 1 && gpu_lane() != a.k.rank)
		ep_ring_took(a, w, gpu_lane());
}

GPU_FN uint64_t ep_far_of(const struct ep_token<ep_far_warp> &t, const struct ep_far_warp &w)
{
	uint32_t near = w.far->ep.k.nranks;

	return ep_far_which(ep_far_peers(w), [&](uint32_t c) { return t.ranks >> ep_rank_of(w, near + c) & 1; });
}

GPU_FN bool ep_far_await_rows(const struct ep_token<ep_far_warp> &t, const struct ep_far_warp &w)
{
	return ep_far_each(
	    w, ep_far_of(t, w), SHUNT_EP_FAR_DATA(w.channel), [&](uint32_t c) { return ep_far_row_at(w, c); },
	    [](uint32_t) { return true; });
}

template <int D>
GPU_FN void ep_far_row_slots(const struct ep_far_warp &w, uint32_t ordinal, uint32_t i, struct gpu_v16 v[D])
{
	const char *row = ep_far_in(w, ordinal - w.far->ep.k.nranks, ep_far_slot_at(w, w.step[ordinal]));

	if (D == 1)
		v[0] = ep_far_load_pack(w, row, i);
	else
		ep_far_load_slots<D>(w, row, i, v);
}

GPU_FN void ep_took(const struct shunt_kargs_ep &a, const struct ep_far_warp &w, const struct ep_token<ep_far_warp> &t)
{
	uint64_t far = ep_far_of(t, w);

	if (gpu_lane() < a.k.nranks && gpu_lane() != a.k.rank && t.ranks >> ep_rank_of(w, gpu_lane()) & 1)
		ep_ring_took(a, w, gpu_lane());
	for (; far; far &= far - 1)
		ep_far_took(w, ep_first_bit(far));
}

template <typename T> GPU_FN void ep_add(float *sum, struct gpu_v16 v)
{
	union pack<T> p;

	p.v = v;
	GPU_UNROLL for (uint32_t e = 0; e < 16 / sizeof(T); e++)
		sum[e] += to_acc(p.e[e]);
}

template <typename T> GPU_FN struct gpu_v16 ep_rounded(const float *sum)
{
	union pack<T> out;

	GPU_UNROLL for (uint32_t e = 0; e < 16 / sizeof(T); e++)
		from_acc(&out.e[e], sum[e]);
	return out.v;
}

/* One slot of a token's sum, of any kind: with weights in front, or unaligned. False: a row does not come. By a warp.
 */
template <typename T, typename W>
GPU_NOINLINE bool ep_add_edge(const struct shunt_kargs_ep &a, const W &w, const struct ep_token<W> &t, uint32_t i)
{
	uint32_t lines = ep_slot_lines(w.lines, i), at = ep_at(lines, i), width = ep_width(lines);
	bool aligned = a.k.flags & SHUNT_K_ALIGNED, front = at < a.front;
	float sum[16 / sizeof(T)] = {};

	GPU_ROLL for (uint32_t b = 0; b < 2; b++)
		if (a.bias[b] && width && !front)
			ep_add<T>(sum,
			    load_user<u8>((const char *)a.bias[b] + (uint64_t)t.token * a.row_bytes, at - a.front,
			        width, a.row_bytes, aligned));
	for (typename W::set bits = t.ranks; bits; bits &= bits - 1) {
		uint32_t r = ep_ordinal_of(w, ep_first_bit(bits));
		struct gpu_v16 v;

		if (r == a.k.rank)
			v = ep_load_pack<u8>(a, w, t.own, i);
		else if (ep_is_far(w, r))
			ep_far_row_slots<1>(w, r, i, &v);
		else if (!ep_wait_slot(
		             a.k, ep_ring_at(a, w, a.k.rank, r, w.step[r]) + i * EP_SLOT_WIRE, lines, t.flag, r, &v))
			return false;
		if (!front) {
			ep_add<T>(sum, v);
			continue;
		}
		sum[0] += gpu_float((uint32_t)(v.lo >> 32));
		sum[1] += gpu_float((uint32_t)(v.hi >> 32));
	}
	if (width && !front)
		store_user<u8>((char *)a.k.recv + (uint64_t)t.token * a.row_bytes, at - a.front, width, a.row_bytes,
		    aligned, ep_rounded<T>(sum));
	for (uint32_t g = at / 8; front && g < at / 8 + width / 8; g++)
		if (g >= 2 && g - 2 < a.topk)
			a.recv_topk_weights[(uint64_t)t.token * a.topk + g - 2] = g == at / 8 ? sum[0] : sum[1];
	return true;
}

/* Adds slots i ... i + D - 1 of a rank's row, which were loaded. */
template <typename T, int D>
GPU_FN void ep_add_row(const struct ep_warp &w, uint32_t i, const struct gpu_v16 v[D], float sum[D][16 / sizeof(T)])
{
	GPU_UNROLL for (uint32_t d = 0; d < D; d++)
		if (i + d < w.plain_end)
			ep_add<T>(sum[d], v[d]);
}

/*
 * Plain slots i ... i + D - 1 of a token's sum. False: a row does not come. By a warp.
 */
template <typename T, int D, typename W>
GPU_FN bool ep_add_slots(const struct shunt_kargs_ep &a, const W &w, const struct ep_token<W> &t, uint32_t i)
{
	float sum[D][16 / sizeof(T)] = {};
	struct gpu_v16 own[D];

	GPU_ROLL for (uint32_t b = 0; b < 2; b++)
		if (a.bias[b]) {
			ep_load_slots<D>(a, w, a.bias[b], t.token, i, own);
			ep_add_row<T, D>(w, i, own, sum);
		}
	if (t.ranks >> ep_rank_of(w, a.k.rank) & 1)
		ep_load_slots<D>(a, w, a.k.send, t.own, i, own);
	for (typename W::set bits = t.ranks; bits; bits &= bits - 1) {
		uint32_t r = ep_ordinal_of(w, ep_first_bit(bits));
		const char *from;
		struct ep_slot slot[D];
		struct gpu_v16 v[D];

		if (r == a.k.rank) {
			ep_add_row<T, D>(w, i, own, sum);
			continue;
		}
		if (ep_is_far(w, r)) {
			ep_far_row_slots<D>(w, r, i, v);
			ep_add_row<T, D>(w, i, v, sum);
			continue;
		}
		from = ep_ring_at(a, w, a.k.rank, r, w.step[r]) + i * EP_SLOT_WIRE;
		GPU_UNROLL for (uint32_t d = 0; d < D; d++)
			slot[d] = { from + d * EP_SLOT_WIRE, i + d < w.plain_end ? 4u : 0u, r };
		if (!ep_wait_slots<D>(a.k, slot, t.flag, v))
			return false;
		ep_add_row<T, D>(w, i, v, sum);
	}
	GPU_UNROLL for (uint32_t d = 0; d < D; d++)
		if (i + d < w.plain_end)
			ll128_store_slot((char *)ep_plain_at(a, a.k.recv, t.token, i + d), ep_rounded<T>(sum[d]));
	return true;
}

template <typename T, typename W>
GPU_FN bool ep_add_token(const struct shunt_kargs_ep &a, const W &w, const struct ep_token<W> &t)
{
	if (!ep_far_await_rows(t, w))
		return false;
	for (uint32_t i = w.plain; i < w.plain_end; i += EP_SUM_DEPTH)
		if (!ep_add_slots<T, EP_SUM_DEPTH>(a, w, t, i))
			return false;
	for (uint32_t i = ep_first_edge(w); i < w.slots; i = ep_next_edge(w, i))
		if (!ep_add_edge<T>(a, w, t, i))
			return false;
	return true;
}

template <typename T, typename W> GPU_FN void ep_receive(const struct shunt_kargs_ep &a, const W &w)
{
	uint32_t end = ep_first_token(a.tokens, w.channel + 1, w);

	if (!ep_take_heads(a, w))
		return;
	for (uint32_t i = ep_first_token(a.tokens, w.channel, w); i < end; i++) {
		struct ep_token<W> t = ep_token_of(a, w, i);

		if (!ep_add_token<T>(a, w, t))
			return;
		gpu_warp_sync();
		ep_took(a, w, t);
		gpu_warp_sync();
	}
}

template <typename T> GPU_FN void ep_combine(const struct shunt_kargs_ep &a)
{
	EP_SHARED(shared);
	GPU_SHARED(uint32_t, next, EP_MOST_WARPS *SHUNT_KARGS_MAX_RANKS);
	GPU_SHARED(uint32_t, ends, EP_MOST_WARPS *SHUNT_KARGS_MAX_RANKS);
	struct ep_warp w = EP_WARP(shared, a);
	uint32_t mine = gpu_tid() / 32 * SHUNT_KARGS_MAX_RANKS;

	if (ep_warp_sends())
		ep_send(a, w, next + mine, ends + mine);
	else
		ep_receive<T>(a, w);
	ep_normal_end(a, w.number);
}

template <typename T> GPU_FN void ep_combine_hosts(const struct shunt_kargs_ep_far &f)
{
	EP_FAR_SHARED(shared);
	GPU_SHARED(uint32_t, next, SHUNT_NET_MAX_RANKS);
	GPU_SHARED(uint32_t, ends, SHUNT_NET_MAX_RANKS);
	struct ep_far_warp w = EP_FAR_WARP(shared, f);

	if (ep_warp_sends())
		ep_send(f.ep, w, next, ends);
	else
		ep_receive<T>(f.ep, w);
	ep_far_end(w, !ep_warp_sends(), 0);
}

#define INSTANCE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_ep) a) \
	    PROGRESS(a, ep_combine<type>(a))
#define INSTANCE_HOSTS(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_ep_far) a) \
	    PROGRESS(a, ep_combine_hosts<type>(a))
SHUNT_EP_NORMAL_SUM_ROWS(INSTANCE, ep_combine)
SHUNT_EP_NORMAL_SUM_ROWS(INSTANCE_HOSTS, ep_combine_hosts)
