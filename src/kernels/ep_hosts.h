/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Low latency calls over hosts (kernels/ep.h): what goes to ranks of other hosts, and what comes from them.
 *
 * A block packs the rows for one rank into a stage, and has the proxy thread put the stage behind what it put there
 * before. So a call costs a put for up to 16 rows, and the last put has the signal. A stage is used again when its put
 * is done, which needs no kernel of the peer: what a put overwrites there was read, as the credit says.
 */
#include "kernels/ep_calls.h"
#include "kernels/ep_rows.h"
#include "kernels/net_push.h"

#define EP_STAGES 8 /* of a block, at most */
#define EP_NO_SIGNAL UINT32_MAX

GPU_FN struct shunt_ctrl *progress_ctrl(const struct shunt_kargs_ep_hosts &a) { return progress_ctrl(a.ll.k); }
GPU_FN const struct shunt_kargs &progress_args(const struct shunt_kargs_ep_hosts &a) { return a.ll.k; }

GPU_FN struct shunt_net_ctrl *ep_net(const struct shunt_kargs &a)
{
	return (struct shunt_net_ctrl *)(a.peer[a.rank] + SHUNT_NET_CTRL_AT);
}

/* Bytes of so many lines of data, in a message. */
GPU_FN uint32_t ep_plain_bytes(uint32_t lines) { return (lines * SHUNT_EP_LINE_DATA + 15) & ~15u; }

/* Where units of the page-locked memory are, the same on all ranks. */
GPU_FN uint64_t ep_far_dispatch(
    const struct shunt_kargs_ep_ll &a, const struct shunt_ep_hosts &h, uint64_t number, uint32_t connection)
{
	return SHUNT_NET_REMOTE_AT + ((number & 1) * h.sources + connection) * a.unit;
}

GPU_FN bool ep_has_masks(const struct shunt_kargs &a) { return a.flags & SHUNT_K_EP_MASKS; }

/* connection: by which the rows come; it counts in a group with masks. */
GPU_FN uint64_t ep_far_combine(
    const struct shunt_kargs_ep_ll &a, const struct shunt_ep_hosts &h, uint64_t number, uint32_t connection)
{
	bool masks = ep_has_masks(a.k);
	uint64_t units = 2 * (uint64_t)h.sources + (number & 1) * SHUNT_EP_FAR_PLACES(masks, h.sources, a.most_topk);

	return SHUNT_NET_REMOTE_AT + (units + (masks ? (uint64_t)connection * a.most_topk : 0)) * a.unit;
}

GPU_FN uint64_t ep_far_stages(const struct shunt_kargs_ep_ll &a, const struct shunt_ep_hosts &h)
{
	return SHUNT_NET_REMOTE_AT +
	    2 * (h.sources + SHUNT_EP_FAR_PLACES(ep_has_masks(a.k), h.sources, a.most_topk)) * a.unit;
}

GPU_FN char *ep_far_memory(const struct shunt_kargs_ep_ll &a, uint64_t at) { return (char *)ep_net(a.k)->words + at; }

/* This lane's bytes of a row in a message. */
GPU_FN void ep_store_plain(char *row, uint32_t at, uint32_t width, struct gpu_v16 v)
{
	if (width == 16)
		gpu_st16_stream(row + at, v);
	else if (width)
		*(uint64_t *)(row + at) = v.lo;
}

GPU_FN struct gpu_v16 ep_load_plain(const char *row, uint32_t at, uint32_t width)
{
	struct gpu_v16 v = { 0, 0 };

	if (width == 16)
		return gpu_ld16_stream(row + at);
	if (width)
		v.lo = *(const uint64_t *)(row + at);
	return v;
}

GPU_FN bool ep_far_masked(const struct shunt_kargs &a, uint32_t ordinal)
{
	return ep_has_masks(a) && gpu_ld_relaxed32(ep_mask_of<true>(progress_ctrl(a), ordinal));
}

GPU_FN const uint64_t *ep_raised(const struct shunt_kargs &a, uint32_t ordinal, uint32_t channel)
{
	return &ep_net(a)->words->raised[ordinal - a.nranks][channel];
}

