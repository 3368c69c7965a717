/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include "base/log.h"
#include "comm/calls/windows.h"
#include "comm/observe/marks.h"
#include "shim/real/real.h"
#include "shim/real/forward.h"
#include "shim/nccl/result.h"
#include "shim/overlay/attach.h"
#include "shim/overlay/real_group.h"
#include "shim/overlay/overlay.h"
#include "shim/overlay/pending_child.h"
#include "shim/calls/call_args.h"
#include "shim/calls/thread.h"

/* From now on no call opens the real group. True: a call has opened it, and it must be closed. */
static bool take_real_open(struct shunt_group *g)
{
	bool open = !g->real_due;

	g->real_due = false;
	return open;
}

void shunt_group_forwarded_p2p(struct shunt_group *g, ncclComm_t comm)
{
	size_t i = 0;

	while (i < g->p2p_comms.n && g->p2p_comms.v[i].comm != comm)
		i++;
	if (i == g->p2p_comms.n) /* without memory our messages come after the real NCCL's */
		shunt_group_defer(&g->p2p_comms, (struct shunt_deferred_action){ .comm = comm });
}

void shunt_group_comm_created(struct shunt_group *g, ncclComm_t comm)
{
	/*
	 * Without memory the entry outlives a failed group. That does no harm: the next communicator at this address
	 * replaces it.
	 */
	shunt_group_defer(&g->created_comms, (struct shunt_deferred_action){ .comm = comm });
}

void shunt_group_put(struct shunt_entry *entry)
{
	struct shunt_group *g = shunt_group_open();

	if (!entry || !g || shunt_group_defer(&g->held_entries, (struct shunt_deferred_action){ .entry = entry }))
		shunt_entry_put(entry);
}

void shunt_group_window(
    struct shunt_group *g, struct shunt_entry *entry, struct shunt_window *window, ncclWindow_t *handle_p)
{
	struct shunt_deferred_action action = { .entry = entry, .window = window, .handle_p = handle_p };

	if (!shunt_group_defer(&g->windows, action))
		return;
	shunt_symmem_set_name(entry->comm, window, NULL);
	shunt_entry_put_async(entry);
}

bool shunt_group_defer_op_destroy(struct shunt_group *g, ncclRedOp_t op, ncclComm_t comm)
{
	for (size_t i = 0; i < g->n; i++)
		if (g->calls[i].op == op && g->calls[i].comm == comm)
			return !shunt_group_defer(&g->dying_ops,
			    (struct shunt_deferred_action){ .comm = comm, .op = op, .entry = g->calls[i].entry });
	return false;
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
		const struct shunt_deferred_action *action = &g->windows.v[i];

		if (result == ncclSuccess || result == ncclInProgress)
			shunt_symmem_set_name(
			    action->entry->comm, action->window, result == ncclSuccess ? *action->handle_p : NULL);
		else
			shunt_symmem_remove(action->entry->comm, action->window);
		shunt_entry_put_async(action->entry);
	}
	free(g->windows.v);
}

/*
 * Destroys the operator unless another thread has aborted the communicator, and the operator with it. The recorded call
 * still holds the entry.
 */
static void destroy_op(const struct shunt_deferred_action *action)
{
	struct shunt_entry *now = shunt_entry_get(action->comm);

	if (now == action->entry)
		real_RedOpDestroy(action->op, action->comm);
	shunt_entry_put(now);
}

/*
 * Does the work for the group's end, by the group's result. Does not query a communicator that the real library still
 * works on.
 */
static ncclResult_t settle_group(struct shunt_group *g, ncclResult_t result)
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
	return shunt_group_forget(g, result);
}

/* True: the call wants a kernel, as far as is known now. */
static bool wants_kernel(struct shunt_coll_call *call)
{
	if (call->state == SHUNT_CALL_UNDECIDED && shunt_comm_decide(call->entry->comm, &call->coll, &call->decision))
		shunt_call_settle(&call->state);
	return call->state == SHUNT_CALL_OURS;
}

