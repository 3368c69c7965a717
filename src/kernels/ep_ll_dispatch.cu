/* SPDX-License-Identifier: MIT */
/*
 * Low latency dispatch. Send: a head for each rank, which says where each token goes, and each token's row once to each
 * rank that has one of its experts. Receive: from the heads of all sources follows which rows an expert gets, and in
 * which order: by source, then token. A row that two experts of a rank get is read twice.
 *
 * Nothing but lines goes between ranks of a host, so there is one hop and no fence. Between hosts a message goes from
 * each rank to each other: the head, then the rows of the tokens that name the receiver (kernels/ep_hosts.h).
 */
#include "kernels/ep_calls.h"
#include "kernels/ep_cast.h"
#include "kernels/ep_hosts.h"
#include "kernels/ep_rows.h"
#include "kernels/kernel_list.h"

/* Tokens of all ranks, each rank's rounded up to a warp. */
#define EP_MOST_NAMES 8192u
static_assert(SHUNT_EP_MAX_LL_TOKENS * SHUNT_KARGS_MAX_RANKS <= EP_MOST_NAMES, "the table of a block has them all");

template <bool HOSTS> struct ep_dispatch {
	struct ep_call call;
	uint32_t warp, nwarps;          /* of the block */
	uint32_t local;                 /* experts of a rank */
	uint32_t head_lines, row_lines; /* on the wire */
	uint32_t per_rank;              /* max_tokens, rounded up to a warp */
	/* Shared by the block. */
	uint32_t *shared;     /* the row to be sent; or, per token, 1: it names the expert */
	uint32_t *bits;       /* the same as a bit for each token */
	struct ep_seen *seen; /* at the beginning of a phase */
	uint32_t *missing;    /* sources that have not come: bits, in one word */
	/* Over hosts. */
	const struct shunt_ep_hosts *hosts;
	uint32_t *ours; /* per token, as a bit: it names an expert of this rank */
	uint16_t *list; /* tokens that name the rank to which they are sent; `listed`: how many they are */
	uint32_t *listed;
	struct ep_stages *stages;
};

/* Ranks of the group, and this one. */
template <bool HOSTS> GPU_FN uint32_t ep_nranks(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d)
{
	return HOSTS ? d.hosts->nranks : a.k.nranks;
}

template <bool HOSTS> GPU_FN uint32_t ep_rank(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d)
{
	return HOSTS ? d.hosts->rank : a.k.rank;
}

template <bool HOSTS> GPU_FN uint32_t ep_ordinal_of(const struct ep_dispatch<HOSTS> &d, uint32_t rank)
{
	return HOSTS ? d.hosts->ordinal_of[rank] : rank;
}

/* What `source` sends to `rank` in this call. Both are ordinals of this host. */
template <bool HOSTS>
GPU_FN char *ep_place(
    const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, uint32_t rank, uint32_t source)
{
	return a.k.peer[rank] + a.ll_at + ((d.call.number & 1) * a.k.nranks + source) * a.unit;
}

GPU_FN bool ep_is_expert(const struct shunt_kargs_ep_ll &a, int64_t id) { return (uint64_t)id < a.experts; }

/* ---- send */

/* Place i of a head's list of experts, of which there are topk for each of max_tokens. */
GPU_FN int16_t ep_head_expert(const struct shunt_kargs_ep_ll &a, uint32_t i)
{
	int64_t id = i < a.tokens * a.topk ? a.topk_idx[i] : -1;

	if (id != -1 && !ep_is_expert(a, id)) {
		ep_fault(a.k, SHUNT_FAULT_EXPERT, a.k.rank, i / a.topk, i % a.topk, a.experts, (uint64_t)id);
		id = -1;
	}
	return (int16_t)id;
}

