/* SPDX-License-Identifier: MIT */
/* Standalone: groups. */
#include "base/log.h"
#include "shim/standalone/jobs.h"
#include "shim/standalone/task.h"
#include "shim/standalone/standalone.h"
#include "shim/calls/thread.h"

static void abandon_group(struct shunt_group *g)
{
	shunt_task_abandon(g);
	shunt_group_forget_async(g);
}

ncclResult_t shunt_standalone_GroupStart(void)
{
	shunt_group_enter(shunt_thread(), abandon_group);
	return ncclSuccess;
}

static ncclResult_t run_group(struct shunt_group *g)
{
	ncclResult_t jobs_result = shunt_jobs_run(g->jobs, g->error), result;

	if (jobs_result != ncclSuccess && jobs_result != ncclInProgress)
		return jobs_result;
	result = shunt_group_setup(g);
	for (size_t i = 0; i < g->n && g->nundecided; i++) /* there is nobody else */
		shunt_call_settle(&g->calls[i].state);
	if (result == ncclSuccess)
		result = shunt_group_launch(g);
	return result == ncclSuccess ? jobs_result : result;
}

ncclResult_t shunt_standalone_GroupEnd(void)
{
	struct shunt_group *g = &shunt_thread()->group;
	ncclResult_t result;

	return shunt_group_leave(g, "ncclGroupEnd", &result) ? shunt_group_forget(g, run_group(g)) : result;
}

/* Without a real NCCL there is no estimate. */
static ncclResult_t simulate_group(struct shunt_group *g, ncclSimInfo_t *info)
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
ncclResult_t shunt_standalone_GroupSimulateEnd(ncclSimInfo_t *info)
{
	struct shunt_group *g = &shunt_thread()->group;
	ncclResult_t result;

	return shunt_group_leave(g, "ncclGroupSimulateEnd", &result) ? shunt_group_forget(g, simulate_group(g, info)) :
	                                                               result;
}
