/* SPDX-License-Identifier: MIT */
/* Overlay: calls on an existing communicator: its end, its state, queries. */
#include <errno.h>
#include "shim/real/real.h"
#include "shim/nccl/result.h"
#include "shim/overlay/attach.h"
#include "shim/overlay/real_group.h"
#include "shim/overlay/overlay.h"
#include "shim/overlay/pending_child.h"
#include "shim/calls/thread.h"

/*
 * Ends Shunt's side first: once the real call has begun, the handle's address may belong to another communicator. The
 * caller puts the entry; the last put waits for our kernels and frees their memory.
 */
static struct shunt_entry *detach_entry(ncclComm_t comm, bool abort)
{
	struct shunt_entry *e;

	shunt_pending_child_parent_ends(comm);
	e = shunt_entry_find(comm);
	if (e && abort)
		shunt_comm_abort(e->comm);
	if (e)
		shunt_entry_put(shunt_entry_remove(comm));
	return e;
}

/* From now on our kernels stay off the communicator; their memory is freed when it is destroyed. */
ncclResult_t shunt_overlay_CommFinalize(ncclComm_t comm)
{
	struct shunt_entry *e;
	int err = 0;

	if (shunt_attach_not_ready(comm, "ncclCommFinalize"))
		return shunt_group_result(shunt_to_nccl(-EINVAL));
	e = shunt_entry_find(comm);
	if (e) {
		shunt_life_finalize(&e->life); /* whether it may be, NCCL says */
		/* The caller must not wait for a device if the communicator is non-blocking; destroying it waits. */
		if (e->config.blocking && !shunt_group_open())
			err = shunt_comm_quiesce(e->comm);
		shunt_comm_note_function(e->comm);
		shunt_entry_put(e);
	}
	/* Another thread has aborted the communicator, whose handle may be invalid now. */
	return err == -ECANCELED ? shunt_to_nccl(err) : real_CommFinalize(comm);
}

ncclResult_t shunt_overlay_CommDestroy(ncclComm_t comm)
{
	ncclResult_t result;

	if (shunt_attach_not_ready(comm, "ncclCommDestroy"))
		return shunt_to_nccl(-EINVAL);
	shunt_entry_put(detach_entry(comm, false));
	result = real_CommDestroy(comm);
	if (result == ncclSuccess || result == ncclInProgress)
		shunt_pending_child_parent_ended(comm);
	return result;
}

ncclResult_t shunt_overlay_CommAbort(ncclComm_t comm)
{
	struct shunt_entry *e = detach_entry(comm, true);
	ncclResult_t result = real_CommAbort(comm);

	shunt_pending_child_parent_ended(comm);
	/* Only now: our kernels may be behind the real ones in a stream, and those end because of this call. */
	shunt_group_put(e);
	return result;
}

/* Calls that keep our kernels off a communicator are collective, so all ranks do the same. */
static void note_event(ncclComm_t comm, int (*event)(struct shunt_life *life))
{
	struct shunt_entry *e = shunt_entry_find(comm);

	if (e)
		event(&e->life);
	shunt_entry_put(e);
}

ncclResult_t shunt_overlay_CommRevoke(ncclComm_t comm, int flags)
{
	/* NCCL before 2.28.7 refuses, and then nothing is revoked. */
	bool refused = flags != NCCL_REVOKE_DEFAULT || !shunt_real_symbol("ncclCommRevoke");
	struct shunt_entry *e = refused ? NULL : shunt_entry_find(comm);

	/* Before the real call, because NCCL waits for the streams. One that was finalized or revoked NCCL refuses. */
	if (e && !shunt_life_revoke(&e->life))
		shunt_comm_abort(e->comm); /* revoking stops running kernels */
	shunt_entry_put(e);
	return real_CommRevoke(comm, flags);
}

ncclResult_t shunt_overlay_CommSuspend(ncclComm_t comm, int flags)
{
	ncclResult_t result = real_CommSuspend(comm, flags);

	if ((result == ncclSuccess || result == ncclInProgress) && (flags & NCCL_SUSPEND_MEM))
		note_event(comm, shunt_life_suspend);
	return result;
}

ncclResult_t shunt_overlay_CommResume(ncclComm_t comm)
{
	ncclResult_t result = real_CommResume(comm);

	if (result == ncclSuccess || result == ncclInProgress)
		note_event(comm, shunt_life_resume);
	return result;
}

/* Watchdog threads call this often, while other threads use and destroy the communicator. */
ncclResult_t shunt_overlay_CommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
	ncclResult_t result = real_CommGetAsyncError(comm, state);
	struct shunt_entry *e;

	if (result != ncclSuccess || !state)
		return result;
	shunt_pending_child_parent_state(comm, *state);
	if (*state != ncclSuccess)
		return result;
	e = shunt_entry_find(comm);
	if (e && !shunt_group_open())
		shunt_attach_ready(e, comm);
	if (e)
		shunt_comm_join_due(e->comm); /* NCCL's thread has launched the group by now */
	if (e && shunt_life_use(&e->life) != SHUNT_LIFE_REVOKED)
		*state = shunt_to_nccl(shunt_comm_error(e->comm));
	shunt_entry_put(e);
	return result;
}

/* Both libraries have memory. Ours cannot be suspended, because graphs keep addresses in it. */
ncclResult_t shunt_overlay_CommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
	ncclResult_t result = real_CommMemStats(comm, stat, value);
	struct shunt_entry *e = result == ncclSuccess ? shunt_entry_find(comm) : NULL;

	if (e && (stat == ncclStatGpuMemPersist || stat == ncclStatGpuMemTotal))
		*value += shunt_comm_memory(e->comm);
	shunt_entry_put(e);
	return result;
}
