/* SPDX-License-Identifier: MIT */
/*
 * What goes where, of normal mode. Layout counts a rank's own tokens. Notify tells all ranks these counts, from which
 * follow the rows of each, and says which place a token has among this rank's rows on each rank.
 */
#include "kernels/ep_far.h"
#include "kernels/kernel_list.h"

/* ---- layout */

/* The sum over the block's warps of what each warp's lanes have, by lane. shared: [warps][32]. By the first warp. */
GPU_FN uint32_t ep_sum_of_warps(uint32_t *shared, uint32_t mine)
{
	uint32_t sum = 0;

	shared[gpu_tid()] = mine;
	gpu_sync();
	for (uint32_t i = gpu_tid(); gpu_tid() < 32 && i < gpu_ntid(); i += 32)
		sum += shared[i];
	gpu_sync();
	return sum;
}

/* The first warp gets the sum of all threads. By the whole block. */
GPU_FN uint32_t ep_sum_of_block(uint32_t *shared, uint32_t mine)
{
	uint32_t sum = ep_sum_of_warps(shared, mine);

	for (uint32_t mask = 16; mask && gpu_tid() < 32; mask /= 2)
		sum += gpu_shfl_xor32(sum, mask);
	return sum;
}

GPU_FN int64_t ep_checked_id(const struct shunt_kargs_ep &a, uint64_t i, bool reports)
{
	int64_t id = a.topk_idx[i];

	if (reports && id != -1 && (uint64_t)id >= a.experts)
		ep_fault(a.k, SHUNT_FAULT_EXPERT, a.k.rank, (uint32_t)(i / a.topk), (uint32_t)(i % a.topk), a.experts,
		    (uint64_t)id);
	return id;
}

/*
 * Counts 32 experts, each by a lane. 32 ids are looked at together: the ballots of their bits tell each lane which of
 * them are its own. By the whole block.
 */
GPU_FN void ep_count_experts(const struct shunt_kargs_ep &a, uint32_t first, uint32_t *shared)
{
	uint64_t n = (uint64_t)a.tokens * a.topk;
	uint32_t count = 0;

	for (uint64_t i = gpu_tid() & ~31u; i < n; i += gpu_ntid()) {
		uint64_t at = i + gpu_lane();
		uint64_t id = at < n ? (uint64_t)ep_checked_id(a, at, first == 0) - first : UINT64_MAX;
		uint32_t mine = gpu_ballot(id < 32);

		GPU_UNROLL for (uint32_t bit = 0; bit < 5; bit++) {
			uint32_t ones = gpu_ballot(id >> bit & 1);

			mine &= gpu_lane() >> bit & 1 ? ones : ~ones;
		}
		count += gpu_popc(mine);
	}
	count = ep_sum_of_warps(shared, count);
	if (gpu_tid() < 32 && first + gpu_lane() < a.experts)
		a.per_expert[first + gpu_lane()] = (int32_t)count;
}

/* The tokens that go to a rank, of n. By the whole block. */
GPU_FN void ep_find_tokens(const struct shunt_kargs_ep &a, uint32_t rank, uint32_t n, uint32_t *shared)
{
	uint32_t local = a.experts / n, count = 0;

	for (uint32_t t = gpu_tid(); t < a.tokens; t += gpu_ntid()) {
		bool in = false;

		for (uint32_t k = 0; k < a.topk; k++)
			in |= (uint64_t)a.topk_idx[(uint64_t)t * a.topk + k] - rank * local < local;
		a.in_rank[(uint64_t)t * n + rank] = in;
		count += in;
	}
	count = ep_sum_of_block(shared, count);
	if (gpu_tid() == 0)
		a.per_rank[rank] = (int32_t)count;
}

GPU_FN void ep_notify_layout(const struct shunt_kargs_ep &a)
{
	GPU_SHARED(uint32_t, shared, SHUNT_MAX_THREADS);
	uint32_t groups = (a.experts + 31) / 32;

	for (uint32_t i = gpu_bid(); i < groups + a.k.nranks; i += gpu_nbid())
		if (i < a.k.nranks)
			ep_find_tokens(a, i, a.k.nranks, shared);
		else
			ep_count_experts(a, (i - a.k.nranks) * 32, shared);
}

