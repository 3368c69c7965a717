/* SPDX-License-Identifier: MIT */
/*
 * A barrier among all ranks, around what copy engines do in between: before it, so that the peers' memory is theirs to
 * give, and after it, so that what was copied is there. Lane p tells rank p and waits for it.
 *
 * A rank says the number of its barrier and where its buffers lie, in one of two sets of places that alternate. Two are
 * enough: who comes to barrier e has left e-1, so all ranks had come to e-1 and had left e-2, and with it their
 * reading.
 *
 * An operation consists of several barriers, and is accounted for as one launch: from the first (SHUNT_K_FIRST_BARRIER)
 * to the last (SHUNT_K_LAST_BARRIER).
 */
#include "kernels/kernel_list.h"
#include "kernels/progress.h"

/* The ranks' buffers are not where they promised to be; the peer finds the same about us. */
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
	const struct shunt_barrier_flag *here = &ctrl->barrier[number & 1][peer];
	struct spin spin;
	uint64_t seen;

	gpu_st_relaxed(&there->place, a.own_place);
	gpu_st_release(&there->number, number);
	spin_init(&spin, ctrl);
	while ((seen = gpu_ld_acquire(&here->number)) < number) {
		uint32_t expired = spin_expired(&spin);

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

	/* Who has given up tells nobody that his part is done. */
	if (!gpu_warp_all(!gpu_ld_relaxed32(&ctrl->abort)))
		return;
	if (gpu_tid() < a.k.nranks && gpu_tid() != a.k.rank)
		barrier_with(a, ctrl, gpu_tid(), number);
	gpu_warp_sync();
	if (gpu_tid() == 0)
		ctrl->barriers = number;
}

/* By the whole launch. */
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
