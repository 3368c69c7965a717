/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_PROGRESS_H
#define SHUNT_KERNELS_PROGRESS_H
/*
 * What a launch tells of itself: to who looks for the reason of a hang (comm/observe/recorder.h), and whether it has
 * ended (comm/stream_order.h). Stores and additions that no kernel waits for.
 */
#include "kernels/check.h"

/* First thing in a kernel. */
GPU_FN void progress_begin(struct shunt_ctrl *ctrl, uint64_t op)
{
	struct shunt_progress *p = &ctrl->progress;

	if (!op || gpu_bid() || gpu_tid()) /* 0: nobody keeps account */
		return;
	gpu_st_relaxed(&p->now, op);
	if (op >> 63) /* captured: its graph runs */
		gpu_add_relaxed(&p->replays, 1);
	else
		gpu_st_relaxed(&p->eager, op);
	gpu_add_relaxed(&p->begun, gpu_nbid() * gpu_ntid() / 32);
}

/*
 * Last thing, on every path, when no lane of the warp is at work any more: others wait for the launch by this count
 * (comm/stream_order.h). What lanes stored is on its way by then, and there before the host could act on the count.
 */
GPU_FN void progress_end(struct shunt_ctrl *ctrl, uint64_t op)
{
	if (op && gpu_lane() == 0)
		gpu_add_relaxed(&ctrl->progress.ended, 1);
}

GPU_FN struct shunt_ctrl *progress_ctrl(const struct shunt_kargs &a) { return (struct shunt_ctrl *)a.peer[a.rank]; }
GPU_FN struct shunt_ctrl *progress_ctrl(const struct shunt_kargs_few &a) { return progress_ctrl(a.k); }
GPU_FN struct shunt_ctrl *progress_ctrl(const struct shunt_kargs_many &a) { return progress_ctrl(a.k); }
GPU_FN struct shunt_ctrl *progress_ctrl(const struct shunt_kargs_plan &a) { return a.ctrl; }
GPU_FN const struct shunt_kargs &progress_args(const struct shunt_kargs &a) { return a; }
template <typename A> GPU_FN const struct shunt_kargs &progress_args(const A &a) { return a.k; }

/*
 * A kernel's body, with the account of it, and with the block that compares the launch's collectives with the peers'.
 * APART: its lanes leave one by one once a wait has failed, and may not wait for each other, as the rest stand in a
 * barrier of the block; behind one it ends if all went well.
 */
#define PROGRESS(a, ...) PROGRESS_AS(a, gpu_warp_sync(), __VA_ARGS__)
#define PROGRESS_APART(a, ...) PROGRESS_AS(a, (void)0, __VA_ARGS__)
#define PROGRESS_AS(a, together, ...) \
	{ \
		gpu_grid_dependency_wait(); \
		progress_begin(progress_ctrl(a), progress_args(a).op); \
		if (check_is_block(progress_args(a), SHUNT_CHECK_CALLS)) \
			check_calls(progress_ctrl(a), progress_args(a).check, progress_args(a).count, \
			    progress_args(a).rank, progress_args(a).nranks); \
		else \
			__VA_ARGS__; \
		together; \
		progress_end(progress_ctrl(a), progress_args(a).op); \
	}
#endif