/* The tokens that go to a host. By the whole block. */
GPU_FN void ep_find_host(const struct shunt_kargs_ep_far &f, uint32_t host, uint32_t *shared)
{
	const struct shunt_kargs_ep &a = f.ep;
	uint32_t local = a.experts / f.hosts.nranks, count = 0;

	for (uint32_t t = gpu_tid(); t < a.tokens; t += gpu_ntid()) {
		bool in = false;

		for (uint32_t k = 0; k < a.topk; k++) {
			uint64_t id = (uint64_t)a.topk_idx[(uint64_t)t * a.topk + k];

			in |= id < a.experts && f.hosts.host_of[(uint32_t)id / local] == host;
		}
		count += in;
	}
	count = ep_sum_of_block(shared, count);
	if (gpu_tid() == 0)
		a.received[host] = (int32_t)count;
}

/* `received`: where the hosts' counts go, or NULL. */
GPU_FN void ep_notify_layout_hosts(const struct shunt_kargs_ep_far &f)
{
	GPU_SHARED(uint32_t, shared, SHUNT_MAX_THREADS);
	uint32_t groups = (f.ep.experts + 31) / 32, ranks = f.hosts.nranks, hosts = f.ep.received ? f.hosts.nhosts : 0;

	for (uint32_t i = gpu_bid(); i < groups + ranks + hosts; i += gpu_nbid())
		if (i < ranks)
			ep_find_tokens(f.ep, i, ranks, shared);
		else if (i < ranks + hosts)
			ep_find_host(f, i - ranks, shared);
		else
			ep_count_experts(f.ep, (i - ranks - hosts) * 32, shared);
}

/* ---- notify */

/* What `source` tells `rank`: rows for each rank, then tokens for each expert of `rank`. */
GPU_FN char *ep_counts_at(const struct shunt_kargs_ep &a, uint32_t rank, uint32_t source)
{
	return a.k.peer[rank] + SHUNT_EP_NORMAL_AT + (uint64_t)a.k.nranks * SHUNT_EP_LINE +
	    (uint64_t)source * a.slot_bytes;
}

template <typename W>
GPU_FN uint32_t ep_count_word(const struct shunt_kargs_ep &a, const W &w, uint32_t rank, uint32_t i)
{
	uint32_t local = a.experts / ep_all(a, w);

	if (i < ep_all(a, w))
		return (uint32_t)a.per_rank[i];
	i -= ep_all(a, w);
	return i < local && a.per_expert ? (uint32_t)a.per_expert[rank * local + i] : 0;
}

template <typename W> GPU_FN void ep_send_counts(const struct shunt_kargs_ep &a, const W &w, uint32_t ordinal)
{
	uint32_t rank = ep_rank_of(w, ordinal);

	for (uint32_t i = 0; i < w.slots; i++) {
		uint32_t lines = ep_slot_lines(w.lines, i), at = ep_at(lines, i) / 4;
		struct gpu_v16 v = { 0, 0 };

		if (ep_width(lines))
			v.lo = ep_count_word(a, w, rank, at) | (uint64_t)ep_count_word(a, w, rank, at + 1) << 32;
		if (ep_width(lines) > 8)
			v.hi = ep_count_word(a, w, rank, at + 2) | (uint64_t)ep_count_word(a, w, rank, at + 3) << 32;
		gpu_ll128_st(ep_counts_at(a, ordinal, a.k.rank) + i * EP_SLOT_WIRE, v, ep_flag(w, 1), lines);
	}
}

/* To and from ranks of other hosts: sends; waits until all have come; this lane's counts of slot i of a rank. */
GPU_FN void ep_far_send_counts(const struct ep_warp &) {}
GPU_FN bool ep_far_await_counts(const struct ep_warp &) { return true; }
GPU_FN struct gpu_v16 ep_far_counts(const struct ep_warp &, uint32_t, uint32_t) { return { 0, 0 }; }

