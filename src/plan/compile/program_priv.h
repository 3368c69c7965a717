/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_COMPILE_PROGRAM_PRIV_H
#define SHUNT_PLAN_COMPILE_PROGRAM_PRIV_H
/* A program while it is made: what the files of the compiler share. */
#include "plan/compile/bytecode.h"
#include "plan/compile/program.h"
#include "plan/compile/ranges.h"

struct program_builder {
	const struct shunt_plan *plan;
	const struct shunt_plan_gpu *gpu;
	struct shunt_program *program;
	uint32_t rank;
	struct shunt_nvtx_enabled read[2], written[2]; /* chunks of this rank's buffers that anyone reads and writes */
	struct shunt_bytecode bc;                      /* of the block that is being made */
};

static inline bool program_gathers(const struct shunt_plan *plan)
{
	return plan->collective == SHUNT_PLAN_ALLGATHER;
}

static inline bool program_scatters(const struct shunt_plan *plan)
{
	return plan->collective == SHUNT_PLAN_REDUCESCATTER;
}

/* Not a collective with a meaning of its own: what it does to which buffer is all that is known. */
static inline bool program_is_custom(const struct shunt_plan *plan)
{
	return plan->collective == SHUNT_PLAN_TEST || plan->collective == SHUNT_PLAN_CUSTOM;
}

/* ---- buffers (program_buffers.c) */

/* What the program says of buffers, and b->read and b->written. 0 or -ENOMEM. */
int shunt_program_buffers(struct program_builder *b);
/* A slice as an operand on one of its ranks: with merged buffers it may be in the other one, at another place. */
struct shunt_prog_operand shunt_program_operand(
    const struct program_builder *b, const struct shunt_plan_slice *s, uint32_t rank);

/* ---- operations (program_ops.c) */

/*
 * A block's operations from ops[0] on that belong together: one, or a pipeline with its body. Returns how many those
 * are.
 */
uint32_t shunt_program_translate(struct program_builder *b, const struct shunt_plan_op *ops);

/* ---- resources (program_resources.c) */

/* Where counters are, in the head's fields, and how many bytes that is. Alike on all ranks. 0 or -E2BIG. */
int shunt_program_layout_counters(const struct shunt_plan *plan, struct shunt_prog_head *h, uint32_t *bytes_p);
#endif