/*
 * Waits until a rank of another host has raised the channel so often, unless it is masked. began: when the wait began,
 * if others began with it; else 0. By one thread; false: as ep_try_again().
 */
GPU_FN bool ep_await_raised(
    const struct shunt_kargs &a, uint32_t ordinal, uint32_t channel, uint64_t times, uint64_t began)
{
	const uint64_t *word = ep_raised(a, ordinal, channel);
	struct spin spin;

	if (ep_far_masked(a, ordinal))
		return false;
	spin_init(&spin, progress_ctrl(a));
	spin.began = began;
	while (gpu_ld_acquire(word) < times)
		if (!ep_try_again<true>(&spin, a, ordinal, SHUNT_CHECK_CHANNEL, times, word)) {
			/* What a rank sent before its end counts: its end is told behind that. */
			gpu_ld_acquire(&spin.ctrl->host_ctrl->gone);
			return gpu_ld_acquire(word) >= times;
		}
	return true;
}

/* times: up to SHUNT_EP_MOST_RAISED. By one thread; false: the group is broken. */
#define SHUNT_EP_MOST_RAISED 32767u
GPU_FN bool ep_raise(const struct shunt_kargs &a, uint32_t ordinal, uint32_t channel, uint32_t times = 1)
{
	uint32_t reason = net_push(ep_net(a), progress_ctrl(a),
	    { SHUNT_NET_TRIGGER(ordinal - a.nranks, channel, SHUNT_NET_TRIGGER_SIGNAL), times, 0, 0 });

	if (reason)
		spin_report(progress_ctrl(a), reason, a.rank, ordinal, SHUNT_CHECK_CHANNEL, 0, 0);
	return !reason;
}

/* As ep_try_again(), in a wait that masks do not end. */
GPU_FN bool ep_wait_goes_on(
    struct spin *spin, const struct shunt_kargs &a, uint32_t ordinal, uint64_t expected, const uint64_t *word)
{
	uint32_t reason = spin_expired(spin);

	if (reason)
		spin_report(
		    progress_ctrl(a), reason, a.rank, ordinal, SHUNT_CHECK_CHANNEL, expected, gpu_ld_relaxed(word));
	return !reason;
}

/* ---- stages */

/* The data that a block's threads share about its stages. */
struct ep_stages {
	uint64_t place[EP_STAGES];      /* behind the trigger of the last put from a stage; 0: none in this launch */
	uint32_t connection[EP_STAGES]; /* of that put */
	uint32_t broken;
	uint32_t may; /* ep_may_send() */
};

/* A block that sends. */
struct ep_sender {
	struct ep_stages *shared;
	uint64_t at; /* of its first stage */
	uint32_t bytes, n, next;
	uint32_t blocks; /* that send */
};

/*
 * Waits until the sources of all puts to a connection before this place of the FIFO may be written. No mask ends that:
 * the proxy thread ends a connection that takes no data. By one thread.
 */
GPU_FN bool ep_await_puts(const struct shunt_kargs &a, uint64_t place, uint32_t connection)
{
	const struct shunt_net_words *words = ep_net(a)->words;
	struct spin spin;

	spin_init(&spin, progress_ctrl(a));
	while (place) {
		if (gpu_ld_acquire(&words->taken) >= place) {
			uint64_t busy = gpu_ld_acquire(&words->busy[connection]);

			if (!busy || busy > place)
				break;
		}
		if (!ep_wait_goes_on(&spin, a, a.nranks + connection, place, &words->taken))
			return false;
	}
	return true;
}

/*
 * Shares the stages among the blocks, when the puts of earlier launches are done, which may have shared them in another
 * way. bytes: of a stage, at most; a unit has room for them. By the whole block.
 */
