/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Who shares what with whom. An island is a set of ranks that map each other's memory; between islands data goes over a
 * network. The ranks of a host are an island, so ranks of one host are one island. Pure functions of values that all
 * ranks share.
 */
#include <stdbool.h>
#include <stdint.h>
#include "base/link.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHUNT_TOPOLOGY_RANKS 64 /* at most */
#define SHUNT_TOPOLOGY_LOCAL 8  /* ranks of an island, at most */

/* Equal on all ranks, but for `rank`. */
struct shunt_topology {
	int nislands; /* one at least */
	int nranks;
	int rank;
	int rails; /* ranks of the smallest island; rank i < rails of each carries its island's share to the others */
	uint8_t island_of[SHUNT_TOPOLOGY_RANKS]; /* islands are in the order of their lowest ranks */
	uint8_t local_of[SHUNT_TOPOLOGY_RANKS];  /* index on the island, in rank order */
	uint8_t nlocal[SHUNT_TOPOLOGY_RANKS];    /* by island */
	uint8_t rank_at[SHUNT_TOPOLOGY_RANKS][SHUNT_TOPOLOGY_LOCAL]; /* by island and index */
	/* By rank, and index on its island: enum shunt_link. NVLink before the set-up, which agrees on them. */
	uint8_t link[SHUNT_TOPOLOGY_RANKS][SHUNT_TOPOLOGY_LOCAL];
	uint8_t within; /* the slowest of them */
};

/* One island, of however many ranks: for whom this is all that counts. */
extern const struct shunt_topology shunt_topology_one_island;

/* All ranks are on one island; if there are more than an island may have, only that many are. */
void shunt_topology_join(struct shunt_topology *t, int nranks, int rank);
/* Fills in all that follows from island_of, nranks, nislands and rank. */
void shunt_topology_complete(struct shunt_topology *t);
/*
 * The ranks are on these islands. Threads may read a topology of one island meanwhile: if it is split for them, all
 * else is there.
 */
void shunt_topology_place(struct shunt_topology *t, int nranks, int nislands, int rank, const uint8_t *island_of);

/*
 * The islands of one host whose pairs have links (shunt_topology_agree): a rank joins the first island of which NVLink
 * joins it with all ranks, else it opens one. False: there is one island, or they are not alike, or of one rank.
 */
bool shunt_topology_find_islands(const struct shunt_topology *t, struct shunt_topology *islands);

/*
 * The link of each pair is the slower of its ranks' claims, by rank and index on the island. served: links as bits; a
 * pair whose link is none of these gets the next slower link that is. False: there is none for the pair of *a_p, *b_p.
 */
bool shunt_topology_agree(
    struct shunt_topology *t, const uint8_t claims[][SHUNT_TOPOLOGY_LOCAL], unsigned served, int *a_p, int *b_p);

/* True: there are several islands. */
static inline bool shunt_topology_is_split(const struct shunt_topology *t)
{
	return __atomic_load_n(&t->nislands, __ATOMIC_ACQUIRE) > 1;
}

/* The slowest link on an island; threads may read it while the set-up agrees. */
static inline unsigned shunt_topology_within(const struct shunt_topology *t)
{
	return __atomic_load_n(&t->within, __ATOMIC_RELAXED);
}

/* True: all islands have the same number of ranks. */
static inline bool shunt_topology_is_regular(const struct shunt_topology *t)
{
	return t->rails * t->nislands == t->nranks;
}

/* True: the two ranks are on one island. */
static inline bool shunt_topology_is_joint(const struct shunt_topology *t, int a, int b)
{
	return t->island_of[a] == t->island_of[b];
}

/* How many ranks this rank's island has, which of them it is, and all of them. */
static inline int shunt_topology_nlocal(const struct shunt_topology *t)
{
	return t->nlocal[t->island_of[t->rank]];
}

static inline int shunt_topology_local(const struct shunt_topology *t)
{
	return t->local_of[t->rank];
}

static inline const uint8_t *shunt_topology_locals(const struct shunt_topology *t)
{
	return t->rank_at[t->island_of[t->rank]];
}

/* Ranks of the largest island. */
int shunt_topology_largest(const struct shunt_topology *t);
/* The rail that a rank is on. A rank on none has no connection, and a number of its own. */
int shunt_topology_rail(const struct shunt_topology *t, int rank);
/* True: the two ranks, on different islands, exchange data. all: any two such ranks do, else those of a rail alone. */
bool shunt_topology_connects(const struct shunt_topology *t, bool all, int a, int b);
/* Spreads ranks over islands of as many ranks each as can be, in rank order. */
void shunt_topology_spread(uint32_t nranks, uint32_t nislands, uint8_t *island_of);

#ifdef __cplusplus
}
#endif
