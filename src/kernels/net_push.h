/* SPDX-License-Identifier: MIT */
#pragma once
/* Kernels tell the proxy thread what to do (kernels/net_rings.h). */
#include "kernels/net_rings.h"
#include "kernels/spin.h"

struct net_trigger {
	uint32_t first, bytes, from, to;
};

/* Takes the next place in the FIFO. */
GPU_FN uint64_t net_place(struct shunt_net_ctrl *net) { return gpu_fetch_add(&net->pushed, 1); }

/*
 * Writes the trigger of a place. The stores that the trigger is about are before a fence; for loads it is enough that
 * their values were used. 0, or why the wait for room ended, SHUNT_FAULT_*. By one thread.
 */
GPU_FN uint32_t net_write(struct shunt_net_ctrl *net, struct shunt_ctrl *ctrl, uint64_t number, struct net_trigger t)
{
	uint64_t flag = (uint64_t)(uint32_t)(number + 1) << 32;
	struct shunt_net_words *words = net->words;
	uint64_t *half = words->fifo[number & (SHUNT_NET_FIFO - 1)].half;

	/* A read goes over PCIe: one for sixteen triggers keeps the last value new enough. */
	if (!(number & 15) || number >= gpu_ld_relaxed(&net->taken_seen) + SHUNT_NET_FIFO) {
		uint64_t taken;
		struct spin spin;

		spin_init(&spin, ctrl);
		while (number >= (taken = gpu_ld_credit(&words->taken)) + SHUNT_NET_FIFO) {
			uint32_t reason = spin_expired(&spin);

			if (reason)
				return reason;
		}
		gpu_st_relaxed(&net->taken_seen, taken);
	}
	gpu_ll16_st(half, { t.first | flag, t.bytes | flag });
	gpu_ll16_st(half + 2, { t.from | flag, t.to | flag });
	return 0;
}

/* Both. */
GPU_FN uint32_t net_push(struct shunt_net_ctrl *net, struct shunt_ctrl *ctrl, struct net_trigger t)
{
	return net_write(net, ctrl, net_place(net), t);
}
