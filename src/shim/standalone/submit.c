/* SPDX-License-Identifier: MIT */
/* Standalone: a collective or a message is Shunt's, or an error. */
#include <errno.h>
#include <stdatomic.h>
#include "base/log.h"
#include "shim/calls/call_args.h"
#include "shim/calls/call_run.h"
#include "shim/nccl/result.h"
#include "shim/standalone/lookup.h"
#include "shim/standalone/standalone.h"

/* A wish that nobody can grant: NCCL itself then chooses freely. */
static void note_wish(const struct shunt_coll_call *call)
{
	static atomic_bool logged;

	if (!atomic_exchange(&logged, true))
		shunt_info(SHUNT_LOG_COLL,
		    "%s: none of the algorithms \"%s\" is Shunt's (`shunt info -a` lists those); it chooses by "
		    "itself",
		    shunt_kind_name(call->coll.kind), call->config.algSelection);
}

/* False: the call cannot be made with its configuration. */
static bool apply_config(struct shunt_coll_call *call)
{
	enum shunt_config_outcome outcome =
	    call->config_kind == SHUNT_CONFIG_NONE ? SHUNT_CONFIG_APPLIED : shunt_call_apply_config(call);

	if (outcome == SHUNT_CONFIG_WISHED)
		note_wish(call);
	return outcome != SHUNT_CONFIG_UNKNOWN;
}

ncclResult_t shunt_standalone_coll(struct shunt_thread *thread, struct shunt_coll_call *call)
{
	struct shunt_coll *c = &call->coll;
	ncclResult_t result;
	struct shunt_entry *e = shunt_standalone_find(call->comm, shunt_kind_name(c->kind), &result);
	const char *reason;
	int err;

	if (!e)
		return shunt_group_result(result);
	if (!shunt_call_resolve(e, call)) {
		result = shunt_call_refuse_types(e, call);
	} else if (!shunt_life_takes_calls(&e->life)) {
		shunt_warn("%s: the communicator is %s", shunt_kind_name(c->kind),
		    shunt_life_use(&e->life) == SHUNT_LIFE_OPEN ? "suspended; resume it first" :
		                                                  "finalized or revoked");
		result = shunt_group_result(shunt_to_nccl(-EBUSY));
	} else if (shunt_call_is_empty(c)) {
		result = ncclSuccess;
	} else if ((reason = shunt_call_bad_buffers(e, c))) {
		result = shunt_call_refuse(call, reason);
	} else if (!apply_config(call)) {
		result = shunt_call_refuse(call,
		    "its configuration was not initialized, is of a later NCCL, has values that NCCL refuses, or "
		    "forces an algorithm that only the real NCCL has");
	} else if (!shunt_comm_decide(e->comm, c, &call->decision)) {
		/* A known error does not wait for the group's end. */
		result = shunt_group_result(shunt_call_declined(e, c, call->decision.reason));
	} else if (shunt_group_of(thread)) {
		call->entry = e;
		return shunt_call_keep(shunt_group_of(thread), call);
	} else {
		err = shunt_call_run(e->comm, call);
		result = err == -EOPNOTSUPP ? shunt_call_declined(e, c, call->decision.reason) : shunt_to_nccl(err);
	}
	shunt_entry_put(e);
	return result;
}
