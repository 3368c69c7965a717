/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * One rank's part of a plan, compiled for the plan kernels (kernels/plan/args.h). Pure: the same plan and rank give the
 * same program, and all ranks have the same layout of resources.
 *
 *   format                          program
 *   30 operations and pipelines     14 operations and loops
 *   list of pairs                   an operation for each pair, or for several if their order does not matter
 *   switch channel                  the memory of each member
 *   port channel                    stores to the peer; triggers if the peer is on another host
 *
 * An operation on a port channel is done by all threads of the block, and complete when it returns; the format lets one
 * thread post it. Syncs of the block keep the order that the format ensures by that thread: before data that follows a
 * wait, and between data and a signal.
 *
 * Plans made for calls in place use input and output as one memory. They have one *merged* buffer, the larger of the
 * two, which contains the other. Other plans have two buffers. Either way the kernel sees `extent` chunks of one size
 * without gaps: the caller's own memory, private memory, or the staging buffers in the plan's resources, which peers
 * reach.
 */
#include <stdbool.h>
#include <stdint.h>
#include "kernels/plan/args.h"
#include "plan/format/plan.h"

struct shunt_program {
	uint32_t nblocks; /* at least 1 */
	uint32_t bytecode_bytes;
	/*
	 * Heads lack the fields that depend on the resources: staging_at, scratch_at, half, packets_at and the table
	 * behind the head
	 */
	char *bytecodes;
	uint32_t flags; /* SHUNT_PROG_* */
	bool merged;
	uint8_t merged_into;  /* merged: the buffer that holds both, 0 input or 1 output */
	bool used[2];         /* this rank has input, output */
	uint64_t extent[2];   /* chunks of input, output */
	bool preserves_input; /* not merged: input is not written; merged: no reduce-scatter, or only our part is
	                         written */
	bool loads_output;    /* output is read before it may have been written: load it from the caller's memory */
	/* The same on all ranks, except for semaphores. */
	bool staging[2]; /* peers use the buffer */
	/* Over hosts. A buffer is ported if a port between hosts reads or writes it, on whichever rank. */
	bool over_hosts;
	bool ported[3];                     /* it lies in the region; index as in struct shunt_prog_operand */
	uint32_t slots;                     /* most channels of a rank */
	uint32_t table;                     /* addresses behind each head */
	uint8_t reach[SHUNT_NET_MAX_RANKS]; /* of this rank's: struct shunt_plan_ports */
	uint64_t scratch;                   /* chunks of one half of scratch, packets counted twice */
	bool plain,
	    packets; /* scratch has plain slices, packet slices; with both, packets lie behind all plain chunks */
	uint64_t
	    sparse; /* LL128: units of the largest chunk whose LL128 ranges lie apart (kernels/plan/args.h); else 0 */
	uint32_t counters_bytes; /* of the resources, at their start */
	uint32_t nsemaphores;
	const uint32_t *semaphores; /* initial values; the plan owns them */
	uint32_t semaphores_at;
};

/*
 * host_of: by rank, a placement that the plan fits (plan/format/hosts.h); NULL: all ranks are on one host. ll128:
 * packets travel as LL128 if the plan allows it, and all ranks are on one host. 0; -ENOMEM; -E2BIG: too large for any
 * device (4 GiB of operations or counters).
 */
int shunt_program_create(
    const struct shunt_plan *plan, uint32_t rank, const uint8_t *host_of, bool ll128, struct shunt_program **program_p);
void shunt_program_destroy(struct shunt_program *program); /* NULL allowed */

/* Bytes for chunks of up to `units` units. region: 0 on one host. */
struct shunt_program_bytes {
	uint64_t resources, region;
};
/* False: more than 2^56. */
bool shunt_program_resources_bytes(const struct shunt_program *program, const struct shunt_plan *plan, uint64_t units,
    struct shunt_program_bytes *bytes_p);
/*
 * Completes the bytecode for resources of that size. table: program->table addresses on this rank, the first nranks of
 * them each rank's resources; the others as kernels/plan/args.h says.
 */
void shunt_program_bind(
    struct shunt_program *program, const struct shunt_plan *plan, uint64_t units, char *const *table);
