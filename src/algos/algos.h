/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_ALGOS_ALGOS_H
#define SHUNT_ALGOS_ALGOS_H
/* What the files of algorithms share. */
#include "algos/algo.h"

/* Rows of one file, ended by one without a name. */
extern const struct shunt_algo shunt_ll128_algos[];
extern const struct shunt_algo shunt_p2p_algos[];
extern const struct shunt_algo shunt_ce_algos[];
extern const struct shunt_algo shunt_direct_algos[];
/* The enqueue() of the p2p engine's rows: any calls that may share a launch with those. */
int shunt_p2p_enqueue(const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decisions,
    const struct shunt_coll *const *calls, size_t ncalls);
/*
 * Copies move bytes; their kernel is that of the largest element that all addresses and sizes, or-ed, are multiples of.
 * I64: packs of 16 bytes.
 */
enum shunt_dtype shunt_copy_type(uint64_t align);
/* A reduce in two hops (algos/ll128.c). */
int shunt_reduce_twoshot(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_decision *decision, const struct shunt_coll *coll);
/* Of every kind, for communicators of one rank. */
extern const struct shunt_algo shunt_local_algo;

/*
 * SHUNT_ALGO (algos/select/forced.c). True if a rule speaks of this size; *algo_p is NULL if it says nccl.
 */
bool shunt_forced_find(
    enum shunt_kind kind, uint64_t bytes, const struct shunt_algo **algo_p, struct shunt_geometry *geometry_p);
/* Calls add with the sizes at which rules for a kind begin and end, in any order. */
void shunt_forced_crossovers(enum shunt_kind kind, void (*add)(void *ctx, uint64_t size), void *ctx);
/* Can every rule of such a text be used? If not, reason names the first that cannot, in one line. */
bool shunt_forced_check(const char *text, char *reason, size_t bytes);
/* The algorithm of this name for a kind, or NULL. */
const struct shunt_algo *shunt_algo_find(enum shunt_kind kind, const char *name);

/*
 * For calls in windows (algos/barriers.c). A barrier among all ranks; flags: SHUNT_K_FIRST_BARRIER,
 * SHUNT_K_LAST_BARRIER or none. The one that opens also compares where the calls' buffers lie.
 */
int shunt_barrier_enqueue(
    const struct shunt_enqueue_ctx *enqueue, const struct shunt_coll *const *calls, size_t ncalls, uint32_t flags);
/* Where rank p's buffer lies if rank `rank`, who has his at ptr, is right: as an address of that rank. */
const void *shunt_symmem_expected(const struct shunt_coll *coll, int rank, int p, const void *ptr);

/*
 * Blocks of a launch at most: two such find room on any rank's GPU at once. Ranks may begin with different ones of two
 * communicators' launches, and where only a part of the second finds room each waits for the rest of the other.
 */
unsigned shunt_grid_max_blocks(const struct shunt_sel_key *sel_key);

/*
 * Warps of a block at most, by the decision's geometry, if so `need` of them fit into max_blocks; else what a block can
 * have.
 */
unsigned shunt_grid_max_warps(const struct shunt_sel_key *sel_key, unsigned max_blocks, unsigned need);

/*
 * Blocks and threads for `warps` warps (at least one): spread over SMs first, then deepen, within max_blocks (and the
 * user's limit) of max_warps. Returns how many warps there are then: fewer than asked for if they do not fit.
 */
uint64_t shunt_grid_fit(const struct shunt_sel_key *sel_key, uint64_t warps, unsigned max_blocks, unsigned max_warps,
    struct shunt_work *work);
/* The same for a launch that takes whatever there is, but for the decision's geometry. */
void shunt_grid_fit_wide(const struct shunt_sel_key *sel_key, uint64_t warps, struct shunt_work *work);

/* Share i of n of the bytes in [from, to): both ends, in whole lines of 128 bytes but for the last. */
void shunt_partition(uint64_t from, uint64_t to, unsigned i, unsigned n, uint64_t *first_p, uint64_t *last_p);
#endif
