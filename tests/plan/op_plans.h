/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Plans of two ranks for one operation of the table (plan/format/op_rows.def) each, made from its row: rank 0's block 0
 * runs it. Other operations only do what it needs: packets for it to read, and the other side of signals, semaphores
 * and barriers.
 */
#include <jansson.h>
#include "plan/format/op_rows.h"

/* An operation on channels of a type; SHUNT_PLAN_NONE: it has none. */
struct op_case {
	enum shunt_plan_opcode code;
	enum shunt_plan_channel_type type;
};
/* All cases, in order; false: no more. Begin with { 0, SHUNT_PLAN_NONE + 1 }. */
bool op_case_next(struct op_case *c);

/*
 * Slice i of src is input chunk i, of dst output chunk i; packets are scratch chunks i and OP_PLAN_DST + i. Packets to
 * be read are packed from input chunk OP_PLAN_PACKED + i. Lists that may be longer have one slice more than they need.
 */
enum {
	OP_PLAN_INPUTS = 8,
	OP_PLAN_OUTPUTS = 5,
	OP_PLAN_SCRATCH = 10,
	OP_PLAN_PACKED = 4,
	OP_PLAN_DST = 5,
	OP_PLAN_IDS = 2, /* signals, semaphores: the same one twice */
	OP_PLAN_SEMAPHORE = 3
};
unsigned op_case_nslices(uint16_t list);
json_t *op_case_plan(const struct op_case *c);
/* Path of the operation in that plan. */
const char *op_case_path(const struct op_case *c);
