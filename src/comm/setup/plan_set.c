/* SPDX-License-Identifier: MIT */
#include "comm/setup/plan_set.h"
#include <stdlib.h>
#include <string.h>
#include "base/config.h"
#include "base/log.h"
#include "comm/core/communicator.h"
#include "comm/setup/hello.h"

struct shunt_plan_set *shunt_comm_plan_set_get(
    const struct shunt_comm *comm, const struct shunt_topology *t, bool speak)
{
	uint8_t rail_of[SHUNT_TOPOLOGY_RANKS];
	struct shunt_plan_placement placement = { t->island_of, comm->sel_key.pairs ? NULL : rail_of };
	int each;

	if (!shunt_topology_is_split(t))
		return shunt_plan_set_get(comm->nranks, comm->nranks);
	each = shunt_topology_is_regular(t) ? t->rails : 0;
	if (each && shunt_select_wants_plans())
		shunt_plan_defaults_load(t->nislands, each);
	for (int r = 0; r < t->nranks; r++)
		rail_of[r] = (uint8_t)shunt_topology_rail(t, r);
	return shunt_plan_set_get_over(comm->nranks, each, &placement, speak && comm->rank == 0);
}

uint64_t shunt_comm_plan_set_acquire(struct shunt_comm *comm)
{
	comm->plans.set = shunt_comm_plan_set_get(comm, &comm->topology, true);
	return comm->plans.set ? shunt_plan_set_hash(comm->plans.set) : 0;
}

static void drop_set(struct shunt_comm *comm)
{
	shunt_plan_set_free(comm->plans.set);
	comm->plans.set = NULL;
}

int shunt_comm_plan_set_agree(struct shunt_comm *comm, const struct shunt_hello *hellos)
{
	struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->timeout);
	struct shunt_plan_summary mine, *all;
	bool same = true;
	char reason[256];
	int err;

	for (int r = 1; r < comm->nranks; r++)
		same = same && hellos[r].plans == hellos[0].plans;
	if (same) {
		if (!hellos[0].plans)
			drop_set(comm);
		return 0;
	}
	memset(&mine, 0, sizeof(mine));
	if (comm->plans.set)
		shunt_plan_set_summary(comm->plans.set, &mine);
	all = malloc((size_t)comm->nranks * sizeof(*all));
	if (!all)
		return shunt_rendezvous_lacks_memory(&ranks);
	err = shunt_rendezvous_allgather(&ranks, &mine, sizeof(mine), all, -1, NULL);
	if (!err && comm->rank == 0) {
		shunt_plan_summaries_differ(all, comm->nranks, reason, sizeof(reason));
		shunt_warn("communicator of %d ranks uses no execution plans: %s", comm->nranks,
		    *reason ? reason : "the ranks have different ones");
	}
	free(all);
	drop_set(comm);
	return err;
}

void shunt_comm_plans_drop(struct shunt_comm *comm)
{
	struct shunt_comm_exec *e, *next;

	for (e = comm->plans.execs; e; e = next) {
		next = e->next;
		shunt_plan_exec_destroy(e->exec);
		free(e);
	}
	comm->plans.execs = NULL;
	drop_set(comm);
}
