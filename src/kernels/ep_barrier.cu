/* SPDX-License-Identifier: MIT */
/*
 * A barrier among the ranks of an expert parallel group, which masks whom it misses if the group has masks. Lane p
 * signals rank p and waits for it. Two sets of words in turns suffice, as in barrier.cu. A masked rank is signalled,
 * too, so that it may take part again once it is no longer masked. It may be behind by any number of barriers: a later
 * number lets it pass. Ranks of other hosts are signalled by the network, where signals are counted; masked ones, too.
 */
#include "kernels/ep_hosts.h"
#include "kernels/kernel_list.h"

template <bool HOSTS> GPU_FN void ep_barrier(const struct shunt_kargs &a)
{
	struct shunt_ctrl *ctrl = progress_ctrl(a);
	uint64_t number = ctrl->barriers + 1;
	uint32_t peer = gpu_tid();
	struct spin spin;

	if (!gpu_warp_all(!ep_broken(a)))
		return;
	spin_init(&spin, ctrl);
	if (peer < a.nranks && peer != a.rank) {
		const uint64_t *here = &ctrl->barrier[number & 1][peer].number;

		gpu_st_release(&((struct shunt_ctrl *)a.peer[peer])->barrier[number & 1][a.rank].number, number);
		while (!ep_masked(a, peer) && gpu_ld_acquire(here) < number &&
		    ep_try_again(&spin, a, peer, 0, number, here))
			;
	}
	if constexpr (HOSTS) {
		uint32_t nranks = ep_net(a)->nranks;

		for (uint32_t ordinal = a.nranks + gpu_tid(); ordinal < nranks; ordinal += 32)
			ep_raise(a, ordinal, SHUNT_EP_BARRIER_SIGNAL);
		for (uint32_t ordinal = a.nranks + gpu_tid(); ordinal < nranks; ordinal += 32)
			ep_await_raised(a, ordinal, SHUNT_EP_BARRIER_SIGNAL, number, 0);
	}
	gpu_warp_sync();
	if (gpu_tid() == 0)
		ctrl->barriers = number;
}

#define INSTANCE(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs) a) \
	    PROGRESS(a, ep_barrier<false>(a))
#define INSTANCE_HOSTS(shape, op, opn, type, typen) \
	extern "C" GPU_KERNEL void SHUNT_KERNEL_NAME(shape, op, type)(GPU_ARG(struct shunt_kargs) a) \
	    PROGRESS(a, ep_barrier<true>(a))
SHUNT_BARRIER_ROW(INSTANCE, ep_barrier)
SHUNT_BARRIER_ROW(INSTANCE_HOSTS, ep_barrier_hosts)
