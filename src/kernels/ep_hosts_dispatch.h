/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The part of ep_ll_dispatch.cu that is for other hosts: it includes this file behind what both parts share.
 */

/* ---- send */

/* Lists the tokens that a rank gets; their number. By the whole block. */
GPU_FN uint32_t ep_list_tokens(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d, uint32_t rank)
{
	uint32_t n = 0;

	for (uint32_t first = 0; first < a.tokens && d.warp == 0; first += 32) {
		uint32_t token = first + gpu_lane(), bits;
		bool gets = false;

		for (uint32_t i = 0; i < a.topk && token < a.tokens; i++) {
			int64_t id = a.topk_idx[token * a.topk + i];

			gets = gets || (ep_is_expert(a, id) && (uint32_t)id / d.local == rank);
		}
		bits = gpu_ballot(gets);
		if (gets)
			d.list[n + gpu_popc(bits & ((1u << gpu_lane()) - 1))] = (uint16_t)token;
		n += gpu_popc(bits);
	}
	if (gpu_tid() == 0)
		*d.listed = n;
	gpu_sync();
	return *d.listed;
}

GPU_FN void ep_stage_head(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d, char *to)
{
	for (uint32_t i = d.warp; i < ep_slots(d.head_lines); i += d.nwarps) {
		struct gpu_v16 v = ep_head_pack(a, i);
		char *at = to + (i * 4 + gpu_lane() / 8) * SHUNT_EP_LINE_DATA + gpu_lane() % 8 * 16;

		if (gpu_lane() / 8 >= ep_slot_lines(d.head_lines, i))
			continue;
		*(uint64_t *)at = v.lo;
		if (!GPU_LL128_FLAG_LANE)
			*(uint64_t *)(at + 8) = v.hi;
	}
}

/* The slots of a row, by warps `warp` of `nwarps`. */
GPU_FN void ep_stage_row(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d, const char *row,
    bool cast, char *to, uint32_t first, uint32_t step)
{
	for (uint32_t i = first; i < ep_slots(d.row_lines); i += step) {
		uint32_t lines = ep_slot_lines(d.row_lines, i), at = ep_at(lines, i), width = ep_width(lines);

		ep_store_plain(to, at, width, ep_row_pack(a, row, at, width, cast));
	}
}

/* n rows of the list, from `first` on. By the whole block. */
GPU_FN void ep_stage_rows(
    const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d, char *to, uint32_t first, uint32_t n)
{
	uint32_t slots = ep_slots(d.row_lines), bytes = ep_plain_bytes(d.row_lines);
	const char *x = (const char *)a.k.send;

	if (a.form == SHUNT_EP_FORM_AS_IS) {
		for (uint32_t u = d.warp; u < n * slots; u += d.nwarps)
			ep_stage_row(a, d, x + (uint64_t)d.list[first + u / slots] * a.hidden * 2, false,
			    to + u / slots * bytes, u % slots, slots);
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		ep_cast_row(
		    x + (uint64_t)d.list[first + i] * a.hidden * 2, a.hidden, a.form, d.shared, d.warp, d.nwarps);
		gpu_sync();
		ep_stage_row(a, d, d.shared, true, to + i * bytes, d.warp, d.nwarps);
		gpu_sync();
	}
}

/* The message to an ordinal of another host. By the whole block. */
GPU_FN void ep_send_message(
    const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d, struct ep_sender &s, uint32_t ordinal)
{
	uint32_t head = ep_plain_bytes(d.head_lines), row = ep_plain_bytes(d.row_lines), sent = 0, bytes = head,
	         rank = d.hosts->rank_of[ordinal], n = ep_list_tokens(a, d, rank);
	uint64_t to = ep_far_dispatch(a, *d.hosts, d.call.number, ep_net(a.k)->pair[rank].there);
	bool last = false;

	while (!last) {
		char *stage = ep_stage_take(a.k, s);
		uint32_t most = (s.bytes - bytes) / row, rows = most < n - sent ? most : n - sent;

		if (!stage)
			return;
		if (bytes)
			ep_stage_head(a, d, stage);
		ep_stage_rows(a, d, stage + bytes, sent, rows);
		bytes += rows * row;
		sent += rows;
		last = sent == n;
		ep_stage_put(a.k, s, ordinal - a.k.nranks, bytes, to,
		    last ? SHUNT_EP_SIGNAL(d.call.kind, d.call.number) : EP_NO_SIGNAL);
		to += bytes;
		bytes = 0;
	}
}

/* To the ranks of other hosts, beginning with the next one. By the whole block. */
GPU_FN void ep_send_far(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d)
{
	uint32_t far = d.hosts->nranks - a.k.nranks;
	struct ep_sender s = ep_sender_begin(a, *d.hosts,
	    ep_plain_bytes(d.head_lines) + (uint64_t)SHUNT_EP_STAGE_ROWS * ep_plain_bytes(d.row_lines), d.stages);

	for (uint32_t i = gpu_bid(); i < far && gpu_bid() < s.blocks && !s.shared->broken; i += s.blocks) {
		uint32_t ordinal = a.k.nranks + (i + d.hosts->rank) % far;

		if (ep_may_send(a.k, d.call, s, ordinal))
			ep_send_message(a, d, s, ordinal);
		gpu_sync();
	}
}