/* Forwards calls into the real group: all of them, or those that are NCCL's as the set-up has shown. */
static ncclResult_t forward_calls(struct shunt_group *g, bool all)
{
	for (size_t i = 0; i < g->n && (all || g->nundecided); i++) {
		struct shunt_coll_call *call = &g->calls[i];
		ncclResult_t result;

		if (!all) {
			if (wants_kernel(call))
				continue;
			if (call->state == SHUNT_CALL_UNDECIDED)
				shunt_comm_count_forward(call->entry->comm, &call->coll, call->decision.reason);
		}
		shunt_call_forward(&call->state);
		g->done++;
		if (shunt_kind_is_p2p(call->coll.kind))
			shunt_group_forwarded_p2p(g, call->comm);
		result = shunt_forward(call);
		if (result != ncclSuccess && result != ncclInProgress)
			return shunt_call_forward_failed(&call->coll, result);
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
		if (g->calls[i].state == SHUNT_CALL_OURS && (e ? g->calls[i].entry == e : g->calls[i].comm == comm)) {
			e = g->calls[i].entry;
			calls[n++] = &g->calls[i].coll;
		}
	if (e)
		err = shunt_comm_fork_group(e->comm, calls, n, &forked);
	for (size_t i = 0; i < g->n && forked; i++)
		if (g->calls[i].entry == e)
			shunt_call_fork(&g->calls[i].state);
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
static ncclResult_t join_calls(struct shunt_group *g, bool later, ncclResult_t result)
{
	int err = 0;

	for (size_t i = 0; i < g->n && !err; i++) {
		if (shunt_call_join(&g->calls[i].state))
			continue;
		shunt_comm_join_later(g->calls[i].entry->comm);
		if (!later)
			err = shunt_comm_join_due(g->calls[i].entry->comm);
	}
	return result == ncclSuccess ? shunt_to_nccl(err) : result;
}

/*
 * Makes the open real group fail, so that it launches nothing, and closes it. The program still gets the error that
 * caused this.
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
		if (shunt_call_waits(g->calls[i].state) && !g->calls[i].entry->config.blocking)
			return true;
	return false;
}

static ncclResult_t run_group(struct shunt_group *g)
{
	ncclResult_t result = g->error, end = ncclSuccess;
	bool open;

	if (result == ncclSuccess)
		result = shunt_group_setup(g);
	if (result == ncclSuccess)
		result = forward_calls(g, false);
	if (result == ncclSuccess && g->p2p_comms.n && g->done < g->n)
		result = fork_calls(g);
	open = take_real_open(g);
	if (open) /* a thread that hangs in the group's end is noted with its last call */
		shunt_thread_note(shunt_thread_of(g))->noted = true;
	if (open && result == ncclSuccess && launch_before_real(g))
		result = shunt_group_launch(g);
	if (open && result != ncclSuccess)
		fail_real_group();
	else if (open)
		end = real_GroupEnd();
	if (result == ncclSuccess && (end == ncclSuccess || end == ncclInProgress))
		result = shunt_group_launch(g);
	if (g->p2p_comms.n)
		result = join_calls(g, end == ncclInProgress, result);
	return result == ncclSuccess ? end : result;
}

/*
 * The real NCCL estimates all calls, so they all go into the real group. That is opened even without calls: the real
 * NCCL checks info.
 */
static ncclResult_t simulate_group(struct shunt_group *g, ncclSimInfo_t *info)
{
	ncclResult_t result = g->error, forwarded;

	forwarded = result == ncclSuccess ? forward_calls(g, true) : result;
	result = real_GroupSimulateEnd(info);
	if (take_real_open(g) && !shunt_real_symbol("ncclGroupSimulateEnd")) /* missing before 2.22 */
		fail_real_group();
	return result == ncclSuccess ? forwarded : result;
}

/*
 * Ours only. Nothing is called of the real NCCL, whose own thread-local state may be gone: a part of the group that it
 * has got stays as it would without Shunt.
 */
static void abandon_group(struct shunt_group *g)
{
	g->real_due = false;
	shunt_marks_settle(false);
	name_windows(g, ncclInvalidUsage);
	shunt_pending_child_group_ended(g, true);
	for (size_t i = 0; i < g->created_comms.n; i++)
		shunt_entry_put_async(shunt_entry_remove(g->created_comms.v[i].comm));
	shunt_group_forget_async(g);
}

ncclResult_t shunt_overlay_GroupStart(void)
{
	struct shunt_thread *thread = shunt_thread();

	if (!thread->group.depth)
		thread->group.real_due = true;
	shunt_group_enter(thread, abandon_group);
	return ncclSuccess;
}

ncclResult_t shunt_overlay_GroupEnd(void)
{
	struct shunt_group *g = shunt_group_open();
	ncclResult_t result;

	if (!g)
		return real_GroupEnd();
	return shunt_group_leave(g, "ncclGroupEnd", &result) ? settle_group(g, run_group(g)) : result;
}

ncclResult_t shunt_overlay_GroupSimulateEnd(ncclSimInfo_t *info)
{
	struct shunt_group *g = shunt_group_open();
	ncclResult_t result;

	if (!g)
		return real_GroupSimulateEnd(info);
	return shunt_group_leave(g, "ncclGroupSimulateEnd", &result) ? settle_group(g, simulate_group(g, info)) :
	                                                               result;
}
