/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Waits of blocks and ranks for each other: operations on counters in the resources, which only ever grow, and on
 * semaphores.
 */
#include "kernels/plan/run.h"

/* Waits until *counter, which `peer` advances, is at least `want`. By one thread; false: it gave up. */
GPU_NOINLINE bool plan_await(struct plan_run *r, const uint64_t *counter, uint64_t want, uint32_t peer)
{
	struct spin spin;
	uint64_t seen;

	spin_init(&spin, r->ctrl);
	while ((seen = gpu_ld_acquire(counter)) < want) {
		uint32_t reason;

		spin_account_rank(&spin, peer);
		reason = spin_expired(&spin);
		if (reason) {
			plan_give_up(r, reason, peer, want, seen);
			return false;
		}
	}
	return true;
}

/*
 * A reusable barrier of `blocks` blocks of this rank, at a counter of arrivals. plan_blocks_arrive(): thread 0's
 * result is the count at which all blocks have arrived.
 */
GPU_FN uint64_t plan_blocks_arrive(uint64_t *counter, uint32_t blocks)
{
	uint64_t before = 0;

	gpu_sync();
	if (gpu_tid() == 0)
		before = gpu_fetch_add_acq_rel(counter, 1);
	return (before / blocks + 1) * blocks;
}

GPU_FN bool plan_await_blocks(struct plan_run *r, const uint64_t *counter, uint64_t all)
{
	struct spin spin;
	uint64_t seen;

	spin_init(&spin, r->ctrl);
	while ((seen = gpu_ld_acquire_gpu(counter)) < all) {
		uint32_t reason = spin_expired(&spin);

		if (reason) {
			plan_give_up(r, reason, r->rank, all, seen);
			return false;
		}
	}
	return true;
}

GPU_NOINLINE bool plan_barrier(struct plan_run *r, uint64_t *counter, uint32_t blocks)
{
	uint64_t all = plan_blocks_arrive(counter, blocks);

	if (gpu_tid() == 0 && !plan_await_blocks(r, counter, all))
		return false;
	return plan_sync(r);
}

/* ---- counters of channels, and semaphores: thread j handles operand j */

GPU_FN struct shunt_plan_slot *plan_slot(const struct plan_run *r, const struct shunt_prog_operand &o, uint32_t rank)
{
	return (struct shunt_plan_slot *)(r->resources[rank] + r->head->slots_at) + o.index;
}

GPU_FN uint64_t *plan_semaphore(const struct plan_run *r, const struct shunt_prog_operand &o)
{
	return (uint64_t *)(r->resources[r->rank] + r->head->semaphores_at + o.index * 64);
}

GPU_FN void plan_signal(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

	for (uint32_t j = gpu_tid(); j < op->nsrc; j += gpu_ntid())
		gpu_add_release(&plan_slot(r, o[j], o[j].rank)->signals, 1);
}

GPU_FN bool plan_wait(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

	for (uint32_t j = gpu_tid(); j < op->nsrc; j += gpu_ntid()) {
		struct shunt_plan_slot *slot = plan_slot(r, o[j], r->rank);

		if (!plan_await(r, &slot->signals, gpu_fetch_add(&slot->waits, 1) + 1, o[j].rank))
			return false;
	}
	return true;
}

GPU_FN bool plan_sem_acquire(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

	for (uint32_t j = gpu_tid(); j < op->nsrc; j += gpu_ntid()) {
		uint64_t *value = plan_semaphore(r, o[j]);
		struct spin spin;

		spin_init(&spin, r->ctrl);
		while (!gpu_sem_acquire(value)) {
			uint32_t reason = spin_expired(&spin);

			if (reason) {
				plan_give_up(r, reason, r->rank, 1, 0);
				return false;
			}
		}
	}
	return true;
}

GPU_FN void plan_sem_release(struct plan_run *r, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand *o = (const struct shunt_prog_operand *)(op + 1);

	for (uint32_t j = gpu_tid(); j < op->nsrc; j += gpu_ntid())
		gpu_sem_release(plan_semaphore(r, o[j]));
}
