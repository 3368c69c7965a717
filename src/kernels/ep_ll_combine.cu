/* SPDX-License-Identifier: MIT */
/*
 * Low latency combine. Send: each row of a local expert goes to the rank that its token came from, into the slot of the
 * token and of the expert's place among the token's experts. Receive: a token's rows are added in the order of its
 * experts, each multiplied by its weight: sum = sum + weight * row in float32, where the product is rounded, too. The
 * sum is rounded once. So a token's result does not depend on the other tokens.
 *
 * SHUNT_EP_SUM=rank, the kernels with RANKS: each rank first tells all others its tokens' weights. A rank adds a
 * token's rows of its own experts, in their order, rounds the sum, and sends it as one row; the token's rank adds these
 * rows in the order of their ranks. The send phase waits for the weights, which all ranks send at its beginning.
 *
 * Between hosts, the kernels with HOSTS, a message goes from each rank to each other: the rows in the order of their
 * expert, then token. Where it lies among the rows of all ranks follows from the experts of the receiver's tokens,
 * which the sender knows. In a group with masks each sender has a place for itself, and its message a head.
 */
#include "kernels/ep_calls.h"
#include "kernels/ep_hosts.h"
#include "kernels/ep_rows.h"
#include "kernels/kernel_list.h"

/* Parts of a row, each for a warp. */
#define EP_PARTS 4u
#define EP_SENDS 8u    /* slots whose loads a warp has under way together */
#define EP_SUMMANDS 8u /* the same, where rows are added */

#define EP_MOST_WARPS (SHUNT_MAX_THREADS / 32)

/* RANKS, of a warp: a token's weights, and the rows of its experts here. */
struct ep_places {
	float weight[SHUNT_EP_MAX_PLACES];
	uint64_t row[SHUNT_EP_MAX_PLACES];
};

/* The rows that are added for a token, of a warp: where they are in this rank's memory, 0: there is none. */
struct ep_summands {
	const char *at[SHUNT_EP_MAX_PLACES];
	uint32_t rank[SHUNT_EP_MAX_PLACES];
	float weight[SHUNT_EP_MAX_PLACES];
};

/* A slot of a row that is sent: where it is in x, and up to which of its bytes the row goes on; where it goes. */
struct ep_sent {
	const char *from;
	char *to;
	uint32_t lines, bytes;
};

template <bool HOSTS> struct ep_combine {
	struct ep_call call;
	uint32_t warp, nwarps; /* of the block */
	uint32_t local;        /* experts of a rank */
	uint32_t row_lines;    /* on the wire */
	struct ep_seen *seen;  /* of the block, at the beginning of a phase */
	uint32_t *absent;      /* of the block: ranks whose rows are left out, as bits; then a word for each rank */
	struct ep_summands *summands; /* of the warp */
	struct ep_sent *sent;         /* of the warp, 32: what its lanes have found */
	uint64_t began;               /* when the receive phase began, if the times of waits are asked for */
	/* Over hosts. */
	const struct shunt_ep_hosts *hosts;
	struct ep_stages *stages;
	uint64_t *far_at; /* of a token, by place: where its row from another host is; 0: the place has none */
};

/* Ranks of the group, and this one. */
template <bool HOSTS> GPU_FN uint32_t ep_nranks(const struct shunt_kargs_ep_ll &a, const struct ep_combine<HOSTS> &c)
{
	return HOSTS ? c.hosts->nranks : a.k.nranks;
}

template <bool HOSTS> GPU_FN uint32_t ep_rank(const struct shunt_kargs_ep_ll &a, const struct ep_combine<HOSTS> &c)
{
	return HOSTS ? c.hosts->rank : a.k.rank;
}

template <bool HOSTS> GPU_FN uint32_t ep_rank_of(const struct ep_combine<HOSTS> &c, uint32_t ordinal)
{
	return HOSTS ? c.hosts->rank_of[ordinal] : ordinal;
}

template <bool HOSTS> GPU_FN uint32_t ep_ordinal_of(const struct ep_combine<HOSTS> &c, uint32_t rank)
{
	return HOSTS ? c.hosts->ordinal_of[rank] : rank;
}

