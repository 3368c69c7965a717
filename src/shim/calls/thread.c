/* SPDX-License-Identifier: MIT */
#include "shim/calls/thread.h"

_Thread_local struct shunt_thread shunt_this_thread;

ncclResult_t shunt_group_result(ncclResult_t result)
{
	struct shunt_group *g = &shunt_thread()->group;

	if (g->depth && g->error == ncclSuccess && result != ncclInProgress)
		g->error = result;
	return result;
}
