/* SPDX-License-Identifier: MIT */
#include "comm/setup/plugin_set.h"
#include <stdio.h>
#include <stdlib.h>
#include "algos/plugins.h"
#include "algos/select/tuning.h"
#include "base/config.h"
#include "base/lock.h"
#include "base/log.h"
#include "comm/core/communicator.h"
#include "comm/core/plugin_check.h"
#include "comm/setup/hello.h"
#include "transport/symm/symm.h"

/* ---- images. They stay loaded until the process ends: graphs may have their kernels. */

struct image {
	struct image *next;
	uint64_t hash;
	int device;
	struct shunt_gpu_function function;
};
static struct image *images;

/* A function of the device for the plug-in, or NULL and the reason. */
static const struct shunt_gpu_function *image_load(
    const struct shunt_gpu_ops *gpu, int device, const struct shunt_plugin_entry *e, char *why, size_t bytes)
{
	const struct shunt_plugin *p = &e->plugin;
	const struct shunt_gpu_image image = { .image = p->image,
		.bytes = p->image_bytes,
		.symbol = p->launch.symbol,
		.shared = p->launch.shared_bytes,
		.has_params = p->nparams != 0,
		.waits = p->flags & SHUNT_PLUGIN_COUNTED };
	struct image *i;

	shunt_log_hold();
	shunt_lock_acquire(SHUNT_LOCK_PLUGIN_IMAGES);
	for (i = images; i && (i->hash != e->hash || i->device != device); i = i->next)
		;
	if (!i && (i = calloc(1, sizeof(*i)))) {
		i->hash = e->hash;
		i->device = device;
		if (gpu->image_load(device, &image, &i->function, why, bytes)) {
			free(i);
			i = NULL;
		} else {
			i->next = images;
			images = i;
		}
	} else if (!i) {
		snprintf(why, bytes, "no memory");
	}
	shunt_lock_release(SHUNT_LOCK_PLUGIN_IMAGES);
	shunt_log_flush();
	return i ? &i->function : NULL;
}

/* Loads the image of plug-in i of the set. A failure is told when the plug-in is first named. */
static void load(struct shunt_comm *comm, size_t i)
{
	const struct shunt_plugin_entry *e = comm->plugins.set->use[i].entry;
	struct shunt_comm_plugin *state = &comm->plugins.state[i];
	const struct shunt_gpu_function *f;

	for (int r = 0; r < SHUNT_MAX_RANKS; r++)
		state->mem[r].fd = -1;
	if (comm->sel_key.sim) {
		state->function.sim = (shunt_sim_user_kernel *)e->plugin.sim;
	} else if (e->plugin.image) {
		f = image_load(comm->gpu, comm->device, e, state->why, sizeof(state->why));
		if (f)
			state->function = *f;
	}
}

/* ---- the set */

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

int shunt_comm_plugins_agree(struct shunt_comm *comm, const struct shunt_hello *hellos)
{
	bool same = true;
	int err = 0;

	for (int r = 1; r < comm->nranks; r++)
		same = same && hellos[r].plugins == hellos[0].plugins;
	if (same && comm->rank == 0 && comm->sel_key.tuning)
		shunt_tuning_tell_missing(comm->sel_key.tuning, comm->plugins.set);
	if (same && !hellos[0].plugins)
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
		load(comm, i);
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
