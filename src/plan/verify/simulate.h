/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Simulation of a launch: every block of every rank goes through its operations as far as signals, semaphores, barriers
 * and packets let it. No data is moved, so a launch takes microseconds. If some blocks cannot go on, no order of events
 * lets all of them: the resources that blocks wait for only grow. Semaphores that several blocks take are the
 * exception: one order is simulated for all.
 */
#include "plan/format/plan_priv.h"

/* State of one block. */
struct block_state {
	const struct shunt_plan_block *block;
	uint32_t rank, number;
	uint32_t pc, pipeline; /* next operation; the pipeline around it, or SHUNT_PLAN_NIL */
	uint64_t windows;      /* windows of the pipeline that are left, this one included */
	uint32_t
	    nserved; /* of the next operation: number of its ids that are served; of a barrier: 1 arrived, 2 released */
	uint32_t next;   /* next block that waits for the same resource, or SHUNT_PLAN_NIL */
	size_t resource; /* resource that the block waits for */
};

/*
 * Kinds of resources that a block can wait for. All resources are numbered, kind by kind. The ends of all packet slices
 * divide each rank's scratch into segments.
 */
enum resource_kind {
	RESOURCE_MEMORY_CHANNELS,
	RESOURCE_PORT_CHANNELS,
	RESOURCE_SEMAPHORES,
	RESOURCE_BARRIERS,
	RESOURCE_SEGMENTS,
	RESOURCE_NKINDS
};

struct simulation;

/* The calls to a follower of a launch; each function gets simulation->follower. All but `failed` may be NULL. */
struct simulation_watch {
	/* Block `a` has advanced a counter, has taken from a counter that began with `initial`, by operand number
	 * `operand`. */
	void (*release)(void *follower, const struct block_state *a, uint32_t operand, size_t resource);
	void (*acquire)(
	    void *follower, const struct block_state *a, uint32_t operand, size_t resource, uint64_t initial);
	void (*arrive)(void *follower, const struct block_state *a, size_t resource);
	/*
	 * The last block has arrived at the barrier: this block goes on, and so do all blocks that wait for the
	 * resource.
	 */
	void (*synchronize)(void *follower, const struct block_state *a, size_t resource);
	/* The operation moves its data. */
	void (*data)(void *follower, const struct block_state *a, const struct shunt_plan_op *op);
	/* The threads of the block synchronize. */
	void (*sync)(void *follower, const struct block_state *a);
	/* True: the simulation is to stop. */
	bool (*failed)(const void *follower);
};

struct simulation {
	struct shunt_plan_log *log;
	const struct shunt_plan *plan;
	uint64_t chunk_units;
	uint64_t steps; /* steps that are left */
	bool overrun;
	struct block_state *states;
	uint32_t nstates, *ready, nready; /* ready: a stack */
	size_t *base[RESOURCE_NKINDS];    /* first resource of each rank */
	size_t nresources;                /* resources without segments */
	/*
	 * Of each resource. count: signals that came, a semaphore's value, blocks at a barrier; taken: waits that were
	 * served.
	 */
	uint64_t *count, *taken;
	uint32_t *waiters; /* of each resource, segments included: the first block that waits, or SHUNT_PLAN_NIL */
	/*
	 * Sorted ends of segments. Those of a rank begin at base[RESOURCE_SEGMENTS][rank] - nresources; segment i is
	 * between ends i and i + 1.
	 */
	uint64_t *ends;
	size_t nends, *nends_of;
	size_t *valid;    /* for each end: itself, or a later end up to which all segments are valid */
	uint32_t *writer; /* of each segment: the rank that made it valid */
	const struct simulation_watch *watch; /* NULL: nobody follows the launch */
	void *follower;
	uint8_t *ordering; /* with two halves of scratch: flags ORDERING_* of each pair of ranks; else NULL */
};

/* Flags at ordering[a * nranks + b]: rank a has observed signals or packets of rank b; a writes packets to b. */
enum { ORDERING_OBSERVES = 1, ORDERING_WRITES = 2 };

/* 0 or -ENOMEM. To be finished in any case. */
int shunt_simulation_init(struct simulation *p, struct shunt_plan_log *log, const struct shunt_plan *plan);
void shunt_simulation_finish(struct simulation *p);
/*
 * Simulates one launch with chunks of this size: 0, or the log's error. p->overrun: p->steps are too few, and the
 * result is unknown.
 */
int shunt_simulation_launch(struct simulation *p, uint64_t chunk_units);

/* ---- state (simulate_state.c) */

static inline size_t resource_index(const struct simulation *p, enum resource_kind kind, uint32_t rank, size_t i)
{
	return p->base[kind][rank] + i;
}

static inline enum resource_kind channel_resource_kind(uint32_t type)
{
	return type == SHUNT_PLAN_MEMORY ? RESOURCE_MEMORY_CHANNELS : RESOURCE_PORT_CHANNELS;
}

static inline bool block_done(const struct block_state *a)
{
	return a->pc >= a->block->nops;
}

/* Takes steps off p->steps. False: too few are left, and overrun is set. */
bool shunt_simulation_spend(struct simulation *p, uint64_t steps);
void shunt_simulation_block(struct simulation *p, struct block_state *a, size_t resource);
/* Makes all blocks that wait for the resource ready. nserved: their new nserved; 0: as before. */
void shunt_simulation_wake(struct simulation *p, size_t resource, uint32_t nserved);

static inline void ordering_note(struct simulation *p, uint32_t a, uint32_t b, uint8_t what)
{
	if (p->ordering)
		p->ordering[(size_t)a * p->plan->nranks + b] |= what;
}

/* ---- packets (simulate_ll.c) */

/* For p->chunk_units: makes the segments, all of them invalid, and `waiters`. 0 or -ENOMEM; or overrun is set. */
int shunt_simulation_ll_init(struct simulation *p);
/* True if all packets that the operation reads are valid; else the block waits for the first segment that is not. */
bool shunt_simulation_ll_ready(struct simulation *p, struct block_state *a, const struct shunt_plan_op *op);
void shunt_simulation_ll_write(struct simulation *p, const struct block_state *a, const struct shunt_plan_op *op);
/* True if the operation writes this segment. */
bool shunt_simulation_ll_provides(const struct simulation *p, const struct block_state *a,
    const struct shunt_plan_op *op, uint32_t rank, size_t segment);

/* ---- results (simulate_report.c) */

/* After a deadlock: its cause, as an error. */
int shunt_simulation_report_deadlock(struct simulation *p);
/* After the end of all blocks: checks that every counter ends as the next launch expects it. */
int shunt_simulation_check_balance(struct simulation *p);
/*
 * With two halves of scratch: checks that every rank that writes packets knows that the packets of the launch before
 * the last were read.
 */
int shunt_simulation_check_ordering(struct simulation *p);
