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

/* The log gets a line from the host (comm/ep/masks.c). */
GPU_NOINLINE void ep_mask(const struct shunt_kargs &a, uint32_t rank)
{
	gpu_test_and_set32(&ep_ctrl(a, a.rank)->mask[rank]);
	gpu_st_relaxed(&progress_ctrl(a)->host_ctrl->masked[rank], 1);
}

/* The group is broken: nothing is waited for any more. */
GPU_FN bool ep_broken(const struct shunt_kargs &a) { return gpu_ld_relaxed32(&progress_ctrl(a)->abort); }

/* What a block's threads must see alike, since they go the same ways: in shared memory. */
struct ep_seen {
	uint32_t broken; /* ep_broken(), or data did not come */
	uint32_t masked; /* the masked ranks, as bits */
	uint32_t unread; /* not 0: ranks have not read what the next call would overwrite, and are not masked */
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
 * By one thread, after a try in vain to see what `rank` has to store. True: try again. channel, expected, word: for the
 * report; word is what should become `expected`.
 */
GPU_NOINLINE bool ep_try_again(struct spin *spin, const struct shunt_kargs &a, uint32_t rank, uint32_t channel,
    uint64_t expected, const uint64_t *word)
{
	uint32_t expired = spin_expired(spin);

	/* This rank's own blocks run, and will come. */
	if (expired == SHUNT_FAULT_TIMEOUT && (a.flags & SHUNT_K_EP_MASKS) && rank == a.rank)
		return true;
	if (expired == SHUNT_FAULT_TIMEOUT && (a.flags & SHUNT_K_EP_MASKS)) {
		ep_mask(a, rank);
		return false;
	}
	if (expired) {
		spin_report(progress_ctrl(a), expired, a.rank, rank, channel, expected, gpu_ld_relaxed(word));
		return false;
	}
	if (!(a.flags & SHUNT_K_EP_MASKS) || spin->tries % GPU_SPIN_CHECK)
		return true;
	if (gpu_ld_relaxed(&progress_ctrl(a)->host_ctrl->gone) >> rank & 1)
		ep_mask(a, rank);
	return !ep_masked(a, rank);
}
