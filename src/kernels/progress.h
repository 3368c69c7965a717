/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A launch's account of its progress: for the diagnosis of hangs (comm/observe/recorder.h), and to tell whether the
 * launch has ended (comm/parts/stream_order.h). Consists of stores and additions that no kernel waits for.
 */
#include "kernels/check.h"

/* Called first in a kernel. */
GPU_FN void progress_begin(struct shunt_ctrl *ctrl, uint64_t op)
{
	struct shunt_progress *p = &ctrl->progress;

	if (!op || gpu_bid() || gpu_tid()) /* 0: no account is kept */
		return;
	gpu_st_relaxed(&p->now, op);
	if (op >> SHUNT_OP_CAPTURED_BIT) /* its graph runs */
		gpu_add_relaxed(&p->replays, 1);
	else
		gpu_st_relaxed(&p->eager, op);
	gpu_add_relaxed(&p->begun, gpu_nbid() * gpu_ntid() / 32);
}

/*
 * Called last, on every path, when no lane of the warp has work left: others wait for the launch by this count
 * (comm/parts/stream_order.h). The lanes' stores are under way by then, and complete before the host can act on the
 * count.
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

/* The block that compares the launch's collectives with those of the peers on this host. */
GPU_FN void progress_check(struct shunt_ctrl *ctrl, const struct shunt_kargs &k)
{
	check_calls(ctrl, k.check, k.count, k.rank, k.nranks);
}

/*
 * A kernel's body, with its account, and with the block that compares the launch's collectives with the peers'.
 * PROGRESS_AS names how it compares (`checks`), and how the lanes of a warp come together: (void)0 in kernels whose
 * lanes leave one by one after a failed wait. They must not wait for each other, as the other lanes are in a barrier of
 * the block. Without a failure such a kernel ends after a barrier of the block.
 */
#define PROGRESS(a, ...) \
	PROGRESS_AS(a, gpu_warp_sync(), progress_check(progress_ctrl(a), progress_args(a)), __VA_ARGS__)
#define PROGRESS_AS(a, together, checks, ...) \
	{ \
		gpu_grid_dependency_wait(); \
		progress_begin(progress_ctrl(a), progress_args(a).op); \
		if (check_is_block(progress_args(a), SHUNT_CHECK_CALLS)) \
			checks; \
		else \
			__VA_ARGS__; \
		together; \
		progress_end(progress_ctrl(a), progress_args(a).op); \
	}
