/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_SPIN_H
#define SHUNT_KERNELS_SPIN_H
/* Waiting for a peer, with an end: an abort word in our own device memory, and a deadline. */
#include "kernels/gpu.h"

struct spin {
	struct shunt_ctrl *ctrl;
	uint64_t began;
	uint32_t tries;
};

GPU_FN void spin_init(struct spin *s, struct shunt_ctrl *ctrl)
{
	s->ctrl = ctrl;
	s->began = 0;
	s->tries = 0;
}

/* 0: go on; else shunt_fault's reason to give up. By one thread. */
GPU_FN uint32_t spin_expired(struct spin *s)
{
	gpu_relax();
	if (++s->tries % GPU_SPIN_CHECK)
		return 0;
	if (gpu_ld_relaxed32(&s->ctrl->abort))
		return SHUNT_FAULT_ABORT;
	uint64_t limit = s->ctrl->timeout_ns;
	if (!limit)
		return 0;
	uint64_t now = gpu_clock_ns();
	if (!s->began)
		s->began = now;
	return now - s->began > limit ? SHUNT_FAULT_TIMEOUT : 0;
}

/* The first thread that gives up tells the host what it waited for, and later kernels not to wait. */
GPU_NOINLINE void spin_report(struct shunt_ctrl *ctrl, uint32_t reason, uint32_t rank, uint32_t peer, uint32_t channel, uint64_t expected, uint64_t seen)
{
	if (!gpu_claim32(&ctrl->broken))
		return;
	struct shunt_fault *f = ctrl->fault;
	f->rank = rank;
	f->peer = peer;
	f->channel = channel;
	f->expected = expected;
	f->seen = seen;
	f->op = ctrl->progress.now;
	gpu_st_release(&f->set, reason);
	gpu_claim32(&ctrl->abort);
}
#endif
