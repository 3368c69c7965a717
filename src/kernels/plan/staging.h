/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Copies between the caller's memory and the plan's: fills staging buffers and private copies before the plan's own
 * operations, and empties them afterwards.
 */
#include "kernels/elements.h"
#include "kernels/plan/slices.h"

/* Averages of signed integers use the unsigned type's function. */
template <typename T> struct average_as {
	typedef T type;
};
template <> struct average_as<i8> {
	typedef u8 type;
};
template <> struct average_as<i32> {
	typedef u32 type;
};
template <> struct average_as<i64> {
	typedef u64 type;
};

/*
 * Chunks of the caller's memory have no gaps between parts, and the last chunks of a part may be short. Chunks of the
 * plan's memory are all of one size. Blocks share each chunk. Where no chunk is short, all chunks are copied as one.
 */
template <typename T>
GPU_NOINLINE void plan_stage(const struct plan_run *r, const struct shunt_kargs_plan &a, const struct shunt_prog_op *op)
{
	const struct shunt_prog_operand user = *(const struct shunt_prog_operand *)(op + 1);
	const struct shunt_prog_addr ours = ((const struct shunt_prog_addr *)(op + 1))[1];
	bool load = op->code == SHUNT_PROG_LOAD;
	uint64_t chunk = r->chunk * r->unit, part = a.part_bytes[user.buffer], per_part = r->head->chunks[user.buffer];
	bool whole = part == per_part * chunk;
	uint64_t count = whole ? 1 : op->size, piece = whole ? op->size * chunk : chunk;
	bool scaled = load && (a.k.flags & SHUNT_K_PREMUL), divided = !load && (a.k.flags & SHUNT_K_DIVIDE);
	char *const theirs = user.buffer ? (char *)a.k.recv : (char *)(uintptr_t)a.k.send;
	uint32_t threads = gpu_ntid() * r->head->nblocks;

	for (uint64_t j = 0; j < count; j++) {
		uint64_t k = user.index + j, at = whole ? k * chunk : k % per_part * chunk, bytes = piece;
		char *theirs_at = theirs + (whole ? at : k / per_part * part + at);
		char *ours_at = plan_addr(r, ours, j * r->chunk, false);
		bool aligned = !((uintptr_t)theirs_at & 15);

		if (!whole)
			bytes = at >= part ? 0 : part - at < chunk ? part - at : chunk;
		GPU_ROLL for (uint64_t i = (uint64_t)gpu_bid() * gpu_ntid() + gpu_tid(); i * 16 < bytes; i += threads) {
			if (load) {
				struct gpu_v16 v = load_user<T>(theirs_at, i * 16, 16, bytes, aligned);

				if (scaled)
					v = scale_cold<T>(v, load_scalar<T>(a.k));
				gpu_st16(ours_at + i * 16, v);
			} else {
				struct gpu_v16 v = gpu_ld16(ours_at + i * 16);

				if (divided)
					v = divide<typename average_as<T>::type>(
					    v, r->head->nranks, a.k.flags & SHUNT_K_SIGNED);
				store_user<T>(theirs_at, i * 16, 16, bytes, aligned, v);
			}
		}
	}
}
