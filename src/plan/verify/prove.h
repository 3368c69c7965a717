/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Proof that a plan does what its collective means, in every order of events: a simulation (simulate.h) in which each
 * unit of every buffer has a value, and each access a place in a partial order.
 *
 * Order. A block's threads synchronize at nop and barrier, which begin an epoch of the block. A clock has for each
 * block the last epoch whose accesses are over. Signals and semaphores carry the clock of the block's last
 * synchronization, and the clocks that the same thread has received since by waits. The block has those clocks from its
 * next synchronization on. A packet orders only what its own thread did for the same bytes, and only before later
 * writes. Two accesses of a unit of which one writes, and which nothing orders, are a race.
 *
 * Ports. What a port puts for a rank of another island is there for whoever has received, directly or through others, a
 * later signal that the same rank gave the same peer on a port: connections between hosts have no order among each
 * other (transport/net/net.h). Inside a host a port is a store, so what lacks such a signal is "undecided". A clock has
 * for each block and each of these peers the last epoch of the block whose puts are there.
 *
 * A wait for the k-th signal of a counter that several blocks advance is sure of a signal only if fewer than k others
 * can come without it. The program may be sure of more; so the proof then says "undecided" instead of "wrong".
 *
 * Values. A unit of an input is a name; a reduction is the set of the names in it. At the end each unit of the result
 * must hold the value that the collective defines, and its rank must know that the value is there.
 *
 * Launches. Ranks that reach each other's input or output enter a launch together (kernels/plan/enter.h). Otherwise a
 * rank's accesses to scratch in a launch must be ordered after the accesses of other ranks in the launch before.
 *
 * The partition of a buffer follows from the units of a chunk, so a few sizes are proved; see prove.c.
 */
#include "plan/verify/simulate.h"

/* One access: the execution of an operation, or 0, and an element of that operation. */
struct proof_access {
	uint32_t step, element;
};

/* An execution of an operation: its place and its block's clock. */
struct proof_step {
	const struct shunt_plan_op *op;
	const uint32_t *clock;
	uint64_t started; /* ranks that have begun this launch */
	uint32_t block, epoch;
	uint32_t at; /* in a clock: the block, or what it has put for a peer */
};

struct proof_reader {
	struct proof_reader *next;
	struct proof_access by;
};

struct proof_cell {
	uint32_t value;                  /* number of a value; 0: nothing known */
	struct proof_access last, first; /* writes */
	uint64_t first_started;
	struct proof_reader *readers; /* since the last write */
};

enum { PROOF_SCRATCH = 2, PROOF_PACKETS = 3, PROOF_NSPACES = 4 };

/* A task (an element of an execution) that has read a packet of another. */
struct proof_edge {
	struct proof_edge *next, *next_of_block, *work;
	struct proof_access to, from;
	uint32_t epoch, seen;
};

struct proof_release {
	const uint32_t *clock;
	uint64_t started;
};

/* A block that advances a counter, or takes from it. */
struct proof_user {
	struct proof_user *next;
	uint32_t block;
	uint64_t count, total;
	struct proof_release *releases; /* of a producer: `total` */
};

struct proof_block {
	uint32_t *clock, *pending, *pending0; /* pending0: awaited by thread 0 */
	uint64_t started, pending_started, pending0_started;
	uint32_t epoch;
	bool is_pending, is_pending0;
	const uint32_t *snapshot, *snapshot0;
	struct proof_edge *edges; /* newest first */
};

/* The puts of a block for a rank of another island. */
struct proof_puts {
	uint32_t block, peer;
};

struct proof_value {
	uint32_t n, next;
	uint8_t redop;
	uint64_t *names;
};

#define PROOF_BUCKETS 65536u
#define PROOF_TEXT 1024

