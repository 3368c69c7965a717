/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_COMPILE_PROGRAM_H
#define SHUNT_PLAN_COMPILE_PROGRAM_H
/*
 * One rank's part of a plan as the plan kernels run it (kernels/plan/args.h): the 30 operations become 14, lists become
 * single operations where their order says nothing else, switch channels the memory of each member, and port channels
 * stores to the peer. Pure: the same plan and rank give the same program, and the same layout of resources on all
 * ranks.
 *
 * An operation on a port channel is done when it returns, by all threads of the block, while the format lets one thread
 * post it. What the format orders through that thread is kept by syncs of the block: before data that follows a wait,
 * between data and a signal.
 *
 * Plans made for calls in place use input and output as one memory. Then there is one *merged* buffer, the larger of
 * the two, and the other one is a part of it. In other plans they are two. Either way the kernel sees `extent` chunks
 * of one size without gaps, which may be the caller's own memory, private memory, or the staging buffers in the plan's
 * resources, which peers reach.
 */
#include <stdbool.h>
#include <stdint.h>
#include "kernels/plan/args.h"
#include "plan/format/plan.h"

struct shunt_program {
	uint32_t nblocks; /* at least 1 */
	uint32_t bytecode_bytes;
	char *bytecodes; /* heads are complete but for what depends on the resources: staging_at, scratch_at, half,
	                    packets_at and the table behind it */
	uint32_t flags;  /* SHUNT_PROG_* */
	bool merged;
	uint8_t merged_into;  /* merged: which of the two the one buffer is, 0 input or 1 output */
	bool used[2];         /* is there such a buffer, on this rank */
	uint64_t extent[2];   /* chunks of it */
	bool preserves_input; /* not merged: nothing is written to input; merged, reduce-scatter: only our part is */
	bool loads_output;    /* output is read before it may have been written: load it from the caller's */
	/* Of all ranks. */
	bool staging[2];     /* peers use the buffer */
	uint64_t scratch;    /* chunks of one half of scratch, packets counted twice */
	bool plain, packets; /* some slices of scratch are plain, some are packets; if both, packets lie apart, behind
	                        all plain chunks */
	uint64_t sparse;     /* LL128: units of the largest chunk whose LL128 ranges lie apart (plan_args.h); else 0 */
	uint32_t counters_bytes; /* of the resources, at their start */
	uint32_t nsemaphores;
	const uint32_t *semaphores; /* initial values, the plan's */
	uint32_t semaphores_at;
};

/*
 * ll128: packets travel as LL128 if the plan allows it. -ENOMEM; -E2BIG: a program that no device holds (4 GiB of
 * operations or counters).
 */
int shunt_program_create(const struct shunt_plan *plan, uint32_t rank, bool ll128, struct shunt_program **program_p);
void shunt_program_destroy(struct shunt_program *program); /* NULL allowed */

/* Bytes of the resources for chunks of up to `units` units; false: more than 2^56. */
bool shunt_program_resources_bytes(
    const struct shunt_program *program, const struct shunt_plan *plan, uint64_t units, uint64_t *bytes_p);
/* Completes the bytecode for resources of that size. rank_resources[r]: where this rank sees rank r's. */
void shunt_program_bind(
    struct shunt_program *program, const struct shunt_plan *plan, uint64_t units, char *const *rank_resources);
#endif
