/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/os.h"
#include "comm/symmem.h"
#include "comm/gpu.h"
#include "shim/group.h"
#include "shim/jobs.h"
#include "shim/overlay/pending_child.h"
#include "shim/nvtx.h"
#include "shim/nccl/real.h"
#include "shim/nccl/result.h"
#include "shim/standalone/standalone.h"

/* Work that the group does for a communicator's handle when it ends. */
struct deferred_action {
	ncclComm_t comm;
	ncclRedOp_t op;
	struct shunt_entry *entry;
	struct shunt_window *window;
	ncclWindow_t *handle_p;
};

struct deferred_actions {
	struct deferred_action *v;
	size_t n;
};

struct shunt_group {
	unsigned depth;
	ncclResult_t error;
	struct shunt_coll_call *calls;
	size_t n, cap;
	size_t nundecided;                     /* calls that may still turn out to be the real NCCL's */
	size_t done;                           /* calls that were forwarded or launched */
	struct deferred_actions p2p_comms;     /* communicators with messages that the real NCCL has */
	struct deferred_actions created_comms; /* created inside */
	struct deferred_actions dying_ops;     /* operators to destroy at the end */
	struct deferred_actions held_entries;  /* entries to put at the end */
	struct deferred_actions windows;       /* registered inside */
	struct shunt_job *jobs, **jobs_end;
};

static _Thread_local struct shunt_group group;
static _Thread_local struct shunt_coll_call inline_calls[SHUNT_INLINE_CALLS]; /* for a group that needs no more */

/*
 * The group's address, to be passed on. Each use of the thread-local name is a call of the C library, and without the
 * barrier the compiler uses the name again.
 */
static struct shunt_group *this_group(void)
{
	struct shunt_group *g = &group;

	__asm__("" : "+r"(g));
	return g;
}

struct shunt_group *shunt_group_open(void)
{
	struct shunt_group *g = this_group();

	return g->depth ? g : NULL;
}

ncclResult_t shunt_group_result(ncclResult_t result)
{
	struct shunt_group *g = this_group();

	if (g->depth && g->error == ncclSuccess && result != ncclInProgress)
		g->error = result;
	return result;
}

/* The real library sees one group: for it only the outermost end counts, not the depth. */
ncclResult_t shunt_group_open_real(void)
{
	ncclResult_t result;

	shunt_real_thread.group_due = false;
	result = real_GroupStart();
	shunt_real_thread.group_due = result != ncclSuccess;
	return shunt_group_result(result);
}

/* From now on no call opens the real group. True: a call has opened it, and it must be closed. */
static bool take_real_open(void)
{
	bool open = !shunt_real_thread.group_due;

	shunt_real_thread.group_due = false;
	return open;
}

static int defer_action(struct deferred_actions *deferred_actions, struct deferred_action deferred_action)
{
	struct deferred_action *v = realloc(deferred_actions->v, (deferred_actions->n + 1) * sizeof(*v));

	if (!v)
		return -ENOMEM;
	deferred_actions->v = v;
	v[deferred_actions->n++] = deferred_action;
	return 0;
}

static int grow_calls(struct shunt_group *g)
{
	size_t cap = g->cap ? 2 * g->cap : SHUNT_INLINE_CALLS;
	struct shunt_coll_call *calls =
	    g->cap ? realloc(g->cap > SHUNT_INLINE_CALLS ? g->calls : NULL, cap * sizeof(*calls)) : inline_calls;

	if (!calls)
		return -ENOMEM;
	if (g->cap == SHUNT_INLINE_CALLS)
		memcpy(calls, inline_calls, sizeof(inline_calls));
	g->calls = calls;
	g->cap = cap;
	return 0;
}

/*
 * The program's configuration is its own again when the call returns: drops what the configuration points to, and what
 * a later version has behind its end.
 */
static void detach_config(struct shunt_coll_call *call)
{
	call->caller_config = NULL;
	call->config.ext = NULL;
	if (call->config.size > sizeof(call->config))
		call->config.size = sizeof(call->config);
}