/* The row of a place of a token, in the memory of an ordinal of this host. */
template <bool HOSTS>
GPU_FN char *ep_slot_of(
    const struct shunt_kargs_ep_ll &a, const struct ep_combine<HOSTS> &c, uint32_t rank, uint32_t token, uint32_t place)
{
	uint64_t set = 2 * a.k.nranks + (c.call.number & 1) * a.most_topk;

	return a.k.peer[rank] + a.ll_at + set * a.unit +
	    ((uint64_t)token * a.topk + place) * c.row_lines * SHUNT_EP_LINE;
}

/*
 * The row of x of the expert at a place of a source's token; false: the expert is of another rank, gave no row, or is
 * at an earlier place, too. By each lane for itself.
 */
template <bool HOSTS>
GPU_FN bool ep_find_sent(const struct shunt_kargs_ep_ll &a, const struct ep_combine<HOSTS> &c, uint32_t source,
    uint32_t token, uint32_t place, uint64_t *row_p)
{
	const int16_t *experts = a.routing + ((uint64_t)source * a.max_tokens + token) * a.topk;
	const int16_t id = experts[place];
	uint32_t local = (uint32_t)id - ep_rank(a, c) * c.local, end;
	bool first = id >= 0 && local < c.local;

	if (!first)
		return false;
	uint64_t range = (uint64_t)a.ranges[local * ep_nranks(a, c) + source];

	for (uint32_t k = 0; k < place; k++)
		first = first && experts[k] != id;
	/* The tokens of a range ascend. */
	uint64_t row = (uint64_t)local * ep_nranks(a, c) * a.max_tokens + (range >> 32);

	for (end = (uint32_t)range; end;) {
		uint32_t middle = end / 2;
		bool behind = (uint32_t)a.src_idx[row + middle] < token;

		row += behind ? middle + 1 : 0;
		end = behind ? end - middle - 1 : middle;
	}
	range = (uint64_t)local * ep_nranks(a, c) * a.max_tokens + (range >> 32) + (uint32_t)range;
	*row_p = row;
	return first && row < range && (uint32_t)a.src_idx[row] == token;
}

/*
 * This lane's aligned pack of a slot; of the lanes behind the end of the row, some pack of it. Rows are whole packs of
 * 16 bytes. The other half of a pack of which a lane sends one half is dropped by ll128_unpack_half().
 */
GPU_FN const char *ep_sent_pack(const struct ep_sent &s)
{
	uint32_t line = gpu_lane() / 8;
	uint32_t at = GPU_LL128_FLAG_LANE ? s.lines * 112 + line / 2 * 16 : (line * 7 + gpu_lane() % 8) * 16;

	return s.from + (at + 16 <= s.bytes ? at : 0);
}

/* Sends n slots, of which EP_SENDS are under way together. By a warp. */
template <bool HOSTS>
GPU_FN void ep_send_slots(
    const struct shunt_kargs_ep_ll &a, const struct ep_combine<HOSTS> &c, const struct ep_sent *sent, uint32_t n)
{
	if (!(a.k.flags & SHUNT_K_ALIGNED)) {
		GPU_ROLL for (uint32_t i = 0; i < n; i++)
			gpu_ll128_st(sent[i].to,
			    ep_load_elements<u16>(
			        sent[i].from, ep_at(sent[i].lines, 0), ep_width(sent[i].lines), sent[i].bytes),
			    c.call.number, sent[i].lines);
		return;
	}
	GPU_ROLL for (uint32_t i = 0; i < n; i += EP_SENDS) {
		struct gpu_v16 v[EP_SENDS];

		GPU_UNROLL for (uint32_t k = 0; k < EP_SENDS; k++)
			v[k] = gpu_ld16_stream(ep_sent_pack(sent[i + k < n ? i + k : i]));
		GPU_UNROLL for (uint32_t k = 0; k < EP_SENDS; k++)
			ll128_unpack_half(&v[k]);
		GPU_UNROLL for (uint32_t k = 0; k < EP_SENDS; k++)
			if (i + k < n)
				gpu_ll128_st(sent[i + k].to, v[k], c.call.number, sent[i + k].lines);
	}
}

/*
 * The slots of the rows that go to the ranks of this host, in the order in which receivers add them: by token, then
 * slot of the row; then by rank, the next one first, and place. So a receiver adds a token while later ones are on
 * their way. A lane looks for the row of one place. Each warp gets as many places as the others.
 */
