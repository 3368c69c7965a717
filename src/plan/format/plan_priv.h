/* SPDX-License-Identifier: MIT */
#pragma once
/* Shared by the files of the loader and the checker. */
#include <errno.h>
#include <stdatomic.h>
#include "base/json.h"
#include "plan/format/plan.h"
#include "plan/format/arena.h"

/* Place of the loader or the checker in a plan, for error texts; NIL: not inside one. */
struct shunt_plan_location {
	uint32_t rank, block, op, inner;
	const char *code;  /* the operation's name, or NULL */
	const char *lines; /* the program's lines that made it, or NULL */
};

/* Error texts of a plan name that place: "source: rank 0, block 1, operation 2.3 (put): text". */
struct shunt_plan_log {
	struct shunt_json_log json; /* first */
	struct shunt_plan_location at;
};

/*
 * A plan with the memory that belongs to it. The loader and the checker still write to its arrays, in spite of const.
 */
struct shunt_plan_owned {
	struct shunt_plan plan; /* first */
	atomic_uint refcount;
	struct shunt_arena arena;
};

/* A log that writes the first error to reason, of at most `bytes`; NULL: nowhere. */
struct shunt_plan_log shunt_plan_log_init(const char *source, char *reason, size_t bytes);

/* The following return 0, or a negative errno with the text in the log. */

/*
 * Reads a plan's JSON, but not what follows from it. False: the text of the error is in the log. The plan's memory is
 * of its arena.
 */
bool shunt_plan_read(struct shunt_plan_log *log, const char *json, size_t bytes, struct shunt_plan_owned *owned);
/* Reads the blocks of one rank, whose tables have been read. */
int shunt_plan_load_blocks(struct shunt_plan_log *log, struct shunt_arena *arena, struct shunt_plan_gpu *gpu,
    uint32_t rank, const json_t *blocks);
/* Checks and derives all that plan.h calls checked or derived, but what needs a simulation. */
int shunt_plan_check(struct shunt_plan_log *log, struct shunt_plan *plan);
/* Fills in plan->ll128 and plan->dense. The plan has passed shunt_plan_check. */
int shunt_plan_check_ll128(struct shunt_plan_log *log, struct shunt_plan *plan);
/* Fills in plan->hash. */
void shunt_plan_finalize(struct shunt_plan *plan);

static inline bool shunt_plan_no_memory(struct shunt_plan_log *log, const void *p)
{
	if (!p)
		shunt_json_fail(&log->json, ENOMEM, "out of memory");
	return !p;
}

#define SHUNT_PLAN_MAX_CHUNKS ((uint64_t)1 << 40)
/* Most chunks that a pipeline runs over: times the largest chunk's units, they fit 64 bits. */
#define SHUNT_PLAN_MAX_WINDOWED ((uint64_t)1 << 16)
/*
 * Most blocks that share an operation; the kernel wants the highest bit of their numbers to be 0 (kernels/plan/args.h).
 */
#define SHUNT_PLAN_MAX_GROUP ((uint64_t)1 << 16)