/* ---- receive */

/* The head of an ordinal of this host. False: it does not come, or is of another call. By the whole block. */
GPU_FN bool ep_take_head(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d, uint32_t ordinal)
{
	for (uint32_t i = d.warp; i < ep_slots(d.head_lines); i += d.nwarps) {
		uint32_t place = ep_head_place(a, d, i);
		union ep_ids ids;

		if (!ep_wait_slot(a.k, ep_place(a, d, a.k.rank, ordinal) + i * EP_SLOT_WIRE,
		        ep_slot_lines(d.head_lines, i), d.call.number, ordinal, &ids.v) ||
		    !gpu_warp_all(i != 0 || gpu_lane() != 0 || ep_head_fits(a, ids.v.lo, ordinal))) {
			gpu_test_and_set32(d.missing);
			break;
		}
		if (place != UINT32_MAX)
			ep_keep_head(a, d.hosts->rank_of[ordinal], place, ids);
	}
	gpu_sync();
	return !*d.missing;
}

/* The same of another host. */
GPU_FN bool ep_take_far_head(
    const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d, uint32_t ordinal, uint64_t began)
{
	const char *head = ep_far_memory(a, ep_far_dispatch(a, *d.hosts, d.call.number, ordinal - a.k.nranks));
	uint32_t n = a.max_tokens * a.topk;

	if (gpu_tid() == 0 &&
	    !(ep_await_far(a.k, d.call, ordinal, began) && ep_head_fits(a, *(const uint64_t *)head, ordinal)))
		*d.missing = 1;
	gpu_sync();
	for (uint32_t i = gpu_tid(); i < n && !*d.missing; i += gpu_ntid())
		a.routing[(uint64_t)d.hosts->rank_of[ordinal] * n + i] =
		    ((const int16_t *)(head + SHUNT_EP_HEAD_BYTES))[i];
	gpu_sync();
	return !*d.missing;
}

/* Each block takes the heads of some ordinals to `routing`, from which all blocks go on. */
GPU_FN void ep_take_heads(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d)
{
	uint64_t began = a.wait_ns || ep_has_masks(a.k) ? gpu_clock_ns() : 0;

	for (uint32_t ordinal = gpu_bid(); ordinal < d.hosts->nranks; ordinal += gpu_nbid()) {
		bool came;

		if (gpu_tid() == 0)
			*d.missing = 0;
		gpu_sync();
		if (ordinal < a.k.nranks)
			came = !(d.seen->masked >> ordinal & 1) && ep_take_head(a, d, ordinal);
		else
			came = ep_take_far_head(a, d, ordinal, ep_has_masks(a.k) ? began : 0);
		if (gpu_tid() == 0 && came && a.wait_ns)
			a.wait_ns[d.hosts->rank_of[ordinal]] += (int64_t)(gpu_clock_ns() - began);
		if (gpu_tid() == 0)
			ep_tell_came(d.call, ordinal, came);
		gpu_sync();
	}
	ep_await_came(a.k, *d.hosts, d.call, 0);
}

/* Notes the names of all tokens from `routing`, and the tokens that name any expert of this rank. By the block. */
GPU_FN void ep_read_routing(
    const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d, const struct ep_pass &p)
{
	uint32_t words = d.per_rank / 32;

	for (uint32_t u = d.warp; u < d.hosts->nranks * words; u += d.nwarps) {
		uint32_t rank = u / words, token = u % words * 32 + gpu_lane(), ours;
		const int16_t *ids = a.routing + ((uint64_t)rank * a.max_tokens + token) * a.topk;
		bool came = ep_came(d.call, d.hosts->ordinal_of[rank]), any = false;

		for (uint32_t i = 0; i < a.topk && came && token < a.max_tokens; i++) {
			any = any || (ids[i] >= 0 && (uint32_t)ids[i] / d.local == d.hosts->rank);
			ep_name(a, d, p, rank, token, ids[i]);
		}
		ours = gpu_ballot(any);
		if (gpu_lane() == 0)
			d.ours[u] = ours;
	}
}

/* Slots of a row from another host's message, all of which has come. By a warp. */
GPU_FN void ep_load_far(const struct shunt_kargs_ep_ll &a, const struct ep_dispatch<true> &d, uint32_t source,
    uint32_t ordinal, uint32_t token, uint32_t first, uint32_t end, struct gpu_v16 v[EP_DEPTH])
{
	const uint32_t *ours = d.ours + source * (d.per_rank / 32);
	uint32_t place = gpu_popc(ours[token / 32] & ((1u << token % 32) - 1));
	const char *from = ep_far_memory(a, ep_far_dispatch(a, *d.hosts, d.call.number, ordinal - a.k.nranks)) +
	    ep_plain_bytes(d.head_lines);

	for (uint32_t w = 0; w < token / 32; w++)
		place += gpu_popc(ours[w]);
	from += (uint64_t)place * ep_plain_bytes(d.row_lines);
	GPU_UNROLL for (uint32_t k = 0; k < EP_DEPTH; k++) {
		uint32_t lines = first + k < end ? ep_slot_lines(d.row_lines, first + k) : 0;

		v[k] = ep_load_plain(from, ep_at(lines, first + k), ep_width(lines));
	}
}