struct proof {
	struct simulation *sim;
	const struct shunt_plan *plan;
	struct shunt_arena arena; /* of one size */
	bool counting;            /* first pass: who uses which counter, and the unit that divides all slices */
	bool undecided;           /* an order was taken for less than it may be */
	bool one_host;            /* ports are stores, whatever ranks they join */
	bool failed;              /* the log has an error, and the simulation stops */
	bool staged;
	char *unread;         /* PROOF_TEXT bytes: the first data in scratch that nobody reads, or "" */
	uint64_t unit, chunk; /* units of the plan in a cell; cells of a chunk */
	uint32_t nclocks;     /* numbers in a clock: of sim->nstates blocks, then of nputs */
	struct proof_puts *puts;
	uint32_t nputs;
	struct proof_block *blocks;
	struct proof_user **producers, **consumers; /* of each resource */
	uint32_t **gathered; /* of each barrier's resource: the clocks of those that have arrived */
	uint64_t *gathered_started;
	struct proof_cell *cells, **spaces; /* spaces[rank * PROOF_NSPACES + space] */
	uint64_t *extents;
	struct proof_step *steps;
	uint32_t nsteps, max_steps;
	struct proof_edge **edges; /* PROOF_BUCKETS lists, by task */
	struct proof_value *values;
	uint32_t nvalues, max_values, *buckets, walk;
	const uint32_t **ends; /* for each rank: its clock at its end */
};

/* ---- what the simulation calls: struct simulation_watch says when */
void shunt_proof_release(void *follower, const struct block_state *a, uint32_t operand, size_t resource);
void shunt_proof_acquire(
    void *follower, const struct block_state *a, uint32_t operand, size_t resource, uint64_t initial);
void shunt_proof_arrive(void *follower, const struct block_state *a, size_t resource);
void shunt_proof_synchronize(void *follower, const struct block_state *a, size_t resource);
void shunt_proof_data(void *follower, const struct block_state *a, const struct shunt_plan_op *op);
void shunt_proof_sync(void *follower, const struct block_state *a);

/* ---- shared by the proof's files */

static inline struct proof_cell *proof_cells(const struct proof *p, uint32_t rank, unsigned space)
{
	return p->spaces[rank * PROOF_NSPACES + space];
}

void *shunt_proof_alloc(struct proof *p, size_t n, size_t each);
/* False, and failed: there is no memory. */
int shunt_proof_order_init(struct proof *p);
int shunt_proof_data_init(struct proof *p);
const uint32_t *shunt_proof_snapshot(struct proof *p, uint32_t block, bool thread0);
/*
 * The place in a clock of the puts of a block for the peer of one of its ports; the block's own, if it is of its
 * island.
 */
uint32_t shunt_proof_puts_at(const struct proof *p, uint32_t block, const struct shunt_plan_op *op, uint32_t operand);
/* True if the access would be over for this clock if ports were stores. */
bool shunt_proof_over_by_stores(const struct proof *p, struct proof_access x, const uint32_t *clock);
/*
 * True if access x is over when the task happens. packets: packets alone may order the two. They do if the task is a
 * write; but a thread that has read a packet need not see data that was stored before that packet.
 */
bool shunt_proof_ordered(struct proof *p, struct proof_access x, struct proof_access task, bool packets);
/* True if rank r knows at its end that the access is over. */
bool shunt_proof_over_at_end(struct proof *p, struct proof_access x, uint32_t r, bool packets);
/* Where a slice's buffer is on a rank: its space, and the first cell of its chunk 0 there. */
unsigned shunt_proof_space(const struct proof *p, const struct shunt_plan_slice *s, uint32_t rank, uint64_t *base_p);

uint32_t shunt_proof_name(struct proof *p, uint32_t rank, unsigned space, uint64_t cell);
uint32_t shunt_proof_reduce(struct proof *p, enum shunt_redop redop, const uint32_t *values, uint32_t n);
/* What cell i of the result of a rank must hold, or UINT32_MAX: anything. The result is in *space_p. */
uint32_t shunt_proof_expected(struct proof *p, uint32_t rank, uint64_t i, unsigned *space_p, uint64_t *cell_p);
/* Cells of an input or output. */
uint64_t shunt_proof_cells_of(const struct proof *p, enum shunt_plan_buffer buffer);
void shunt_proof_name_inputs(struct proof *p);

/* y, at hand, reads or writes (what) the cell; nothing orders x before it. */
void shunt_proof_report_race(
    struct proof *p, const struct proof_cell *c, struct proof_access x, struct proof_access y, const char *what);
/* After a launch: the results, and what the next launch would find. */
int shunt_proof_check_end(struct proof *p);
void shunt_proof_describe_value(const struct proof *p, uint32_t value, char *text, size_t bytes);
void shunt_proof_describe_cell(const struct proof *p, uint32_t rank, unsigned space, uint64_t cell, char text[96]);
