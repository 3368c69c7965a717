/* SPDX-License-Identifier: MIT */
#pragma once
/* Declarations that the files of this folder share. */
#include "algos/algo.h"

/* ---- engines: their functions in rows */

#define SHUNT_ENQUEUES(name) \
	int name(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions, \
	    const struct shunt_coll *const *calls, size_t ncalls)
SHUNT_ENQUEUES(shunt_ll128_enqueue);
SHUNT_ENQUEUES(shunt_pairwise_enqueue);
/* Also for all calls that may share a launch with those of its rows. */
SHUNT_ENQUEUES(shunt_p2p_enqueue);
SHUNT_ENQUEUES(shunt_uneven_enqueue);
SHUNT_ENQUEUES(shunt_ce_enqueue);
SHUNT_ENQUEUES(shunt_ce_shared_enqueue);
SHUNT_ENQUEUES(shunt_direct_enqueue);
SHUNT_ENQUEUES(shunt_hierarchical_enqueue);
SHUNT_ENQUEUES(shunt_islands_enqueue);
#undef SHUNT_ENQUEUES
/* True: it can do such a call. */
bool shunt_islands_fit(const struct shunt_sel_key *key, const struct shunt_coll *coll);
/* A pipelined broadcast, and a two-shot reduce. */
int shunt_pipelined(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision, const struct shunt_coll *coll);
int shunt_reduce_twoshot(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision, const struct shunt_coll *coll);
/* One warp for each LL128 slot of the message, or of a rank's share of it. */
void shunt_oneshot_geometry(const struct shunt_limits *limits, uint64_t bytes, struct shunt_work *work);
void shunt_twoshot_geometry(const struct shunt_limits *limits, uint64_t bytes, struct shunt_work *work);
/* Of calls of a group that are the parts of one collective. No rows of shunt_algo_row. */
extern const struct shunt_algo shunt_allgatherv_algo, shunt_reduce_scatterv_algo;
/* For every kind, on communicators of one rank. */
extern const struct shunt_algo shunt_local_algo;

/* ---- what launches of all engines need */

/* Bytes of a message in a slot of lines. */
static inline uint64_t shunt_slot_data(const struct shunt_sel_key *key)
{
	return key->staged ? SHUNT_SECTOR_SLOT_DATA : SHUNT_LL128_SLOT_DATA;
}

/* Sets a decision's kernel and flags by its algorithm and the call's type and operator. */
void shunt_algo_set_kernel(struct shunt_decision *decision, const struct shunt_coll *coll, int nranks);
/*
 * The type of the kernel that copies: the largest whose size divides all addresses and sizes, or-ed in align. SHUNT_I64
 * stands for packs of 16 bytes.
 */
enum shunt_dtype shunt_copy_type(uint64_t align);
/* The algorithm of this name for a kind, or NULL. */
const struct shunt_algo *shunt_algo_find(enum shunt_kind kind, const char *name);
/* The same without plug-ins. */
const struct shunt_algo *shunt_algo_row_find(enum shunt_kind kind, const char *name);

/*
 * A barrier among all ranks, for calls on symmetric memory (algos/launch/barriers.c). flags: SHUNT_K_FIRST_BARRIER,
 * SHUNT_K_LAST_BARRIER or none. The first barrier also compares the offsets of the calls' buffers.
 */
int shunt_barrier_enqueue(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *const *calls, size_t ncalls, uint32_t flags);
/* Where rank p's buffer should lie, given that `rank` has its own at ptr; as an address of `rank`. */
const void *shunt_symmem_expected(const struct shunt_coll *coll, int rank, int p, const void *ptr);

/*
 * Most blocks of a launch. Two such launches find room on any rank's GPU at once: ranks may begin with launches of
 * different communicators, and if only a part of the second one finds room, each rank waits for the other's missing
 * blocks.
 */
unsigned shunt_grid_max_blocks(const struct shunt_limits *limits);
/* Half of so many blocks, at least one, with CTAPolicy efficiency; else all of them. */
unsigned shunt_grid_halve(bool few_ctas, unsigned blocks);

/*
 * Most warps of a block: the decision's geometry, if max_blocks such blocks have at least `need` warps; else what a
 * block can have.
 */
unsigned shunt_grid_max_warps(const struct shunt_limits *limits, unsigned max_blocks, unsigned need);

/* The communicator's limits alone. */
static inline struct shunt_limits shunt_limits_of(const struct shunt_sel_key *key)
{
	return (struct shunt_limits){ .key = key, .max_ctas = key->max_ctas, .few_ctas = key->few_ctas };
}

/*
 * Blocks and threads for `warps` warps (at least one), within max_blocks (and the user's limit) of max_warps each: one
 * warp in every block first, then more. Returns the number of warps, fewer than asked for if they do not fit.
 */
uint64_t shunt_grid_fit(const struct shunt_limits *limits, uint64_t warps, unsigned max_blocks, unsigned max_warps,
    struct shunt_work *work);
/* The same within the most blocks and warps of a launch. */
void shunt_grid_fit_wide(const struct shunt_limits *limits, uint64_t warps, struct shunt_work *work);

/* Share i of n of the bytes in [from, to): its ends, in multiples of 128 bytes except for the last. */
void shunt_partition(uint64_t from, uint64_t to, unsigned i, unsigned n, uint64_t *first_p, uint64_t *last_p);