/* Bytes of slot i of a head: this lane's. A head's bytes lie in its lines one after the other. */
GPU_FN struct gpu_v16 ep_head_pack(const struct shunt_kargs_ep_ll &a, uint32_t i)
{
	uint32_t at = (i * 4 + gpu_lane() / 8) * SHUNT_EP_LINE_DATA + gpu_lane() % 8 * 16;
	union {
		struct gpu_v16 v;
		int16_t id[8];
	} p;

	if (at < SHUNT_EP_HEAD_BYTES)
		return { SHUNT_EP_VALUES(a.max_tokens, a.hidden, a.experts, a.topk, a.form), a.tokens };
	at = (at - SHUNT_EP_HEAD_BYTES) / 2;
	GPU_ROLL for (uint32_t j = 0; j < 8; j++)
		p.id[j] = j < 4 || !GPU_LL128_FLAG_LANE ? ep_head_expert(a, at + j) : (int16_t)-1;
	return p.v;
}

template <bool HOSTS> GPU_FN void ep_send_heads(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d)
{
	uint32_t slots = ep_slots(d.head_lines);

	/* The packs are made once for all ranks. */
	for (uint32_t i = gpu_bid() * d.nwarps + d.warp; i < slots; i += gpu_nbid() * d.nwarps) {
		struct gpu_v16 v = ep_head_pack(a, i);

		for (uint32_t n = 0, r = a.k.rank; n < a.k.nranks; n++) {
			r = r + 1 == a.k.nranks ? 0 : r + 1;
			if (!(d.seen->masked >> r & 1))
				gpu_ll128_st(ep_place(a, d, r, a.k.rank) + i * EP_SLOT_WIRE, v, d.call.number,
				    ep_slot_lines(d.head_lines, i));
		}
	}
}

/* The ranks of this host that get the token, as bits of their ordinals. */
template <bool HOSTS>
GPU_FN uint32_t ep_ranks_of(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, uint32_t token)
{
	uint32_t rank = HOSTS ? SHUNT_NET_MAX_RANKS : SHUNT_KARGS_MAX_RANKS, ranks = 0;

	if (gpu_lane() < a.topk) {
		int64_t id = a.topk_idx[token * a.topk + gpu_lane()];

		if (ep_is_expert(a, id))
			rank = ep_ordinal_of(d, (uint32_t)id / d.local);
	}
	for (uint32_t r = 0; r < a.k.nranks; r++)
		ranks |= gpu_ballot(rank == r) ? 1u << r : 0;
	return ranks & ~d.seen->masked;
}

/* This lane's bytes of a row; cast: it lies in shared memory, which has whole lines. */
GPU_FN struct gpu_v16 ep_row_pack(
    const struct shunt_kargs_ep_ll &a, const char *row, uint32_t at, uint32_t width, bool cast)
{
	struct gpu_v16 v = { 0, 0 };

	if (!cast && width)
		return load_user<u16>(row, at, width, a.row_bytes, a.k.flags & SHUNT_K_ALIGNED);
	if (width)
		v.lo = *(const uint64_t *)(row + at);
	if (width > 8)
		v.hi = *(const uint64_t *)(row + at + 8);
	return v;
}

template <bool HOSTS>
GPU_FN void ep_send_row(
    const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, uint32_t token, const char *row, bool cast)
{
	uint32_t ranks = ep_ranks_of(a, d, token);
	uint64_t at = (uint64_t)(d.head_lines + token * d.row_lines) * SHUNT_EP_LINE;

	for (uint32_t i = d.warp; i < ep_slots(d.row_lines) && ranks; i += d.nwarps) {
		uint32_t lines = ep_slot_lines(d.row_lines, i);
		struct gpu_v16 v = ep_row_pack(a, row, ep_at(lines, i), ep_width(lines), cast);

		for (uint32_t n = 0, r = a.k.rank; n < a.k.nranks; n++) {
			r = r + 1 == a.k.nranks ? 0 : r + 1;
			if (ranks >> r & 1)
				gpu_ll128_st(
				    ep_place(a, d, r, a.k.rank) + at + i * EP_SLOT_WIRE, v, d.call.number, lines);
		}
	}
}