template <bool HOSTS> GPU_FN void ep_send(const struct shunt_kargs_ep_ll &a, const struct ep_combine<HOSTS> &c)
{
	const uint32_t slots = ep_slots(c.row_lines), warps = c.call.nblocks * c.nwarps;
	const uint32_t n = a.max_tokens * slots * a.k.nranks * a.topk;
	const uint32_t most = 32 * warps, each = (n / ((n + most - 1) / most) + warps - 1) / warps;

	for (uint32_t first = (c.warp * c.call.nblocks + c.call.block) * each; first < n; first += warps * each) {
		uint32_t i = first + gpu_lane(), place = i % a.topk, u = i / a.topk;
		uint32_t ordinal = (u % a.k.nranks + a.k.rank + 1) % a.k.nranks;
		uint32_t slot = u / a.k.nranks % slots, token = u / a.k.nranks / slots;
		uint64_t row;
		bool sends = gpu_lane() < each && i < n && !(c.seen->masked >> ordinal & 1) &&
		    ep_find_sent(a, c, ep_rank_of(c, ordinal), token, place, &row);
		uint32_t senders = gpu_ballot(sends);

		if (sends)
			c.sent[gpu_popc(senders & ((1u << gpu_lane()) - 1))] = { (const char *)a.k.send +
				    row * a.row_bytes + slot * EP_SLOT_DATA,
				ep_slot_of(a, c, ordinal, token, place) + slot * EP_SLOT_WIRE,
				ep_slot_lines(c.row_lines, slot), a.row_bytes - slot * EP_SLOT_DATA };
		gpu_warp_sync();
		ep_send_slots(a, c, c.sent, gpu_popc(senders));
		gpu_warp_sync(); /* before the next ones */
	}
}

/* ---- send, RANKS */

/* The line with the weights of a token, in a rank's memory. */
GPU_FN char *ep_weights_of(const struct shunt_kargs_ep_ll &a, const struct ep_combine<false> &c, uint32_t rank,
    uint32_t source, uint32_t token)
{
	return a.k.peer[rank] + a.weights_at +
	    (((c.call.number & 1) * a.k.nranks + source) * SHUNT_EP_MAX_LL_TOKENS + token) * SHUNT_EP_LINE;
}

/* Four tokens are a slot, each of them a line: this lane's weights. */
GPU_FN struct gpu_v16 ep_weights_pack(const struct shunt_kargs_ep_ll &a, uint32_t slot)
{
	uint32_t token = slot * 4 + gpu_lane() / 8, place = gpu_lane() % 8 * 4;
	union {
		struct gpu_v16 v;
		float weight[4];
	} p;

	GPU_UNROLL for (uint32_t i = 0; i < 4; i++)
		p.weight[i] =
		    token < a.tokens && place + i < a.topk ? a.topk_weights[(uint64_t)token * a.topk + place + i] : 0;
	return p.v;
}

GPU_FN void ep_send_weights(const struct shunt_kargs_ep_ll &a, const struct ep_combine<false> &c)
{
	for (uint32_t i = c.call.block * c.nwarps + c.warp; i < ep_slots(a.tokens); i += c.call.nblocks * c.nwarps) {
		struct gpu_v16 v = ep_weights_pack(a, i);

		for (uint32_t n = 0, r = a.k.rank; n < a.k.nranks; n++) {
			r = r + 1 == a.k.nranks ? 0 : r + 1;
			if (!(c.seen->masked >> r & 1))
				gpu_ll128_st(ep_weights_of(a, c, r, a.k.rank, i * 4), v, c.call.number,
				    ep_slot_lines(a.tokens, i));
		}
	}
}

/* The row that a local expert gives for a token; false: it has none. By a warp. */
GPU_FN bool ep_find_row(
    const struct shunt_kargs_ep_ll &a, uint32_t local, uint32_t source, uint32_t token, uint64_t *row_p)
{
	uint64_t range = (uint64_t)a.ranges[local * a.k.nranks + source];
	uint64_t first = (uint64_t)local * a.k.nranks * a.max_tokens + (range >> 32);

	for (uint32_t i = 0; i < (uint32_t)range; i += 32) {
		uint32_t mine = i + gpu_lane();
		uint32_t found = gpu_ballot(mine < (uint32_t)range && (uint32_t)a.src_idx[first + mine] == token);

		if (found) {
			*row_p = first + i + gpu_popc((found & -found) - 1);
			return true;
		}
	}
	return false;
}

