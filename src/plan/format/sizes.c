/* SPDX-License-Identifier: MIT */
/* Sizes that follow from a call. */
#include "plan/format/op_rows.h"

#define ROW(id, name, long_name, function, ranks, send, recv, op, place, nccl, plans) ROW_##plans(id)
#define ROW_UNPLANNED(id)
#define ROW_PLANNED(id) [SHUNT_PLAN_##id] = SHUNT_##id,
/* The kinds of the first collectives. */
static const enum shunt_kind kinds[] = { SHUNT_COLLECTIVE_LIST(ROW) };
#undef ROW
#undef ROW_UNPLANNED
#undef ROW_PLANNED

uint64_t shunt_plan_parts(enum shunt_plan_collective collective, enum shunt_side side, int nranks)
{
	return collective < sizeof(kinds) / sizeof(kinds[0]) ? shunt_kind_parts(kinds[collective], side, nranks) : 1;
}

bool shunt_plan_gathers(enum shunt_plan_collective collective)
{
	return shunt_plan_parts(collective, SHUNT_SIDE_RECV, 2) > shunt_plan_parts(collective, SHUNT_SIDE_SEND, 2);
}

bool shunt_plan_scatters(enum shunt_plan_collective collective)
{
	return shunt_plan_parts(collective, SHUNT_SIDE_SEND, 2) > shunt_plan_parts(collective, SHUNT_SIDE_RECV, 2);
}

/* Number of parts of a message: of the larger side. */
static uint64_t message_parts(enum shunt_plan_collective collective, int nranks)
{
	uint64_t send = shunt_plan_parts(collective, SHUNT_SIDE_SEND, nranks),
	         recv = shunt_plan_parts(collective, SHUNT_SIDE_RECV, nranks);

	return send > recv ? send : recv;
}

uint64_t shunt_plan_chunk_units(const struct shunt_plan *plan, uint64_t message_bytes)
{
	uint64_t parts = message_parts(plan->collective, (int)plan->nranks), part, units;

	if (!plan->part_chunks)
		return 0;
	/* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a side of every collective has a part */
	part = message_bytes / parts + (message_bytes % parts != 0);
	units = part / plan->alignment + (part % plan->alignment != 0);
	return units / plan->part_chunks + (units % plan->part_chunks != 0);
}

void shunt_plan_group_part(uint64_t units, uint32_t part, uint32_t parts, uint64_t *first_p, uint64_t *count_p)
{
	uint64_t each = units / parts, more = units % parts;

	*first_p = part * each + (part < more ? part : more);
	*count_p = each + (part < more);
}

struct shunt_plan_units shunt_plan_slice_units(
    const struct shunt_plan_op *op, const struct shunt_plan_slice *slice, const struct shunt_plan_window *window)
{
	uint64_t units = slice->size * window->chunk_units, first = 0, low, n;

	if (window->units && !shunt_plan_op_has_packets(op)) {
		first = window->units * window->number < units ? window->units * window->number : units;
		units = units - first < window->units ? units - first : window->units;
	}
	shunt_plan_group_part(units, op->part, op->parts, &low, &n);
	low += first + slice->index * window->chunk_units;
	return (struct shunt_plan_units){ low, low + n };
}

uint64_t shunt_plan_windows(const struct shunt_plan *plan, const struct shunt_plan_op *pipeline, uint64_t chunk_units)
{
	uint64_t bytes;

	if (__builtin_mul_overflow(pipeline->num_chunks, chunk_units, &bytes) ||
	    __builtin_mul_overflow(bytes, plan->alignment, &bytes))
		return UINT64_MAX;
	return bytes / pipeline->unit_size + (bytes % pipeline->unit_size != 0);
}

bool shunt_plan_message_bytes(
    enum shunt_plan_collective collective, int nranks, uint64_t count, enum shunt_dtype dtype, uint64_t *bytes_p)
{
	uint64_t bytes;

	if (nranks < 1 || (unsigned)dtype >= SHUNT_NFORMATS ||
	    __builtin_mul_overflow(count, shunt_dtype_bytes[dtype], &bytes) ||
	    __builtin_mul_overflow(bytes, message_parts(collective, nranks), &bytes))
		return false;
	*bytes_p = bytes;
	return true;
}
