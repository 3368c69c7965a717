/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A wait for a peer ends early by an abort word in the rank's own device memory, and by a deadline or an abort in host
 * memory.
 */
#include "device/gpu.h"
#include "kernels/kargs.h"

/* Where peers write what they have to tell this rank. */
GPU_FN struct shunt_ctrl *spin_inbox(struct shunt_ctrl *ctrl)
{
#ifdef SHUNT_OVER_SHARED
	return ctrl->inbox;
#else
	return ctrl;
#endif
}

/* The abort word, which a peer raises in the inbox. */
GPU_FN bool spin_aborted(const struct shunt_ctrl *ctrl)
{
#ifdef SHUNT_OVER_SHARED
	if (gpu_ld_relaxed32(&ctrl->inbox->abort))
		return true;
#endif
	return gpu_ld_relaxed32(&ctrl->abort);
}

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

/* 0: go on; else the reason to give up, SHUNT_FAULT_*. By one thread. */
GPU_FN uint32_t spin_expired(struct spin *s)
{
	gpu_relax();
	if (++s->tries % GPU_SPIN_CHECK)
		return 0;
	if (spin_aborted(s->ctrl))
		return SHUNT_FAULT_ABORT;
	uint64_t limit = gpu_ld_relaxed(&s->ctrl->host_ctrl->limit_ns);
	if (limit == SHUNT_LIMIT_ABORT)
		return SHUNT_FAULT_ABORT;
	if (!limit)
		return 0;
	uint64_t now = gpu_clock_ns();
	if (!s->began)
		s->began = now;
	return now - s->began > limit ? SHUNT_FAULT_TIMEOUT : 0;
}

/*
 * Adds the time since the last look of any thread, or since this thread's wait began, to the account of waits for a
 * rank. Two threads at once may lose some.
 */
GPU_FN void spin_waited(struct shunt_wait *w, uint64_t began, uint64_t now)
{
	uint64_t last = gpu_ld_relaxed(&w->last);

	if (last < began)
		last = began;
	if (now <= last)
		return;
	gpu_st_relaxed(&w->last, now);
	gpu_st_relaxed(&w->ns, gpu_ld_relaxed(&w->ns) + (now - last));
}

/*
 * To be called before spin_expired() in a wait for a rank of the communicator: accounts for it where that looks at the
 * clock. Kernels that have no register to spare do without.
 */
GPU_FN void spin_account_rank(struct spin *s, uint32_t rank)
{
	if ((s->tries + 1) % GPU_SPIN_CHECK || rank >= SHUNT_WAIT_RANKS)
		return;

	uint64_t now = gpu_clock_ns();

	if (!s->began)
		s->began = now;
	spin_waited(&s->ctrl->host_ctrl->waits[rank], s->began, now);
}

/* The same for a rank of the launch. */
GPU_FN void spin_account_peer(struct spin *s, uint32_t peer)
{
	if (!((s->tries + 1) % GPU_SPIN_CHECK))
		spin_account_rank(s, s->ctrl->rank_of[peer]);
}

/* spin_expired() in a wait for ranks of the launch, as bits, with an account of them. */
GPU_FN uint32_t spin_expired_for(struct spin *s, uint32_t ranks)
{
	if ((s->tries + 1) % GPU_SPIN_CHECK)
		return spin_expired(s);

	/* Else compilers make the addresses in front of the loop, and keep them in registers that kernels do not have.
	 */
	struct shunt_ctrl *ctrl = gpu_here(s->ctrl);

	ranks = gpu_here(ranks);

	struct shunt_wait *waits = ctrl->host_ctrl->waits;
	const uint8_t *r = ctrl->rank_of;
	uint64_t now = gpu_clock_ns();

	if (!s->began)
		s->began = now;
	GPU_ROLL for (; ranks; ranks >>= 1, r++)
		if (ranks & 1)
			spin_waited(&waits[*r], s->began, now);
	return spin_expired(s);
}

/* Reason of an expired spin, SHUNT_FAULT_*, for threads that did not call spin_expired() themselves. */
GPU_FN uint32_t spin_reason(const struct shunt_ctrl *ctrl)
{
	bool aborted = spin_aborted(ctrl) || gpu_ld_relaxed(&ctrl->host_ctrl->limit_ns) == SHUNT_LIMIT_ABORT;

	return aborted ? SHUNT_FAULT_ABORT : SHUNT_FAULT_TIMEOUT;
}

/* The fault record in host memory, for the first thread that reports; NULL for the others. */
GPU_FN struct shunt_fault *spin_fault(struct shunt_ctrl *ctrl, uint32_t rank, uint32_t peer)
{
	struct shunt_fault *f = &ctrl->host_ctrl->fault;

	if (!gpu_test_and_set32(&ctrl->broken))
		return 0;
	f->rank = rank;
	f->peer = peer;
	f->op = gpu_ld_relaxed(&ctrl->progress.now);
	return f;
}

/* Publishes the complete record to the host. Later kernels do not wait any more. */
GPU_FN void spin_give_up(struct shunt_ctrl *ctrl, struct shunt_fault *f, uint32_t reason)
{
	gpu_st_release(&f->set, reason);
	gpu_test_and_set32(&ctrl->abort);
}

/*
 * True: a peer raised the abort word because it expects another size of a message than this rank sent. Reports that
 * to the host.
 */
GPU_NOINLINE bool spin_rejected(struct shunt_ctrl *ctrl, uint32_t rank)
{
	gpu_ld_acquire((const uint64_t *)&spin_inbox(ctrl)->abort);
	for (uint32_t p = 0; p < SHUNT_KARGS_MAX_RANKS; p++) {
		uint64_t *rejected = &spin_inbox(ctrl)->check.rejected[p].set;
		struct shunt_fault *f;

		if (!gpu_ld_acquire(rejected))
			continue;
		f = spin_fault(ctrl, rank, p);
		if (!f)
			return true;
		f->mine.what = f->theirs.what = SHUNT_CHECK_MESSAGES;
		f->theirs.kind = 1;
		f->mine.number = f->theirs.number = (uint32_t)gpu_ld_relaxed(rejected + 1);
		f->mine_count = gpu_ld_relaxed(rejected + 2);
		f->theirs_count = gpu_ld_relaxed(rejected + 3);
		spin_give_up(ctrl, f, SHUNT_FAULT_MISMATCH);
		return true;
	}
	return false;
}

/* Reports the wait of the first thread that gives up to the host. */
GPU_NOINLINE void spin_report(struct shunt_ctrl *ctrl, uint32_t reason, uint32_t rank, uint32_t peer, uint32_t channel,
    uint64_t expected, uint64_t seen)
{
	struct shunt_fault *f;

	if (reason == SHUNT_FAULT_ABORT && spin_rejected(ctrl, rank))
		return;
	f = spin_fault(ctrl, rank, peer);
	if (!f)
		return;
	f->channel = channel;
	f->expected = expected;
	f->seen = seen;
	spin_give_up(ctrl, f, reason);
}
