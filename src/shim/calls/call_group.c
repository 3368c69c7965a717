/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/rlimits.h"
#include "base/log.h"
#include "base/os.h"
#include "kernels/set.h"
#include "shim/calls/nvtx.h"
#include "shim/nccl/result.h"
#include "shim/calls/call_args.h"
#include "shim/calls/thread.h"

int shunt_group_defer(struct shunt_deferred_actions *actions, struct shunt_deferred_action action)
{
	struct shunt_deferred_action *v = realloc(actions->v, (actions->n + 1) * sizeof(*v));

	if (!v)
		return -ENOMEM;
	actions->v = v;
	v[actions->n++] = action;
	return 0;
}

static int grow_calls(struct shunt_group *g)
{
	struct shunt_thread *thread = shunt_thread();
	size_t cap = g->cap ? 2 * g->cap : SHUNT_INLINE_CALLS;
	struct shunt_coll_call *calls = g->cap ?
	    realloc(g->cap > SHUNT_INLINE_CALLS ? g->calls : NULL, cap * sizeof(*calls)) :
	    thread->inline_calls;

	if (!calls)
		return -ENOMEM;
	if (g->cap == SHUNT_INLINE_CALLS)
		memcpy(calls, thread->inline_calls, sizeof(thread->inline_calls));
	g->calls = calls;
	g->cap = cap;
	return 0;
}

/*
 * The program's configuration is its own again when the call returns: copies the names of algorithms, and drops what
 * else the configuration points to, and what a later version has behind its end. 0 or -ENOMEM.
 */
static int detach_config(struct shunt_coll_call *call)
{
	call->caller_config = NULL;
	call->config.ext = NULL;
	if (call->config.size > sizeof(call->config))
		call->config.size = sizeof(call->config);
	if (call->config.algSelection && !(call->selection = strdup(call->config.algSelection)))
		return -ENOMEM;
	call->config.algSelection = call->selection;
	return 0;
}

ncclResult_t shunt_group_record(struct shunt_group *g, const struct shunt_coll_call *call)
{
	struct shunt_coll_call *recorded;

	if (g->n == g->cap && grow_calls(g)) {
		shunt_entry_put(call->entry);
		return shunt_group_result(shunt_to_nccl(-ENOMEM));
	}
	recorded = &g->calls[g->n];
	*recorded = *call;
	if (call->config_kind != SHUNT_CONFIG_NONE && detach_config(recorded)) {
		shunt_entry_put(call->entry);
		return shunt_group_result(shunt_to_nccl(-ENOMEM));
	}
	g->n++;
	if (call->decision.settled)
		shunt_call_settle(&recorded->state);
	else if (call->state == SHUNT_CALL_NEW)
		shunt_call_record(&recorded->state);
	g->nundecided += recorded->state != SHUNT_CALL_OURS;
	return ncclSuccess;
}

bool shunt_group_undecided(const struct shunt_group *g)
{
	return g->nundecided;
}

/*
 * The rounds of a communicator's ranks before anything is launched. All its ranks in this process must take part at the
 * same time.
 */
struct comm_setup {
	struct shunt_group *group;
	struct shunt_entry *entry;
	pthread_t thread;
	bool started;
	int err;
};

static int prepare_calls(struct comm_setup *s)
{
	int err = 0;

	for (size_t i = 0; i < s->group->n && !err; i++) {
		struct shunt_coll_call *call = &s->group->calls[i];

		if (call->entry == s->entry && (call->state == SHUNT_CALL_UNDECIDED || call->state == SHUNT_CALL_OURS))
			err = shunt_comm_prepare(s->entry->comm, &call->coll, &call->decision);
	}
	return err;
}

static void *setup_thread(void *arg)
{
	struct comm_setup *s = arg;
	const struct shunt_gpu_ops *gpu = shunt_gpu();

	if (gpu)
		gpu->device_set(shunt_comm_device(s->entry->comm));
	s->err = prepare_calls(s);
	return NULL;
}

ncclResult_t shunt_group_setup(struct shunt_group *g)
{
	struct comm_setup *comm_setups = NULL;
	size_t n = 0;
	int err = 0;

	for (size_t i = 0; i < g->n && g->nundecided; i++) {
		struct shunt_coll_call *call = &g->calls[i];
		struct shunt_entry *e = call->entry;
		bool seen = call->state != SHUNT_CALL_UNDECIDED;

		for (size_t k = 0; k < n && !seen; k++)
			seen = comm_setups[k].entry == e;
		if (seen || !shunt_comm_decide(e->comm, &call->coll, &call->decision) ||
		    !shunt_comm_needs_round(e->comm, &call->decision))
			continue;
		if (!comm_setups && !(comm_setups = calloc(g->n, sizeof(*comm_setups))))
			return shunt_to_nccl(-ENOMEM);
		comm_setups[n++] = (struct comm_setup){ .group = g, .entry = e };
	}
	if (n == 1) /* the usual case needs no thread */
		comm_setups[0].err = prepare_calls(&comm_setups[0]);
	for (size_t k = 0; n > 1 && k < n; k++) {
		err = shunt_thread_start(&comm_setups[k].thread, 0, setup_thread, &comm_setups[k]);
		comm_setups[k].started = !err;
		if (err) {
			shunt_error(
			    "cannot start a thread for a communicator's set-up: %s", shunt_thread_error_text(err).s);
			for (size_t j = 0; j < k; j++) /* they would wait for this rank */
				shunt_comm_abort(comm_setups[j].entry->comm);
			break;
		}
	}
	for (size_t k = 0; k < n; k++) {
		if (comm_setups[k].started)
			pthread_join(comm_setups[k].thread, NULL);
		if (!err)
			err = comm_setups[k].err;
	}
	free(comm_setups);
	return shunt_to_nccl(err);
}