template <bool HOSTS> GPU_FN void ep_send_rows(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d)
{
	for (uint32_t t = gpu_bid(); t < a.tokens; t += gpu_nbid()) {
		const char *x = (const char *)a.k.send + (uint64_t)t * a.hidden * 2;

		if (a.form == SHUNT_EP_FORM_AS_IS) {
			ep_send_row(a, d, t, x, false);
			continue;
		}
		ep_cast_row(x, a.hidden, a.form, (char *)d.shared);
		gpu_sync();
		ep_send_row(a, d, t, (const char *)d.shared, true);
		gpu_sync();
	}
}

/* ---- receive */

/* False: the source's call is another one. */
GPU_FN bool ep_head_fits(const struct shunt_kargs_ep_ll &a, uint64_t theirs, uint32_t source)
{
	uint64_t ours = SHUNT_EP_VALUES(a.max_tokens, a.hidden, a.experts, a.topk, a.form);

	if (theirs == ours)
		return true;
	ep_fault(a.k, SHUNT_FAULT_DIFFERS, source, SHUNT_CHECK_CHANNEL, 0, ours, theirs);
	return false;
}

/*
 * With masks all blocks must take the same sources: the first block waits for the heads, and says of each whether it
 * has come. By the whole block.
 */
GPU_FN void ep_agree_on_sources(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<false> &d)
{
	struct shunt_ep_ctrl *ctrl = ep_ctrl(a.k, a.k.rank);

	for (uint32_t s = d.warp; s < a.k.nranks && gpu_bid() == 0; s += d.nwarps) {
		bool there = !(d.seen->masked >> s & 1);
		struct gpu_v16 v;

		for (uint32_t i = 0; i < ep_slots(d.head_lines) && there; i++)
			there = ep_wait_slot(a.k, ep_place(a, d, a.k.rank, s) + i * EP_SLOT_WIRE,
			    ep_slot_lines(d.head_lines, i), d.call.number, s, &v);
		if (gpu_lane() == 0)
			gpu_st_relaxed(&ctrl->status[s], 2 * d.call.number + !there);
	}
	if (gpu_tid() < 32) {
		uint64_t status = 0;
		struct spin spin;
		bool on = gpu_tid() < a.k.nranks;

		spin_init(&spin, progress_ctrl(a.k));
		/* The wait of the first block is limited; this one ends with it, or with the group. */
		while (on && (status = gpu_ld_relaxed(&ctrl->status[gpu_tid()])) / 2 != d.call.number)
			on = spin_expired(&spin) != SHUNT_FAULT_ABORT;
		uint32_t bits = gpu_ballot(gpu_tid() < a.k.nranks && (status & 1 || !on));

		if (gpu_tid() == 0)
			*d.missing = bits;
	}
}

/* Marks the places of a pack of a head that name the expert; and writes them to `routing`. */
template <bool HOSTS>
GPU_FN void ep_mark(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, uint32_t source,
    uint32_t slot, struct gpu_v16 v, uint32_t expert, bool writes)
{
	uint32_t at = (slot * 4 + gpu_lane() / 8) * SHUNT_EP_LINE_DATA + gpu_lane() % 8 * 16;
	uint32_t n = GPU_LL128_FLAG_LANE ? 4 : 8, i, token, place;
	union {
		struct gpu_v16 v;
		int16_t id[8];
	} p;

	if (at < SHUNT_EP_HEAD_BYTES || gpu_lane() / 8 >= ep_slot_lines(d.head_lines, slot))
		return;
	p.v = v;
	i = (at - SHUNT_EP_HEAD_BYTES) / 2;
	token = i / a.topk;
	place = i % a.topk;
	for (uint32_t j = 0; j < n && token < a.max_tokens; j++) {
		if (!HOSTS && p.id[j] == (int16_t)expert)
			gpu_test_and_set32(&d.shared[source * d.per_rank + token]); /* other lanes may, too */
		if (writes)
			a.routing[(uint64_t)source * a.max_tokens * a.topk + i + j] = p.id[j];
		if (++place == a.topk) {
			place = 0;
			token++;
		}
	}
}

