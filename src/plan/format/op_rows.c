/* SPDX-License-Identifier: MIT */
#include "plan/format/op_rows.h"

const struct shunt_plan_op_row shunt_plan_op_rows[SHUNT_PLAN_NOPCODES] = {
#define PLAN_OP(code, name, types, src, dst, port_src, ids, effects, prog, port_prog, words) \
	[SHUNT_PLAN_##code] = { name, types, ids, effects, src, dst, port_src, words },
#include "plan/format/op_rows.def"
};
/* An operation waits for events of one kind at most, so a simulation can say what for. */
#define EVENTS(effects) ((effects) & (SHUNT_PLAN_SYNCS_BLOCKS | SHUNT_PLAN_WAITS | SHUNT_PLAN_ACQUIRES))
#define PLAN_OP(code, name, types, src, dst, port_src, ids, effects, prog, port_prog, words) \
	_Static_assert(!(EVENTS(effects) & (EVENTS(effects) - 1)) && !(EVENTS(effects) && (src)), \
	    name ": waits for events of several kinds");
#include "plan/format/op_rows.def"
const char *const shunt_plan_op_names[] = {
#define PLAN_OP(code, name, ...) [SHUNT_PLAN_##code] = name,
#include "plan/format/op_rows.def"
	[SHUNT_PLAN_NOPCODES] = NULL,
};

#define ROW_UNPLANNED(name)
#define ROW_PLANNED(name) name,
#define ROW(id, name, long_name, function, ranks, send, recv, op, place, nccl, plans) ROW_##plans(name)
const char *const shunt_plan_collective_names[] = { SHUNT_COLLECTIVE_LIST(ROW) "sendrecv", "test", "custom", NULL };
#undef ROW
#define ROW(id, number, name, nccl, kernel, plans) ROW_##plans(name)
const char *const shunt_plan_redop_names[] = { SHUNT_REDOP_LIST(ROW) NULL };
#undef ROW
/* In the order of the enums. */
const char *const shunt_plan_buffer_letters[] = { "i", "o", "s", NULL };
const char *const shunt_plan_type_names[] = { "memory", "port", "switch", "none", NULL };

const char *shunt_plan_collective_name(enum shunt_plan_collective collective)
{
	return (unsigned)collective < SHUNT_PLAN_NCOLLECTIVES ? shunt_plan_collective_names[collective] : "unknown";
}

const char *shunt_plan_op_name(enum shunt_plan_opcode code)
{
	return (unsigned)code < SHUNT_PLAN_NOPCODES ? shunt_plan_op_names[code] : "unknown";
}

const char *shunt_plan_buffer_name(enum shunt_plan_buffer buffer)
{
	static const char *const names[] = { "input", "output", "scratch" };

	return (unsigned)buffer < SHUNT_PLAN_NBUFFERS ? names[buffer] : "unknown";
}

const char *shunt_plan_channel_type_name(enum shunt_plan_channel_type type)
{
	return (unsigned)type <= SHUNT_PLAN_NONE ? shunt_plan_type_names[type] : "unknown";
}

uint32_t shunt_plan_slice_ranks(
    const struct shunt_plan_gpu *gpu, const struct shunt_plan_slice *slice, const uint32_t **ranks_p)
{
	if (slice->place != SHUNT_PLAN_MULTICAST) {
		*ranks_p = &slice->target;
		return 1;
	}
	*ranks_p = gpu->switches[slice->target].ranks;
	return gpu->switches[slice->target].nranks;
}
