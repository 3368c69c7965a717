/* SPDX-License-Identifier: MIT */
#include "plan/format/hosts.h"
#include <errno.h>
#include <stdio.h>
#include "topology/topology.h"

/* Two ranks that must be on one host. */
struct joint {
	uint32_t a, b;
	const char *what;
};

/* A function to be called for each joint; false: it needs no more. */
struct joints {
	bool (*fn)(void *ctx, const struct joint *joint);
	void *ctx;
};

static bool each_channel(const struct shunt_plan_gpu *gpu, uint32_t r, const struct joints *j)
{
	for (uint32_t i = 0; i < gpu->nchannels[SHUNT_PLAN_MEMORY]; i++)
		if (!j->fn(j->ctx, &(struct joint){ r, gpu->channels[SHUNT_PLAN_MEMORY][i].peer, "a memory channel" }))
			return false;
	for (uint32_t i = 0; i < gpu->nremotes; i++)
		if ((gpu->remotes[i].types & 1u << SHUNT_PLAN_MEMORY) &&
		    !j->fn(j->ctx, &(struct joint){ r, gpu->remotes[i].rank, "a remote buffer of type memory" }))
			return false;
	for (uint32_t i = 0; i < gpu->nswitches; i++)
		for (uint32_t k = 0; k < gpu->switches[i].nranks; k++)
			if (!j->fn(j->ctx, &(struct joint){ r, gpu->switches[i].ranks[k], "a switch channel" }))
				return false;
	return true;
}

static bool each_joint(const struct shunt_plan *plan, const struct joints *j)
{
	for (uint32_t r = 0; r < plan->nranks; r++)
		if (!each_channel(&plan->gpus[r], r, j))
			return false;
	return true;
}

/* The lowest rank that is known to be on the rank's island. */
static uint32_t root_of(const uint32_t *up, uint32_t r)
{
	while (up[r] != r)
		r = up[r];
	return r;
}

static bool unite(void *ctx, const struct joint *joint)
{
	uint32_t *up = ctx, a = root_of(up, joint->a), b = root_of(up, joint->b);

	up[a > b ? a : b] = a < b ? a : b;
	return true;
}

uint32_t shunt_plan_islands(const struct shunt_plan *plan, uint32_t *island_of)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < plan->nranks; r++)
		island_of[r] = r;
	each_joint(plan, &(struct joints){ unite, island_of });
	for (uint32_t r = 0; r < plan->nranks; r++)
		island_of[r] = root_of(island_of, r);
	/* An island's lowest rank comes first, and has its number by then. */
	for (uint32_t r = 0; r < plan->nranks; r++)
		island_of[r] = island_of[r] == r ? n++ : island_of[island_of[r]];
	return n;
}

struct fit {
	const struct shunt_plan_placement *placement;
	char *reason;
	size_t bytes;
};

static bool on_one_host(void *ctx, const struct joint *joint)
{
	struct fit *fit = ctx;
	const uint8_t *host_of = fit->placement->host_of;

	if (host_of[joint->a] == host_of[joint->b])
		return true;
	snprintf(fit->reason, fit->bytes, "%s joins ranks %u and %u, which are on different hosts (%u and %u)",
	    joint->what, joint->a, joint->b, host_of[joint->a], host_of[joint->b]);
	return false;
}

static bool ports_connect(const struct shunt_plan *plan, const struct fit *fit)
{
	const uint8_t *host_of = fit->placement->host_of, *rail_of = fit->placement->rail_of;

	for (uint32_t r = 0; r < plan->nranks && rail_of; r++)
		for (uint32_t i = 0; i < plan->gpus[r].nchannels[SHUNT_PLAN_PORT]; i++) {
			uint32_t peer = plan->gpus[r].channels[SHUNT_PLAN_PORT][i].peer;

			if (host_of[r] == host_of[peer] || rail_of[r] == rail_of[peer])
				continue;
			snprintf(fit->reason, fit->bytes,
			    "a port joins ranks %u and %u, which are on different hosts and not of one rail", r, peer);
			return false;
		}
	return true;
}

bool shunt_plan_fits_hosts(
    const struct shunt_plan *plan, const struct shunt_plan_placement *placement, char *reason, size_t bytes)
{
	struct fit fit = { placement, reason, bytes };

	for (uint32_t r = 1; r < plan->nranks; r++)
		if (placement->host_of[r] < placement->host_of[r - 1]) {
			snprintf(reason, bytes, "ranks %u and %u: a plan needs hosts whose ranks follow each other",
			    r - 1, r);
			return false;
		}
	return each_joint(plan, &(struct joints){ on_one_host, &fit }) && ports_connect(plan, &fit);
}

int shunt_plan_spread(const struct shunt_plan *plan, uint32_t nhosts, uint8_t *host_of, char *reason, size_t bytes)
{
	if (!nhosts || nhosts > plan->nranks) {
		snprintf(reason, bytes, "its %u ranks cannot be spread over %u hosts", plan->nranks, nhosts);
		return -EINVAL;
	}
	shunt_topology_spread(plan->nranks, nhosts, host_of);
	return shunt_plan_fits_hosts(plan, &(struct shunt_plan_placement){ .host_of = host_of }, reason, bytes) ?
	    0 :
	    -EINVAL;
}
