/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * SHUNT_CHECK for messages: is each message as long as its receiver expects? Runs in the block that kernels/check.h
 * describes.
 *
 * Lane p compares what this rank sends to rank p, and lane 8 + p what it receives from rank p. Each lane has a pace
 * of its own, since the peers' programs may send and receive in any order. The sender writes the sizes into a ring
 * and does not wait for an answer. The receiver compares the i-th size that arrives with its own i-th, whatever
 * launches they belong to. Where the data needs no free slot, the sizes do not either: a message has at least one
 * slot, its first slot is channel 0's, and the data ring of channel 0 is shorter than the ring of sizes.
 */
#include "kernels/check.h"

GPU_FN uint64_t message_bytes(const struct shunt_message &m) { return m.bytes & ~SHUNT_MESSAGE_SIMPLE; }

GPU_FN void check_sends(
    struct shunt_ctrl *ctrl, uint32_t rank, uint32_t peer, const struct shunt_message *message, uint32_t n)
{
	struct shunt_ctrl *at_peer = (struct shunt_ctrl *)ctrl->check.peer[peer];
	uint64_t sent = ctrl->check.sent[peer];

	for (uint32_t i = 0; i < n; i++, sent++) {
		struct spin spin;
		uint64_t head;

		spin_init(&spin, ctrl);
		while ((head = gpu_ld_credit(&spin_inbox(ctrl)->check.head[peer])) + SHUNT_CHECK_RING <= sent) {
			uint32_t expired = spin_expired(&spin);

			if (expired) {
				spin_report(ctrl, expired, rank, peer, SHUNT_CHECK_CHANNEL, sent + 1, head);
				return;
			}
		}
		check_send(&at_peer->check.size[rank][sent % SHUNT_CHECK_RING], message_bytes(message[i]), sent + 1);
	}
	ctrl->check.sent[peer] = sent;
}

/* Reports a wrong size to the sender, which may have ended its launch already, and then to the host. */
GPU_NOINLINE void check_reject(
    struct shunt_ctrl *ctrl, uint32_t rank, uint32_t peer, uint64_t number, uint64_t expected, uint64_t came)
{
	struct shunt_ctrl *at_peer = (struct shunt_ctrl *)ctrl->check.peer[peer];
	uint64_t *rejected = &at_peer->check.rejected[rank].set;
	struct shunt_check mine = { SHUNT_CHECK_MESSAGES, 1, 0, 0, 0, 0, (uint32_t)number, 0 }, theirs = mine;

	gpu_st_relaxed(rejected + 1, number);
	gpu_st_relaxed(rejected + 2, came);
	gpu_st_relaxed(rejected + 3, expected);
	gpu_st_release(rejected, 1);
	gpu_st_release((uint64_t *)&at_peer->abort, 1);
	theirs.kind = 0;
	check_mismatch(ctrl, rank, peer, mine, expected, theirs, came);
}

GPU_FN void check_recvs(
    struct shunt_ctrl *ctrl, uint32_t rank, uint32_t peer, const struct shunt_message *message, uint32_t n)
{
	struct shunt_ctrl *at_peer = (struct shunt_ctrl *)ctrl->check.peer[peer];
	uint64_t received = ctrl->check.received[peer];

	for (uint32_t i = 0; i < n; i++) {
		const struct shunt_check_packet *in = &spin_inbox(ctrl)->check.size[peer][received % SHUNT_CHECK_RING];
		struct spin spin;
		uint64_t bytes;

		received++;
		spin_init(&spin, ctrl);
		while (!check_poll(in, &bytes, received)) {
			uint32_t expired = spin_expired(&spin);

			if (expired) {
				spin_report(ctrl, expired, rank, peer, SHUNT_CHECK_CHANNEL, received, received - 1);
				return;
			}
		}
		if (bytes != message_bytes(message[i])) {
			check_reject(ctrl, rank, peer, received, message_bytes(message[i]), bytes);
			return;
		}
		gpu_st_credit(&at_peer->check.head[rank], received);
	}
	ctrl->check.received[peer] = received;
}

/* By the whole block, of a launch with messages. */
GPU_NOINLINE void check_messages(struct shunt_ctrl *ctrl, uint32_t rank, const struct shunt_role *role, uint32_t nroles,
    const struct shunt_message *message)
{
	bool sends = gpu_tid() < SHUNT_KARGS_MAX_RANKS;
	uint32_t peer = gpu_tid() % SHUNT_KARGS_MAX_RANKS;

	if (gpu_tid() >= 2 * SHUNT_KARGS_MAX_RANKS)
		return;
	/*
	 * A rank whose message was rejected after the end of its launch learns of it in its next launch, even if that
	 * launch has no wait.
	 */
	if (gpu_tid() == 0 && spin_aborted(ctrl))
		spin_rejected(ctrl, rank);
	for (uint32_t i = 0; i < nroles; i++) {
		if (role[i].peer != peer || role[i].what != (sends ? SHUNT_ROLE_SEND : SHUNT_ROLE_RECV))
			continue;
		if (sends)
			check_sends(ctrl, rank, peer, message + role[i].first, role[i].count);
		else
			check_recvs(ctrl, rank, peer, message + role[i].first, role[i].count);
	}
}
