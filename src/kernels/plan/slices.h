/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNELS_PLAN_SLICES_H
#define SHUNT_KERNELS_PLAN_SLICES_H
/*
 * Where the slices of an operation are, and how the threads of a block share them out: 16 bytes to a thread in turn, in
 * all operations, so that what a thread wrote in one it may read in the next. A thread has a few such pieces under way
 * at a time, a batch.
 */
#include "kernels/plan/run.h"

/* The window of the loop that we are in, in units; length 0: none. */
struct loop_iter {
	uint64_t at, length;
};

GPU_FN char *plan_scratch_addr(const struct shunt_prog_addr &p, uint64_t half) { return p.at + (p.in_scratch & half); }

/* Address of the byte that is `units` behind the slice's start; of packets, the packets' of that byte. */
GPU_FN char *plan_addr(const struct plan_run *r, const struct shunt_prog_addr &p, uint64_t units, bool packets)
{
	return plan_scratch_addr(p, r->half) + (units * r->unit << packets);
}

/*
 * What of the operation's slices is ours now: the 16-byte pieces, and how many units behind the slices' starts they
 * are.
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

/* The same of an operation that no window cuts. */
GPU_FN uint64_t plan_block_share_whole(const struct plan_run *r, const struct shunt_prog_op *op, uint64_t *units_p)
{
	struct loop_iter none = { 0, 0 };

	return plan_block_share(r, op, none, units_p);
}

#define PIECES 4u /* that a thread has under way */

/* Before a block, for the pieces of a batch that begins at piece `first`: k as a constant and i as the piece. */
#define FOR_PIECES(k, i, first, n) \
	GPU_UNROLL \
	for (uint32_t k = 0; k < PIECES; k++) \
		if (uint64_t i = (first) + (uint64_t)k * gpu_ntid(); i < (n))

/*
 * Before what not every thread loads: in the interpreter's loop an array without a value is what the last operation
 * left there, which takes registers.
 */
template <int P> GPU_FN void plan_clear(struct gpu_v16 v[P])
{
	GPU_UNROLL
	for (uint32_t k = 0; k < P; k++)
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
#endif
