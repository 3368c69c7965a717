/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Calls of normal mode over hosts (kernels/ep.h). Among the ranks of a host they are as on one host. A channel also has
 * a ring to each rank of another host, and one from it: slots in page-locked memory, which the proxy thread puts into
 * the peer's. A rank has a slot that it fills at the same place as the peer has the one that it becomes, so a slot may
 * be filled again when the peer has taken its row.
 *
 * Rows are put and returned a few at a time. A warp puts the rest before it waits for something that may depend on
 * them.
 */
#include "kernels/ep_hosts.h"
#include "kernels/ep_rings.h"

GPU_FN struct shunt_ctrl *progress_ctrl(const struct shunt_kargs_ep_far &a) { return progress_ctrl(a.ep.k); }
GPU_FN const struct shunt_kargs &progress_args(const struct shunt_kargs_ep_far &a) { return a.ep.k; }

/* Ranks of all hosts, by ordinals. */
struct ep_far_warp : ep_warp {
	const struct shunt_kargs_ep_far *far;
	uint32_t *put;  /* by ordinal: rows that were put. Shared memory of the warp, as is the next */
	uint64_t *base; /* by connection: rows that were returned before this call */

	using set = uint64_t;
	static constexpr uint32_t MOST = SHUNT_NET_MAX_RANKS;
};

