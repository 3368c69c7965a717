/* SPDX-License-Identifier: MIT */
#include "comm/setup/links.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/config.h"
#include "comm/core/communicator.h"
#include "comm/setup/hello.h"
#include "topology/claim.h"

/* A rank's word: its links by index on its island, and the reason for the slowest. */
struct claims {
	uint8_t link[SHUNT_TOPOLOGY_LOCAL];
	char reason[120];
};

static void claim(struct shunt_comm *comm, const struct shunt_hello *hellos, unsigned served, struct claims *mine)
{
	const uint8_t *locals = shunt_topology_locals(&comm->topology);
	uint8_t slowest = SHUNT_LINK_NVLINK;

	memset(mine, 0, sizeof(*mine));
	for (int i = 0; i < shunt_comm_local_ranks(comm); i++) {
		const char *reason;

		if (locals[i] == comm->rank)
			continue;
		mine->link[i] = (uint8_t)shunt_link_claim(comm->gpu, comm->device, &hellos[locals[i]].gpu, comm->rank,
		    locals[i], served >> SHUNT_LINK_SHARED & 1, &reason);
		if (mine->link[i] > slowest)
			snprintf(mine->reason, sizeof(mine->reason), "%s", reason);
		slowest = mine->link[i] > slowest ? mine->link[i] : slowest;
	}
}

int shunt_comm_links_agree(struct shunt_comm *comm, const struct shunt_hello *hellos, char *reason, size_t bytes)
{
	struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->setup_timeout);
	unsigned served = comm->own.bytes ? 1u << SHUNT_LINK_SELF | 1u << SHUNT_LINK_NVLINK :
	                                    shunt_algo_links(shunt_comm_spans_hosts(comm));
	uint8_t links[SHUNT_NET_MAX_RANKS][SHUNT_TOPOLOGY_LOCAL];
	struct claims mine, all[SHUNT_NET_MAX_RANKS];
	int err, a, b;

	claim(comm, hellos, served, &mine);
	err = shunt_rendezvous_allgather(&ranks, &mine, sizeof(mine), all, -1, NULL);
	if (err)
		return err;
	for (int r = 0; r < comm->nranks; r++)
		memcpy(links[r], all[r].link, sizeof(links[r]));
	if (shunt_topology_agree(&comm->topology, links, served, &a, &b))
		return 0;
	snprintf(reason, bytes, "rank %d: its device cannot reach rank %d's: %s", a, b, all[a].reason);
	return -EOPNOTSUPP;
}