GPU_FN struct ep_sender ep_sender_begin(
    const struct shunt_kargs_ep_ll &a, const struct shunt_ep_hosts &h, uint64_t bytes, struct ep_stages *shared)
{
	uint32_t far = h.nranks - a.k.nranks, most;
	struct ep_sender s = { shared, 0, (uint32_t)(bytes < a.unit ? bytes : a.unit), 0, 0, 0 };
	uint64_t staged = ep_ctrl(a.k, a.k.rank)->staged;

	most = (uint32_t)(SHUNT_EP_STAGE_UNITS * a.unit / s.bytes);
	s.blocks = gpu_nbid() < far ? gpu_nbid() : far;
	s.blocks = s.blocks < most / 2 ? s.blocks : most / 2;
	s.n = most / s.blocks < EP_STAGES ? most / s.blocks : EP_STAGES;
	s.at = ep_far_stages(a, h) + (uint64_t)gpu_bid() * s.n * s.bytes;
	if (gpu_tid() == 0)
		shared->broken = 0;
	for (uint32_t i = gpu_tid(); i < EP_STAGES; i += gpu_ntid())
		shared->place[i] = 0;
	gpu_sync();
	for (uint32_t c = gpu_tid(); c < far && gpu_bid() < s.blocks; c += gpu_ntid())
		if (!ep_await_puts(a.k, staged, c))
			gpu_test_and_set32(&shared->broken);
	gpu_sync();
	return s;
}

/* The next stage, or 0: the group is broken. By the whole block. */
GPU_FN char *ep_stage_take(const struct shunt_kargs &a, struct ep_sender &s)
{
	struct ep_stages *shared = s.shared;

	if (gpu_tid() == 0 && !ep_await_puts(a, shared->place[s.next], shared->connection[s.next]))
		shared->broken = 1;
	gpu_sync();
	return shared->broken ? 0 : (char *)ep_net(a)->words + s.at + (uint64_t)s.next * s.bytes;
}

/*
 * Puts what the block has stored into the stage that it took last; channel: of a signal behind it, or EP_NO_SIGNAL. By
 * the whole block.
 */
GPU_FN void ep_stage_put(const struct shunt_kargs &a, struct ep_sender &s, uint32_t connection, uint32_t bytes,
    uint64_t to, uint32_t channel)
{
	struct shunt_net_ctrl *net = ep_net(a);
	uint32_t reason, what = SHUNT_NET_TRIGGER_PUT | (channel == EP_NO_SIGNAL ? 0 : SHUNT_NET_TRIGGER_SIGNAL);

	gpu_sync();
	if (gpu_tid() == 0) {
		uint64_t place = net_place(net);

		gpu_fence();
		reason = net_write(net, progress_ctrl(a), place,
		    { SHUNT_NET_TRIGGER(connection, channel == EP_NO_SIGNAL ? 0 : channel, what), bytes,
		        (uint32_t)(s.at + (uint64_t)s.next * s.bytes), (uint32_t)to });
		s.shared->place[s.next] = place + 1;
		s.shared->connection[s.next] = connection;
		if (reason)
			spin_report(progress_ctrl(a), reason, a.rank, a.nranks + connection, SHUNT_CHECK_CHANNEL, 0, 0);
	}
	s.next = s.next + 1 == s.n ? 0 : s.next + 1;
}

/* Has a rank of another host read the call before the last one? By one thread; false: it does not come. */
GPU_FN bool ep_await_credit(const struct shunt_kargs &a, const struct ep_call &c, uint32_t ordinal)
{
	return ep_await_raised(a, ordinal, SHUNT_EP_CREDIT(c.kind, c.number), SHUNT_EP_SET_CALLS(c.number) - 1, 0);
}

/*
 * With masks all blocks wait for all ranks first, as those of one host do (ep_call_await_set): so the ranks begin to
 * wait for data at the same time, and do not take each other for late. By the whole block.
 */
GPU_FN void ep_await_far_set(const struct shunt_kargs &a, const struct shunt_ep_hosts &h, const struct ep_call &c)
{
	if (!ep_has_masks(a))
		return;
	for (uint32_t ordinal = a.nranks + gpu_tid(); ordinal < h.nranks; ordinal += gpu_ntid())
		ep_await_credit(a, c, ordinal);
	gpu_sync();
}

/*
 * With masks, before a call is sent to a rank: raises the signals that it has missed, so that they count calls again. A
 * rank that has read this call without this one gets nothing. By one thread; false: it is such a rank.
 */
