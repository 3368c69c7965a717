/* SPDX-License-Identifier: MIT */
#include "comm/calls/plugin_calls.h"
#include <errno.h>
#include "algos/plugins.h"
#include "base/config.h"
#include "base/log.h"
#include "base/os.h"
#include "comm/core/communicator.h"
#include "comm/core/plugin_check.h"
#include "transport/symm/symm.h"

/*
 * A plug-in's memory of each rank:
 *
 *   words of the epoch | signals | guard | scratch | guard
 */
enum {
	SIGNALS_AT = 4096, /* twice as many as are the plug-in's: shunt/kernel.h has the others */
	SIGNALS_BYTES = 2 * 8 * SHUNT_PLUGIN_RANKS * SHUNT_PLUGIN_SIGNALS,
	SCRATCH_AT = SIGNALS_AT + SIGNALS_BYTES + SHUNT_PLUGIN_GUARD,
};

/* ---- memory */

static struct shunt_comm_plugin *state_of(const struct shunt_comm *comm, const struct shunt_plugin_use *use)
{
	return comm->plugins.state ? &comm->plugins.state[use - comm->plugins.set->use] : NULL;
}

bool shunt_comm_plugin_ready(const struct shunt_comm *comm, const struct shunt_algo *row)
{
	const struct shunt_plugin_use *use = shunt_plugin_set_find(comm->plugins.set, row->name);
	const struct shunt_comm_plugin *state = use ? state_of(comm, use) : NULL;

	return state && atomic_load_explicit(&state->ready, memory_order_acquire);
}

/* A failure becomes this rank's vote. */
static void make_memory(
    struct shunt_comm *comm, const struct shunt_plugin *p, struct shunt_comm_plugin *state, struct shunt_symm *symm)
{
	void *host = NULL, *dev = NULL;

	if (state->why[0])
		shunt_vote_refuse(&symm->vote, "its image cannot be loaded: %.60s", state->why);
	else if (!shunt_symm_alloc(symm, SCRATCH_AT + p->scratch_bytes + SHUNT_PLUGIN_GUARD) &&
	    comm->gpu->host_alloc(sizeof(*state->fault), &host, &dev))
		shunt_vote_refuse(&symm->vote, "page-locked memory cannot be allocated");
	else if (symm->vote.ok) {
		state->fault = host;
		state->fault_dev = dev;
	}
}

int shunt_comm_plugin_prepare(struct shunt_comm *comm, const struct shunt_algo *row)
{
	struct shunt_plugin_use *use = shunt_plugin_set_find(comm->plugins.set, row->name);
	const struct shunt_plugin *p = &use->entry->plugin;
	struct shunt_comm_plugin none = { .why = "no memory" }, *state = state_of(comm, use);
	struct shunt_symm symm;
	int err;

	state = state ? state : &none;
	shunt_symm_init(&symm,
	    &(struct shunt_symm_config){ .ranks = shunt_comm_ranks(comm, shunt_config()->timeout),
	        .nmates = comm->nranks,
	        .own = comm->rank,
	        .gpu = comm->gpu,
	        .device = comm->device,
	        .process = shunt_process_token(),
	        .what = "a plug-in's scratch",
	        .mem = state->mem,
	        .value = { use->entry->hash, p->scratch_bytes },
	        .differs = { "it has another plug-in of the name", "its scratch has another size" } });
	make_memory(comm, p, state, &symm);
	err = shunt_symm_agree(&symm);
	if (err == -EOPNOTSUPP) {
		atomic_store(&use->refused, true);
		if (comm->rank == 0)
			shunt_warn("plug-in %s cannot run on %d ranks: %s; calls go on without it", p->name,
			    comm->nranks, symm.refusal);
	}
	/* Its own memory alone: the peers look at theirs. */
	if (!err && comm->checks) {
		state->scratch = (char *)state->mem[comm->rank].ptr + SCRATCH_AT;
		err = shunt_plugin_guard(comm, state->scratch, p->scratch_bytes);
	}
	if (err)
		return err == -EOPNOTSUPP && !atomic_load(&use->refused) ? -EIO : err;
	atomic_store_explicit(&state->ready, true, memory_order_release);
	return 0;
}

/* ---- calls */

static bool is_aligned(const struct shunt_coll *coll, uint64_t bytes)
{
	return !(((uintptr_t)coll->send | (uintptr_t)coll->recv | bytes) & 15);
}

