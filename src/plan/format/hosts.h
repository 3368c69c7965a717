/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The hosts of a plan. A file does not name them. Ranks that a memory channel, a remote buffer of type memory or a
 * switch group joins, are on one host: an island. Ranks that ports alone join may be on different ones, or on the same,
 * where ports are stores.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "plan/format/plan.h"

/* Which rank is on which host, by rank. */
struct shunt_plan_placement {
	const uint8_t *host_of;
	/* Ports join ranks of different hosts only where these are equal; NULL: any two. */
	const uint8_t *rail_of;
};

/* Numbers the islands by their lowest ranks: island_of[nranks]. Returns how many there are. */
uint32_t shunt_plan_islands(const struct shunt_plan *plan, uint32_t *island_of);
/* True: the plan fits. Else reason gets one line with the ranks, the way in which they are joined, and the hosts. */
bool shunt_plan_fits_hosts(
    const struct shunt_plan *plan, const struct shunt_plan_placement *placement, char *reason, size_t bytes);
/*
 * Spreads the plan's ranks over this many hosts (at most 256), in their order, and as equally as can be. 0; -EINVAL:
 * there are too few, or they do not fit; reason as above.
 */
int shunt_plan_spread(const struct shunt_plan *plan, uint32_t nhosts, uint8_t *host_of, char *reason, size_t bytes);
