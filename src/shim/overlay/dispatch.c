/* SPDX-License-Identifier: MIT */
/* Overlay: a collective or a message is Shunt's if the communicator has a kernel for it, else the real NCCL's. */
#include <errno.h>
#include "shim/calls/call_args.h"
#include "shim/calls/call_run.h"
#include "shim/calls/thread.h"
#include "shim/nccl/result.h"
#include "shim/overlay/attach.h"
#include "shim/overlay/overlay.h"
#include "shim/overlay/pending_child.h"
#include "shim/overlay/real_group.h"
#include "shim/real/forward.h"

static inline ncclResult_t forward_now(struct shunt_entry *e, const struct shunt_coll_call *call)
{
	ncclResult_t result;

	ncclResult_t failed;

	shunt_entry_put(e); /* not held in the real call, which may last until another thread aborts the communicator */
	result = shunt_forward(call);
	if (result == ncclSuccess)
		return result;
	failed = shunt_call_forward_failed(&call->coll, result);
	e = failed == ncclInProgress ? NULL : shunt_entry_find(call->comm);
	if (e)
		shunt_comm_nccl_failed(e->comm, failed);
	shunt_entry_put(e);
	return shunt_group_result(failed);
}

/*
 * Gives a call to the real NCCL. group: NULL without one. NCCL gets a group's calls in the order of issue, on which all
 * ranks must agree, and it launches communicators in the order of their first calls. So a call waits behind one that
 * may turn out to be NCCL's: when that is known is a matter of timing, and another rank may know it already.
 */
static inline ncclResult_t forward_or_record(
    struct shunt_group *group, struct shunt_entry *e, struct shunt_coll_call *call)
{
	if (!group || !shunt_group_undecided(group)) {
		if (group && shunt_kind_is_p2p(call->coll.kind))
			shunt_group_forwarded_p2p(group, call->comm);
		return forward_now(e, call);
	}
	call->entry = e;
	shunt_call_queue(&call->state);
	return shunt_call_keep(group, call);
}

/* NCCL judges it, and one that it refuses has no number: the other ranks need not have made it. */
__attribute__((cold, noinline)) static ncclResult_t forward_unknown(
    struct shunt_group *group, struct shunt_entry *e, struct shunt_coll_call *call)
{
	ncclResult_t result = forward_or_record(group, e, call);
	struct shunt_coll coll = call->coll;

	e = result == ncclSuccess ? shunt_entry_find(call->comm) : NULL;
	if (!e)
		return result;
	coll.dtype = SHUNT_NFORMATS;
	shunt_comm_count_forward(e->comm, &coll, SHUNT_REASON_UNKNOWN);
	shunt_entry_put(e);
	return result;
}

ncclResult_t shunt_overlay_coll(struct shunt_thread *thread, struct shunt_coll_call *call)
{
	struct shunt_entry *e = shunt_entry_find(call->comm);
	struct shunt_group *group = shunt_group_of(thread);
	const char *reason;
	int err;

	/* The real NCCL judges calls that Shunt does not understand, with its own error codes. */
	if (!e)
		return call->comm ? forward_or_record(group, NULL, call) : shunt_forward(call);
	if (!shunt_attach_takes_calls(e, call->comm) || !shunt_call_resolve(e, call))
		return forward_unknown(group, e, call);
	if (shunt_call_is_empty(&call->coll)) {
		shunt_entry_put(e);
		return ncclSuccess;
	}
	reason = shunt_call_bad_buffers(e, &call->coll);
	if (reason) {
		shunt_entry_put(e);
		return shunt_call_refuse(call, reason);
	}
	if (call->config_kind != SHUNT_CONFIG_NONE && shunt_call_apply_config(call) != SHUNT_CONFIG_APPLIED) {
		shunt_comm_count_forward(e->comm, &call->coll, SHUNT_REASON_CONFIG);
		return forward_or_record(group, e, call);
	}
	if (group) {
		call->entry = e;
		/* Until all ranks know whether our kernels run here, every call is recorded. */
		if (shunt_comm_decide(e->comm, &call->coll, &call->decision) || !call->decision.settled)
			return shunt_call_keep(group, call);
		shunt_comm_count_forward(e->comm, &call->coll, call->decision.reason);
		return forward_or_record(group, e, call);
	}
	err = shunt_call_run(e->comm, call);
	if (err != -EOPNOTSUPP) {
		shunt_entry_put(e);
		return shunt_to_nccl(err);
	}
	return forward_now(e, call);
}
