/* SPDX-License-Identifier: MIT */
#pragma once
/* The way of a call to Shunt's kernels, with a range for a profiler that listens. */
#include "shim/calls/call_group.h"
#include "shim/calls/nvtx.h"

/* With the range, where a profiler listens. */
__attribute__((cold)) int shunt_call_run_in_range(struct shunt_comm *comm, struct shunt_coll_call *call);
__attribute__((cold)) ncclResult_t shunt_call_keep_in_range(
    struct shunt_group *group, const struct shunt_coll_call *call);

/* Decides and launches the call. 0, an error, or -EOPNOTSUPP: our kernels declined it. */
static inline int shunt_call_run(struct shunt_comm *comm, struct shunt_coll_call *call)
{
	return shunt_nvtx_enabled ? shunt_call_run_in_range(comm, call) :
	                            shunt_comm_run(comm, &call->coll, &call->decision);
}

/* Records the call in an open group; the entry's reference goes to the group. */
static inline ncclResult_t shunt_call_keep(struct shunt_group *group, const struct shunt_coll_call *call)
{
	return shunt_nvtx_enabled ? shunt_call_keep_in_range(group, call) : shunt_group_record(group, call);
}