GPU_FN void ep_far_send_counts(const struct ep_far_warp &w)
{
	const struct shunt_kargs_ep &a = w.far->ep;

	for (uint32_t c = 0; c + a.k.nranks < w.far->hosts.nranks; c++) {
		uint32_t *to = (uint32_t *)ep_far_out(w, c, SHUNT_EP_FAR_HEADS);

		for (uint32_t i = gpu_lane(); i < a.row_bytes / 4; i += 32)
			to[i] = ep_count_word(a, w, ep_rank_of(w, a.k.nranks + c), i);
		ep_far_put(w, c, SHUNT_EP_FAR_HEADS, ep_plain_bytes(w.lines), 1);
	}
}

GPU_FN bool ep_far_await_counts(const struct ep_far_warp &w)
{
	return ep_far_each(
	    w, ep_far_peers(w), SHUNT_EP_FAR_DATA(0), [&](uint32_t c) { return ep_far_before(w, c) + 2; },
	    [](uint32_t) { return true; });
}

GPU_FN struct gpu_v16 ep_far_counts(const struct ep_far_warp &w, uint32_t ordinal, uint32_t i)
{
	return ep_far_load_pack(w, ep_far_in(w, ordinal - w.far->ep.k.nranks, SHUNT_EP_FAR_HEADS), i);
}

/* Where the host wants to have them, or NULL. */
GPU_FN struct shunt_ep_counts *ep_host_counts(const struct shunt_kargs_ep &a)
{
	return a.counts_at ? (struct shunt_ep_counts *)((char *)progress_ctrl(a)->host_ctrl + a.counts_at) : 0;
}

/* Slot i of all ranks' counts. rows: [source][rank], shared. False: a rank's do not come. By a warp. */
template <typename W> GPU_FN bool ep_take_counts(const struct shunt_kargs_ep &a, const W &w, uint32_t i, uint32_t *rows)
{
	uint32_t lines = ep_slot_lines(w.lines, i), at = ep_at(lines, i) / 4, width = ep_width(lines) / 4;
	uint32_t sum[4] = { 0, 0, 0, 0 }, local = a.experts / ep_all(a, w);
	struct shunt_ep_counts *counts = ep_host_counts(a);

	for (uint32_t s = 0; s < ep_all(a, w); s++) {
		struct gpu_v16 v;

		if (ep_is_far(w, s))
			v = ep_far_counts(w, s, i);
		else if (!ep_wait_slot(
		             a.k, ep_counts_at(a, a.k.rank, s) + i * EP_SLOT_WIRE, lines, ep_flag(w, 1), s, &v))
			return false;
		GPU_UNROLL for (uint32_t j = 0; j < 4; j++) {
			uint32_t count = (uint32_t)((j < 2 ? v.lo : v.hi) >> 32 * (j % 2));

			sum[j] += count;
			if (j < width && at + j < ep_all(a, w))
				rows[ep_rank_of(w, s) * W::MOST + at + j] = count;
		}
	}
	GPU_UNROLL for (uint32_t j = 0; j < 4; j++) {
		uint32_t e = at + j - ep_all(a, w);

		if (counts && j < width && at + j >= ep_all(a, w) && e < local)
			counts->experts[e] = (int32_t)((sum[j] + a.alignment - 1) / a.alignment * a.alignment);
	}
	return true;
}

/* What all ranks' rows are. By the whole block. */
template <typename W> GPU_FN void ep_write_prefix(const struct shunt_kargs_ep &a, const W &w, const uint32_t *rows)
{
	struct shunt_ep_counts *counts = ep_host_counts(a);
	uint32_t n = ep_all(a, w);

	for (uint32_t i = gpu_tid(); i < n * n; i += gpu_ntid()) {
		uint32_t sum = 0, to = i % n;

		for (uint32_t s = 0; s <= i / n; s++)
			sum += rows[s * W::MOST + to];
		a.rank_prefix[i] = (int32_t)sum;
		if (i == (n - 1) * n + ep_rank_of(w, a.k.rank)) {
			*a.received = (int32_t)sum;
			if (counts)
				counts->rows = (int32_t)sum;
		}
	}
	gpu_sync();
	if (gpu_tid() == 0 && counts)
		gpu_st_release(&counts->ticket, a.ticket);
}

