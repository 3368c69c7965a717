/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * SHUNT_CHECK: do all ranks make the same calls? The launch has a block more than the kernel needs, which does
 * nothing but this check, so the data does not wait for it. The block ends when every peer has announced its calls.
 * If these differ, it raises the abort word, which also ends all waits of the kernel's other blocks.
 *
 * Collectives: lane p talks to rank p. A rank writes its announcement into all peers' scratch, in one of two sets of
 * packets that alternate. Two sets suffice: a rank in launch e has ended e-1, so it has heard from every peer in e-1.
 * Each peer had ended e-2 by then, and so had read the packets of e-2.
 */
#include "kernels/spin.h"

/* Is this the check's block, in a launch whose check is about `what` (SHUNT_CHECK_*)? */
GPU_FN bool check_is_block(const struct shunt_kargs &a, uint32_t what)
{
	return (a.check.what & what) && gpu_bid() == gpu_nbid() - 1;
}

/* Blocks of the kernel itself. */
GPU_FN uint32_t check_kernel_blocks(const struct shunt_kargs &a) { return gpu_nbid() - (a.check.what != 0); }

static_assert(__builtin_offsetof(struct shunt_ctrl, check) % 16 == 0, "packets are 16 aligned bytes");

union check_words {
	struct shunt_check check;
	uint64_t word[2];
};

GPU_FN void check_send(struct shunt_check_packet *to, uint64_t word, uint64_t flag)
{
	struct gpu_v16 v = { (word & 0xffffffffu) | flag << 32, word >> 32 | flag << 32 };

	gpu_ll16_st(to, v);
}

/* False: the packet has not arrived. */
GPU_FN bool check_poll(const struct shunt_check_packet *from, uint64_t *word_p, uint64_t flag)
{
	struct gpu_v16 v = gpu_ll16_ld(from);

	*word_p = (v.lo & 0xffffffffu) | v.hi << 32;
	return gpu_ll16_ready(v, (uint32_t)flag);
}

GPU_FN bool check_equal(const struct shunt_check &a, const struct shunt_check &b)
{
	bool numbered = a.what & b.what & SHUNT_CHECK_NUMBERED;

	return a.kind == b.kind && a.dtype == b.dtype && a.redop == b.redop && a.root == b.root && a.calls == b.calls &&
	    a.hash == b.hash && (!numbered || a.number == b.number);
}

GPU_NOINLINE void check_mismatch(struct shunt_ctrl *ctrl, uint32_t rank, uint32_t peer, struct shunt_check mine,
    uint64_t mine_count, struct shunt_check theirs, uint64_t theirs_count)
{
	struct shunt_fault *f = spin_fault(ctrl, rank, peer);

	if (!f)
		return;
	f->mine = mine;
	f->mine_count = mine_count;
	f->theirs = theirs;
	f->theirs_count = theirs_count;
	spin_give_up(ctrl, f, SHUNT_FAULT_MISMATCH);
}

/* Waits for the peer's announcement, and compares it. */
GPU_FN void check_await(struct shunt_ctrl *ctrl, const struct shunt_check_packet *in, const union check_words &mine,
    uint64_t count, uint32_t rank, uint32_t peer, uint64_t launch)
{
	union check_words theirs;
	struct spin spin;
	uint64_t other;

	spin_init(&spin, ctrl);
	/* Each try loads all packets, so that the loads are under way together. */
	while (!check_poll(in, &other, launch) | !check_poll(in + 1, &theirs.word[0], launch) |
	    !check_poll(in + 2, &theirs.word[1], launch)) {
		uint32_t expired = spin_expired(&spin);

		if (expired) {
			spin_report(ctrl, expired, rank, peer, SHUNT_CHECK_CHANNEL, launch, 0);
			return;
		}
	}
	if (other != count || !check_equal(mine.check, theirs.check))
		check_mismatch(ctrl, rank, peer, mine.check, count, theirs.check, other);
}

GPU_FN void check_peer(struct shunt_ctrl *ctrl, const union check_words &mine, uint64_t count, uint32_t rank,
    uint32_t peer, uint64_t launch)
{
	struct shunt_ctrl *at_peer = (struct shunt_ctrl *)ctrl->check.peer[peer];
	struct shunt_check_packet *out = at_peer->check.announced[launch & 1][rank];

	check_send(out, count, launch);
	check_send(out + 1, mine.word[0], launch);
	check_send(out + 2, mine.word[1], launch);
	check_await(ctrl, spin_inbox(ctrl)->check.announced[launch & 1][peer], mine, count, rank, peer, launch);
}

/* Compares the launch's collectives with the peers'. By the whole block. */
GPU_NOINLINE void check_calls(
    struct shunt_ctrl *ctrl, struct shunt_check check, uint64_t count, uint32_t rank, uint32_t nranks)
{
	uint64_t launch;
	union check_words mine;

	if (gpu_tid() >= 32)
		return;
	if (!gpu_warp_all(!spin_aborted(ctrl))) {
		/*
		 * Announces nothing: it might overwrite the announcement that made this rank give up before a slower
		 * peer has read it.
		 */
		if (gpu_tid() == 0)
			spin_rejected(ctrl, rank);
		return;
	}
	launch = ctrl->check.launches + 1;
	mine.check = check;
	if (gpu_tid() < nranks && gpu_tid() != rank)
		check_peer(ctrl, mine, count, rank, gpu_tid(), launch);
	gpu_warp_sync();
	if (gpu_tid() == 0)
		ctrl->check.launches = launch;
}
