/* SPDX-License-Identifier: MIT */
#pragma once
/* A program under construction: shared by the files of the compiler. */
#include "plan/compile/bytecode.h"
#include "plan/compile/program.h"
#include "plan/compile/ranges.h"

struct program_builder {
	const struct shunt_plan *plan;
	const struct shunt_plan_gpu *gpu;
	struct shunt_program *program;
	const struct shunt_plan_block *block; /* the current one */
	uint32_t rank;
	const uint8_t *host_of; /* NULL: one host */
	struct shunt_ranges read[2],
	    written[3];           /* chunks of this rank's buffers that any rank reads, writes; no packets */
	struct shunt_bytecode bc; /* of the current block */
};

/* ---- buffers (program_buffers.c) */

/* Fills in the program's fields on buffers, b->read and b->written. 0 or -ENOMEM. */
int shunt_program_buffers(struct program_builder *b);
/* A slice as an operand on one of its ranks. With merged buffers it may lie in the other buffer, at another index. */
struct shunt_prog_operand shunt_program_operand(
    const struct program_builder *b, const struct shunt_plan_slice *s, uint32_t rank);

/* True: channel `id` of `gpu`, which is rank r, is a port to another host. */
static inline bool shunt_program_leaves(
    const struct program_builder *b, uint32_t r, const struct shunt_plan_op *op, uint32_t id)
{
	return b->host_of && op->type == SHUNT_PLAN_PORT &&
	    b->host_of[r] != b->host_of[b->plan->gpus[r].channels[SHUNT_PLAN_PORT][id].peer];
}

/* ---- operations (program_ops.c) */

/* Translates the operation ops[0], or a pipeline with its body. Returns the number of operations translated. */
uint32_t shunt_program_translate(struct program_builder *b, const struct shunt_plan_op *ops);

/* ---- resources (program_resources.c) */

/*
 * Lays out the counters: their offsets in the head's fields, their size and the slots in the program's. The same on all
 * ranks. 0 or -E2BIG.
 */
int shunt_program_layout_counters(
    const struct shunt_plan *plan, struct shunt_prog_head *h, struct shunt_program *program);
