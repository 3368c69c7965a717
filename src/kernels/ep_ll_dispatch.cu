/* SPDX-License-Identifier: MIT */
/*
 * Low latency dispatch. Send: a head for each rank, which says where each token goes, and each token's row once to each
 * rank that has one of its experts. Receive: from the heads of all sources follows which rows an expert gets, and in
 * which order: by source, then token. A row is read once for all experts of a rank that get it.
 *
 * Nothing but lines goes between ranks of a host, so there is one hop and no fence. Between hosts a message goes from
 * each rank to each other: the head, then the rows of the tokens that name the receiver (kernels/ep_hosts.h).
 */
#include "kernels/ep_calls.h"
#include "kernels/ep_cast.h"
#include "kernels/ep_hosts.h"
#include "kernels/ep_rows.h"
#include "kernels/kernel_list.h"

/*
 * Who names whom, in a block's shared memory: for each 32 tokens of a source and each expert a word with a bit for each
 * token, and the expert's rows from tokens before them. A pass goes over as many experts of this rank as fit.
 */
#define EP_NAMES 4096u
#define EP_SHARED (EP_NAMES * 6)
#define EP_LANES 32u
#define EP_ROWS (SHUNT_MAX_THREADS / 32 * EP_LANES)
/* Parts of rows on their way from lines to the rows of experts: of a block, in shared memory; divided by its warps. */
#define EP_COPIED (8 * EP_DEPTH * EP_SLOT_DATA)
struct alignas(16) ep_pack {
	uint64_t lo, hi;
};
static_assert(EP_COPIED / (SHUNT_MAX_THREADS / 32) >= EP_SLOT_DATA && EP_SLOT_DATA % 16 == 0, "a slot for each warp");
static_assert(SHUNT_EP_MAX_LL_TOKENS / 32 * SHUNT_NET_MAX_RANKS <= EP_NAMES, "at least one expert fits");
static_assert(SHUNT_EP_MAX_LL_TOKENS * SHUNT_NET_MAX_RANKS - 32 <= UINT16_MAX, "the rows before a word");
static_assert(SHUNT_EP_MAX_LL_HIDDEN + SHUNT_EP_MAX_LL_HIDDEN / 32 + 4 * SHUNT_EP_LINE_DATA <= EP_SHARED,
    "a row that is cast fits");

