/* SPDX-License-Identifier: MIT */
#include "shim/calls/call_run.h"

int shunt_call_run_in_range(struct shunt_comm *comm, struct shunt_coll_call *call)
{
	int err;

	if (!shunt_comm_decide(comm, &call->coll, &call->decision))
		return shunt_comm_run(comm, &call->coll, &call->decision);
	shunt_nvtx_range_push(&call->coll);
	err = shunt_comm_run(comm, &call->coll, &call->decision);
	shunt_nvtx_range_pop();
	return err;
}

ncclResult_t shunt_call_keep_in_range(struct shunt_group *group, const struct shunt_coll_call *call)
{
	ncclResult_t result;

	shunt_nvtx_range_push(&call->coll);
	result = shunt_group_record(group, call);
	shunt_nvtx_range_pop();
	return result;
}