ncclResult_t shunt_group_record(struct shunt_group *g, const struct shunt_coll_call *call)
{
	if (g->n == g->cap && grow_calls(g)) {
		shunt_entry_put(call->entry);
		return shunt_group_result(shunt_to_nccl(-ENOMEM));
	}
	g->calls[g->n] = *call;
	if (call->has_config)
		detach_config(&g->calls[g->n]);
	g->n++;
	g->nundecided += !call->decision.algo;
	return ncclSuccess;
}

bool shunt_group_undecided(const struct shunt_group *g)
{
	return g->nundecided;
}

void shunt_group_forwarded_p2p(struct shunt_group *g, ncclComm_t comm)
{
	size_t i = 0;

	while (i < g->p2p_comms.n && g->p2p_comms.v[i].comm != comm)
		i++;
	if (i == g->p2p_comms.n) /* without memory our messages come after the real NCCL's */
		defer_action(&g->p2p_comms, (struct deferred_action){ .comm = comm });
}

void shunt_group_comm_created(ncclComm_t comm)
{
	/*
	 * Without memory the entry outlives a failed group. That does no harm: the next communicator at this address
	 * replaces it.
	 */
	defer_action(&group.created_comms, (struct deferred_action){ .comm = comm });
}

void shunt_group_put(struct shunt_entry *entry)
{
	if (!entry || !group.depth || defer_action(&group.held_entries, (struct deferred_action){ .entry = entry }))
		shunt_entry_put(entry);
}

void shunt_group_window(struct shunt_entry *entry, struct shunt_window *window, ncclWindow_t *handle_p)
{
	if (!defer_action(
	        &group.windows, (struct deferred_action){ .entry = entry, .window = window, .handle_p = handle_p }))
		return;
	shunt_symmem_set_name(entry->comm, window, NULL);
	shunt_entry_put_async(entry);
}

bool shunt_group_defer_op_destroy(ncclRedOp_t op, ncclComm_t comm)
{
	for (size_t i = 0; i < group.n; i++)
		if (group.calls[i].op == op && group.calls[i].comm == comm)
			return !defer_action(&group.dying_ops,
			    (struct deferred_action){ .comm = comm, .op = op, .entry = group.calls[i].entry });
	return false;
}

void shunt_group_add_job(struct shunt_job *job)
{
	if (!group.jobs)
		group.jobs_end = &group.jobs;
	job->next = NULL;
	*group.jobs_end = job;
	group.jobs_end = &job->next;
}

/*
 * A group that is still in progress writes the handles later, when the program's memory for them may be gone: its
 * windows get no name.
 */
static void name_windows(const struct shunt_group *g, ncclResult_t result)
{
	if (!g->windows.n)
		return;
	for (size_t i = 0; i < g->windows.n; i++) {
		const struct deferred_action *deferred_action = &g->windows.v[i];

		if (result == ncclSuccess || result == ncclInProgress)
			shunt_symmem_set_name(deferred_action->entry->comm, deferred_action->window,
			    result == ncclSuccess ? *deferred_action->handle_p : NULL);
		else
			shunt_symmem_remove(deferred_action->entry->comm, deferred_action->window);
		shunt_entry_put_async(deferred_action->entry);
	}
	free(g->windows.v);
}

/*
 * Destroys the operator unless another thread has aborted the communicator, and the operator with it. The recorded call
 * still holds the entry.
 */
static void destroy_op(const struct deferred_action *deferred_action)
{
	struct shunt_entry *now = shunt_entry_get(deferred_action->comm);

	if (now == deferred_action->entry)
		real_RedOpDestroy(deferred_action->op, deferred_action->comm);
	shunt_entry_put(now);
}

/*
 * Does the work for the group's end, by the group's result, and forgets everything, with the error or without. Does not
 * query a communicator that the real library still works on.
 */
