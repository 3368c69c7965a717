/* SPDX-License-Identifier: MIT */
/* Standalone: the state of communicators, and their end. */
#include <errno.h>
#include <stdlib.h>
#include "base/log.h"
#include "shim/standalone/task.h"
#include "shim/nccl/result.h"
#include "shim/standalone/lookup.h"
#include "shim/standalone/standalone.h"
#include "shim/calls/thread.h"

static ncclResult_t end_comm(ncclComm_t comm, bool abort)
{
	struct shunt_entry *e;

	if (!comm)
		return ncclSuccess;
	e = shunt_entry_get(comm);
	if (!e)
		return shunt_standalone_refuse(abort ? "ncclCommAbort" : "ncclCommDestroy", "not a communicator");
	/* As NCCL: it stays as it was. */
	if (!abort && shunt_task_state(e) == ncclInProgress && !shunt_task_is_queued(e->scomm)) {
		shunt_warn("ncclCommDestroy: " SHUNT_NOT_READY);
		shunt_entry_put(e);
		return shunt_to_nccl(-EINVAL);
	}
	if (abort) {
		shunt_life_abort(&e->life);
		shunt_comm_abort(e->comm);
	}
	/* After this call no thread may write to the program's memory for a child's handle. */
	shunt_task_wait(e->scomm);
	shunt_entry_put(shunt_entry_remove(comm));
	shunt_entry_put(e);
	return ncclSuccess;
}

ncclResult_t shunt_standalone_CommDestroy(ncclComm_t comm)
{
	return end_comm(comm, false);
}

ncclResult_t shunt_standalone_CommAbort(ncclComm_t comm)
{
	return end_comm(comm, true);
}

static ncclResult_t quiesce_run(struct shunt_task *task)
{
	return shunt_to_nccl(shunt_comm_quiesce(task->entry->comm));
}

static ncclResult_t quiesce_finish(struct shunt_task *task, ncclResult_t result)
{
	return result;
}

/* Takes over the entry's reference. */
static ncclResult_t start_quiesce(struct shunt_entry *e)
{
	struct shunt_task *w = calloc(1, sizeof(*w));

	if (!w) {
		shunt_entry_put(e);
		return shunt_group_result(shunt_to_nccl(-ENOMEM));
	}
	*w = (struct shunt_task){ .entry = e, .run = quiesce_run, .finish = quiesce_finish };
	return shunt_task_start(w, e->config.blocking);
}

ncclResult_t shunt_standalone_CommFinalize(ncclComm_t comm)
{
	struct shunt_entry *e;
	ncclResult_t result;

	if (!comm)
		return ncclSuccess;
	e = shunt_standalone_find(comm, "ncclCommFinalize", &result);
	if (!e)
		return shunt_group_result(result);
	if (shunt_life_finalize(&e->life)) {
		shunt_entry_put(e);
		return shunt_standalone_refuse("ncclCommFinalize", "the communicator was finalized or revoked before");
	}
	return start_quiesce(e);
}

ncclResult_t shunt_standalone_CommRevoke(ncclComm_t comm, int flags)
{
	struct shunt_entry *e;

	if (!comm)
		return ncclSuccess;
	e = shunt_entry_get(comm);
	if (!e || flags != NCCL_REVOKE_DEFAULT) {
		shunt_entry_put(e);
		return shunt_standalone_refuse("ncclCommRevoke", e ? "the flags are unknown" : "not a communicator");
	}
	if (!shunt_entry_is_ours(e)) {
		shunt_entry_put(e);
		return shunt_standalone_refuse_parents("ncclCommRevoke");
	}
	if (shunt_life_revoke(&e->life)) {
		shunt_entry_put(e);
		return shunt_standalone_refuse("ncclCommRevoke", "the communicator was finalized or revoked before");
	}
	shunt_comm_abort(e->comm);
	if (shunt_task_state(e) == ncclInProgress) {
		shunt_task_revoke(e); /* the task fails now; the communicator can still be split and shrunk */
		shunt_entry_put(e);
		return ncclSuccess;
	}
	return start_quiesce(e);
}

/* Frees no memory, because graphs keep addresses in it. */
static ncclResult_t set_suspended(ncclComm_t comm, const char *what, bool on)
{
	struct shunt_entry *e;
	ncclResult_t result;

	e = shunt_standalone_find(comm, what, &result);
	if (!e)
		return shunt_group_result(result);
	if (on ? shunt_life_suspend(&e->life) : shunt_life_resume(&e->life)) {
		shunt_entry_put(e);
		shunt_warn("%s: the communicator is %s", what, on ? "suspended already" : "not suspended");
		return shunt_group_result(shunt_to_nccl(-EBUSY));
	}
	if (on)
		return start_quiesce(e);
	shunt_entry_put(e);
	return ncclSuccess;
}

ncclResult_t shunt_standalone_CommSuspend(ncclComm_t comm, int flags)
{
	struct shunt_entry *e;
	ncclResult_t result;

	if (flags & NCCL_SUSPEND_MEM)
		return set_suspended(comm, "ncclCommSuspend", true);
	e = shunt_standalone_find(comm, "ncclCommSuspend", &result);
	shunt_entry_put(e);
	return e ? ncclSuccess : shunt_group_result(result); /* nothing to suspend */
}

ncclResult_t shunt_standalone_CommResume(ncclComm_t comm)
{
	return set_suspended(comm, "ncclCommResume", false);
}

ncclResult_t shunt_standalone_CommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
	struct shunt_entry *e = shunt_entry_get(comm);

	if (!e || !state) {
		shunt_entry_put(e);
		return shunt_standalone_refuse("ncclCommGetAsyncError", "communicator or result is not valid");
	}
	*state = shunt_task_state(e);
	if (*state == ncclSuccess && shunt_life_use(&e->life) != SHUNT_LIFE_REVOKED) /* revoking is no error */
		*state = shunt_to_nccl(shunt_comm_error(e->comm));
	shunt_entry_put(e);
	return ncclSuccess;
}

ncclResult_t shunt_standalone_CommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
	struct shunt_entry *e;
	ncclResult_t result;

	e = shunt_standalone_find(comm, "ncclCommMemStats", &result);
	if (!e)
		return result;
	if (!value || (unsigned)stat > ncclStatGpuMemTotal) {
		shunt_warn(
		    "ncclCommMemStats: %s", value ? "there is no such number" : "the place for the result is NULL");
		shunt_entry_put(e);
		return shunt_to_nccl(-EINVAL);
	}
	*value = stat == ncclStatGpuMemSuspended && shunt_life_is_suspended(&e->life);
	if (stat == ncclStatGpuMemPersist || stat == ncclStatGpuMemTotal)
		*value += shunt_comm_memory(e->comm);
	shunt_entry_put(e);
	return ncclSuccess;
}
