/* SPDX-License-Identifier: MIT */
#include "comm/setup/tunings.h"
#include <stdio.h>
#include <string.h>
#include "algos/select/tuning.h"
#include "base/log.h"
#include "comm/core/communicator.h"
#include "comm/setup/hello.h"
#include "transport/net/providers.h"

/* Cases of one host. Those of links are for any number of islands. */
enum { PLAIN, WITH_MULTICAST, BY_LINKS, CASES = BY_LINKS + SHUNT_LINK_SHARED - SHUNT_LINK_PEER + 1 };
static_assert((int)CASES <= (int)SHUNT_HELLO_TUNINGS, "a hello has them");

static int count_cases(const struct shunt_comm *comm)
{
	int n = 0;

	if (!shunt_comm_spans_hosts(comm))
		return CASES;
	while (n < SHUNT_HELLO_TUNINGS && shunt_net_providers()[n])
		n++;
	return shunt_topology_is_regular(&comm->topology) ? n : 0;
}

static bool is_of_links(const struct shunt_comm *comm, int number)
{
	return !shunt_comm_spans_hosts(comm) && number >= BY_LINKS;
}

/* This rank's table for a case, with links on so many islands; NULL: none. */
static const struct shunt_tuning *find_table(
    const struct shunt_comm *comm, const struct shunt_gpu_info *gpu, int number, unsigned islands, bool logs)
{
	struct shunt_machine machine;
	bool nvls = !shunt_comm_spans_hosts(comm) && number == WITH_MULTICAST;

	shunt_machine_describe(gpu, comm->nranks, comm->nccl.version, nvls, &machine);
	if (is_of_links(comm, number)) {
		machine.link = (uint8_t)(SHUNT_LINK_PEER + number - BY_LINKS);
		machine.islands = (uint8_t)islands;
	}
	if (shunt_comm_spans_hosts(comm)) {
		machine.nhosts = comm->topology.nislands;
		snprintf(machine.net, sizeof(machine.net), "%s", shunt_net_providers()[number]->name);
	}
	return shunt_tuning_match(shunt_tuning_files(), &machine, comm->sel_key.takes_all, logs);
}

void shunt_tunings_hash(const struct shunt_comm *comm, const struct shunt_gpu_info *gpu, uint64_t *hashes)
{
	for (int i = 0; i < count_cases(comm); i++) {
		unsigned most = is_of_links(comm, i) ? SHUNT_MAX_RANKS / 2 : 0;

		for (unsigned islands = 0; islands <= most; islands++) {
			const struct shunt_tuning *t = find_table(comm, gpu, i, islands, false);

			if (t && (!islands || t->machine.islands))
				hashes[i] = hashes[i] * 31 + t->hash;
		}
	}
}

/* The table for a case if all ranks have the same one, else NULL. islands: as for find_table. */
static const struct shunt_tuning *same_table(
    struct shunt_comm *comm, const struct shunt_hello *hellos, int number, unsigned islands)
{
	uint64_t first = hellos[0].tuning[number];
	const struct shunt_tuning *table;
	bool same = true;

	for (int r = 1; r < comm->nranks; r++) {
		if (same && hellos[r].tuning[number] != first && comm->rank == 0)
			shunt_warn("communicator of %d ranks uses the built-in tuning: rank %d has %s tuning file, "
			           "rank 0 has %s",
			    comm->nranks, r,
			    !hellos[r].tuning[number] ? "no" :
			        first                 ? "another" :
			                                "a",
			    first ? "one" : "none");
		same = same && hellos[r].tuning[number] == first;
	}
	table = find_table(comm, &hellos[comm->rank].gpu, number, islands, comm->rank == 0);
	return same && first ? table : NULL;
}

void shunt_tunings_agree(struct shunt_comm *comm, const struct shunt_hello *hellos)
{
	if (shunt_comm_spans_hosts(comm)) {
		for (int i = 0; i < count_cases(comm); i++)
			comm->net.tuning[i] = same_table(comm, hellos, i, 0);
		return;
	}
	comm->sel_key.tuning = same_table(comm, hellos, comm->sel_key.nvls ? WITH_MULTICAST : PLAIN, 0);
	if (!comm->sel_key.tuning) /* looked up once, not for every call */
		comm->sel_key.tuning = shunt_tuning_builtin(hellos[0].gpu.sim, comm->sel_key.cc, comm->nranks);
}

void shunt_tunings_agree_on_link(struct shunt_comm *comm, const struct shunt_hello *hellos)
{
	struct shunt_machine m;

	shunt_machine_join(&m, &comm->topology);
	comm->sel_key.tuning = NULL;
	comm->sel_key.by_link = same_table(comm, hellos, BY_LINKS + m.link - SHUNT_LINK_PEER, m.islands);
}

void shunt_tunings_choose_provider(struct shunt_comm *comm)
{
	comm->sel_key.net = comm->net.provider;
	for (int i = 0; i < count_cases(comm); i++)
		if (!strcmp(shunt_net_providers()[i]->name, comm->net.provider))
			comm->sel_key.tuning = comm->net.tuning[i];
}
