/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TOOLS_PLAN_TIMING_H
#define SHUNT_TOOLS_PLAN_TIMING_H
/*
 * Simulation of a launch for its picture (plan.h): start and end of each operation of each block. The waits are the
 * plan's; the durations are made up.
 */
#include "tools/plan/plan.h"

#define TIME_MAX_STEPS 20000u /* limit of a picture */
/* Delay of a signal or packet. With many ranks it is longer, to leave room for their arrows. */
#define TIME_LATENCY(p) (1.5 + 0.4 * ((p)->plan->nranks < 12 ? (p)->plan->nranks : 12))

/* A block. */
struct time_block {
	const struct shunt_plan_block *block;
	uint32_t rank, row, pc, pipeline, window;
	uint64_t windows;
	double time;
	const size_t *wait_counter; /* the block waits until this is not `seen` any more; NULL: it does not wait */
	size_t seen;
	uint32_t round; /* round of the barrier that the block has entered; SHUNT_PLAN_NIL: none */
};

struct time_simulation {
	const struct shunt_plan *plan;
	struct plan_timeline *t;
	size_t steps_room, arrows_room;
	uint64_t units; /* of a chunk */
	struct time_block *time_blocks;
	struct time_events *events;
	struct time_data *data;
	int err;
};

/* Makes room for element n (of `size` bytes) of *array_p. NULL: p->err is set. */
void *plan_time_array_grow(struct time_simulation *p, void *array_p, size_t n, size_t *room, size_t size);
/* Adds an arrow from a step to a later one, unless both are of one block or from is SHUNT_PLAN_NIL. */
void plan_time_arrow(struct time_simulation *p, enum plan_arrow_kind kind, uint32_t from, uint32_t to);

/* a waits until *count changes. */
static inline void time_wait_on(struct time_block *a, const size_t *count)
{
	a->wait_counter = count;
	a->seen = *count;
}

static inline void time_max(double *time_p, double time)
{
	*time_p = time > *time_p ? time : *time_p;
}

/* ---- signals, semaphores and barriers (timing_events.c) */

/* 0 or -ENOMEM. */
int plan_time_events_init(struct time_simulation *p);
void plan_time_events_finish(struct time_simulation *p);
/* True: a's operation can run, not before *time_p, which only grows. False: a waits. */
bool plan_time_events_ready(
    struct time_simulation *p, struct time_block *a, const struct shunt_plan_op *op, double *time_p);
/*
 * The operation is `step`: takes the events that it waits for, with arrows from their steps, and adds its own events.
 */
void plan_time_events_note(
    struct time_simulation *p, const struct time_block *a, const struct shunt_plan_op *op, uint32_t step);

/* ---- packets and plain data (timing_data.c) */

int plan_time_data_init(struct time_simulation *p);
void plan_time_data_finish(struct time_simulation *p);
bool plan_time_data_ready(
    struct time_simulation *p, struct time_block *a, const struct shunt_plan_op *op, double *time_p);
void plan_time_data_note(
    struct time_simulation *p, const struct time_block *a, const struct shunt_plan_op *op, uint32_t step);
/* After the simulation: arrows of plain data, from the writer into another rank's buffer to its first reader there. */
void plan_time_data_arrows(struct time_simulation *p);
#endif