#define EP_FAR_WARPS 2 /* of a block */
#define EP_FAR_SHARED(name) \
	GPU_SHARED(struct shunt_ep_head, name##_heads, EP_FAR_WARPS *SHUNT_NET_MAX_RANKS); \
	GPU_SHARED(uint32_t, name##_steps, EP_FAR_WARPS *SHUNT_NET_MAX_RANKS); \
	GPU_SHARED(uint32_t, name##_puts, EP_FAR_WARPS *SHUNT_NET_MAX_RANKS); \
	GPU_SHARED(uint64_t, name##_bases, EP_FAR_WARPS *SHUNT_NET_MAX_RANKS)
#define EP_FAR_WARP(name, f) ep_far_begin(f, name##_heads, name##_steps, name##_puts, name##_bases)

GPU_FN struct ep_far_warp ep_far_begin(
    const struct shunt_kargs_ep_far &f, struct shunt_ep_head *heads, uint32_t *steps, uint32_t *puts, uint64_t *bases)
{
	uint32_t at = gpu_tid() / 32 * SHUNT_NET_MAX_RANKS;
	struct ep_far_warp w;

	for (uint32_t i = gpu_lane(); i < SHUNT_NET_MAX_RANKS; i += 32)
		puts[at + i] = 0;
	(struct ep_warp &)w = ep_warp_begin(f.ep, heads, steps, SHUNT_NET_MAX_RANKS);
	w.far = &f;
	w.put = puts + at;
	w.base = bases + at;
	return w;
}

GPU_FN uint32_t ep_rank_of(const struct ep_far_warp &w, uint32_t ordinal) { return w.far->hosts.rank_of[ordinal]; }
GPU_FN uint32_t ep_all(const struct shunt_kargs_ep &, const struct ep_far_warp &w) { return w.far->hosts.nranks; }
GPU_FN bool ep_is_far(const struct ep_warp &, uint32_t) { return false; }
GPU_FN bool ep_is_far(const struct ep_far_warp &w, uint32_t ordinal) { return ordinal >= w.far->ep.k.nranks; }

/* The connections, as bits. */
GPU_FN uint64_t ep_far_peers(const struct ep_far_warp &w)
{
	return ((uint64_t)1 << (w.far->hosts.nranks - w.far->ep.k.nranks)) - 1;
}

/* Those of `of` for which it is true. By a warp. */
template <typename F> GPU_FN uint64_t ep_far_which(uint64_t of, F is)
{
	uint32_t low = gpu_ballot((of >> gpu_lane() & 1) && is(gpu_lane())), high = 0;

	if (of >> 32)
		high = gpu_ballot((of >> (32 + gpu_lane()) & 1) && is(32 + gpu_lane()));
	return (uint64_t)high << 32 | low;
}

GPU_FN const uint64_t *ep_far_word(const struct ep_far_warp &w, uint32_t connection, uint32_t signal)
{
	return &ep_net(w.far->ep.k)->words->raised[connection][signal];
}

/* After a try in vain to see a signal of any of `left`. False: give up. need: how often each must raise it. By a warp.
 */
template <typename N>
GPU_FN bool ep_far_try_again(
    const struct ep_far_warp &w, struct spin *spin, uint64_t left, uint32_t signal, uint32_t channel, N need)
{
	uint32_t c = left >> gpu_lane() & 1 ? gpu_lane() : 32 + gpu_lane();
	const struct shunt_kargs &k = w.far->ep.k;

	return gpu_warp_all(
	    !(left >> c & 1) || ep_try_again(spin, k, k.nranks + c, channel, need(c), ep_far_word(w, c, signal)));
}

/*
 * Goes on with each of `left` once it has raised the signal so often, whichever comes first. False: one does not. The
 * others are gone on with even where the group is broken, as they learn from that what differs. By a warp.
 */
template <typename N, typename G>
GPU_FN bool ep_far_each(const struct ep_far_warp &w, uint64_t left, uint32_t signal, N need, G go)
{
	struct spin spin;
	bool on = true;

	spin_init(&spin, progress_ctrl(w.far->ep.k));
	while (left) {
		uint64_t ready = ep_far_which(
		    left, [&](uint32_t c) { return gpu_ld_acquire(ep_far_word(w, c, signal)) >= need(c); });

		for (uint64_t bits = ready; bits; bits &= bits - 1)
			if (!go(ep_first_bit(bits)))
				return false;
		left &= ~ready;
		if (!on)
			break;
		on = ready || ep_far_try_again(w, &spin, left, signal, SHUNT_CHECK_CHANNEL, need);
	}
	return !left;
}

/* ---- messages */

/* A place of a connection's part, in this rank's memory: of what comes, and of what goes out. */
GPU_FN char *ep_far_in(const struct ep_far_warp &w, uint32_t connection, uint64_t at)
{
	return (char *)ep_net(w.far->ep.k)->words + w.far->at + connection * w.far->part + at;
}

GPU_FN uint64_t ep_far_out_at(const struct ep_far_warp &w, uint32_t connection, uint64_t at)
{
	return w.far->at + (w.far->hosts.sources + connection) * w.far->part + at;
}

GPU_FN char *ep_far_out(const struct ep_far_warp &w, uint32_t connection, uint64_t at)
{
	return (char *)ep_net(w.far->ep.k)->words + ep_far_out_at(w, connection, at);
}

GPU_FN uint64_t ep_far_head_at(const struct ep_far_warp &w) { return w.channel * sizeof(struct shunt_ep_head); }

GPU_FN uint64_t ep_far_slot_at(const struct ep_far_warp &w, uint32_t step)
{
	return SHUNT_EP_FAR_HEADS + ((uint64_t)w.channel * w.far->slots + step % w.far->slots) * w.far->slot;
}

/* Pushes a trigger. By one lane. */
GPU_FN void ep_far_push(const struct ep_far_warp &w, uint32_t connection, const struct net_trigger &t)
{
	const struct shunt_kargs &k = w.far->ep.k;
	uint32_t reason = net_push(ep_net(k), progress_ctrl(k), t);

	if (reason)
		spin_report(progress_ctrl(k), reason, k.rank, k.nranks + connection, SHUNT_CHECK_CHANNEL, 0, 0);
}

/* Puts so many bytes, which the warp has stored, and raises the channel n times. By a warp. */
GPU_FN void ep_far_put(const struct ep_far_warp &w, uint32_t connection, uint64_t at, uint32_t bytes, uint32_t n)
{
	gpu_warp_sync();
	if (gpu_lane() == 0) {
		uint32_t there = ep_net(w.far->ep.k)->pair[ep_rank_of(w, w.far->ep.k.nranks + connection)].there,
		         signal = SHUNT_EP_FAR_DATA(w.channel);

		gpu_fence();
		ep_far_push(w, connection,
		    { SHUNT_NET_TRIGGER(connection, signal,
		          SHUNT_NET_TRIGGER_PUT | (n == 1 ? (uint32_t)SHUNT_NET_TRIGGER_SIGNAL : 0)),
		        bytes, (uint32_t)ep_far_out_at(w, connection, at),
		        (uint32_t)(w.far->at + there * w.far->part + at) });
		if (n > 1)
			ep_far_push(w, connection,
			    { SHUNT_NET_TRIGGER(connection, signal, SHUNT_NET_TRIGGER_SIGNAL), n, 0, 0 });
	}
	gpu_warp_sync();
}

/* ---- heads */

GPU_FN void ep_far_send_head(const struct ep_far_warp &w, uint32_t connection, uint32_t rows)
{
	const struct shunt_kargs_ep &a = w.far->ep;

	if (gpu_lane() == 0) {
		struct shunt_ep_head *head = (struct shunt_ep_head *)ep_far_out(w, connection, ep_far_head_at(w));

		for (uint32_t i = 0; i < SHUNT_EP_SAME; i++)
			head->same[i] = a.same[i];
		head->rows = rows;
		head->tokens = a.tokens;
		head->room = a.room;
		/* The peer has ended the call before, so all that it returns of it has come. */
		w.base[connection] = gpu_ld_acquire(ep_far_word(w, connection, SHUNT_EP_FAR_CREDIT(w.channel)));
	}
	ep_far_put(w, connection, ep_far_head_at(w), sizeof(struct shunt_ep_head), 1);
}

/* Those of `left` that have ended the call before; what ep_try_to_tell() says of all of them. By a warp. */
GPU_FN uint64_t ep_far_ended(const struct ep_far_warp &w, uint64_t left)
{
	return ep_far_which(
	    left, [&](uint32_t c) { return gpu_ld_acquire(ep_far_word(w, c, SHUNT_EP_FAR_END)) + 1 >= w.number; });
}

GPU_FN bool ep_far_try_to_tell(const struct ep_far_warp &w, struct spin *spin, uint64_t left)
{
	uint32_t c = left >> gpu_lane() & 1 ? gpu_lane() : 32 + gpu_lane();

	return !(left >> c & 1) ||
	    ep_try_to_tell(
	        spin, w.far->ep, w, w.far->ep.k.nranks + c, w.number - 1, ep_far_word(w, c, SHUNT_EP_FAR_END));
}

/* So many messages had come on the channel before this call. */
GPU_FN uint64_t ep_far_before(const struct ep_far_warp &w, uint32_t connection)
{
	return ep_ctrl(w.far->ep.k, w.far->ep.k.rank)->far_taken[w.channel][connection];
}

GPU_FN bool ep_take_heads(const struct shunt_kargs_ep &a, const struct ep_far_warp &w)
{
	if (!ep_take_heads_here(a, w))
		return false;
	return ep_far_each(
	    w, ep_far_peers(w), SHUNT_EP_FAR_DATA(w.channel), [&](uint32_t c) { return ep_far_before(w, c) + 1; },
	    [&](uint32_t c) {
		    const struct gpu_v16 *head = (const struct gpu_v16 *)ep_far_in(w, c, ep_far_head_at(w));
		    uint32_t ordinal = a.k.nranks + c;

		    if (gpu_lane() < sizeof(struct shunt_ep_head) / 16)
			    ((struct gpu_v16 *)&w.head[ordinal])[gpu_lane()] = gpu_ld16_stream(head + gpu_lane());
		    gpu_warp_sync();
		    return ep_head_fits(a, w, ordinal, &w.head[ordinal]) &&
		        ep_has_room(a, w, ordinal, w.head[ordinal].room);
	    });
}

/*
 * As ep_normal_end(). takes: the warp has taken messages of its channel: from each rank its head, its rows and so many
 * others. By the whole block.
 */
GPU_FN void ep_far_end(const struct ep_far_warp &w, bool takes, uint32_t others)
{
	const struct shunt_kargs &k = w.far->ep.k;
	uint32_t far = w.far->hosts.nranks - k.nranks;

	gpu_sync();
	for (uint32_t c = gpu_lane(); c < far && takes; c += 32)
		ep_ctrl(k, k.rank)->far_taken[w.channel][c] += 1 + others + w.step[k.nranks + c];
	if (!ep_normal_end(w.far->ep, w.number))
		return;
	for (uint32_t c = 0; c < far && !ep_broken(k); c++)
		ep_far_push(w, c, { SHUNT_NET_TRIGGER(c, SHUNT_EP_FAR_END, SHUNT_NET_TRIGGER_SIGNAL), 1, 0, 0 });
}

/* ---- rings */

GPU_FN uint32_t ep_far_batch(const struct ep_far_warp &w) { return w.far->slots / 2; }

/* Returned rows that leave room for one more. */
GPU_FN uint64_t ep_far_room_at(const struct ep_far_warp &w, uint32_t connection)
{
	uint32_t step = w.step[w.far->ep.k.nranks + connection];

	return step < w.far->slots ? 0 : w.base[connection] + step + 1 - w.far->slots;
}

GPU_FN bool ep_far_has_room(const struct ep_far_warp &w, uint32_t connection)
{
	uint64_t need = ep_far_room_at(w, connection);

	return !need || gpu_ld_acquire(ep_far_word(w, connection, SHUNT_EP_FAR_CREDIT(w.channel))) >= need;
}

/* So many messages tell that the next row has come. */
GPU_FN uint64_t ep_far_row_at(const struct ep_far_warp &w, uint32_t connection)
{
	return ep_far_before(w, connection) + 2 + w.step[w.far->ep.k.nranks + connection];
}

GPU_FN bool ep_far_has_row(const struct ep_far_warp &w, uint32_t connection)
{
	return gpu_ld_acquire(ep_far_word(w, connection, SHUNT_EP_FAR_DATA(w.channel))) >= ep_far_row_at(w, connection);
}

/* Puts the rows that are not put yet. By a warp. */
GPU_FN void ep_far_flush(const struct ep_far_warp &w, uint32_t connection)
{
	uint32_t ordinal = w.far->ep.k.nranks + connection, first = w.put[ordinal], n = w.step[ordinal] - first;

	gpu_warp_sync();
	if (!n)
		return;
	ep_far_put(w, connection, ep_far_slot_at(w, first), n * w.far->slot, n);
	if (gpu_lane() == 0)
		w.put[ordinal] = first + n;
	gpu_warp_sync();
}

GPU_FN void ep_far_flush(const struct ep_warp &) {}
GPU_FN void ep_far_flush(const struct ep_far_warp &w)
{
	uint32_t near = w.far->ep.k.nranks;

	for (uint64_t bits =
	         ep_far_which(ep_far_peers(w), [&](uint32_t c) { return w.put[near + c] != w.step[near + c]; });
	    bits; bits &= bits - 1)
		ep_far_flush(w, ep_first_bit(bits));
}

/* A row was stored. By a warp. */
GPU_FN void ep_far_stored(const struct ep_far_warp &w, uint32_t connection)
{
	uint32_t ordinal = w.far->ep.k.nranks + connection, step;

	gpu_warp_sync();
	if (gpu_lane() == 0)
		w.step[ordinal]++;
	gpu_warp_sync();
	step = w.step[ordinal];
	/* A batch does not go over the end of the ring. */
	if (step - w.put[ordinal] == ep_far_batch(w) || step % w.far->slots == 0)
		ep_far_flush(w, connection);
}

/* A row was taken. By a warp. */
GPU_FN void ep_far_took(const struct ep_far_warp &w, uint32_t connection)
{
	uint32_t ordinal = w.far->ep.k.nranks + connection, batch = ep_far_batch(w);

	gpu_warp_sync();
	if (gpu_lane() == 0 && ++w.step[ordinal] % batch == 0)
		ep_far_push(w, connection,
		    { SHUNT_NET_TRIGGER(connection, SHUNT_EP_FAR_CREDIT(w.channel), SHUNT_NET_TRIGGER_SIGNAL), batch, 0,
		        0 });
	gpu_warp_sync();
}

/* D plain slots of a row in a message, from slot i on; behind the last plain slot it again. */
template <int D>
GPU_FN void ep_far_load_slots(const struct ep_far_warp &w, const char *row, uint32_t i, struct gpu_v16 v[D])
{
	const char *p[D];
	uint32_t last = w.plain_end - 1 - i;

	GPU_UNROLL for (uint32_t k = 0; k < D; k++)
		p[k] = row + (i + (k < last ? k : last)) * EP_SLOT_DATA;
	ll128_load_slots<D>(p, v);
}

GPU_FN struct gpu_v16 ep_far_load_pack(const struct ep_far_warp &w, const char *row, uint32_t i)
{
	uint32_t lines = ep_slot_lines(w.lines, i);

	return ep_load_plain(row, ep_at(lines, i), ep_width(lines));
}

/* D slots of a row, from slot i on; D 1: of any kind. */
template <int D>
GPU_FN void ep_far_store_slots(const struct ep_far_warp &w, char *row, uint32_t i, const struct gpu_v16 v[D])
{
	uint32_t lines = ep_slot_lines(w.lines, i);

	if (D == 1)
		ep_store_plain(row, ep_at(lines, i), ep_width(lines), v[0]);
	GPU_UNROLL for (uint32_t k = 0; k < D; k++)
		if (D > 1 && i + k < w.plain_end)
			ll128_store_slot(row + (i + k) * EP_SLOT_DATA, v[k]);
}