/*
 * Reads the heads of all sources; behind a barrier d.bits has the tokens that name the expert then. writers: so many
 * blocks write `routing` together; 0: none. By the whole block.
 */
GPU_FN void ep_read_heads(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<false> &d, uint32_t expert,
    uint32_t writers, uint64_t began)
{
	uint32_t slots = ep_slots(d.head_lines), words = a.k.nranks * d.per_rank / 32;
	uint64_t *waited = ep_ctrl(a.k, a.k.rank)->waited[0];

	for (uint32_t i = gpu_tid(); i < words * 32; i += gpu_ntid())
		d.shared[i] = 0;
	gpu_sync();
	for (uint32_t u = d.warp; u < a.k.nranks * slots; u += d.nwarps) {
		uint32_t s = u / slots, i = u % slots;
		struct gpu_v16 v;

		if (*d.missing >> s & 1 ||
		    !ep_wait_slot(a.k, ep_place(a, d, a.k.rank, s) + i * EP_SLOT_WIRE, ep_slot_lines(d.head_lines, i),
		        d.call.number, s, &v))
			continue;
		if (i == 0 && began && gpu_lane() == 0)
			waited[s] = gpu_clock_ns() - began;
		if (i == 0 && !gpu_warp_all(gpu_lane() != 0 || ep_head_fits(a, v.lo, s)))
			continue;
		ep_mark(a, d, s, i, v, expert, writers && u % writers == gpu_bid());
	}
	gpu_sync();
	for (uint32_t w = d.warp; w < words; w += d.nwarps) {
		uint32_t bits = gpu_ballot(d.shared[w * 32 + gpu_lane()]);

		if (gpu_lane() == 0)
			d.bits[w] = bits;
	}
}

/* A slot of a row, from a register to the caller's memory. row: of the expert. */
template <bool HOSTS>
GPU_FN void ep_store_slot(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, uint32_t local,
    uint32_t row, uint32_t lines, uint32_t i, struct gpu_v16 v)
{
	uint64_t rows = (uint64_t)ep_nranks(a, d) * a.max_tokens;
	uint32_t bytes = a.form == SHUNT_EP_FORM_AS_IS ? a.hidden * 2 : a.hidden;
	uint32_t at = ep_at(lines, i), width = ep_width(lines);

	if (width && at < bytes) {
		store_user<u8>(
		    (char *)a.k.recv + (local * rows + row) * bytes, at, width, bytes, a.k.flags & SHUNT_K_ALIGNED, v);
		return;
	}
	for (uint32_t w = 0; w < width / 4; w++) {
		uint32_t scale = (at - bytes) / 4 + w;

		if (scale < a.scales)
			((uint32_t *)a.recv_scales)[(local * a.scales + scale) * rows + row] =
			    (uint32_t)((w < 2 ? v.lo : v.hi) >> w % 2 * 32);
	}
}

/*
 * A row of the expert, from the lines in this rank's memory to the caller's. False: it does not come. By a warp.
 */
template <bool HOSTS>
GPU_FN bool ep_take_row(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, uint32_t local,
    uint32_t source, uint32_t token, uint32_t row)
{
	const char *from =
	    ep_place(a, d, a.k.rank, source) + (uint64_t)(d.head_lines + token * d.row_lines) * SHUNT_EP_LINE;
	uint32_t slots = ep_slots(d.row_lines);

	if (gpu_lane() == 0)
		a.src_idx[(uint64_t)local * ep_nranks(a, d) * a.max_tokens + row] = (int32_t)token;
	for (uint32_t i = 0; i < slots; i += EP_DEPTH) {
		struct ep_slot slot[EP_DEPTH];
		struct gpu_v16 v[EP_DEPTH];

		GPU_UNROLL for (uint32_t k = 0; k < EP_DEPTH; k++)
			slot[k] = { from + (i + k) * EP_SLOT_WIRE,
				i + k < slots ? ep_slot_lines(d.row_lines, i + k) : 0, source };
		if (!ep_wait_slots<EP_DEPTH>(a.k, slot, d.call.number, v))
			return false;
		GPU_UNROLL for (uint32_t k = 0; k < EP_DEPTH; k++)
			if (slot[k].lines)
				ep_store_slot(a, d, local, row, slot[k].lines, i + k, v[k]);
	}
	return true;
}

