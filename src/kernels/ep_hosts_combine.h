/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The part of ep_ll_combine.cu that is for other hosts: it includes this file behind what both parts share.
 */

/* ---- send */

/*
 * How many rows a rank's tokens get from the experts `from` to `expert` - 1, and from `expert` for the tokens before
 * `token`. T: of ids. By a warp.
 */
template <typename T>
GPU_FN uint32_t ep_rows_before(
    const struct shunt_kargs_ep_ll &a, const T *ids, uint32_t tokens, int64_t from, int64_t expert, uint32_t token)
{
	uint32_t rows = 0, n = tokens * a.topk;

	for (uint32_t first = 0; first < n; first += 32) {
		uint32_t i = first + gpu_lane(), place = i % a.topk;
		int64_t id = i < n ? (int64_t)ids[i] : -1;
		bool counts =
		    id >= from && (uint64_t)id < a.experts && (id < expert || (id == expert && i / a.topk < token));

		/* A token's repeated expert has one row. */
		for (uint32_t k = 0; k < place && counts; k++)
			counts = (int64_t)ids[i - place + k] != id;
		rows += gpu_popc(gpu_ballot(counts));
	}
	return rows;
}

/*
 * With masks a message begins with a head: how many rows follow. A rank that was without this one's tokens at the
 * dispatch sends other rows than this one expects, and counts as one that does not come.
 */
struct ep_far_head {
	uint64_t rows, pad;
};

GPU_FN uint32_t ep_far_head_bytes(const struct shunt_kargs_ep_ll &a)
{
	return ep_has_masks(a.k) ? sizeof(struct ep_far_head) : 0;
}

/* The first expert whose rows lie where those of this one do: without masks all ranks' rows lie together. */
GPU_FN int64_t ep_first_there(const struct shunt_kargs_ep_ll &a, const struct ep_combine<true> &c, int64_t expert)
{
	return ep_has_masks(a.k) ? expert / c.local * c.local : 0;
}

GPU_FN uint32_t ep_count(
    const struct shunt_kargs_ep_ll &a, const struct ep_combine<true> &c, uint32_t local, uint32_t rank)
{
	return (uint32_t)a.ranges[local * c.hosts->nranks + rank];
}

/* Row i of those for a rank: its place in x. */
GPU_FN uint64_t ep_row_for(
    const struct shunt_kargs_ep_ll &a, const struct ep_combine<true> &c, uint32_t rank, uint32_t i)
{
	uint32_t local = 0, n;

	while (i >= (n = ep_count(a, c, local, rank))) {
		i -= n;
		local++;
	}
	return (uint64_t)local * c.hosts->nranks * a.max_tokens +
	    ((uint64_t)a.ranges[local * c.hosts->nranks + rank] >> 32) + i;
}

/* n rows, from `first` on. By the whole block. */
GPU_FN void ep_stage_rows(const struct shunt_kargs_ep_ll &a, const struct ep_combine<true> &c, char *to, uint32_t rank,
    uint32_t first, uint32_t n)
{
	uint32_t slots = ep_slots(c.row_lines);

	for (uint32_t u = c.warp; u < n * EP_PARTS; u += c.nwarps) {
		const char *row = (const char *)a.k.send + ep_row_for(a, c, rank, first + u / EP_PARTS) * a.row_bytes;

		for (uint32_t i = u % EP_PARTS; i < slots; i += EP_PARTS) {
			uint32_t lines = ep_slot_lines(c.row_lines, i), at = ep_at(lines, i), width = ep_width(lines);
			struct gpu_v16 v = { 0, 0 };

			if (width)
				v = ep_load<u16>(row, at, width, a.row_bytes, a.k.flags & SHUNT_K_ALIGNED);
			ep_store_plain(to + u / EP_PARTS * ep_plain_bytes(c.row_lines), at, width, v);
		}
	}
}

/* The message to an ordinal of another host. By the whole block. */
GPU_FN void ep_send_message(
    const struct shunt_kargs_ep_ll &a, const struct ep_combine<true> &c, struct ep_sender &s, uint32_t ordinal)
{
	uint32_t rank = c.hosts->rank_of[ordinal], row = ep_plain_bytes(c.row_lines), n = 0, sent = 0,
	         bytes = ep_far_head_bytes(a), places = a.max_tokens * a.topk,
	         channel = SHUNT_EP_SIGNAL(c.call.kind, c.call.number);
	int64_t expert = (int64_t)c.hosts->rank * c.local;
	uint32_t first = ep_rows_before(
	    a, a.routing + (uint64_t)rank * places, a.max_tokens, ep_first_there(a, c, expert), expert, 0);
	uint64_t to = ep_far_combine(a, *c.hosts, c.call.number, ep_net(a.k)->pair[rank].there) + (uint64_t)first * row;

	for (uint32_t local = 0; local < c.local; local++)
		n += ep_count(a, c, local, rank);
	/* Never behind the peer's rows, whatever the caller gives. */
	n = n < places - first ? n : places - first;
	while (sent < n || bytes) {
		uint32_t most = (s.bytes - bytes) / row, rows = n - sent < most ? n - sent : most;
		char *stage = ep_stage_take(a.k, s);

		if (!stage)
			return;
		if (bytes && gpu_tid() == 0)
			*(struct ep_far_head *)stage = { n, 0 };
		ep_stage_rows(a, c, stage + bytes, rank, sent, rows);
		bytes += rows * row;
		sent += rows;
		ep_stage_put(a.k, s, ordinal - a.k.nranks, bytes, to, sent == n ? channel : EP_NO_SIGNAL);
		to += bytes;
		bytes = 0;
	}
	if (!n && !ep_has_masks(a.k) && gpu_tid() == 0)
		ep_raise(a.k, ordinal, channel);
}

