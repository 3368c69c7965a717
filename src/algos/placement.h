/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_ALGOS_PLACEMENT_H
#define SHUNT_ALGOS_PLACEMENT_H
/* Which rank is on which host. Equal on all ranks, but for `rank`. */
#include <stdint.h>
#include "kernels/net_rings.h"

struct shunt_placement {
	int nranks, nhosts;
	int rank;
	int rails; /* ranks of the smallest host; rank i < rails of each host carries its host's share to the others */
	uint8_t host_of[SHUNT_NET_MAX_RANKS];                        /* hosts are in the order of their lowest ranks */
	uint8_t local_of[SHUNT_NET_MAX_RANKS];                       /* index on the host, in rank order */
	uint8_t nlocal[SHUNT_NET_MAX_RANKS];                         /* per host */
	uint8_t rank_at[SHUNT_NET_MAX_RANKS][SHUNT_KARGS_MAX_RANKS]; /* by host and index */
};

/* Fills in all that follows from host_of, nranks, nhosts and rank. */
static inline void shunt_placement_complete(struct shunt_placement *p)
{
	p->rails = SHUNT_KARGS_MAX_RANKS;
	for (int h = 0; h < p->nhosts; h++)
		p->nlocal[h] = 0;
	for (int r = 0; r < p->nranks; r++) {
		uint8_t host = p->host_of[r];

		p->local_of[r] = p->nlocal[host]++;
		p->rank_at[host][p->local_of[r]] = (uint8_t)r;
	}
	for (int h = 0; h < p->nhosts; h++)
		p->rails = p->nlocal[h] < p->rails ? p->nlocal[h] : p->rails;
}

/* True: all hosts have the same number of ranks. */
static inline int shunt_placement_is_regular(const struct shunt_placement *p)
{
	return p->rails * p->nhosts == p->nranks;
}
#endif
