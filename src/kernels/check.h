/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_CHECK_H
#define SHUNT_KERNELS_CHECK_H
/*
 * SHUNT_CHECK: do all ranks mean the same? The launch has one block more than the kernel needs, and that one does
 * nothing else; so the data does not wait for it. It ends when every peer has said what it calls, and raises the abort
 * word where that is something else: then the kernel's other blocks leave as well, whatever they wait for.
 *
 * Collectives: lane p talks to rank p. What a rank says is written into all peers' scratch, in one of two sets of
 * places that alternate. Two are enough: who is in launch e has ended e-1, so it has heard from every peer in e-1, and
 * that peer had ended e-2 and with it its reading.
 */
#include "kernels/spin.h"

/* Is this the block, and is it about this? */
GPU_FN bool check_is_block(const struct shunt_kargs &a, uint32_t what)
{
	return (a.check.what & what) && gpu_bid() == gpu_nbid() - 1;
}

/* How many blocks the kernel itself has. */
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

/* False: it is not there yet. */
GPU_FN bool check_poll(const struct shunt_check_packet *from, uint64_t *word_p, uint64_t flag)
{
	struct gpu_v16 v = gpu_ll16_ld(from);

	*word_p = (v.lo & 0xffffffffu) | v.hi << 32;
	return (uint32_t)(v.lo >> 32) == (uint32_t)flag && (uint32_t)(v.hi >> 32) == (uint32_t)flag;
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

GPU_FN void check_peer(struct shunt_ctrl *ctrl, const union check_words &mine, uint64_t count, uint32_t rank,
    uint32_t peer, uint64_t launch)
{
	struct shunt_ctrl *at_peer = (struct shunt_ctrl *)ctrl->check.peer[peer];
	struct shunt_check_packet *out = at_peer->check.announced[launch & 1][rank],
	                          *in = ctrl->check.announced[launch & 1][peer];
	union check_words theirs;
	struct spin spin;
	uint64_t other;

	check_send(out, count, launch);
	check_send(out + 1, mine.word[0], launch);
	check_send(out + 2, mine.word[1], launch);
	spin_init(&spin, ctrl);
	/* All are asked in each try: their loads are under way together. */
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

/* By the whole block. */
GPU_NOINLINE void check_calls(
    struct shunt_ctrl *ctrl, struct shunt_check check, uint64_t count, uint32_t rank, uint32_t nranks)
{
	uint64_t launch;
	union check_words mine;

	if (gpu_tid() >= 32)
		return;
	if (!gpu_warp_all(!gpu_ld_relaxed32(&ctrl->abort))) {
		/*
		 * Nothing is said any more: it might stand where a slower peer still has to read what made us give up.
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
#endif
