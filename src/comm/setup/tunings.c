/* SPDX-License-Identifier: MIT */
#include "comm/setup/tunings.h"
#include <stdio.h>
#include <string.h>
#include "algos/select/tuning.h"
#include "base/log.h"
#include "comm/core/communicator.h"
#include "comm/setup/hello.h"
#include "transport/net/providers.h"

static int count_cases(const struct shunt_comm *comm)
{
	int n = 0;

	if (!shunt_comm_spans_hosts(comm))
		return 2;
	while (n < SHUNT_HELLO_TUNINGS && shunt_net_providers()[n])
		n++;
	return shunt_topology_is_regular(&comm->topology) ? n : 0;
}

/* This rank's table for a case; NULL: none. */
static const struct shunt_tuning *find_table(
    const struct shunt_comm *comm, const struct shunt_gpu_info *gpu, int number, bool logs)
{
	struct shunt_machine machine;
	bool nvls = !shunt_comm_spans_hosts(comm) && number;

	shunt_machine_describe(gpu, comm->nranks, comm->nccl.version, nvls, &machine);
	if (shunt_comm_spans_hosts(comm)) {
		machine.nhosts = comm->topology.nislands;
		snprintf(machine.net, sizeof(machine.net), "%s", shunt_net_providers()[number]->name);
	}
	return shunt_tuning_match(shunt_tuning_files(), &machine, comm->sel_key.takes_all, logs);
}

void shunt_tunings_hash(const struct shunt_comm *comm, const struct shunt_gpu_info *gpu, uint64_t *hashes)
{
	for (int i = 0; i < count_cases(comm); i++) {
		const struct shunt_tuning *t = find_table(comm, gpu, i, false);

		hashes[i] = t ? t->hash : 0;
	}
}

/* The table for a case if all ranks have the same one, else NULL. */
static const struct shunt_tuning *same_table(struct shunt_comm *comm, const struct shunt_hello *hellos, int number)
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
	table = find_table(comm, &hellos[comm->rank].gpu, number, comm->rank == 0);
	return same && first ? table : NULL;
}

void shunt_tunings_agree(struct shunt_comm *comm, const struct shunt_hello *hellos)
{
	if (shunt_comm_spans_hosts(comm)) {
		for (int i = 0; i < count_cases(comm); i++)
			comm->net.tuning[i] = same_table(comm, hellos, i);
		return;
	}
	comm->sel_key.tuning = same_table(comm, hellos, comm->sel_key.nvls);
	if (!comm->sel_key.tuning) /* looked up once, not for every call */
		comm->sel_key.tuning = shunt_tuning_builtin(hellos[0].gpu.sim, comm->sel_key.cc, comm->nranks);
}

void shunt_tunings_choose_provider(struct shunt_comm *comm)
{
	comm->sel_key.net = comm->net.provider;
	for (int i = 0; i < count_cases(comm); i++)
		if (!strcmp(shunt_net_providers()[i]->name, comm->net.provider))
			comm->sel_key.tuning = comm->net.tuning[i];
}