template <bool HOSTS> struct ep_dispatch {
	struct ep_call call;
	uint32_t warp, nwarps;          /* of the block */
	uint32_t local;                 /* experts of a rank */
	uint32_t head_lines, row_lines; /* on the wire */
	uint32_t per_rank;              /* max_tokens, rounded up to a warp */
	/* Shared by the block. */
	char *shared;         /* EP_SHARED bytes: rows to be sent, or `names` and `before` */
	uint64_t *rows;       /* of the warp: EP_LANES rows that a token's part goes to */
	struct ep_seen *seen; /* at the beginning of a phase */
	uint32_t *missing;    /* sources that have not come: bits, in one word */
	char *copied;         /* of the warp: `depth` slots of a row */
	uint32_t depth;
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

/* Reports place i of the tokens' experts, if it has none and is not -1. */
GPU_FN void ep_check_expert(const struct shunt_kargs_ep_ll &a, uint32_t i)
{
	int64_t id = i < a.tokens * a.topk ? a.topk_idx[i] : -1;

	if (id != -1 && !ep_is_expert(a, id))
		ep_fault(a.k, SHUNT_FAULT_EXPERT, a.k.rank, i / a.topk, i % a.topk, a.experts, (uint64_t)id);
}

/* Bytes of slot i of a head: this lane's. A head's bytes lie in its lines one after the other. */
GPU_FN struct gpu_v16 ep_head_pack(const struct shunt_kargs_ep_ll &a, uint32_t i)
{
	uint32_t at = (i * 4 + gpu_lane() / 8) * SHUNT_EP_LINE_DATA + gpu_lane() % 8 * 16;
	uint32_t n = a.tokens * a.topk;
	int64_t id[8];
	bool good = true;
	union {
		struct gpu_v16 v;
		int16_t id[8];
	} p;

	if (at < SHUNT_EP_HEAD_BYTES)
		return { SHUNT_EP_VALUES(a.max_tokens, a.hidden, a.experts, a.topk, a.form), a.tokens };
	at = (at - SHUNT_EP_HEAD_BYTES) / 2;
	GPU_UNROLL for (uint32_t j = 0; j < 8; j++)
		id[j] = (j < 4 || !GPU_LL128_FLAG_LANE) && at + j < n ? a.topk_idx[at + j] : -1;
	GPU_UNROLL for (uint32_t j = 0; j < 8; j++) {
		good = good && (id[j] == -1 || ep_is_expert(a, id[j]));
		p.id[j] = ep_is_expert(a, id[j]) ? (int16_t)id[j] : (int16_t)-1;
	}
	GPU_ROLL for (uint32_t j = 0; j < 8 && !good; j++)
		if (j < 4 || !GPU_LL128_FLAG_LANE)
			ep_check_expert(a, at + j);
	return p.v;
}

template <bool HOSTS> GPU_FN void ep_send_heads(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d)
{
	uint32_t slots = ep_slots(d.head_lines);

	/* The packs are made once for all ranks, each by another block; the last ones have the fewest tokens. */
	for (uint32_t i = d.call.nblocks - 1 - d.call.block + d.warp * d.call.nblocks; i < slots;
	    i += d.call.nblocks * d.nwarps) {
		struct gpu_v16 v = ep_head_pack(a, i);

		for (uint32_t n = 0, r = a.k.rank; n < a.k.nranks; n++) {
			r = r + 1 == a.k.nranks ? 0 : r + 1;
			if (!(d.seen->masked >> r & 1))
				gpu_ll128_st(ep_place(a, d, r, a.k.rank) + i * EP_SLOT_WIRE, v, d.call.number,
				    ep_slot_lines(d.head_lines, i));
		}
	}
}

/* The expert at this lane's place among those of a token; -1: none. */
GPU_FN int64_t ep_expert_of(const struct shunt_kargs_ep_ll &a, uint32_t token)
{
	return token < a.tokens && gpu_lane() < a.topk ? a.topk_idx[token * a.topk + gpu_lane()] : -1;
}

/* The ranks of this host that get the token whose experts the lanes have, as bits of their ordinals. */
template <bool HOSTS>
GPU_FN uint32_t ep_ranks_of(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, int64_t id)
{
	uint32_t rank = HOSTS ? SHUNT_NET_MAX_RANKS : SHUNT_KARGS_MAX_RANKS, ranks = 0;

	if (ep_is_expert(a, id))
		rank = ep_ordinal_of(d, (uint32_t)id / d.local);
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
		return ep_load<u16>(row, at, width, a.row_bytes, a.k.flags & SHUNT_K_ALIGNED);
	if (width)
		v.lo = *(const uint64_t *)(row + at);
	if (width > 8)
		v.hi = *(const uint64_t *)(row + at + 8);
	return v;
}

template <bool HOSTS>
GPU_FN void ep_send_row(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, uint32_t token,
    uint32_t ranks, const char *row, bool cast, uint32_t warp, uint32_t nwarps)
{
	uint64_t at = (uint64_t)(d.head_lines + token * d.row_lines) * SHUNT_EP_LINE;

	for (uint32_t i = warp; i < ep_slots(d.row_lines) && ranks; i += nwarps) {
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

/*
 * The tokens that a block sends at a time, each by some of its warps: as many as it has to send, so that their loads
 * are under way together, and as fit into shared memory.
 */
template <bool HOSTS>
GPU_FN uint32_t ep_tokens_at_a_time(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d)
{
	uint32_t n = 1;

	while (n * d.call.nblocks < a.tokens && d.nwarps % (2 * n) == 0 &&
	    2 * n * ep_slots(d.row_lines) * EP_SLOT_DATA <= EP_SHARED)
		n *= 2;
	return n;
}

template <bool HOSTS> GPU_FN void ep_send_rows(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d)
{
	uint32_t n = ep_tokens_at_a_time(a, d), nwarps = d.nwarps / n, warp = d.warp % nwarps;
	char *cast = d.shared + d.warp / nwarps * ep_slots(d.row_lines) * EP_SLOT_DATA;

	for (uint32_t first = d.call.block * n; first < a.tokens; first += d.call.nblocks * n) {
		uint32_t t = first + d.warp / nwarps;
		const char *x = (const char *)a.k.send + (uint64_t)t * a.hidden * 2;
		int64_t id = ep_expert_of(a, t); /* looked at when the row is cast, as both are loaded together */

		if (a.form == SHUNT_EP_FORM_AS_IS) {
			ep_send_row(a, d, t, ep_ranks_of(a, d, id), x, false, warp, nwarps);
			continue;
		}
		if (t < a.tokens)
			ep_cast_row(x, a.hidden, a.form, cast, warp, nwarps);
		gpu_sync();
		ep_send_row(a, d, t, ep_ranks_of(a, d, id), cast, true, warp, nwarps);
		if (first + d.call.nblocks * n < a.tokens)
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

	for (uint32_t s = d.warp; s < a.k.nranks && d.call.block == 0; s += d.nwarps) {
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

/* The experts of one pass, and the rows that they get. */
struct ep_pass {
	uint32_t first, n; /* experts of this rank */
	uint32_t *names;   /* [32 tokens of a source][expert] */
	uint16_t *before;  /* the same */
};

template <bool HOSTS>
GPU_FN uint32_t ep_name_at(const struct ep_dispatch<HOSTS> &d, const struct ep_pass &p, uint32_t source, uint32_t token)
{
	return (source * d.per_rank + token) / 32 * p.n;
}

/* A token names an expert, which may be of another rank. By each thread. */
template <bool HOSTS>
GPU_FN void ep_name(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, const struct ep_pass &p,
    uint32_t source, uint32_t token, int16_t id)
{
	uint32_t expert = (uint32_t)id - ep_rank(a, d) * d.local - p.first;

	if (id >= 0 && expert < p.n)
		gpu_or_block32(&p.names[ep_name_at(d, p, source, token) + expert], 1u << token % 32);
}

/* What this lane's bytes of slot i of a head are of: a place among those of all tokens; UINT32_MAX: of none. */
template <bool HOSTS>
GPU_FN uint32_t ep_head_place(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, uint32_t i)
{
	uint32_t at = (i * 4 + gpu_lane() / 8) * SHUNT_EP_LINE_DATA + gpu_lane() % 8 * 16;

	if (at < SHUNT_EP_HEAD_BYTES || gpu_lane() / 8 >= ep_slot_lines(d.head_lines, i))
		return UINT32_MAX;
	at = (at - SHUNT_EP_HEAD_BYTES) / 2;
	return at < a.max_tokens * a.topk ? at : UINT32_MAX;
}

union ep_ids {
	struct gpu_v16 v;
	int16_t id[8];
};

/* Writes this lane's part of a head to `routing`. */
GPU_FN void ep_keep_head(const struct shunt_kargs_ep_ll &a, uint32_t source, uint32_t place, const union ep_ids &ids)
{
	uint32_t all = a.max_tokens * a.topk, n = GPU_LL128_FLAG_LANE ? 4 : 8;

	GPU_UNROLL for (uint32_t j = 0; j < 8; j++)
		if (j < n && place + j < all)
			a.routing[(uint64_t)source * all + place + j] = ids.id[j];
}

/* Notes the names of this lane's part of a head. */
GPU_FN void ep_read_head(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<false> &d, const struct ep_pass &p,
    uint32_t source, uint32_t place, const union ep_ids &ids)
{
	uint32_t token = place / a.topk, k = place % a.topk, n = GPU_LL128_FLAG_LANE ? 4 : 8;
	uint64_t word = ids.v.lo;

	GPU_ROLL for (uint32_t j = 0; j < n && token < a.max_tokens; j++) {
		ep_name(a, d, p, source, token, (int16_t)word);
		word = j == 3 ? ids.v.hi : word >> 16;
		if (++k == a.topk) {
			k = 0;
			token++;
		}
	}
}

/* Reads the heads of all sources, which the blocks write to `routing` together in their first pass. By the block. */
GPU_FN void ep_read_heads(
    const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<false> &d, const struct ep_pass &p)
{
	uint32_t slots = ep_slots(d.head_lines);
	uint64_t *waited = ep_ctrl(a.k, a.k.rank)->waited[0];

	for (uint32_t u = d.warp; u < a.k.nranks * slots; u += d.nwarps) {
		uint32_t s = u / slots, i = u % slots, place = ep_head_place(a, d, i);
		union ep_ids ids;

		if (*d.missing >> s & 1)
			continue;
		if (!ep_wait_slot(a.k, ep_place(a, d, a.k.rank, s) + i * EP_SLOT_WIRE, ep_slot_lines(d.head_lines, i),
		        d.call.number, s, &ids.v)) {
			ep_lost(a.k, d.seen, s);
			continue;
		}
		if (i == 0 && p.first == 0 && d.seen->began && gpu_lane() == 0)
			waited[s] = gpu_clock_ns() - d.seen->began;
		if (i == 0 && !gpu_warp_all(gpu_lane() != 0 || ep_head_fits(a, ids.v.lo, s))) {
			ep_lost(a.k, d.seen, s);
			continue;
		}
		if (place == UINT32_MAX)
			continue;
		ep_read_head(a, d, p, s, place, ids);
		if (p.first == 0 && u % d.call.nblocks == d.call.block)
			ep_keep_head(a, s, place, ids);
	}
}

/* Which rows each expert gets, from its names; one block tells the caller. By the whole block. */
template <bool HOSTS>
GPU_FN void ep_count_rows(
    const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, const struct ep_pass &p)
{
	for (uint32_t e = gpu_tid(); e < p.n; e += gpu_ntid()) {
		uint32_t row = 0, at = e, local = p.first + e;
		bool tells = local % d.call.nblocks == d.call.block;

		for (uint32_t s = 0; s < ep_nranks(a, d); s++) {
			uint32_t begin = row;

			for (uint32_t w = 0; w < d.per_rank / 32; w++, at += p.n) {
				p.before[at] = (uint16_t)row;
				row += gpu_popc(p.names[at]);
			}
			if (tells)
				a.ranges[local * ep_nranks(a, d) + s] =
				    (int64_t)((uint64_t)begin << 32 | (row - begin));
		}
		if (!tells)
			continue;
		a.count[local] = (int32_t)row;
		if (a.stats)
			a.stats[local] += (int32_t)row;
	}
}

/* This lane's scales of a row, which lie apart from the elements: of the last slots only, so out of line. */
GPU_NOINLINE void ep_store_scales(uint32_t *to, uint64_t rows, uint32_t n, struct gpu_v16 v)
{
	GPU_UNROLL for (uint32_t w = 0; w < 4; w++)
		if (w < n)
			to[w * rows] = (uint32_t)((w < 2 ? v.lo : v.hi) >> w % 2 * 32);
}

/* Bytes of a slot of a row, from a register to the caller's memory. place: the expert in the upper half, its row. */
template <bool HOSTS>
GPU_FN void ep_store_slot(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, uint64_t place,
    uint32_t lines, uint32_t i, struct gpu_v16 v)
{
	uint32_t rows = ep_nranks(a, d) * a.max_tokens, local = (uint32_t)(place >> 32), row = (uint32_t)place;
	uint32_t bytes = a.form == SHUNT_EP_FORM_AS_IS ? a.hidden * 2 : a.hidden;
	uint32_t at = ep_at(lines, i), width = ep_width(lines);

	if (width && at < bytes)
		ep_store<u8>((char *)a.k.recv + (uint64_t)(local * rows + row) * bytes, at, width, bytes,
		    a.k.flags & SHUNT_K_ALIGNED, v);
	else if (width && at < bytes + 4 * a.scales) {
		uint32_t scale = (at - bytes) / 4, left = a.scales - scale;

		ep_store_scales((uint32_t *)a.recv_scales + (uint64_t)(local * a.scales + scale) * rows + row, rows,
		    width / 4 < left ? width / 4 : left, v);
	}
}

/* kernels/ep_hosts_dispatch.h */
GPU_FN void ep_load_far(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d, uint32_t source,
    uint32_t ordinal, uint32_t token, uint32_t first, uint32_t end, struct gpu_v16 v[EP_DEPTH]);

/* The slots first to end - 1 of a token's row, up to EP_DEPTH. False: they do not come. By a warp. */
template <bool HOSTS>
GPU_FN bool ep_load_near(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, uint32_t ordinal,
    uint32_t token, uint32_t first, uint32_t end, struct gpu_v16 v[EP_DEPTH])
{
	const char *from =
	    ep_place(a, d, a.k.rank, ordinal) + (uint64_t)(d.head_lines + token * d.row_lines) * SHUNT_EP_LINE;
	struct ep_slot slot[EP_DEPTH];

	GPU_UNROLL for (uint32_t k = 0; k < EP_DEPTH; k++)
		slot[k] = { from + (first + k) * EP_SLOT_WIRE,
			first + k < end ? ep_slot_lines(d.row_lines, first + k) : 0, ordinal };
	return ep_wait_slots<EP_DEPTH>(a.k, slot, d.call.number, v);
}

GPU_FN bool ep_load_part(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<false> &d, uint32_t source,
    uint32_t token, uint32_t first, uint32_t end, struct gpu_v16 v[EP_DEPTH])
{
	return ep_load_near(a, d, source, token, first, end, v);
}

GPU_FN bool ep_load_part(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d, uint32_t source,
    uint32_t token, uint32_t first, uint32_t end, struct gpu_v16 v[EP_DEPTH])
{
	uint32_t ordinal = ep_ordinal_of(d, source);

	if (ordinal < a.k.nranks)
		return ep_load_near(a, d, ordinal, token, first, end, v);
	ep_load_far(a, d, source, ordinal, token, first, end, v);
	return true;
}

/*
 * The row of a local expert, which this lane has found, where a token's row goes; the first part says whose row it is.
 * d.rows has the place for the other lanes. names: the expert's bits of 32 tokens; before: its rows in front of those.
 */
template <bool HOSTS>
GPU_FN uint32_t ep_place_row(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, uint32_t local,
    uint32_t rows, uint32_t before, uint32_t names, uint32_t token, uint32_t first)
{
	uint32_t row = before + gpu_popc(names & ((1u << token % 32) - 1));

	d.rows[gpu_lane()] = (uint64_t)local << 32 | row;
	if (first == 0)
		a.src_idx[local * rows + row] = (int32_t)token;
	return row;
}

/*
 * A part of a token's row: `depth` slots from `first` on, read once and stored for each of its experts here, whose rows
 * the lanes find for each other. False: it does not come. By a warp.
 */
template <bool HOSTS>
GPU_FN bool ep_take_part(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, const struct ep_pass &p,
    uint32_t source, uint32_t token, uint32_t first, uint32_t depth)
{
	const uint32_t at = ep_name_at(d, p, source, token) + gpu_lane(), slots = ep_slots(d.row_lines);
	const uint32_t rows = ep_nranks(a, d) * a.max_tokens, end = first + depth < slots ? first + depth : slots;
	struct gpu_v16 v[EP_DEPTH];
	bool came = false;

	for (uint32_t e = 0; e < p.n; e += EP_LANES) {
		uint32_t names = e + gpu_lane() < p.n ? p.names[at + e] : 0, mine = names >> token % 32 & 1;
		uint32_t named = gpu_ballot(mine);

		if (named && !came && !(came = ep_load_part(a, d, source, token, first, end, v)))
			return false;
		if (mine)
			ep_place_row(a, d, p.first + e + gpu_lane(), rows, p.before[at + e], names, token, first);
		gpu_warp_sync();
		GPU_ROLL for (; named; named &= named - 1) {
			uint64_t place = d.rows[gpu_popc((named & -named) - 1)];

			GPU_UNROLL for (uint32_t k = 0; k < EP_DEPTH; k++)
				if (first + k < end)
					ep_store_slot(
					    a, d, place, ep_slot_lines(d.row_lines, first + k), first + k, v[k]);
		}
		gpu_warp_sync();
	}
	return true;
}

/* Where TMA copies rows to the caller's memory: from there on they are whole packs of 16 bytes. */
template <bool HOSTS> GPU_FN bool ep_copies(const struct shunt_kargs_ep_ll &a)
{
	return !HOSTS && a.k.flags & SHUNT_K_ALIGNED;
}

/* The slots first to end - 1 of a token's row, into the warp's shared memory. False: they do not come. By a warp. */
GPU_FN bool ep_gather_part(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<false> &d, uint32_t source,
    uint32_t token, uint32_t first, uint32_t end, struct gpu_tma_group *copies)
{
	struct gpu_v16 v[EP_DEPTH];

	if (!ep_load_near(a, d, source, token, first, end, v))
		return false;
	gpu_tma_scatter_wait(copies); /* of the part before */
	GPU_UNROLL for (uint32_t k = 0; k < EP_DEPTH; k++) {
		uint32_t lines = first + k < end ? ep_slot_lines(d.row_lines, first + k) : 0, width = ep_width(lines);
		char *to = d.copied + k * EP_SLOT_DATA + ep_at(lines, 0);

		if (width == 16)
			*(struct ep_pack *)to = { v[k].lo, v[k].hi };
		else if (width)
			*(uint64_t *)to = v[k].lo;
	}
	gpu_tma_scatter_fence();
	return true;
}

/* The scales of a part, which are behind its first `bytes` bytes, for the rows that the lanes of `named` have. */
GPU_FN void ep_spread_scales(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<false> &d, uint32_t named,
    uint32_t bytes, uint32_t scale, uint32_t n)
{
	const uint32_t rows = a.k.nranks * a.max_tokens;

	GPU_ROLL for (; named; named &= named - 1) {
		uint64_t place = d.rows[gpu_popc((named & -named) - 1)];
		uint32_t *to = (uint32_t *)a.recv_scales + ((place >> 32) * a.scales + scale) * rows + (uint32_t)place;

		GPU_ROLL for (uint32_t i = gpu_lane(); i < n; i += 32)
			to[(uint64_t)i * rows] = ((const uint32_t *)(d.copied + bytes))[i];
	}
}

/* ep_take_part() by TMA, which stores whole parts: each lane those of the experts that it has found. */
GPU_FN bool ep_copy_part(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<false> &d, const struct ep_pass &p,
    uint32_t source, uint32_t token, uint32_t first, uint32_t depth, struct gpu_tma_group *copies)
{
	const uint32_t at = ep_name_at(d, p, source, token) + gpu_lane(), slots = ep_slots(d.row_lines);
	const uint32_t rows = a.k.nranks * a.max_tokens, end = first + depth < slots ? first + depth : slots;
	const uint32_t begin = first * EP_SLOT_DATA, all = a.form == SHUNT_EP_FORM_AS_IS ? a.hidden * 2 : a.hidden;
	const uint32_t last = end * EP_SLOT_DATA < a.row_bytes ? end * EP_SLOT_DATA : a.row_bytes;
	const uint32_t bytes = begin >= all ? 0 : (last < all ? last : all) - begin;
	const uint32_t scale = begin > all ? (begin - all) / 4 : 0, scales = last > all ? (last - all) / 4 - scale : 0;
	bool came = false;

	for (uint32_t e = 0; e < p.n; e += EP_LANES) {
		uint32_t names = e + gpu_lane() < p.n ? p.names[at + e] : 0, mine = names >> token % 32 & 1;
		uint32_t named = gpu_ballot(mine);

		if (!named)
			continue;
		if (!came && !(came = ep_gather_part(a, d, source, token, first, end, copies)))
			return false;
		if (mine) {
			uint32_t local = p.first + e + gpu_lane();
			uint32_t row = ep_place_row(a, d, local, rows, p.before[at + e], names, token, first);

			if (bytes)
				gpu_tma_scatter(copies, (char *)a.k.recv + (uint64_t)(local * rows + row) * all + begin,
				    d.copied, bytes);
		}
		if (scales) {
			gpu_warp_sync();
			ep_spread_scales(a, d, named, bytes, scale, scales);
			gpu_warp_sync();
		}
	}
	return true;
}

/* The rows of a pass. Those of a source that does not come any more stay as they are. */
template <bool HOSTS>
GPU_FN void ep_take_rows(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d, const struct ep_pass &p)
{
	const uint32_t slots = ep_slots(d.row_lines), tokens = ep_nranks(a, d) * a.max_tokens,
	               nwarps = d.call.nblocks * d.nwarps;
	uint32_t depth = ep_copies<HOSTS>(a) ? d.depth : EP_DEPTH;
	struct gpu_tma_group copies = {};
	uint64_t lost = 0;

	while (depth > 1 && tokens * slots <= depth / 2 * nwarps) /* all warps have a part, and the same number */
		depth /= 2;
	const uint32_t parts = (slots + depth - 1) / depth;

	for (uint32_t u = d.call.block * d.nwarps + d.warp; u < tokens * parts; u += nwarps) {
		uint32_t item = u / parts, source = item / a.max_tokens, token = item % a.max_tokens,
		         slot = u % parts * depth;
		bool came;

		if (lost >> source & 1)
			continue;
		if constexpr (HOSTS)
			came = ep_take_part(a, d, p, source, token, slot, depth);
		else
			came = ep_copies<HOSTS>(a) ? ep_copy_part(a, d, p, source, token, slot, depth, &copies) :
			                             ep_take_part(a, d, p, source, token, slot, depth);
		lost |= came ? 0 : (uint64_t)1 << source;
	}
	gpu_tma_scatter_wait(&copies);
}

template <bool HOSTS> GPU_FN void ep_receive(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<HOSTS> &d)
{
	uint32_t words = ep_nranks(a, d) * d.per_rank / 32, most = EP_NAMES / words;

	if constexpr (HOSTS) {
		ep_take_heads(a, d);
		ep_look(a.k, d.seen);
	} else if (gpu_tid() == 0) { /* read behind the barrier below */
		*d.missing = 0;
		d.seen->began = a.wait_ns && d.call.block == 0 ? gpu_clock_ns() : 0;
	}
	if constexpr (!HOSTS)
		if (a.k.flags & SHUNT_K_EP_MASKS)
			ep_agree_on_sources(a, d);
	for (uint32_t first = 0; first < d.local && !d.seen->broken; first += most) {
		struct ep_pass p = { first, d.local - first < most ? d.local - first : most, (uint32_t *)d.shared,
			(uint16_t *)(d.shared + 4 * EP_NAMES) };

		gpu_sync(); /* the memory had rows, or the last pass */
		for (uint32_t i = gpu_tid(); i < words * p.n; i += gpu_ntid())
			p.names[i] = 0;
		gpu_sync();
		if constexpr (HOSTS)
			ep_read_routing(a, d, p);
		else
			ep_read_heads(a, d, p);
		gpu_sync();
		if (d.seen->broken)
			break;
		ep_count_rows(a, d, p);
		gpu_sync();
		ep_take_rows(a, d, p);
	}
	if (!HOSTS && !d.seen->broken && d.seen->began && gpu_tid() < a.k.nranks && !(*d.missing >> gpu_tid() & 1))
		a.wait_ns[gpu_tid()] += (int64_t)ep_ctrl(a.k, a.k.rank)->waited[0][gpu_tid()];
	gpu_sync();
}

GPU_FN void ep_ll_dispatch(const struct shunt_kargs_ep_ll &a)
{
	GPU_SHARED(uint64_t, shared, EP_SHARED / 8);
	GPU_SHARED(uint64_t, rows, EP_ROWS);
	GPU_SHARED(struct ep_pack, copied, EP_COPIED / sizeof(struct ep_pack));
	GPU_SHARED(struct ep_seen, seen, 1);
	GPU_SHARED(uint32_t, missing, 1);
	const uint32_t slots = EP_COPIED / EP_SLOT_DATA / (gpu_ntid() / 32),
	               depth = slots < EP_DEPTH ? slots : EP_DEPTH;
	struct ep_dispatch<false> d = { ep_call_begin(a, SHUNT_EP_DISPATCH, seen), gpu_tid() / 32, gpu_ntid() / 32,
		a.experts / a.k.nranks, ep_lines(SHUNT_EP_HEAD_BYTES + a.max_tokens * a.topk * 2),
		ep_lines(a.row_bytes), (a.max_tokens + 31) / 32 * 32, (char *)shared, rows + gpu_tid() / 32 * EP_LANES,
		seen, missing, (char *)copied + gpu_tid() / 32 * depth * EP_SLOT_DATA, depth, 0, 0, 0, 0, 0 };

	if (d.call.number && d.call.sends && ep_call_await_set(a, d.call, seen)) {
		ep_send_heads(a, d);
		ep_send_rows(a, d);
	}
	if (d.call.number && d.call.receives)
		ep_receive(a, d);
	ep_call_end(a, d.call);
}

#include "kernels/ep_hosts_dispatch.h"

/* A bit for each token of all ranks: it names an expert of this rank. */
#define EP_HOSTS_OURS (SHUNT_EP_MAX_LL_TOKENS / 32 * SHUNT_NET_MAX_RANKS)

GPU_FN void ep_ll_dispatch_hosts(const struct shunt_kargs_ep_hosts &h)
{
	GPU_SHARED(uint64_t, shared, EP_SHARED / 8);
	GPU_SHARED(uint64_t, rows, EP_ROWS);
	GPU_SHARED(uint32_t, ours, EP_HOSTS_OURS);
	GPU_SHARED(uint16_t, list, SHUNT_EP_MAX_LL_TOKENS);
	GPU_SHARED(struct ep_seen, seen, 1);
	GPU_SHARED(struct ep_stages, stages, 1);
	GPU_SHARED(uint32_t, words, 2);
	const struct shunt_kargs_ep_ll &a = h.ll;
	struct ep_dispatch<true> d = {
		ep_call_begin(a, SHUNT_EP_DISPATCH, seen), gpu_tid() / 32, gpu_ntid() / 32, a.experts / h.hosts.nranks,
		    ep_lines(SHUNT_EP_HEAD_BYTES + a.max_tokens * a.topk * 2), ep_lines(a.row_bytes),
		    (a.max_tokens + 31) / 32 * 32, (char *)shared, rows + gpu_tid() / 32 * EP_LANES, seen, words, 0, 0,
		    &h.hosts, ours, list, words + 1, stages
	};

	if (d.call.number && d.call.sends && ep_call_await_set(a, d.call, seen)) {
		ep_await_far_set(a.k, h.hosts, d.call);
		ep_send_heads(a, d);
		ep_send_rows(a, d);
		ep_send_far(a, d);
	}
	if (d.call.number && d.call.receives)
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