/*
 * The places of a token whose experts are here and gave rows, as bits; p has the rows. *first_p: the first place with
 * an expert of this rank. By a warp.
 */
GPU_FN uint32_t ep_find_rows(const struct shunt_kargs_ep_ll &a, const struct ep_combine<false> &c, uint32_t source,
    uint32_t token, struct ep_places *p, uint32_t *first_p)
{
	const int16_t *experts = a.routing + ((uint64_t)source * a.max_tokens + token) * a.topk;
	int32_t id = gpu_lane() < a.topk ? experts[gpu_lane()] : -1;
	uint32_t mine = gpu_ballot(id >= 0 && (uint32_t)id / c.local == a.k.rank), there = 0;

	*first_p = gpu_popc((mine & -mine) - 1);
	for (uint32_t left = mine; left; left &= left - 1) {
		uint32_t place = gpu_popc((left & -left) - 1);
		uint64_t row;

		if (!ep_find_row(a, (uint32_t)experts[place] - a.k.rank * c.local, source, token, &row))
			continue;
		there |= 1u << place;
		if (gpu_lane() == 0)
			p->row[place] = row;
	}
	return there;
}

/* False: they do not come. By a warp. */
GPU_FN bool ep_take_weights(const struct shunt_kargs_ep_ll &a, const struct ep_combine<false> &c, uint32_t source,
    uint32_t token, struct ep_places *p)
{
	union {
		struct gpu_v16 v;
		float weight[4];
	} in;

	if (!ep_wait_slot(a.k, ep_weights_of(a, c, a.k.rank, source, token), 1, c.call.number, source, &in.v))
		return false;
	GPU_UNROLL for (uint32_t i = 0; i < 4; i++)
		if (gpu_lane() < SHUNT_EP_MAX_PLACES / 4)
			p->weight[gpu_lane() * 4 + i] = in.weight[i];
	return true;
}

template <typename T> GPU_FN void ep_add(float sum[8], struct gpu_v16 v, float weight)
{
	union pack<T> p;

	p.v = v;
	GPU_UNROLL for (int e = 0; e < 8; e++)
		sum[e] += gpu_mul(weight, to_acc(p.e[e]));
}

