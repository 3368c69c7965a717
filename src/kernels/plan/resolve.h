/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Addresses of a launch's slices. They follow from the size of chunks, which comes with the launch. All threads
 * resolve them once, before the first operation: if each operation did so, that would be half of the interpreter's
 * instructions.
 */
#include "device/gpu.h"
#include "kernels/kargs.h"
#include "kernels/plan/args.h"

/*
 * Number of `units` that are this operation's part, if several blocks share the slices; *first grows by the units
 * before them.
 */
GPU_FN uint64_t plan_split(const struct shunt_prog_op *op, uint64_t units, uint64_t *first)
{
	uint64_t each, more;

	if (op->parts == 1)
		return units;
	each = units >> 32 ? units / op->parts : (uint32_t)units / op->parts;
	more = units - each * op->parts;
	*first += op->part * each + (op->part < more ? op->part : more);
	return each + (op->part < more);
}

/* Address `bytes` behind the start of the operand's buffer on its rank. */
GPU_FN struct shunt_prog_addr plan_resolve_operand(
    const struct shunt_kargs_plan &a, const struct shunt_prog_head *head, struct shunt_prog_operand o, uint64_t bytes)
{
	char *const *resources = (char *const *)(head + 1);
	struct shunt_prog_addr p = { resources[o.rank] + head->scratch_at + bytes, ~(uint64_t)0 };

	if (o.buffer == 2)
		return p;
	p.in_scratch = 0;
	if (o.rank == a.k.rank)
		p.at = a.buffer[o.buffer] + bytes;
	else if (a.k.flags & SHUNT_PLAN_DIRECT0 << o.buffer)
		p.at = a.remote[o.buffer][o.rank] + bytes;
	else
		p.at = resources[o.rank] + head->staging_at[o.buffer] + bytes;
	return p;
}

/* Replaces an operand as its `as` says, for this launch. */
GPU_FN void plan_resolve(const struct shunt_kargs_plan &a, const struct shunt_prog_head *head, struct gpu_v16 *piece)
{
	struct shunt_prog_operand o = *(const struct shunt_prog_operand *)piece;
	const struct shunt_prog_op *op = (const struct shunt_prog_op *)(piece - o.back);
	uint64_t units = o.index * a.chunk, share = 0, bytes, lines;

	if (o.as < SHUNT_PROG_AS_SLICE)
		return;
	if (o.as >= SHUNT_PROG_AS_PART)
		share = plan_split(op, op->size * a.chunk, &units);
	if (o.as == SHUNT_PROG_AS_SHARE) {
		bytes = share * head->unit;
		lines = (bytes + SHUNT_LL128_SLOT_DATA - 1) / SHUNT_LL128_SLOT_DATA;
		piece->lo = lines | (lines ? (bytes - (lines - 1) * SHUNT_LL128_SLOT_DATA) / 16 << 32 : 0);
		return;
	}
	bytes = units * head->unit;
	if (o.as == SHUNT_PROG_AS_LL)
		bytes = bytes * 2 + head->packets_at;
	else if (o.as == SHUNT_PROG_AS_LL128)
		bytes = bytes / 16 / (a.chunk >= head->dense ? 4 : 1) * 128;
	*(struct shunt_prog_addr *)piece = plan_resolve_operand(a, head, o, bytes);
}

GPU_NOINLINE void plan_resolve_all(const struct shunt_kargs_plan &a, const char *bytecode, struct gpu_v16 *to)
{
	uint32_t first = SHUNT_PROG_OPS_AT(a.k.nranks) / 16, n = a.bytecode_bytes / 16;

	for (uint32_t i = gpu_tid(); i < n; i += gpu_ntid())
		to[i] = gpu_ld16(bytecode + i * 16);
	gpu_sync();
	for (uint32_t i = first + gpu_tid(); i < n; i += gpu_ntid())
		plan_resolve(a, (const struct shunt_prog_head *)to, &to[i]);
}
