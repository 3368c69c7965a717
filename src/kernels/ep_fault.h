/* SPDX-License-Identifier: MIT */
#pragma once
#include "kernels/ep_wait.h"

/* Reports an error of this rank's call, or of the peer's; the first thread that reports is heard. */
GPU_NOINLINE void ep_fault(const struct shunt_kargs &a, uint32_t reason, uint32_t peer, uint32_t channel, uint32_t pad,
    uint64_t expected, uint64_t seen)
{
	struct shunt_ctrl *ctrl = progress_ctrl(a);
	struct shunt_fault *f = spin_fault(ctrl, a.rank, peer);

	if (!f)
		return;
	f->channel = channel;
	f->pad = pad;
	f->expected = expected;
	f->seen = seen;
	spin_give_up(ctrl, f, reason);
}