static ncclResult_t end_group(struct shunt_group *g, ncclResult_t result)
{
	bool is_settled = result == ncclSuccess, failed = !is_settled && result != ncclInProgress;

	name_windows(g, result);
	shunt_pending_child_group_ended(g, failed);
	for (size_t i = 0; failed && i < g->created_comms.n; i++)
		shunt_entry_put(shunt_entry_remove(g->created_comms.v[i].comm));
	for (size_t i = 0; is_settled && i < g->created_comms.n; i++)
		shunt_attach_refresh(g->created_comms.v[i].comm);
	for (size_t i = 0; i < g->dying_ops.n; i++)
		destroy_op(&g->dying_ops.v[i]);
	for (size_t i = 0; i < g->n; i++)
		shunt_entry_put(g->calls[i].entry);
	for (size_t i = 0; i < g->held_entries.n; i++)
		shunt_entry_put(g->held_entries.v[i].entry);
	if (g->cap > SHUNT_INLINE_CALLS)
		free(g->calls);
	free(g->p2p_comms.v);
	free(g->created_comms.v);
	free(g->dying_ops.v);
	free(g->held_entries.v);
	*g = (struct shunt_group){ 0 };
	return result;
}

/* True: the call wants a kernel, as far as is known now. */
static bool wants_kernel(const struct shunt_coll_call *call, enum shunt_reason *reason_p)
{
	return !call->done && !call->real &&
	    (call->decision.algo || shunt_comm_path(call->entry->comm, &call->coll, reason_p));
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

	for (size_t i = 0; i < s->group->n && !err; i++)
		if (s->group->calls[i].entry == s->entry && !s->group->calls[i].done && !s->group->calls[i].real)
			err = shunt_comm_prepare(s->entry->comm, &s->group->calls[i].coll);
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

static ncclResult_t setup_comms(struct shunt_group *g)
{
	struct comm_setup *comm_setups = NULL;
	size_t n = 0;
	int err = 0;

	for (size_t i = 0; i < g->n && g->nundecided; i++) {
		struct shunt_entry *e = g->calls[i].entry;
		bool seen = g->calls[i].decision.algo || g->calls[i].real;

		for (size_t k = 0; k < n && !seen; k++)
			seen = comm_setups[k].entry == e;
		if (seen || g->calls[i].done || !shunt_comm_needs_round(e->comm, &g->calls[i].coll))
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
			shunt_error("cannot start a thread for a communicator's set-up: %s", strerror(-err));
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

/* Forwards calls into the real group: all of them, or those that are NCCL's as the set-up has shown. */
static ncclResult_t forward_calls(struct shunt_group *g, bool all)
{
	for (size_t i = 0; i < g->n && (all || g->nundecided); i++) {
		struct shunt_coll_call *call = &g->calls[i];
		enum shunt_reason reason = SHUNT_REASON_NONE;
		ncclResult_t result;

		if (!all) {
			if (wants_kernel(call, &reason))
				continue;
			if (!call->real)
				shunt_comm_count_forward(call->entry->comm, &call->coll, reason);
		}
		call->done = true;
		g->done++;
		if (shunt_kind_is_p2p(call->coll.kind))
			shunt_group_forwarded_p2p(g, call->comm);
		result = shunt_forward(call);
		if (result != ncclSuccess && result != ncclInProgress)
			return result;
	}
	return ncclSuccess;
}

/*
 * All messages of a group on one communicator must run at the same time, because the other end of each may be a single
 * call, in any order. NCCL's launches would be in the stream before ours, and could wait for a rank that waits for
 * ours. So ours are forked first.
 */
static int fork_p2p_comm(struct shunt_group *g, ncclComm_t comm, const struct shunt_coll **calls)
{
	struct shunt_entry *e = NULL;
	bool forked = false;
	size_t n = 0;
	int err = 0;

	for (size_t i = 0; i < g->n; i++)
		if (!g->calls[i].done && (e ? g->calls[i].entry == e : g->calls[i].comm == comm)) {
			e = g->calls[i].entry;
			calls[n++] = &g->calls[i].coll;
		}
	if (e)
		err = shunt_comm_fork_group(e->comm, calls, n, &forked);
	for (size_t i = 0; i < g->n && forked; i++)
		g->calls[i].forked |= g->calls[i].entry == e;
	return err;
}

__attribute__((cold, noinline)) static ncclResult_t fork_calls(struct shunt_group *g)
{
	const struct shunt_coll **calls = calloc(g->n, sizeof(*calls));
	int err = calls ? 0 : -ENOMEM;

	for (size_t i = 0; i < g->p2p_comms.n && !err; i++)
		err = fork_p2p_comm(g, g->p2p_comms.v[i].comm, calls);
	free(calls);
	return shunt_to_nccl(err);
}

/*
 * later: the real NCCL launches its part later, from a thread of its own. Then ncclCommGetAsyncError joins, once it
 * reports that NCCL has launched.
 */
static ncclResult_t join_calls(const struct shunt_group *g, bool later, ncclResult_t result)
{
	int err = 0;

	for (size_t i = 0; i < g->n && !err; i++) {
		if (!g->calls[i].forked)
			continue;
		shunt_comm_join_later(g->calls[i].entry->comm);
		if (!later)
			err = shunt_comm_join_due(g->calls[i].entry->comm);
	}
	return result == ncclSuccess ? shunt_to_nccl(err) : result;
}

/* Launches all remaining calls of the group on the communicator of calls[first], together. */
static int launch_comm(
    struct shunt_group *g, size_t first, const struct shunt_coll **calls, struct shunt_decision *decisions)
{
	bool forked = g->calls[first].forked;
	struct shunt_entry *e = g->calls[first].entry;
	size_t n = 0;

	for (size_t i = first; i < g->n; i++)
		if (!g->calls[i].done && g->calls[i].entry == e) {
			/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the caller has checked both arrays */
			calls[n] = &g->calls[i].coll;
			/* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): likewise */
			decisions[n++] = g->calls[i].decision;
			g->calls[i].done = true;
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
		if (!g->calls[i].done &&
		    (!least || (e != least && memcmp(e->id.b, least->id.b, sizeof(e->id.b)) < 0))) {
			least = e;
			next = i;
		}
	}
	return next;
}

/* The set-up is done, and NCCL's calls are forwarded: now a call is declined only without a real NCCL. */
static ncclResult_t launch_all(struct shunt_group *g)
{
	const struct shunt_coll *few_calls[SHUNT_INLINE_CALLS], **calls = few_calls;
	struct shunt_decision few_decisions[SHUNT_INLINE_CALLS], *decisions = few_decisions;
	bool many = g->n > SHUNT_INLINE_CALLS;
	ncclResult_t result;

	if (many) {
		calls = malloc(g->n * sizeof(*calls));
		decisions = malloc(g->n * sizeof(*decisions));
	}
	result = calls && decisions ? ncclSuccess : shunt_to_nccl(-ENOMEM);
	while (g->done < g->n && result == ncclSuccess) {
		size_t first = next_comm(g);
		struct shunt_coll_call *call = &g->calls[first];
		int err = launch_comm(g, first, calls, decisions);

		result = err == -EOPNOTSUPP ? shunt_standalone_declined(call->entry, &call->coll) : shunt_to_nccl(err);
	}
	if (many) {
		free(calls);
		free(decisions);
	}
	return result;
}

static ncclResult_t launch_calls(struct shunt_group *g)
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

static ncclResult_t end_standalone(struct shunt_group *g)
{
	ncclResult_t jobs_result = shunt_jobs_run(g->jobs, g->error), result;

	if (jobs_result != ncclSuccess && jobs_result != ncclInProgress)
		return jobs_result;
	result = setup_comms(g);
	if (result == ncclSuccess)
		result = launch_calls(g);
	return result == ncclSuccess ? jobs_result : result;
}

/*
 * Makes the open real group fail, so that it launches nothing, and closes it. The program still sees the error that is
 * the cause.
 */
static void fail_real_group(void)
{
	if (atomic_load(&shunt_real_error_is_last))
		shunt_last_error_set(real_GetLastError(NULL));
	real_AllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, NULL, NULL);
	real_GroupEnd();
	atomic_store(&shunt_real_error_is_last, false);
}

/*
 * True: a call of ours is on a non-blocking communicator. The real library launches such a group from a thread of its
 * own, some time after ncclGroupEnd has returned. If ours came after that, the ranks' streams would have different
 * orders, and the ranks would wait for each other crosswise.
 */
static bool launch_before_real(const struct shunt_group *g)
{
	for (size_t i = 0; i < g->n; i++)
		if (!g->calls[i].done && !g->calls[i].entry->config.blocking)
			return true;
	return false;
}

static ncclResult_t end_overlay(struct shunt_group *g)
{
	ncclResult_t result = g->error, end = ncclSuccess;
	bool open;

	if (result == ncclSuccess)
		result = setup_comms(g);
	if (result == ncclSuccess)
		result = forward_calls(g, false);
	if (result == ncclSuccess && g->p2p_comms.n && g->done < g->n)
		result = fork_calls(g);
	open = take_real_open();
	if (open && result == ncclSuccess && launch_before_real(g))
		result = launch_calls(g);
	if (open && result != ncclSuccess)
		fail_real_group();
	else if (open)
		end = real_GroupEnd();
	if (result == ncclSuccess && (end == ncclSuccess || end == ncclInProgress))
		result = launch_calls(g);
	if (g->p2p_comms.n)
		result = join_calls(g, end == ncclInProgress, result);
	return result == ncclSuccess ? end : result;
}

ncclResult_t pncclGroupStart(void)
{
	enum shunt_mode mode = shunt_mode();

	if (mode == SHUNT_PASSTHROUGH)
		return real_GroupStart();
	if (!this_group()->depth++)
		shunt_real_thread.group_due = mode == SHUNT_OVERLAY;
	return ncclSuccess;
}
SHUNT_WEAK_ALIAS(GroupStart);

/*
 * Ends one level of the group. True: it was the outermost, and its end is no longer inside. False: *result_p is the
 * call's result.
 */
static inline bool group_leave(struct shunt_group *g, const char *what, ncclResult_t *result_p)
{
	if (!g->depth) {
		shunt_warn("%s without ncclGroupStart on this thread", what);
		*result_p = shunt_to_nccl(-EBUSY);
		return false;
	}
	*result_p = ncclSuccess;
	return !--g->depth;
}

ncclResult_t pncclGroupEnd(void)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_group *g = this_group();
	ncclResult_t result;

	if (mode == SHUNT_PASSTHROUGH || (mode == SHUNT_OVERLAY && !g->depth))
		return real_GroupEnd();
	if (!group_leave(g, "ncclGroupEnd", &result))
		return result;
	return end_group(g, mode == SHUNT_OVERLAY ? end_overlay(g) : end_standalone(g));
}
SHUNT_WEAK_ALIAS(GroupEnd);

/*
 * The real NCCL estimates all calls, so they all go into the real group. That is opened even without calls: the real
 * NCCL checks info.
 */
static ncclResult_t simulate_overlay(struct shunt_group *g, ncclSimInfo_t *info)
{
	ncclResult_t result = g->error, forwarded;

	forwarded = result == ncclSuccess ? forward_calls(g, true) : result;
	result = real_GroupSimulateEnd(info);
	if (take_real_open() && !shunt_real_symbol("ncclGroupSimulateEnd")) /* missing before 2.22 */
		fail_real_group();
	return result == ncclSuccess ? forwarded : result;
}

/* Without a real NCCL there is no estimate. */
static ncclResult_t simulate_standalone(struct shunt_group *g, ncclSimInfo_t *info)
{
	if (info && info->magic != SHUNT_NCCL_SIM_MAGIC) {
		shunt_warn("ncclGroupSimulateEnd: the structure was not initialized");
		if (g->error == ncclSuccess)
			g->error = ncclInvalidArgument;
	} else if (info) {
		info->estimatedTime = NCCL_UNDEF_FLOAT;
	}
	return shunt_jobs_run(g->jobs, g->error);
}

/* Launches nothing; the group's other work is done. */
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *info)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_group *g = this_group();
	ncclResult_t result;

	if (mode == SHUNT_PASSTHROUGH || (mode == SHUNT_OVERLAY && !g->depth))
		return real_GroupSimulateEnd(info);
	if (!group_leave(g, "ncclGroupSimulateEnd", &result))
		return result;
	return end_group(g, mode == SHUNT_OVERLAY ? simulate_overlay(g, info) : simulate_standalone(g, info));
}
SHUNT_WEAK_ALIAS(GroupSimulateEnd);