/* A part of the sum of a token's rows here. By a warp. */
template <typename T>
GPU_FN void ep_send_sum(const struct shunt_kargs_ep_ll &a, const struct ep_combine<false> &c, const struct ep_places *p,
    uint32_t there, char *to, uint32_t part)
{
	for (uint32_t i = part; i < ep_slots(c.row_lines); i += EP_PARTS) {
		uint32_t lines = ep_slot_lines(c.row_lines, i);
		float sum[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
		union pack<T> out;

		for (uint32_t left = there; left; left &= left - 1) {
			uint32_t place = gpu_popc((left & -left) - 1);

			if (ep_width(lines))
				ep_add<T>(sum,
				    ep_load<u16>((const char *)a.k.send + p->row[place] * a.row_bytes, ep_at(lines, i),
				        ep_width(lines), a.row_bytes, a.k.flags & SHUNT_K_ALIGNED),
				    p->weight[place]);
		}
		GPU_UNROLL for (int e = 0; e < 8; e++)
			from_acc(&out.e[e], sum[e]);
		gpu_ll128_st(to + i * EP_SLOT_WIRE, out.v, c.call.number, lines);
	}
}

template <typename T>
GPU_FN void ep_send_sums(const struct shunt_kargs_ep_ll &a, const struct ep_combine<false> &c, struct ep_places *p)
{
	uint32_t all = a.k.nranks * a.max_tokens * EP_PARTS;

	ep_send_weights(a, c);
	for (uint32_t u = c.call.block * c.nwarps + c.warp; u < all; u += c.call.nblocks * c.nwarps) {
		uint32_t item = u / EP_PARTS, token = item % a.max_tokens, first, there;
		uint32_t source = (item / a.max_tokens + a.k.rank + 1) % a.k.nranks;

		if (c.seen->masked >> source & 1)
			continue;
		there = ep_find_rows(a, c, source, token, p, &first);
		if (there && ep_take_weights(a, c, source, token, p)) {
			gpu_warp_sync();
			ep_send_sum<T>(a, c, p, there, ep_slot_of(a, c, source, token, first), u % EP_PARTS);
		}
		gpu_warp_sync(); /* before the next token's */
	}
}

/* ---- receive */

template <bool RANKS> GPU_FN uint32_t ep_nsummands(const struct shunt_kargs_ep_ll &a)
{
	return RANKS ? a.k.nranks : a.topk;
}

/*
 * Finds the rows that are added for a token, but for those of ranks in `absent` and of other hosts: of its expert at
 * place n, or with RANKS of rank n. A token's repeated expert has one row, that of its first place. By a warp.
 */
template <bool RANKS, bool HOSTS>
GPU_FN void ep_find_summands(
    const struct shunt_kargs_ep_ll &a, const struct ep_combine<HOSTS> &c, uint32_t token, uint32_t absent)
{
	const int64_t *ids = a.topk_idx + (uint64_t)token * a.topk;
	uint32_t n = gpu_lane(), first = a.topk, rank = RANKS ? n : a.k.nranks;
	int64_t own = !RANKS && n < a.topk ? ids[n] : -1;
	const char *at = 0;

	for (uint32_t place = a.topk; place-- > 0;) {
		int64_t id = ids[place];

		if ((uint64_t)id < a.experts && (RANKS ? (uint32_t)id / c.local == n : id == own))
			first = place;
	}
	if (!RANKS && first < a.topk)
		rank = ep_ordinal_of(c, (uint32_t)own / c.local);
	if (first < a.topk && rank < a.k.nranks && !(absent >> rank & 1))
		at = ep_slot_of(a, c, a.k.rank, token, first);
	gpu_warp_sync(); /* the token before */
	if (n < ep_nsummands<RANKS>(a)) {
		c.summands->at[n] = at;
		c.summands->rank[n] = rank;
		c.summands->weight[n] = RANKS ? 1 : a.topk_weights[(uint64_t)token * a.topk + n];
	}
	gpu_warp_sync();
}

/* Slot i of a row that is added; none where there is no such row. */
template <bool RANKS, bool HOSTS>
GPU_FN struct ep_slot ep_slot_at(
    const struct shunt_kargs_ep_ll &a, const struct ep_combine<HOSTS> &c, uint32_t n, uint32_t i)
{
	const char *at = n < ep_nsummands<RANKS>(a) ? c.summands->at[n] : 0;

	if (!at)
		return { 0, 0, 0 };
	return { at + i * EP_SLOT_WIRE, ep_slot_lines(c.row_lines, i), c.summands->rank[n] };
}

/* With masks all parts of a token must leave out the same rows: waits for them first. By the whole block. */
template <bool RANKS, bool HOSTS>
GPU_FN void ep_agree_on_rows(const struct shunt_kargs_ep_ll &a, const struct ep_combine<HOSTS> &c, uint32_t token)
{
	ep_find_summands<RANKS>(a, c, token, c.seen->masked);
	for (uint32_t n = 0; n < ep_nsummands<RANKS>(a); n++) {
		uint32_t rank = c.summands->rank[n];
		bool there = true;
		struct gpu_v16 v;

		for (uint32_t i = c.warp; i < ep_slots(c.row_lines) && there && c.summands->at[n]; i += c.nwarps) {
			struct ep_slot slot = ep_slot_at<RANKS>(a, c, n, i);

			there = ep_wait_slots<1>(a.k, &slot, c.call.number, &v);
		}
		if (!there && gpu_lane() == 0)
			gpu_test_and_set32(&c.absent[1 + rank]);
	}
	gpu_sync();
	if (gpu_tid() == 0) {
		*c.absent = c.seen->masked;
		for (uint32_t r = 0; r < a.k.nranks; r++)
			*c.absent |= c.absent[1 + r] << r;
	}
	gpu_sync();
}

/* One slot of a token's sum. False: a row does not come. By a warp. */
template <typename T, bool RANKS, bool HOSTS>
GPU_FN bool ep_sum_slot(
    const struct shunt_kargs_ep_ll &a, const struct ep_combine<HOSTS> &c, uint32_t token, uint32_t i)
{
	uint32_t lines = ep_slot_lines(c.row_lines, i);
	float sum[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
	union pack<T> out;

	for (uint32_t n = 0; n < ep_nsummands<RANKS>(a); n += EP_SUMMANDS) {
		struct ep_slot slot[EP_SUMMANDS];
		struct gpu_v16 v[EP_SUMMANDS];
		bool far[EP_SUMMANDS] = {};

		GPU_UNROLL for (uint32_t k = 0; k < EP_SUMMANDS; k++)
			slot[k] = ep_slot_at<RANKS>(a, c, n + k, i);
		if (!ep_wait_slots<EP_SUMMANDS>(a.k, slot, c.call.number, v))
			return false;
		if constexpr (HOSTS) GPU_UNROLL
			for (uint32_t k = 0; k < EP_SUMMANDS; k++)
				far[k] = ep_far_slot(a, c, n + k, i, &v[k]);
		GPU_UNROLL for (uint32_t k = 0; k < EP_SUMMANDS; k++) {
			if (!slot[k].lines && !far[k])
				continue;
			if (c.began && !far[k] && gpu_lane() == 0)
				gpu_st_relaxed(&ep_ctrl(a.k, a.k.rank)->waited[c.call.block][slot[k].rank],
				    gpu_clock_ns() - c.began);
			ep_add<T>(sum, v[k], c.summands->weight[n + k]);
		}
	}
	GPU_UNROLL for (int e = 0; e < 8; e++)
		from_acc(&out.e[e], sum[e]);
	if (ep_width(lines))
		ep_store<u16>((char *)a.k.recv + (uint64_t)token * a.row_bytes, ep_at(lines, i), ep_width(lines),
		    a.row_bytes, a.k.flags & SHUNT_K_ALIGNED, out.v);
	return true;
}

/* By tokens, each by a whole block, as all parts of a token must leave out the same rows. */
template <typename T, bool RANKS, bool HOSTS>
GPU_FN void ep_receive_tokens(const struct shunt_kargs_ep_ll &a, const struct ep_combine<HOSTS> &c)
{
	for (uint32_t t = c.call.block; t < a.tokens && !c.seen->broken; t += c.call.nblocks) {
		bool there = true;

		if (a.k.flags & SHUNT_K_EP_MASKS)
			ep_agree_on_rows<RANKS>(a, c, t);
		if constexpr (HOSTS)
			ep_find_far_rows(a, c, t);
		ep_find_summands<RANKS>(a, c, t, *c.absent);
		for (uint32_t i = c.warp; i < ep_slots(c.row_lines) && there; i += c.nwarps)
			there = ep_sum_slot<T, RANKS, HOSTS>(a, c, t, i);
		ep_look(a.k, c.seen); /* the block goes on to the next token together */
	}
}

/* By slots of tokens, each by whichever warp. */
template <typename T, bool RANKS>
GPU_FN void ep_receive_slots(const struct shunt_kargs_ep_ll &a, const struct ep_combine<false> &c)
{
	const uint32_t slots = ep_slots(c.row_lines), n = a.tokens * slots, warps = c.call.nblocks * c.nwarps;
	bool there = !c.seen->broken;

	for (uint32_t u = c.warp * c.call.nblocks + c.call.block; u < n && there; u += warps) {
		ep_find_summands<RANKS>(a, c, u / slots, *c.absent);
		there = ep_sum_slot<T, RANKS, false>(a, c, u / slots, u % slots);
	}
}

template <typename T, bool RANKS, bool HOSTS>
GPU_FN void ep_receive(const struct shunt_kargs_ep_ll &a, struct ep_combine<HOSTS> &c)
{
	if (a.wait_ns) {
		c.began = gpu_clock_ns();
		if (gpu_tid() < a.k.nranks)
			ep_ctrl(a.k, a.k.rank)->waited[c.call.block][gpu_tid()] = 0;
		gpu_sync();
	}
	if constexpr (HOSTS)
		ep_await_messages(a, c);
	if (HOSTS || a.k.flags & SHUNT_K_EP_MASKS)
		ep_receive_tokens<T, RANKS>(a, c);
	else if constexpr (!HOSTS)
		ep_receive_slots<T, RANKS>(a, c);
	gpu_sync();
}

/* By one thread, after all blocks: the time until the last row of each rank of this host had come. */
template <bool HOSTS> GPU_FN void ep_add_waits(const struct shunt_kargs_ep_ll &a, const struct ep_combine<HOSTS> &c)
{
	for (uint32_t r = 0; r < a.k.nranks; r++) {
		uint64_t most = 0;

		for (uint32_t b = 0; b < gpu_nbid() - a.senders; b++) {
			uint64_t ns = gpu_ld_relaxed(&ep_ctrl(a.k, a.k.rank)->waited[b][r]);

			most = ns > most ? ns : most;
		}
		a.wait_ns[ep_rank_of(c, r)] += (int64_t)most;
	}
}

template <typename T, bool RANKS> GPU_FN void ep_ll_combine(const struct shunt_kargs_ep_ll &a, struct ep_places *places)
{
	GPU_SHARED(struct ep_seen, seen, 1);
	GPU_SHARED(uint32_t, absent, 1 + SHUNT_KARGS_MAX_RANKS);
	GPU_SHARED(struct ep_summands, summands, EP_MOST_WARPS);
	GPU_SHARED(struct ep_sent, sent, EP_MOST_WARPS * 32);
	if (gpu_tid() < 1 + SHUNT_KARGS_MAX_RANKS)
		absent[gpu_tid()] = 0; /* read behind the barriers of ep_call_begin() */
	struct ep_combine<false> c = { ep_call_begin(a, SHUNT_EP_COMBINE, seen), gpu_tid() / 32, gpu_ntid() / 32,
		a.experts / a.k.nranks, ep_lines(a.row_bytes), seen, absent, &summands[gpu_tid() / 32],
		&sent[gpu_tid() / 32 * 32], 0, 0, 0, 0 };

	if (c.call.number && c.call.sends && ep_call_await_set(a, c.call, seen)) {
		if (RANKS)
			ep_send_sums<T>(a, c, &places[c.warp]);
		else
			ep_send(a, c);
	}
	if (c.call.number && c.call.receives)
		ep_receive<T, RANKS>(a, c);
	if (ep_call_end(a, c.call) && a.wait_ns)
		ep_add_waits(a, c);
}

template <typename T> GPU_FN void ep_ll_combine_of(const struct shunt_kargs_ep_ll &a) { ep_ll_combine<T, false>(a, 0); }

template <typename T> GPU_FN void ep_ll_combine_sums_of(const struct shunt_kargs_ep_ll &a)
{
	GPU_SHARED(struct ep_places, places, EP_MOST_WARPS);

	ep_ll_combine<T, true>(a, places);
}

#include "kernels/ep_hosts_combine.h"

template <typename T> GPU_FN void ep_ll_combine_hosts(const struct shunt_kargs_ep_hosts &h)
{
	GPU_SHARED(struct ep_seen, seen, 1);
	GPU_SHARED(uint32_t, absent, 1 + SHUNT_KARGS_MAX_RANKS);
	GPU_SHARED(struct ep_summands, summands, EP_MOST_WARPS);
	GPU_SHARED(struct ep_sent, sent, EP_MOST_WARPS * 32);
	GPU_SHARED(struct ep_stages, stages, 1);
	GPU_SHARED(uint64_t, far_at, SHUNT_EP_MAX_PLACES);
	const struct shunt_kargs_ep_ll &a = h.ll;
	if (gpu_tid() < 1 + SHUNT_KARGS_MAX_RANKS)
		absent[gpu_tid()] = 0; /* read behind the barriers of ep_call_begin() */
	struct ep_combine<true> c = {
		ep_call_begin(a, SHUNT_EP_COMBINE, seen), gpu_tid() / 32, gpu_ntid() / 32, a.experts / h.hosts.nranks,
		    ep_lines(a.row_bytes), seen, absent, &summands[gpu_tid() / 32], &sent[gpu_tid() / 32 * 32], 0,
		    &h.hosts, stages, far_at
	};

	if (c.call.number && c.call.sends && ep_call_await_set(a, c.call, seen)) {
		ep_await_far_set(a.k, h.hosts, c.call);
		ep_send(a, c);
		ep_send_far(a, c);
	}
	if (c.call.number && c.call.receives)
		ep_receive<T, false>(a, c);
	if (ep_call_end_far(a, h.hosts, c.call) && a.wait_ns)
		ep_add_waits(a, c);
}

#define INSTANCE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_ep_ll) a) \
	    PROGRESS(a, shape##_of<struct type>(a))
#define INSTANCE_HOSTS(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_ep_hosts) a) \
	    PROGRESS(a, ep_ll_combine_hosts<struct type>(a))
SHUNT_EP_SUM_ROWS(INSTANCE, ep_ll_combine)
SHUNT_EP_SUM_ROWS(INSTANCE, ep_ll_combine_sums)
SHUNT_EP_SUM_ROWS(INSTANCE_HOSTS, ep_ll_combine_hosts)