GPU_FN bool ep_catch_up(const struct shunt_kargs &a, const struct ep_call &c, uint32_t ordinal)
{
	uint64_t *sent = &ep_ctrl(a, a.rank)->far_sent[c.kind][c.number & 1][ordinal],
	         calls = SHUNT_EP_SET_CALLS(c.number);

	if (!ep_has_masks(a))
		return true;
	if (gpu_ld_relaxed(ep_raised(a, ordinal, SHUNT_EP_CREDIT(c.kind, c.number))) >= calls)
		return false;
	for (uint64_t missed = calls - 1 - *sent; missed;) {
		uint32_t n = missed < SHUNT_EP_MOST_RAISED ? (uint32_t)missed : SHUNT_EP_MOST_RAISED;

		ep_raise(a, ordinal, SHUNT_EP_SIGNAL(c.kind, c.number), n);
		missed -= n;
	}
	*sent = calls;
	return true;
}

/*
 * May the call be sent to this ordinal of another host? Not to a masked rank, which is passed over. By the whole block.
 */
GPU_FN bool ep_may_send(const struct shunt_kargs &a, const struct ep_call &c, struct ep_sender &s, uint32_t ordinal)
{
	if (gpu_tid() == 0) {
		s.shared->may = ep_await_credit(a, c, ordinal) && ep_catch_up(a, c, ordinal);
		if (!s.shared->may && (!ep_has_masks(a) || ep_broken(a)))
			s.shared->broken = 1;
	}
	gpu_sync();
	return s.shared->may;
}

/* ---- the ends of a call */

/* Has the data of an ordinal of another host come? began: as ep_await_raised(). By one thread. */
GPU_FN bool ep_await_far(const struct shunt_kargs &a, const struct ep_call &c, uint32_t ordinal, uint64_t began)
{
	return ep_await_raised(a, ordinal, SHUNT_EP_SIGNAL(c.kind, c.number), SHUNT_EP_SET_CALLS(c.number), began);
}

/* Tells all blocks of the launch that the data of an ordinal has come, or does not. By one thread, behind what it
 * loaded.
 */
GPU_FN void ep_tell_came(const struct ep_call &c, uint32_t ordinal, bool came)
{
	gpu_st_release(&c.calls->came[ordinal], 2 * c.number + !came);
}

/*
 * Waits until that is known of all ordinals from this one on. The waits of those that tell are limited; this one ends
 * with them, or with the group. By the whole block.
 */
GPU_FN void ep_await_came(
    const struct shunt_kargs &a, const struct shunt_ep_hosts &h, const struct ep_call &c, uint32_t ordinal)
{
	struct spin spin;

	spin_init(&spin, progress_ctrl(a));
	for (ordinal += gpu_tid(); ordinal < h.nranks; ordinal += gpu_ntid())
		while (gpu_ld_acquire(&c.calls->came[ordinal]) / 2 != c.number)
			if (spin_expired(&spin) == SHUNT_FAULT_ABORT)
				break;
	gpu_sync();
}

GPU_FN bool ep_came(const struct ep_call &c, uint32_t ordinal)
{
	return gpu_ld_relaxed(&c.calls->came[ordinal]) == 2 * c.number;
}

/* As ep_call_end(), whose result it has; the ranks of other hosts hear of it, too. */
GPU_FN bool ep_call_end_far(const struct shunt_kargs_ep_ll &a, const struct shunt_ep_hosts &h, const struct ep_call &c)
{
	bool received;

	if (!ep_call_is_last(c, true))
		return false;
	if (a.k.flags & SHUNT_K_EP_SEND)
		ep_ctrl(a.k, a.k.rank)->staged = gpu_fetch_add(&ep_net(a.k)->pushed, 0);
	received = ep_call_close(a, c);
	for (uint32_t ordinal = a.k.nranks; received && ordinal < h.nranks && !ep_broken(a.k); ordinal++)
		ep_raise(a.k, ordinal, SHUNT_EP_CREDIT(c.kind, c.number));
	return received;
}
