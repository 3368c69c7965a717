/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_VERIFY_SIMULATE_H
#define SHUNT_PLAN_VERIFY_SIMULATE_H
/*
 * A simulation: every block of every rank goes through its operations as far as signals, semaphores, barriers and
 * packets let it. No data is moved, so a launch takes microseconds. If blocks are left that cannot go on, no order of
 * events would have let all of them: what they wait for is only ever added to, except by semaphores that several blocks
 * take, where one order is simulated for all.
 */
#include "plan/format/priv.h"

/* One block while it runs. */
struct block_state {
	const struct shunt_plan_block *block;
	uint32_t rank, number;
	uint32_t pc, pipeline; /* the operation that comes next; the pipeline around it or SHUNT_PLAN_NIL */
	uint64_t windows;      /* of it that are left, this one included */
	uint32_t nserved;      /* of the next operation: its ids that are served; of a barrier: 1 arrived, 2 let go */
	uint32_t next;         /* among those who wait for the same resource, or SHUNT_PLAN_NIL */
	size_t resource;       /* that it waits for */
};

/*
 * Everything that a block can wait for has a number: memory channels, port channels, semaphores, barriers, and the
 * segments into which the ends of all packet slices divide each rank's scratch.
 */
enum resource_kind {
	RESOURCE_MEMORY_CHANNELS,
	RESOURCE_PORT_CHANNELS,
	RESOURCE_SEMAPHORES,
	RESOURCE_BARRIERS,
	RESOURCE_SEGMENTS,
	RESOURCE_NKINDS
};

struct simulation {
	struct shunt_plan_log *log;
	const struct shunt_plan *plan;
	uint64_t chunk_units;
	uint64_t steps; /* that are left */
	bool overrun;
	struct block_state *states;
	uint32_t nstates, *ready, nready; /* a stack */
	size_t *base[RESOURCE_NKINDS];    /* of each rank */
	size_t nresources;                /* without segments */
	/* Of each resource: signals that came, semaphore's value, blocks at a barrier; waits that were served. */
	uint64_t *count, *taken;
	uint32_t *waiters; /* of each resource, segments included: the first block, or SHUNT_PLAN_NIL */
	/*
	 * Ends of segments, in order, of each rank from base[RESOURCE_SEGMENTS][rank] - nresources on; segment i is
	 * between ends i and i + 1.
	 */
	uint64_t *ends;
	size_t nends, *nends_of;
	size_t *valid;     /* for each end: itself, or a later one before which all is valid */
	uint32_t *writer;  /* of each segment: the rank that made it valid */
	uint8_t *ordering; /* with two halves of scratch, for each two ranks: ORDERING_OBSERVES, ORDERING_WRITES; else
	                      NULL */
};

/* Of rank a and rank b, at ordering[a * nranks + b]: a has observed signals or packets of b; a writes packets to b. */
enum { ORDERING_OBSERVES = 1, ORDERING_WRITES = 2 };

/* 0 or -ENOMEM; to be finished in any case. */
int shunt_simulation_init(struct simulation *p, struct shunt_plan_log *log, const struct shunt_plan *plan);
void shunt_simulation_finish(struct simulation *p);
/*
 * One launch with chunks of this size: 0, or the log's error. p->overrun: p->steps are not enough, and nothing is
 * known.
 */
int shunt_simulation_launch(struct simulation *p, uint64_t chunk_units);

/* ---- what the simulation's files share */

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

/* False, and overrun: there are not so many left. */
bool shunt_simulation_spend(struct simulation *p, uint64_t steps);
void shunt_simulation_block(struct simulation *p, struct block_state *a, size_t resource);
/* All who wait for it; nserved: what they have of their operation then, 0: as before. */
void shunt_simulation_wake(struct simulation *p, size_t resource, uint32_t nserved);

static inline void ordering_note(struct simulation *p, uint32_t a, uint32_t b, uint8_t what)
{
	if (p->ordering)
		p->ordering[(size_t)a * p->plan->nranks + b] |= what;
}

/* ---- packets (simulate_ll.c) */

/* For this size of chunks: the segments, nothing valid, and room in `waiters`. 0 or -ENOMEM; or overrun. */
int shunt_simulation_ll_init(struct simulation *p);
/* True if all packets that the operation reads are there; else the block waits for the first that is not. */
bool shunt_simulation_ll_ready(struct simulation *p, struct block_state *a, const struct shunt_plan_op *op);
void shunt_simulation_ll_write(struct simulation *p, const struct block_state *a, const struct shunt_plan_op *op);
/* Does the operation write this segment? */
bool shunt_simulation_ll_provides(const struct simulation *p, const struct block_state *a,
    const struct shunt_plan_op *op, uint32_t rank, size_t segment);

/* ---- how it ended (simulate_report.c) */

/* Nobody can go on, and some are not through: why, as an error. */
int shunt_simulation_report_deadlock(struct simulation *p);
/* All are through: does every counter end as the next launch expects it? */
int shunt_simulation_check_balance(struct simulation *p);
/*
 * With two halves of scratch: does everyone who writes packets know that those of the launch before the last were read?
 */
int shunt_simulation_check_ordering(struct simulation *p);
#endif
