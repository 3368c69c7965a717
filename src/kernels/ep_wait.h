/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Waits of expert parallel groups. A wait for a rank ends when that rank has come, when it is masked, or when this rank
 * gives up. In a group with masks a wait that lasts too long masks the rank; else it breaks the group.
 */
#include "kernels/ep.h"
#include "kernels/progress.h"
#include "kernels/spin.h"

GPU_FN struct shunt_ctrl *progress_ctrl(const struct shunt_kargs_ep_ll &a) { return progress_ctrl(a.k); }
GPU_FN struct shunt_ctrl *progress_ctrl(const struct shunt_kargs_ep &a) { return progress_ctrl(a.k); }

GPU_FN struct shunt_ep_ctrl *ep_ctrl(const struct shunt_kargs &a, uint32_t rank)
{
	return (struct shunt_ep_ctrl *)(a.peer[rank] + SHUNT_EP_CTRL_AT);
}

GPU_FN bool ep_masked(const struct shunt_kargs &a, uint32_t rank)
{
	return (a.flags & SHUNT_K_EP_MASKS) && gpu_ld_relaxed32(&ep_ctrl(a, a.rank)->mask[rank]);
}

/* The mask of an ordinal; FAR: of another host. */
template <bool FAR> GPU_FN uint32_t *ep_mask_of(struct shunt_ctrl *ctrl, uint32_t ordinal)
{
	struct shunt_ep_ctrl *ep = (struct shunt_ep_ctrl *)((char *)ctrl + SHUNT_EP_CTRL_AT);

	return FAR ? &ep->far_mask[ordinal] : &ep->mask[ordinal];
}

/* The log gets a line from the host (comm/ep/masks.c). */
template <bool FAR> GPU_FN void ep_mask(struct shunt_ctrl *ctrl, uint32_t ordinal)
{
	gpu_test_and_set32(ep_mask_of<FAR>(ctrl, ordinal));
	if (FAR)
		gpu_st_relaxed(&((struct shunt_ep_words *)(ctrl->host_ctrl + 1))->masked[ordinal], 1);
	else
		gpu_st_relaxed(&ctrl->host_ctrl->masked[ordinal], 1);
}

/* The group is broken: nothing is waited for any more, but for peers that are to hear why (ep_rings.h). */
GPU_FN bool ep_broken(const struct shunt_kargs &a) { return gpu_ld_relaxed32(&progress_ctrl(a)->abort); }

/* What a block's threads must see alike, since they go the same ways: in shared memory. */
struct ep_seen {
	uint32_t broken; /* ep_broken(), or data did not come */
	uint32_t masked; /* the masked ranks, as bits */
	uint32_t unread; /* not 0: ranks have not read what the next call would overwrite, and are not masked */
	uint64_t began;  /* a dispatch: when the receive phase began, if the times of waits are asked for */
};

/* By the whole block. */
GPU_FN void ep_look(const struct shunt_kargs &a, struct ep_seen *seen)
{
	gpu_sync();
	if (gpu_tid() < 32) {
		bool broken = ep_broken(a);
		uint32_t masked = gpu_ballot(gpu_tid() < a.nranks && ep_masked(a, gpu_tid()));

		if (gpu_tid() == 0) {
			seen->broken = broken;
			seen->masked = masked;
		}
	}
	gpu_sync();
}

/* By one thread: the data of a rank does not come. In a group without masks all goes to its end then. */
GPU_FN void ep_lost(const struct shunt_kargs &a, struct ep_seen *seen, uint32_t rank)
{
	if (!ep_masked(a, rank))
		gpu_test_and_set32(&seen->broken);
}

/*
 * ep_try_again() where a spin has come to a check: when it began, or EP_GIVE_UP. It takes and gives values: a spin in
 * memory would need a stack, which a launch sets up at its beginning.
 */
#define EP_GIVE_UP UINT64_MAX
#define EP_WAIT_OF(masks, own, rank) ((uint32_t)(own) | (uint32_t)(rank) << 8 | (masks ? 1u << 16 : 0))
template <bool FAR>
GPU_NOINLINE uint64_t ep_check_wait(struct shunt_ctrl *ctrl, uint64_t began, uint32_t wait_of, uint32_t channel,
    uint64_t expected, const uint64_t *word)
{
	const uint32_t rank = wait_of & 0xff, peer = wait_of >> 8 & 0xff;
	const bool masks = wait_of >> 16;
	struct spin spin = { ctrl, began, GPU_SPIN_CHECK - 1 };
	uint32_t expired = spin_expired(&spin);

	/* This rank's own blocks run, and will come. */
	if (expired == SHUNT_FAULT_TIMEOUT && masks && peer == rank)
		return spin.began;
	if (expired == SHUNT_FAULT_TIMEOUT && masks) {
		ep_mask<FAR>(ctrl, peer);
		return EP_GIVE_UP;
	}
	if (expired) {
		spin_report(ctrl, expired, rank, peer, channel, expected, gpu_ld_relaxed(word));
		return EP_GIVE_UP;
	}
	if (!masks)
		return spin.began;
	if (gpu_ld_relaxed(&ctrl->host_ctrl->gone) >> peer & 1)
		ep_mask<FAR>(ctrl, peer);
	return gpu_ld_relaxed32(ep_mask_of<FAR>(ctrl, peer)) ? EP_GIVE_UP : spin.began;
}

/*
 * By one thread, after a try in vain to see what `rank` has to store. True: try again. channel, expected, word: for the
 * report; word is what should become `expected`. FAR: it is an ordinal of another host.
 */
template <bool FAR = false>
GPU_FN bool ep_try_again(struct spin *spin, const struct shunt_kargs &a, uint32_t rank, uint32_t channel,
    uint64_t expected, const uint64_t *word)
{
	gpu_relax();
	if (++spin->tries % GPU_SPIN_CHECK)
		return true;
	spin->began = ep_check_wait<FAR>(
	    spin->ctrl, spin->began, EP_WAIT_OF(a.flags & SHUNT_K_EP_MASKS, a.rank, rank), channel, expected, word);
	return spin->began != EP_GIVE_UP;
}