/* By the first block. */
template <typename W> GPU_FN void ep_exchange(const struct shunt_kargs_ep &a, W w, uint32_t *rows, uint32_t *failed)
{
	uint32_t warp = gpu_tid() / 32, nwarps = gpu_ntid() / 32;
	bool there = true;

	w.channel = 0;
	if (gpu_tid() == 0)
		*failed = 0;
	gpu_sync();
	if (warp == 0) {
		there = ep_send_heads(a, w, 0);
		for (uint32_t p = 0; p < a.k.nranks && there; p++)
			ep_send_counts(a, w, p);
		if (there)
			ep_far_send_counts(w);
	}
	there = there && ep_take_heads(a, w) && ep_far_await_counts(w);
	for (uint32_t i = warp; i < w.slots && there; i += nwarps)
		there = ep_take_counts(a, w, i, rows);
	if (!there && gpu_lane() == 0)
		gpu_test_and_set32(failed);
	gpu_sync();
	if (!*failed)
		ep_write_prefix(a, w, rows);
}

/* The places of this rank's tokens among its rows on a rank, of n. totals: of the warps, shared. By a block. */
GPU_FN void ep_number_rows(const struct shunt_kargs_ep &a, uint32_t rank, uint32_t n, uint32_t *totals)
{
	uint32_t before = 0;

	for (uint32_t first = 0; first < a.tokens; first += gpu_ntid()) {
		uint32_t t = first + gpu_tid(), row = before;
		uint64_t at = (uint64_t)t * n + rank;
		bool in = t < a.tokens && a.in_rank[at];
		uint32_t bits = gpu_ballot(in);

		if (gpu_lane() == 0)
			totals[gpu_tid() / 32] = gpu_popc(bits);
		gpu_sync();
		for (uint32_t i = 0; i < gpu_ntid() / 32; i++) {
			row += i < gpu_tid() / 32 ? totals[i] : 0;
			before += totals[i];
		}
		gpu_sync();
		if (t < a.tokens)
			a.send_row[at] = in ? (int32_t)(row + gpu_popc(bits & ((1u << gpu_lane()) - 1))) : -1;
	}
}

GPU_FN void ep_notify(const struct shunt_kargs_ep &a)
{
	EP_SHARED(shared);
	GPU_SHARED(uint32_t, rows, SHUNT_KARGS_MAX_RANKS *SHUNT_KARGS_MAX_RANKS);
	GPU_SHARED(uint32_t, totals, EP_MOST_WARPS);
	GPU_SHARED(uint32_t, failed, 1);
	struct ep_warp w = EP_WARP(shared, a);

	if (gpu_bid() == 0)
		ep_exchange(a, w, rows, failed);
	else
		ep_number_rows(a, gpu_bid() - 1, a.k.nranks, totals);
	ep_normal_end(a, w.number);
}

GPU_FN void ep_notify_hosts(const struct shunt_kargs_ep_far &f)
{
	EP_FAR_SHARED(shared);
	GPU_SHARED(uint32_t, rows, SHUNT_NET_MAX_RANKS *SHUNT_NET_MAX_RANKS);
	GPU_SHARED(uint32_t, totals, EP_MOST_WARPS);
	GPU_SHARED(uint32_t, failed, 1);
	struct ep_far_warp w = EP_FAR_WARP(shared, f);

	w.channel = 0;
	if (gpu_bid() == 0)
		ep_exchange(f.ep, w, rows, failed);
	else
		ep_number_rows(f.ep, gpu_bid() - 1, f.hosts.nranks, totals);
	ep_far_end(w, gpu_bid() == 0 && gpu_tid() < 32, 1);
}

#define INSTANCE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_ep) a) \
	    PROGRESS(a, shape(a))
#define INSTANCE_HOSTS(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_ep_far) a) \
	    PROGRESS(a, shape(a))
SHUNT_BARRIER_ROW(INSTANCE, ep_notify_layout)
SHUNT_BARRIER_ROW(INSTANCE, ep_notify)
SHUNT_BARRIER_ROW(INSTANCE_HOSTS, ep_notify_layout_hosts)
SHUNT_BARRIER_ROW(INSTANCE_HOSTS, ep_notify_hosts)