/*
 * The rows of one expert, of which `shares` blocks have each some. The first of them writes the counts. Rows of a
 * source that does not come any more stay as they are.
 */
template <bool HOSTS>
GPU_FN void ep_take_rows(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, uint32_t local,
    uint32_t share, uint32_t shares)
{
	uint32_t words = d.per_rank / 32, row = 0, mine = share * d.nwarps + d.warp, step = shares * d.nwarps;
	bool counts = share == 0 && gpu_tid() == 0;

	for (uint32_t s = 0; s < ep_nranks(a, d); s++) {
		uint32_t begin = row, ordinal = ep_ordinal_of(d, s), place = 0;
		bool there = true;

		for (uint32_t w = 0; w < words; w++) {
			for (uint32_t bits = d.bits[s * words + w]; bits; bits &= bits - 1, row++) {
				uint32_t before = (bits & -bits) - 1, token = w * 32 + gpu_popc(before);

				if (!there || row % step != mine)
					continue;
				if constexpr (HOSTS) {
					if (ordinal >= a.k.nranks) {
						ep_take_far_row(a, d, local, ordinal, token, row,
						    place + gpu_popc(d.ours[s * words + w] & before));
						continue;
					}
				}
				there = ep_take_row(a, d, local, ordinal, token, row);
			}
			if (HOSTS)
				place += gpu_popc(d.ours[s * words + w]);
		}
		if (counts)
			a.ranges[local * ep_nranks(a, d) + s] = (int64_t)((uint64_t)begin << 32 | (row - begin));
	}
	if (!counts)
		return;
	a.count[local] = (int32_t)row;
	if (a.stats)
		a.stats[local] += (int32_t)row;
}

template <bool HOSTS> GPU_FN void ep_receive(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d)
{
	uint64_t began = !HOSTS && a.wait_ns && gpu_bid() == 0 ? gpu_clock_ns() : 0;
	uint32_t shares = gpu_nbid() > d.local ? gpu_nbid() / d.local : 1;
	uint32_t busy = d.local * shares < gpu_nbid() ? d.local * shares : gpu_nbid();

	if constexpr (HOSTS)
		ep_take_heads(a, d);
	else if (gpu_tid() == 0)
		*d.missing = 0; /* read behind the barrier of ep_read_heads() */
	if constexpr (!HOSTS)
		if (a.k.flags & SHUNT_K_EP_MASKS)
			ep_agree_on_sources(a, d);
	for (uint32_t i = gpu_bid(); i < d.local * shares && !d.seen->broken; i += gpu_nbid()) {
		uint32_t local = i % d.local, expert = ep_rank(a, d) * d.local + local;

		if constexpr (HOSTS)
			ep_find_tokens(a, d, expert);
		else
			ep_read_heads(a, d, expert, i < gpu_nbid() ? busy : 0, i == 0 ? began : 0);
		ep_look(a.k, d.seen);
		if (!d.seen->broken)
			ep_take_rows(a, d, local, i / d.local, shares);
		ep_look(a.k, d.seen);
	}
	if (began && gpu_tid() < a.k.nranks && !(*d.missing >> gpu_tid() & 1))
		a.wait_ns[gpu_tid()] += (int64_t)ep_ctrl(a.k, a.k.rank)->waited[0][gpu_tid()];
}