/* To the ranks of other hosts, beginning with the next one. By the whole block. */
GPU_FN void ep_send_far(const struct shunt_kargs_ep_ll &a, const struct ep_combine<true> &c)
{
	uint32_t far = c.hosts->nranks - a.k.nranks;
	struct ep_sender s = ep_sender_begin(
	    a, *c.hosts, ep_far_head_bytes(a) + (uint64_t)SHUNT_EP_STAGE_ROWS * ep_plain_bytes(c.row_lines), c.stages);

	for (uint32_t i = gpu_bid(); i < far && gpu_bid() < s.blocks && !s.shared->broken; i += s.blocks) {
		uint32_t ordinal = a.k.nranks + (i + c.hosts->rank) % far;

		if (ep_may_send(a.k, c.call, s, ordinal))
			ep_send_message(a, c, s, ordinal);
		gpu_sync();
	}
}

/* ---- receive */

/*
 * Finds the rows of a token that other hosts have sent, among those that came to the same place. By the whole block.
 */
GPU_FN void ep_find_far_rows(const struct shunt_kargs_ep_ll &a, const struct ep_combine<true> &c, uint32_t token)
{
	for (uint32_t place = c.warp; place < a.topk; place += c.nwarps) {
		int64_t id = a.topk_idx[(uint64_t)token * a.topk + place];
		uint32_t ordinal = (uint64_t)id < a.experts ? c.hosts->ordinal_of[(uint32_t)id / c.local] : 0;
		uint64_t at = 0;

		if (ordinal >= a.k.nranks && ep_came(c.call, ordinal))
			at = ep_far_combine(a, *c.hosts, c.call.number, ordinal - a.k.nranks) + ep_far_head_bytes(a) +
			    (uint64_t)ep_rows_before(a, a.topk_idx, a.tokens, ep_first_there(a, c, id), id, token) *
			        ep_plain_bytes(c.row_lines);
		if (gpu_lane() == 0)
			c.far_at[place] = at;
	}
	gpu_sync();
}

/* This lane's bytes of slot i of a place's row from another host; false: there is none. */
GPU_FN bool ep_far_slot(
    const struct shunt_kargs_ep_ll &a, const struct ep_combine<true> &c, uint32_t place, uint32_t i, struct gpu_v16 *v)
{
	uint64_t at = place < a.topk ? c.far_at[place] : 0;
	uint32_t lines = ep_slot_lines(c.row_lines, i);

	if (at)
		*v = ep_load_plain(ep_far_memory(a, at), ep_at(lines, i), ep_width(lines));
	return at;
}

/*
 * With masks: are the rows that have come from an ordinal those of this rank's tokens? Masks it where they are not. By
 * a warp.
 */
GPU_FN bool ep_has_rows(const struct shunt_kargs_ep_ll &a, const struct ep_combine<true> &c, uint32_t ordinal)
{
	int64_t expert = (int64_t)c.hosts->rank_of[ordinal] * c.local;
	const struct ep_far_head *head = (const struct ep_far_head *)ep_far_memory(
	    a, ep_far_combine(a, *c.hosts, c.call.number, ordinal - a.k.nranks));

	uint32_t rows;

	if (!ep_has_masks(a.k))
		return true;
	rows = ep_rows_before(a, a.topk_idx, a.tokens, expert, expert + c.local, 0);
	if (gpu_ballot(gpu_lane() == 0 && gpu_ld_relaxed(&head->rows) == rows))
		return true;
	if (gpu_lane() == 0)
		ep_mask<true>(progress_ctrl(a.k), ordinal);
	return false;
}

/* Each block waits for some ordinals of other hosts, and tells the other blocks. */
GPU_FN void ep_await_messages(const struct shunt_kargs_ep_ll &a, const struct ep_combine<true> &c)
{
	uint64_t began = ep_has_masks(a.k) ? gpu_clock_ns() : 0;

	for (uint32_t ordinal = a.k.nranks + gpu_bid(); ordinal < c.hosts->nranks && c.warp == 0;
	    ordinal += gpu_nbid()) {
		bool came = gpu_ballot(gpu_lane() == 0 && ep_await_far(a.k, c.call, ordinal, began)) &&
		    ep_has_rows(a, c, ordinal);

		if (gpu_lane() != 0)
			continue;
		if (came && c.began)
			a.wait_ns[c.hosts->rank_of[ordinal]] += (int64_t)(gpu_clock_ns() - c.began);
		ep_tell_came(c.call, ordinal, came);
	}
	ep_await_came(a.k, *c.hosts, c.call, a.k.nranks);
	ep_look(a.k, c.seen);
}
