/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Entering and leaving a launch: the waits and signals of blocks and ranks before and after the plan's own
 * operations. No rank may write to a staging buffer before all peers have left the last launch, or read one before it
 * is filled. Where peers access the callers' memory instead, a launch ends when all ranks have left it.
 */
#include "kernels/plan/waits.h"

GPU_FN struct shunt_plan_peer *plan_peers(const struct plan_run *r, uint32_t rank)
{
	return (struct shunt_plan_peer *)(r->resources[rank] + r->head->peers_at);
}

GPU_FN struct shunt_plan_grid *plan_grid(const struct plan_run *r)
{
	return (struct shunt_plan_grid *)(r->resources[r->rank] + r->head->grid_at);
}

/* Waits until no peer uses this rank's staging buffers any more. */
GPU_NOINLINE bool plan_ready(struct plan_run *r)
{
	for (uint32_t j = gpu_tid(); j < r->head->nranks; j += gpu_ntid())
		if (!plan_await(r, &plan_peers(r, r->rank)[j].left, r->launch - 1, j))
			return false;
	return plan_sync(r);
}

/*
 * Does a peer that has entered use the same buffers? Block 0 reports a difference to the host, after it has told the
 * peers that this rank has entered.
 */
GPU_FN bool plan_check_place(struct plan_run *r, uint32_t peer)
{
	uint64_t seen = gpu_ld_relaxed(&plan_peers(r, r->rank)[peer].place);
	struct shunt_fault *f;

	if (seen == r->place)
		return true;
	f = gpu_bid() ? 0 : spin_fault(r->ctrl, r->rank, peer);
	if (f) {
		f->expected = r->place;
		f->seen = seen;
		spin_give_up(r->ctrl, f, SHUNT_FAULT_PLACE);
	}
	gpu_test_and_set32(&r->dead);
	return false;
}

GPU_NOINLINE bool plan_enter(struct plan_run *r)
{
	bool staged = r->program & SHUNT_PROG_STAGED, ranks = staged || r->resized;
	bool blocks = staged || (r->flags & (SHUNT_PLAN_LOAD0 * 3));
	uint64_t *counter = &plan_grid(r)->enter, all = 0;

	if (blocks)
		all = plan_blocks_arrive(counter, r->head->nblocks);
	if (blocks && (gpu_bid() == 0 || !ranks)) {
		if (gpu_tid() == 0 && !plan_await_blocks(r, counter, all))
			return false;
		if (!plan_sync(r))
			return false;
	}
	if (!ranks)
		return true;
	for (uint32_t j = gpu_tid(); j < r->head->nranks && gpu_bid() == 0; j += gpu_ntid()) {
		gpu_st_relaxed(&plan_peers(r, j)[r->rank].place, r->place);
		gpu_st_release(&plan_peers(r, j)[r->rank].entered, r->launch);
	}
	if (r->place) /* all peers are told before a thread gives up */
		gpu_sync();
	for (uint32_t j = gpu_tid(); j < r->head->nranks; j += gpu_ntid())
		if (!plan_await(r, &plan_peers(r, r->rank)[j].entered, r->launch, j) || !plan_check_place(r, j))
			return false;
	return plan_sync(r);
}

GPU_NOINLINE bool plan_leave(struct plan_run *r)
{
	bool staged = r->program & SHUNT_PROG_STAGED, store = r->flags & (SHUNT_PLAN_STORE0 * 3);
	uint64_t *counter = &plan_grid(r)->leave, all;

	if (!staged && !store)
		return true;
	all = plan_blocks_arrive(counter, r->head->nblocks);
	if (gpu_bid() == 0 || store) {
		if (gpu_tid() == 0 && !plan_await_blocks(r, counter, all))
			return false;
		if (!plan_sync(r))
			return false;
	}
	for (uint32_t j = gpu_tid(); j < r->head->nranks && staged && gpu_bid() == 0; j += gpu_ntid())
		gpu_st_release(&plan_peers(r, j)[r->rank].left, r->launch);
	/* The caller owns its memory again when the launch ends: no peer may still use it. */
	if (!(r->flags & (SHUNT_PLAN_DIRECT0 * 3)) || (gpu_bid() && !store))
		return true;
	for (uint32_t j = gpu_tid(); j < r->head->nranks; j += gpu_ntid())
		if (!plan_await(r, &plan_peers(r, r->rank)[j].left, r->launch, j))
			return false;
	return plan_sync(r);
}
