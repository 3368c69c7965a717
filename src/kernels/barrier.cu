/* SPDX-License-Identifier: MIT */
/*
 * A barrier among all ranks, before and after operations on symmetric memory: before one, the peers' memory is ready
 * for it; after it, the data has arrived. Lane p signals rank p and waits for it.
 *
 * A rank announces the number of its barrier and the place of its buffers, in one of two sets of flags that
 * alternate. Two sets suffice: a rank that enters barrier e has left e-1, so all ranks had entered e-1, and so had
 * left e-2 and read its flags.
 *
 * An operation has several barriers and counts as one launch, from its first barrier (SHUNT_K_FIRST_BARRIER) to its
 * last one (SHUNT_K_LAST_BARRIER).
 */
#include "kernels/kernel_list.h"
#include "kernels/progress.h"

/* Reports that a peer's buffers are at other places than expected. The peer finds the same about this rank. */
GPU_NOINLINE void barrier_misplaced(
    struct shunt_ctrl *ctrl, uint32_t rank, uint32_t peer, uint64_t expected, uint64_t seen)
{
	struct shunt_fault *f = spin_fault(ctrl, rank, peer);

	if (!f)
		return;
	f->expected = expected;
	f->seen = seen;
	spin_give_up(ctrl, f, SHUNT_FAULT_PLACE);
}

GPU_FN void barrier_with(const struct shunt_kargs_barrier &a, struct shunt_ctrl *ctrl, uint32_t peer, uint64_t number)
{
	struct shunt_barrier_flag *there = &((struct shunt_ctrl *)a.k.peer[peer])->barrier[number & 1][a.k.rank];
	const struct shunt_barrier_flag *here = &spin_inbox(ctrl)->barrier[number & 1][peer];
	struct spin spin;
	uint64_t seen;

	gpu_st_relaxed(&there->place, a.own_place);
	gpu_st_release(&there->number, number);
	spin_init(&spin, ctrl);
	while ((seen = gpu_ld_acquire(&here->number)) < number) {
		uint32_t expired;

		spin_account_peer(&spin, peer);
		expired = spin_expired(&spin);

		if (expired) {
			spin_report(ctrl, expired, a.k.rank, peer, 0, number, seen);
			return;
		}
	}
	seen = gpu_ld_relaxed(&here->place);
	if (a.peer_places[peer] && a.peer_places[peer] != seen)
		barrier_misplaced(ctrl, a.k.rank, peer, a.peer_places[peer], seen);
}

GPU_FN void barrier(const struct shunt_kargs_barrier &a, struct shunt_ctrl *ctrl)
{
	uint64_t number = ctrl->barriers + 1;

	/* A rank that has given up must not announce that its part is done. */
	if (!gpu_warp_all(!gpu_ld_relaxed32(&ctrl->abort)))
		return;
	if (gpu_tid() < a.k.nranks && gpu_tid() != a.k.rank)
		barrier_with(a, ctrl, gpu_tid(), number);
	gpu_warp_sync();
	if (gpu_tid() == 0)
		ctrl->barriers = number;
}

GPU_FN void barrier_launch(const struct shunt_kargs_barrier &a)
{
	struct shunt_ctrl *ctrl = progress_ctrl(a.k);
	bool checks = check_is_block(a.k, SHUNT_CHECK_CALLS);

	gpu_grid_dependency_wait();
	if (a.k.flags & SHUNT_K_FIRST_BARRIER)
		progress_begin(ctrl, a.k.op);
	if (checks)
		check_calls(ctrl, a.k.check, a.k.count, a.k.rank, a.k.nranks);
	else
		barrier(a, ctrl);
	if (checks || (a.k.flags & SHUNT_K_LAST_BARRIER))
		progress_end(ctrl, a.k.op);
}

#define INSTANCE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs_barrier) a) \
	{ \
		barrier_launch(a); \
	}
SHUNT_BARRIER_ROW(INSTANCE, barrier)
