/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A block's run of a plan. Shared memory holds what all threads look up: the bytecode, if it fits, and values that
 * follow from the bytecode and the launch. A thread that gives up marks the block as dead and returns. The others
 * stop at the next barrier of the block, or when they see the abort word.
 */
#include "kernels/plan/resolve.h"
#include "kernels/spin.h"

struct plan_run {
	const char *bytecode;
	const struct shunt_prog_head *head;
	char *const *resources; /* of each rank */
	struct shunt_ctrl *ctrl;
	uint64_t launch;
	uint64_t place;      /* of all ranks' buffers; 0: staging buffers are used */
	uint64_t chunk;      /* units */
	uint64_t half;       /* bytes to add to scratch addresses in this launch */
	uint64_t other_half; /* the same in every other launch */
	uint32_t flag;
	uint32_t flags;   /* of the launch */
	uint32_t program; /* the head's flags; its first and body follow */
	uint32_t first, body;
	uint32_t unit, unit16; /* bytes; 16-byte pieces */
	uint32_t rank;
	bool resized;
	uint32_t dead;
};

/*
 * The values that each thread computes about the launch. Operations on LL128 need no others, so they wait for no other
 * thread.
 */
struct plan_now {
	uint64_t launch;
	uint64_t half; /* bytes to add to scratch addresses in this launch */
};

struct plan_shared {
	struct plan_run run;
	struct gpu_v16 bytecode[SHUNT_PLAN_SHARED_BYTECODE / 16];
};

/* Prepares what does not depend on earlier launches. Ends with a barrier of the block. */
GPU_FN struct plan_run *plan_prepare(const struct shunt_kargs_plan &a)
{
	GPU_SHARED(struct plan_shared, shared, 1);
	const char *bytecode = a.bytecodes + (uint64_t)gpu_bid() * a.bytecode_bytes;
	struct plan_run *r = &shared->run;

	if (a.bytecode_bytes <= SHUNT_PLAN_SHARED_BYTECODE)
		plan_resolve_all(a, bytecode, shared->bytecode);
	if (gpu_tid() == gpu_ntid() - 1) { /* the first warps resolve operands */
		const struct shunt_prog_head *head =
		    (const struct shunt_prog_head *)(a.bytecode_bytes <= SHUNT_PLAN_SHARED_BYTECODE ?
		            (const char *)shared->bytecode :
		            bytecode);

		r->bytecode = (const char *)head +
		    (a.bytecode_bytes <= SHUNT_PLAN_SHARED_BYTECODE ? 0 : (uint64_t)head->nblocks * a.bytecode_bytes);
		r->head = (const struct shunt_prog_head *)r->bytecode;
		r->resources = (char *const *)(r->head + 1);
		r->chunk = a.chunk;
		r->place = a.place;
		r->ctrl = a.ctrl;
		r->other_half = head->flags & SHUNT_PROG_DOUBLE_SCRATCH ? head->half : 0;
		r->flags = a.k.flags;
		r->program = head->flags;
		r->first = head->first;
		r->body = head->body;
		r->unit = head->unit;
		r->unit16 = head->unit / 16;
		r->rank = head->rank;
		r->dead = 0;
	}
	gpu_sync();
	return r;
}

/* Must ranks synchronize before they use chunks of this size? */
GPU_FN bool plan_resized(const struct plan_run *r, const struct shunt_kargs_plan &a)
{
	const struct shunt_plan_state *state = (const struct shunt_plan_state *)a.resources + gpu_bid();

	return (r->program & SHUNT_PROG_RESYNC) && state->chunk && state->chunk != a.chunk;
}

/* Prepares the rest. Its part in shared memory is visible after the next barrier of the block. */
GPU_FN struct plan_now plan_start(struct plan_run *r, const struct shunt_kargs_plan &a)
{
	const struct shunt_plan_state *state = (const struct shunt_plan_state *)a.resources + gpu_bid();
	struct plan_now now;

	if (a.bytecode_bytes > SHUNT_PLAN_SHARED_BYTECODE) {
		plan_resolve_all(
		    a, a.bytecodes + (uint64_t)gpu_bid() * a.bytecode_bytes, (struct gpu_v16 *)(uintptr_t)r->bytecode);
		gpu_sync();
	}
	now.launch = state->launches + 1;
	now.half = now.launch & 1 ? 0 : r->other_half;
	if (gpu_tid() == 0) {
		r->launch = now.launch;
		r->flag = SHUNT_PLAN_FLAG(now.launch);
		r->half = now.half;
		r->resized = plan_resized(r, a);
	}
	return now;
}

/* By all threads, after the last operation: the next launch counts on from here. */
GPU_FN void plan_finish(const struct plan_run *r, const struct shunt_kargs_plan &a)
{
	if (gpu_tid() == 0) {
		struct shunt_plan_state *state = (struct shunt_plan_state *)a.resources + gpu_bid();

		state->launches = r->launch;
		state->chunk = a.chunk;
	}
}

GPU_NOINLINE void plan_give_up(struct plan_run *r, uint32_t reason, uint32_t peer, uint64_t expected, uint64_t seen)
{
	spin_report(r->ctrl, reason, r->rank, peer, gpu_bid(), expected, seen);
	gpu_test_and_set32(&r->dead);
}

/* Barrier of the block; false: a thread has given up. */
GPU_FN bool plan_sync(struct plan_run *r)
{
	gpu_sync();
	return !gpu_ld_block32(&r->dead);
}
