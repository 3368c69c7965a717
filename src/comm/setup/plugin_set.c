/* SPDX-License-Identifier: MIT */
#include "comm/setup/plugin_set.h"
#include <stdlib.h>
#include "algos/plugins.h"
#include "algos/select/tuning.h"
#include "base/config.h"
#include "base/log.h"
#include "comm/calls/plugin_check.h"
#include "comm/core/communicator.h"
#include "transport/symm/symm.h"

uint64_t shunt_comm_plugins_acquire(struct shunt_comm *comm)
{
	bool runs = !comm->own.bytes && !shunt_comm_spans_hosts(comm) && comm->nranks > 1;

	comm->plugins.set = runs ? shunt_plugin_set_get() : NULL;
	return comm->plugins.set ? comm->plugins.set->hash : 0;
}

/* The line about ranks that have different ones. */
static int say_difference(struct shunt_comm *comm)
{
	struct shunt_ranks ranks = shunt_comm_ranks(comm, shunt_config()->timeout);
	struct shunt_plugin_summary mine, *all = malloc((size_t)comm->nranks * sizeof(*all));
	char reason[128];
	int err;

	if (!all)
		return shunt_rendezvous_lacks_memory(&ranks);
	shunt_plugin_set_summary(comm->plugins.set, &mine);
	err = shunt_rendezvous_allgather(&ranks, &mine, sizeof(mine), all, -1, NULL);
	if (!err && comm->rank == 0) {
		shunt_plugin_summaries_differ(all, comm->nranks, reason, sizeof(reason));
		shunt_warn("communicator of %d ranks uses no plug-ins: %s; register the same on all ranks",
		    comm->nranks, reason);
	}
	free(all);
	return err;
}

int shunt_comm_plugins_agree(struct shunt_comm *comm, const uint64_t *hashes)
{
	bool same = true;
	int err = 0;

	for (int r = 1; r < comm->nranks; r++)
		same = same && hashes[r] == hashes[0];
	if (same && comm->rank == 0 && comm->sel_key.tuning)
		shunt_tuning_tell_missing(comm->sel_key.tuning, comm->plugins.set);
	if (same && !hashes[0])
		return 0;
	if (!same)
		err = say_difference(comm);
	else
		comm->plugins.state = calloc(comm->plugins.set->n, sizeof(*comm->plugins.state));
	if (!comm->plugins.state) { /* no memory: this rank refuses to prepare each of them */
		if (!same)
			shunt_comm_plugins_drop(comm);
		comm->sel_key.plugins = comm->plugins.set;
		return err;
	}
	for (size_t i = 0; i < comm->plugins.set->n; i++)
		shunt_comm_plugin_load(comm, i);
	comm->sel_key.plugins = comm->plugins.set;
	return 0;
}

void shunt_comm_plugins_drop(struct shunt_comm *comm)
{
	struct shunt_comm_plugins *p = &comm->plugins;

	shunt_plugin_watches_finish(comm);
	for (size_t i = 0; p->state && i < p->set->n; i++) {
		shunt_symm_free(comm->gpu, p->state[i].mem, SHUNT_MAX_RANKS);
		if (p->state[i].fault)
			comm->gpu->host_free(p->state[i].fault);
	}
	comm->sel_key.plugins = NULL;
	free(p->state);
	shunt_plugin_set_free(p->set);
	*p = (struct shunt_comm_plugins){ 0 };
}