static void fill_call(struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_kargs *base,
    bool captured, struct shunt_plugin_run *run)
{
	struct shunt_plugin_call *c = &run->call;
	struct shunt_ctrl *ctrl = comm->mem[comm->rank].ptr;
	uint64_t bytes = shunt_coll_bytes(coll);

	*c = (struct shunt_plugin_call){ .size = sizeof(*c),
		.abi = SHUNT_PLUGIN_ABI,
		.rank = (uint32_t)comm->rank,
		.nranks = (uint32_t)comm->nranks,
		.dtype = coll->dtype,
		.redop = shunt_kind_reduces(coll->kind) ? coll->redop : 0,
		.root = shunt_kind_has_root(coll->kind) ? (uint32_t)coll->root : 0,
		.flags = (shunt_coll_in_place(coll, comm->rank) ? SHUNT_PLUGIN_IN_PLACE : 0u) |
		    (is_aligned(coll, bytes) ? SHUNT_PLUGIN_ALIGNED : 0u) | (captured ? SHUNT_PLUGIN_CAPTURED : 0u) |
		    (coll->scalar_on_device ? SHUNT_PLUGIN_SCALAR_ON_DEVICE : 0u),
		.send = coll->send,
		.recv = coll->recv,
		.count = coll->count,
		.bytes = bytes,
		.scalar = coll->scalar,
		.op = base->op,
		.scratch_bytes = run->plugin->scratch_bytes,
		.epoch = run->state->mem[comm->rank].ptr,
		.abort = &ctrl->abort,
		.limit_ns = &comm->words_dev->limit_ns,
		.fault = run->state->fault_dev,
		.progress = &ctrl->progress.now };
	for (int r = 0; r < comm->nranks; r++) {
		c->signals[r] = (uint64_t *)((char *)run->state->mem[r].ptr + SIGNALS_AT);
		c->scratch[r] = (char *)run->state->mem[r].ptr + SCRATCH_AT;
	}
}

/* Blocks and threads of the kernel, within what has room on every rank. */
static int fill_launch(struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_limits *limits,
    struct shunt_plugin_run *run)
{
	struct shunt_plugin_launch *l = &run->launch;
	struct shunt_plugin_request request;
	struct shunt_callback_inside here;
	int err = 0;

	*l = run->plugin->launch;
	shunt_plugin_request_init(&comm->sel_key, coll, limits, &request);
	if (run->plugin->geometry) {
		err = shunt_callback_enter(&run->use->entry->functions, &here) ?
		    run->plugin->geometry(run->plugin->arg, &request, l) :
		    -ECANCELED;
		shunt_callback_leave(&here);
	}
	if (!err && (run->plugin->geometry ? l->blocks > request.max_blocks : 0))
		err = -EINVAL;
	if (!err && (!l->blocks || !l->threads || l->threads % 32 || l->threads > SHUNT_PLUGIN_MAX_THREADS))
		err = -EINVAL;
	if (err) {
		err = err < 0 ? err : -EINVAL;
		shunt_comm_fail_saying(comm, err,
		    "plug-in %s: its geometry for %s of %llu bytes gave %d, with %u blocks of %u threads; at most %u "
		    "blocks, and a multiple of 32 threads up to %u",
		    run->plugin->name, request.collective, (unsigned long long)request.bytes, err, l->blocks,
		    l->threads, request.max_blocks, SHUNT_PLUGIN_MAX_THREADS);
		return err;
	}
	if (l->blocks > request.max_blocks) {
		l->blocks = request.max_blocks;
		l->cluster = 0;
	}
	if (limits->max_threads && limits->max_threads < l->threads)
		l->threads = limits->max_threads;
	return 0;
}

int shunt_comm_plugin_run_init(struct shunt_comm *comm, const struct shunt_coll *coll, const struct shunt_algo *row,
    const struct shunt_limits *limits, const struct shunt_kargs *base, bool captured, struct shunt_plugin_run *run)
{
	run->use = shunt_plugin_set_find(comm->plugins.set, row->name);
	run->plugin = &run->use->entry->plugin;
	run->state = state_of(comm, run->use);
	atomic_store_explicit(&run->state->op, base->op, memory_order_relaxed);
	comm->plugins.launched = true;
	fill_call(comm, coll, base, captured, run);
	return run->plugin->enqueue ? 0 : fill_launch(comm, coll, limits, run);
}
