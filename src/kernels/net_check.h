/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * SHUNT_CHECK over several hosts: as kernels/check.h, which says why two sets of packets suffice, among the ranks that
 * exchange data. Ranks of one host write into each other's scratch. For other hosts a rank writes its announcement into
 * page-locked memory, and its proxy thread puts it into each peer's.
 */
#include "kernels/check.h"
#include "kernels/net_push.h"

static_assert(__builtin_offsetof(struct shunt_net_words, announcement) % 16 == 0 &&
        __builtin_offsetof(struct shunt_net_words, announced) % 16 == 0 &&
        __builtin_offsetof(struct shunt_net_ctrl, announced) % 16 == 0,
    "packets are 16 aligned bytes");
static_assert(
    SHUNT_NET_CTRL_AT + sizeof(struct shunt_net_ctrl) <= SHUNT_NET_LOCAL_AT, "it has its place in the scratch");

GPU_FN void net_check_write(
    struct shunt_check_packet *to, const union check_words &mine, uint64_t count, uint64_t launch)
{
	check_send(to, count, launch);
	check_send(to + 1, mine.word[0], launch);
	check_send(to + 2, mine.word[1], launch);
}

/* The peer's packets as this rank's kernels see them; NULL: it exchanges no data with this rank. */
GPU_FN const struct shunt_check_packet *net_check_packets(
    const struct shunt_net_ctrl *net, uint32_t peer, uint64_t launch)
{
	const struct shunt_net_pair *pair = &net->pair[peer];

	if (peer == net->rank || !pair->in)
		return 0;
	return pair->remote ? net->words->announced[pair->connection][launch & 1] : net->announced[launch & 1][peer];
}

/* Sends the peer the data that net_check_write() has written. By one thread. */
GPU_FN void net_check_put(struct shunt_ctrl *ctrl, struct shunt_net_ctrl *net, uint32_t peer, uint64_t launch)
{
	const struct shunt_net_pair *pair = &net->pair[peer];
	const uint32_t bytes = SHUNT_CHECK_PACKETS * sizeof(struct shunt_check_packet), set = launch & 1;

	net_push(net, ctrl,
	    { SHUNT_NET_TRIGGER(pair->connection, 0, SHUNT_NET_TRIGGER_PUT | SHUNT_NET_TRIGGER_PACKETS), bytes,
	        (uint32_t)(__builtin_offsetof(struct shunt_net_words, announcement) + set * bytes),
	        (uint32_t)(__builtin_offsetof(struct shunt_net_words, announced) + (2 * pair->there + set) * bytes) });
}

/* Compares the launch's collectives with those of all ranks with which this rank exchanges data. By the whole block. */
GPU_NOINLINE void net_check_calls(struct shunt_ctrl *ctrl, struct shunt_check check, uint64_t count)
{
	struct shunt_net_ctrl *net = (struct shunt_net_ctrl *)((char *)ctrl + SHUNT_NET_CTRL_AT);
	union check_words mine;
	uint64_t launch;

	/* After an abort it announces nothing, for the reason in check_calls(). */
	if (gpu_tid() >= 32 || !gpu_warp_all(!gpu_ld_relaxed32(&ctrl->abort)))
		return;
	launch = ctrl->check.launches + 1;
	mine.check = check;
	if (gpu_tid() == 0) {
		net_check_write(net->words->announcement[launch & 1], mine, count, launch);
		gpu_fence();
	}
	gpu_warp_sync();
	GPU_ROLL for (uint32_t p = gpu_tid(); p < net->nranks; p += 32)
		if (net_check_packets(net, p, launch) && !net->pair[p].remote)
			net_check_write(net->pair[p].ctrl->announced[launch & 1][net->rank], mine, count, launch);
		else if (net_check_packets(net, p, launch))
			net_check_put(ctrl, net, p, launch);
	GPU_ROLL for (uint32_t p = gpu_tid(); p < net->nranks; p += 32)
		if (const struct shunt_check_packet *in = net_check_packets(net, p, launch))
			check_await(ctrl, in, mine, count, net->rank, p, launch);
	gpu_warp_sync();
	if (gpu_tid() == 0)
		ctrl->check.launches = launch;
}
