/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Addresses of an operation's slices, and their distribution among the threads of a block: 16-byte pieces in turn, in
 * all operations, so that a thread may read what it wrote in an earlier operation. A thread has a few pieces under
 * way at a time, a batch.
 */
#include "kernels/plan/run.h"

/* The current window of the current loop, in units; length 0: no loop. */
struct loop_iter {
	uint64_t at, length;
};

GPU_FN char *plan_scratch_addr(const struct shunt_prog_addr &p, uint64_t half) { return p.at + (p.in_scratch & half); }

/* Address `units` behind the slice's start; packets: of the packets for that byte. */
GPU_FN char *plan_addr(const struct plan_run *r, const struct shunt_prog_addr &p, uint64_t units, bool packets)
{
	return plan_scratch_addr(p, r->half) + (units * r->unit << packets);
}

/*
 * The block's part of the operation's slices in this window. Returns its 16-byte pieces; *units_p: units between the
 * slices' starts and the part.
 */
GPU_FN uint64_t plan_block_share(
    const struct plan_run *r, const struct shunt_prog_op *op, const struct loop_iter &w, uint64_t *units_p)
{
	uint64_t units = op->size * r->chunk, first = 0;

	if (w.length && !(op->flags & SHUNT_PROG_WHOLE)) {
		first = w.at < units ? w.at : units;
		units = units - first < w.length ? units - first : w.length;
	}
	units = plan_split(op, units, &first);
	*units_p = first;
	return units * r->unit16;
}

/* The same for an operation that no window cuts. */
GPU_FN uint64_t plan_block_share_whole(const struct plan_run *r, const struct shunt_prog_op *op, uint64_t *units_p)
{
	struct loop_iter none = { 0, 0 };

	return plan_block_share(r, op, none, units_p);
}

#define PIECES 4u /* pieces that a thread has under way */

/*
 * Loops over the pieces of a batch that begins at piece `first`, for the statement that follows: k is a constant, i
 * is the piece.
 */
#define FOR_PIECES(k, i, first, n) \
	GPU_UNROLL for (uint32_t k = 0; k < PIECES; k++) \
		if (uint64_t i = (first) + (uint64_t)k * gpu_ntid(); i < (n))

/*
 * Clears an array before loads that not every thread does: in the interpreter's loop an array without a value keeps
 * that of the last operation, which takes registers.
 */
template <int P> GPU_FN void plan_clear(struct gpu_v16 v[P])
{
	GPU_UNROLL for (uint32_t k = 0; k < P; k++)
		v[k] = {};
}

GPU_FN void plan_load(const char *from, uint64_t first, uint64_t n, struct gpu_v16 v[PIECES])
{
	plan_clear<PIECES>(v);
	FOR_PIECES(k, i, first, n)
	v[k] = gpu_ld16_stream(from + i * 16);
}

GPU_FN void plan_store(char *to, uint64_t first, uint64_t n, const struct gpu_v16 v[PIECES])
{
	FOR_PIECES(k, i, first, n)
	gpu_st16_stream(to + i * 16, v[k]);
}