/* Launches all remaining calls of the group on the communicator of calls[first], together. */
static int launch_comm(
    struct shunt_group *g, size_t first, const struct shunt_coll **calls, struct shunt_decision *decisions)
{
	bool forked = g->calls[first].state == SHUNT_CALL_FORKED;
	struct shunt_entry *e = g->calls[first].entry;
	size_t n = 0;

	for (size_t i = first; i < g->n; i++)
		if (g->calls[i].entry == e && !shunt_call_launch(&g->calls[i].state)) {
			calls[n] = &g->calls[i].coll;
			decisions[n++] = g->calls[i].decision;
		}
	g->done += n;
	return shunt_comm_run_group(e->comm, calls, decisions, n, forked);
}

/*
 * The first call of the next communicator; there is one. Communicators go in the order of their ids, not of the
 * program: otherwise ranks that name the same communicators in different orders, or have no call on some, would wait
 * for each other crosswise on a stream that the communicators share.
 */
static size_t next_comm(const struct shunt_group *g)
{
	const struct shunt_entry *least = NULL, *e;
	size_t next = 0;

	for (size_t i = 0; i < g->n; i++) {
		e = g->calls[i].entry;
		if (shunt_call_waits(g->calls[i].state) &&
		    (!least || (e != least && memcmp(e->id.b, least->id.b, sizeof(e->id.b)) < 0))) {
			least = e;
			next = i;
		}
	}
	return next;
}

/* calls, decisions: room for all calls of the group. */
static ncclResult_t launch_with(
    struct shunt_group *g, const struct shunt_coll **calls, struct shunt_decision *decisions)
{
	ncclResult_t result = ncclSuccess;

	while (g->done < g->n && result == ncclSuccess) {
		size_t first = next_comm(g), which = 0;
		int err = launch_comm(g, first, calls, decisions);

		while (err == -EOPNOTSUPP && decisions[which].algo)
			which++;
		result = err == -EOPNOTSUPP ?
		    shunt_call_declined(g->calls[first].entry, calls[which], decisions[which].reason) :
		    shunt_to_nccl(err);
	}
	return result;
}

static ncclResult_t launch_all(struct shunt_group *g)
{
	const struct shunt_coll *few_calls[SHUNT_INLINE_CALLS], **calls;
	struct shunt_decision few_decisions[SHUNT_INLINE_CALLS], *decisions;
	ncclResult_t result;

	if (g->n <= SHUNT_INLINE_CALLS)
		return launch_with(g, few_calls, few_decisions);
	calls = malloc(g->n * sizeof(*calls));
	decisions = malloc(g->n * sizeof(*decisions));
	result = calls && decisions ? launch_with(g, calls, decisions) : shunt_to_nccl(-ENOMEM);
	free(calls);
	free(decisions);
	return result;
}

ncclResult_t shunt_group_launch(struct shunt_group *g)
{
	bool nvtx = shunt_nvtx_enabled && g->done < g->n;
	ncclResult_t result;

	if (nvtx)
		shunt_nvtx_range_push_group(g->n - g->done);
	result = launch_all(g);
	if (nvtx)
		shunt_nvtx_range_pop();
	return result;
}

static inline void forget(struct shunt_group *g, void (*put)(struct shunt_entry *entry))
{
	for (size_t i = 0; i < g->n; i++) {
		put(g->calls[i].entry);
		free(g->calls[i].selection);
	}
	for (size_t i = 0; i < g->held_entries.n; i++)
		put(g->held_entries.v[i].entry);
	if (g->cap > SHUNT_INLINE_CALLS)
		free(g->calls);
	free(g->p2p_comms.v);
	free(g->created_comms.v);
	free(g->dying_ops.v);
	free(g->held_entries.v);
	*g = (struct shunt_group){ 0 };
}

ncclResult_t shunt_group_forget(struct shunt_group *g, ncclResult_t result)
{
	forget(g, shunt_entry_put);
	return result;
}

void shunt_group_forget_async(struct shunt_group *g)
{
	forget(g, shunt_entry_put_async);
}

ncclResult_t shunt_group_refuse_end(const char *what)
{
	shunt_warn("%s without ncclGroupStart on this thread", what);
	return shunt_to_nccl(-EBUSY);
}