GPU_FN void ep_ll_dispatch(const struct shunt_kargs_ep_ll &a)
{
	GPU_SHARED(uint64_t, shared, EP_MOST_NAMES / 2);
	GPU_SHARED(uint32_t, bits, EP_MOST_NAMES / 32);
	GPU_SHARED(struct ep_seen, seen, 1);
	GPU_SHARED(uint32_t, missing, 1);
	struct ep_dispatch<false> d = { ep_call_begin(a, SHUNT_EP_DISPATCH), gpu_tid() / 32, gpu_ntid() / 32,
		a.experts / a.k.nranks, ep_lines(SHUNT_EP_HEAD_BYTES + a.max_tokens * a.topk * 2),
		ep_lines(a.row_bytes), (a.max_tokens + 31) / 32 * 32, (uint32_t *)shared, bits, seen, missing, 0, 0, 0,
		0, 0 };

	ep_look(a.k, seen);
	if (d.call.number && a.k.flags & SHUNT_K_EP_SEND && ep_call_await_set(a, d.call, seen)) {
		ep_send_heads(a, d);
		ep_send_rows(a, d);
	}
	if (d.call.number && a.k.flags & SHUNT_K_EP_RECEIVE)
		ep_receive(a, d);
	ep_call_end(a, d.call);
}

#include "kernels/ep_hosts_dispatch.h"

/* The row to be sent; or, when rows are received, two bits for each token of all ranks. */
#define EP_HOSTS_BITS (SHUNT_EP_MAX_LL_TOKENS / 32 * SHUNT_NET_MAX_RANKS)
#define EP_HOSTS_SHARED (SHUNT_EP_MAX_LL_HIDDEN + SHUNT_EP_MAX_LL_HIDDEN / 32 + 4 * SHUNT_EP_LINE_DATA)
static_assert(EP_HOSTS_SHARED % 8 == 0 && 8 * EP_HOSTS_BITS <= EP_HOSTS_SHARED, "they share memory");

GPU_FN void ep_ll_dispatch_hosts(const struct shunt_kargs_ep_hosts &h)
{
	GPU_SHARED(uint64_t, shared, EP_HOSTS_SHARED / 8);
	GPU_SHARED(uint16_t, list, SHUNT_EP_MAX_LL_TOKENS);
	GPU_SHARED(struct ep_seen, seen, 1);
	GPU_SHARED(struct ep_stages, stages, 1);
	GPU_SHARED(uint32_t, words, 2);
	const struct shunt_kargs_ep_ll &a = h.ll;
	struct ep_dispatch<true> d = {
		ep_call_begin(a, SHUNT_EP_DISPATCH), gpu_tid() / 32, gpu_ntid() / 32, a.experts / h.hosts.nranks,
		    ep_lines(SHUNT_EP_HEAD_BYTES + a.max_tokens * a.topk * 2), ep_lines(a.row_bytes),
		    (a.max_tokens + 31) / 32 * 32, (uint32_t *)shared, (uint32_t *)shared, seen, words, &h.hosts,
		    (uint32_t *)shared + EP_HOSTS_BITS, list, words + 1, stages
	};

	ep_look(a.k, seen);
	if (d.call.number && a.k.flags & SHUNT_K_EP_SEND && ep_call_await_set(a, d.call, seen)) {
		ep_send_heads(a, d);
		ep_send_rows(a, d);
		ep_send_far(a, d);
	}
	if (d.call.number && a.k.flags & SHUNT_K_EP_RECEIVE)
		ep_receive(a, d);
	ep_call_end_far(a, h.hosts, d.call);
}

#define INSTANCE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_ep_ll) a) \
	    PROGRESS(a, ep_ll_dispatch(a))
#define INSTANCE_HOSTS(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_ep_hosts) a) \
	    PROGRESS(a, ep_ll_dispatch_hosts(a))
SHUNT_BARRIER_ROW(INSTANCE, ep_ll_dispatch)
SHUNT_BARRIER_ROW(INSTANCE_HOSTS, ep_ll_dispatch_hosts)
