/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The numbers of low latency calls, and the credits for their sets. A launch has the send phase of a call, its receive
 * phase, or both. A send phase takes the next number, a receive phase that of the call with its key. A set may be
 * written again when every rank has said that it has read the last call there; so two calls of a kind may be under way.
 */
#include "kernels/ep_fault.h"

struct ep_call {
	struct shunt_ep_calls *calls;
	uint32_t kind;
	uint64_t number;      /* 0: there is no such call; its fault was reported */
	uint64_t read;        /* lanes of ranks: the last call that the rank had read in this call's set, as it began */
	bool sends, receives; /* the phases that this block takes part in */
	uint32_t block, nblocks; /* its number among the blocks of its phases */
};

/*
 * The number of a launch's call, and what the block's threads must see alike. Called first in a launch, by the whole
 * block. All words are loaded before the first of them is looked at, so that the phase begins one load later.
 */
GPU_FN struct ep_call ep_call_begin(const struct shunt_kargs_ep_ll &a, uint32_t kind, struct ep_seen *seen)
{
	const uint32_t bid = gpu_bid(), senders = a.senders;
	struct ep_call c = { &ep_ctrl(a.k, a.k.rank)->calls[kind], kind, 0, 0,
		a.k.flags & SHUNT_K_EP_SEND && (!senders || bid < senders),
		a.k.flags & SHUNT_K_EP_RECEIVE && bid >= senders, bid < senders ? bid : bid - senders,
		bid < senders ? senders : gpu_nbid() - senders };
	uint64_t key[2], number[2], read[2] = { 0, 0 }, sent = c.calls->sent;
	bool sends = a.k.flags & SHUNT_K_EP_SEND;

	GPU_UNROLL for (uint32_t set = 0; set < 2; set++) {
		key[set] = c.calls->under_way[set].key;
		number[set] = c.calls->under_way[set].number;
		if (sends && gpu_tid() < a.k.nranks)
			read[set] = gpu_ld_credit_early(&c.calls->read[set][gpu_tid()]);
	}
	ep_look(a.k, seen);
	if (sends)
		c.number = (sent & 1 ? key[0] : key[1]) ? 0 : sent + 1;
	else GPU_UNROLL
		for (uint32_t set = 0; set < 2; set++)
			if (key[set] == a.key && (!c.number || number[set] < c.number))
				c.number = number[set];
	if (!c.number && gpu_bid() == 0 && gpu_tid() == 0)
		ep_fault(a.k, SHUNT_FAULT_UNDER_WAY, a.k.rank, kind, 0, 0, sends);
	c.read = c.number & 1 ? read[1] : read[0]; /* no index: the words stay in registers */
	return c;
}

/*
 * Waits until the peers have read what was sent two calls ago. True: the call may be sent. It may be where the group is
 * broken meanwhile: the peers then learn from this rank's data what differs. By the whole block.
 */
GPU_FN bool ep_call_await_set(const struct shunt_kargs_ep_ll &a, const struct ep_call &c, struct ep_seen *seen)
{
	uint32_t peer = gpu_tid(), unread;

	if (gpu_tid() < 32) {
		const uint64_t *word = &c.calls->read[c.number & 1][peer < a.k.nranks ? peer : 0];
		bool read = peer >= a.k.nranks || c.read + 2 >= c.number;
		struct spin spin;

		spin_init(&spin, progress_ctrl(a.k));
		while (!read && !ep_masked(a.k, peer) && !(read = gpu_ld_credit(word) + 2 >= c.number) &&
		    ep_try_again(&spin, a.k, peer, SHUNT_CHECK_CHANNEL, c.number - 2, word))
			;
		/* Masked ranks that have not read it get nothing. */
		unread = gpu_ballot(!read);
		if (gpu_tid() == 0) {
			seen->masked |= unread;
			seen->unread = a.k.flags & SHUNT_K_EP_MASKS ? 0 : unread;
		}
	}
	gpu_sync();
	return !seen->unread;
}

/*
 * True for one thread of the launch, of its last block, behind all that the blocks have loaded; ordered: behind all
 * that they have done, for which each block's stores must end first. By the whole block.
 */
GPU_FN bool ep_call_is_last(const struct ep_call &c, bool ordered)
{
	if (gpu_tid())
		return false;
	return (ordered ? gpu_fetch_add_acq_rel(&c.calls->blocks, 1) : gpu_fetch_add_credit(&c.calls->blocks, 1)) + 1 >=
	    gpu_nbid();
}

/* By that thread. True: a receive phase has ended. */
GPU_FN bool ep_call_close(const struct shunt_kargs_ep_ll &a, const struct ep_call &c)
{
	bool broken = ep_broken(a.k);

	c.calls->blocks = 0;
	if (!c.number)
		return false;
	if (a.k.flags & SHUNT_K_EP_SEND)
		c.calls->sent = c.number;
	c.calls->under_way[c.number & 1].key = a.k.flags & SHUNT_K_EP_RECEIVE ? 0 : a.key;
	c.calls->under_way[c.number & 1].number = c.number;
	if (!(a.k.flags & SHUNT_K_EP_RECEIVE))
		return false;
	/* A masked rank, too: it may take part again. */
	for (uint32_t p = 0; p < a.k.nranks && !broken; p++)
		gpu_st_credit(&ep_ctrl(a.k, p)->calls[c.kind].read[c.number & 1][a.k.rank], c.number);
	return true;
}

/*
 * Called last in a launch, by the whole block, with a barrier of the block behind what it has received. The last block
 * of the launch answers for all. True: the calling thread is the one that did so, and a receive phase has ended.
 */
GPU_FN bool ep_call_end(const struct shunt_kargs_ep_ll &a, const struct ep_call &c)
{
	return ep_call_is_last(c, a.wait_ns) && ep_call_close(a, c); /* the caller adds up the blocks' times */
}
