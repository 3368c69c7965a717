/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_PLAN_PLAY_H
#define SHUNT_PLAN_PLAY_H
/*
 * A play: every block of every rank goes through its operations as far as signals, semaphores, barriers and packets let
 * it. No data is moved, so a launch takes microseconds. If blocks are left that cannot go on, no order of events would
 * have let all of them: what they wait for is only ever added to, except by semaphores that several blocks take, where
 * one order is played for all.
 */
#include "plan/priv.h"

/* One block while it runs. */
struct play_actor {
	const struct shunt_plan_block *block;
	uint32_t rank, number;
	uint32_t pc, pipeline; /* the operation that comes next; the pipeline around it or SHUNT_PLAN_NIL */
	uint64_t windows;      /* of it that are left, this one included */
	uint32_t got;          /* of the next operation: ids that are served; of a barrier: 1 arrived, 2 let go */
	uint32_t next;         /* among those who wait for the same thing, or SHUNT_PLAN_NIL */
	size_t thing;          /* that it waits for */
};

/*
 * Everything that a block can wait for has a number: memory channels, port channels, semaphores, barriers, and the
 * segments into which the ends of all packet slices divide each rank's scratch.
 */
enum play_things {
	PLAY_MEMORY_CHANNELS,
	PLAY_PORT_CHANNELS,
	PLAY_SEMAPHORES,
	PLAY_BARRIERS,
	PLAY_SEGMENTS,
	PLAY_NTHINGS
};

struct play {
	struct shunt_plan_log *log;
	const struct shunt_plan *plan;
	uint64_t chunk_units;
	uint64_t steps; /* that are left */
	bool overrun;
	struct play_actor *actors;
	uint32_t nactors, *ready, nready; /* a stack */
	size_t *base[PLAY_NTHINGS];       /* of each rank */
	size_t nthings;                   /* without segments */
	/* Of each thing: signals that came, semaphore's value, blocks at a barrier; waits that were served. */
	uint64_t *count, *taken;
	uint32_t *waiting; /* of each thing, segments included: the first actor, or SHUNT_PLAN_NIL */
	/*
	 * Ends of segments, in order, of each rank from base[PLAY_SEGMENTS][rank] - nthings on; segment i is between
	 * ends i and i + 1.
	 */
	uint64_t *ends;
	size_t nends, *nends_of;
	size_t *valid;     /* for each end: itself, or a later one before which all is valid */
	uint32_t *writer;  /* of each segment: the rank that made it valid */
	uint8_t *contacts; /* with two halves of scratch, for each two ranks: PLAY_HEARS, PLAY_WRITES; else NULL */
};

/* Of rank a and rank b, at contacts[a * nranks + b]: a has had signals or packets of b; a writes packets to b. */
enum { PLAY_HEARS = 1, PLAY_WRITES = 2 };

/* 0 or -ENOMEM; to be finished in any case. */
int shunt_play_init(struct play *p, struct shunt_plan_log *log, const struct shunt_plan *plan);
void shunt_play_finish(struct play *p);
/*
 * One launch with chunks of this size: 0, or the log's error. p->overrun: p->steps are not enough, and nothing is
 * known.
 */
int shunt_play_launch(struct play *p, uint64_t chunk_units);

/* ---- what the play's files share */

static inline size_t play_thing(const struct play *p, enum play_things kind, uint32_t rank, size_t i)
{
	return p->base[kind][rank] + i;
}

static inline enum play_things play_channels(uint32_t type)
{
	return type == SHUNT_PLAN_MEMORY ? PLAY_MEMORY_CHANNELS : PLAY_PORT_CHANNELS;
}

static inline bool play_over(const struct play_actor *a)
{
	return a->pc >= a->block->nops;
}

/* False, and overrun: there are not so many left. */
bool shunt_play_spend(struct play *p, uint64_t steps);
void shunt_play_block(struct play *p, struct play_actor *a, size_t thing);
/* All who wait for it; got: what they have of their operation then, 0: as before. */
void shunt_play_wake(struct play *p, size_t thing, uint32_t got);

static inline void play_note(struct play *p, uint32_t a, uint32_t b, uint8_t what)
{
	if (p->contacts)
		p->contacts[(size_t)a * p->plan->nranks + b] |= what;
}

/* ---- packets (play_packets.c) */

/* For this size of chunks: the segments, nothing valid, and room in `waiting`. 0 or -ENOMEM; or overrun. */
int shunt_play_packets_init(struct play *p);
/* True if all packets that the operation reads are there; else the actor waits for the first that is not. */
bool shunt_play_packets_there(struct play *p, struct play_actor *a, const struct shunt_plan_op *op);
void shunt_play_packets_write(struct play *p, const struct play_actor *a, const struct shunt_plan_op *op);
/* Does the operation write this segment? */
bool shunt_play_packets_gives(
    const struct play *p, const struct play_actor *a, const struct shunt_plan_op *op, uint32_t rank, size_t segment);

/* ---- how it ended (play_verdict.c) */

/* Nobody can go on, and some are not through: why, as an error. */
int shunt_play_report_stuck(struct play *p);
/* All are through: does every counter end as the next launch expects it? */
int shunt_play_check_balance(struct play *p);
/*
 * With two halves of scratch: does everyone who writes packets know that those of the launch before the last were read?
 */
int shunt_play_check_contacts(struct play *p);
#endif
