/* SPDX-License-Identifier: MIT */
/* Calls on an existing communicator: its end, its state, queries. */
#include <errno.h>
#include "base/log.h"
#include "shim/group.h"
#include "shim/overlay/pending_child.h"
#include "shim/nccl/real.h"
#include "shim/nccl/result.h"
#include "shim/standalone/standalone.h"

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
ncclResult_t pncclCommFinalize(ncclComm_t comm)
{
	struct shunt_entry *e = NULL;
	int err = 0;

	switch (shunt_mode()) {
	case SHUNT_STANDALONE:
		return shunt_standalone_finalize(comm);
	case SHUNT_OVERLAY:
		e = shunt_entry_find(comm);
		break;
	default:
		break;
	}
	if (e) {
		atomic_fetch_or(&e->off, SHUNT_OFF_FINALIZED);
		/* The caller must not wait for a device if the communicator is non-blocking; destroying it waits. */
		if (e->config.blocking && !shunt_group_open())
			err = shunt_comm_quiesce(e->comm);
		shunt_entry_put(e);
	}
	/* Another thread has aborted the communicator, whose handle may be invalid now. */
	return err == -ECANCELED ? shunt_to_nccl(err) : real_CommFinalize(comm);
}
SHUNT_WEAK_ALIAS(CommFinalize);

/*
 * True: the communicator is non-blocking, and has work under way, such as a split. NCCL refuses to destroy it, and both
 * go on.
 */
static bool is_in_progress(ncclComm_t comm)
{
	struct shunt_entry *e = shunt_entry_get(comm);
	ncclResult_t state = ncclSuccess;
	bool is_nonblocking = e && !e->config.blocking;

	shunt_entry_put(e);
	return is_nonblocking && real_CommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress;
}

ncclResult_t pncclCommDestroy(ncclComm_t comm)
{
	enum shunt_mode mode = shunt_mode();
	ncclResult_t result;

	if (mode == SHUNT_STANDALONE)
		return shunt_standalone_end(comm, false);
	if (mode != SHUNT_OVERLAY || is_in_progress(comm))
		return real_CommDestroy(comm);
	shunt_entry_put(detach_entry(comm, false));
	result = real_CommDestroy(comm);
	if (result == ncclSuccess || result == ncclInProgress)
		shunt_pending_child_parent_ended(comm);
	return result;
}
SHUNT_WEAK_ALIAS(CommDestroy);

ncclResult_t pncclCommAbort(ncclComm_t comm)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_entry *e = NULL;
	ncclResult_t result;

	if (mode == SHUNT_STANDALONE)
		return shunt_standalone_end(comm, true);
	if (mode == SHUNT_OVERLAY)
		e = detach_entry(comm, true);
	result = real_CommAbort(comm);
	if (mode == SHUNT_OVERLAY)
		shunt_pending_child_parent_ended(comm);
	/* Only now: our kernels may be behind the real ones in a stream, and those end because of this call. */
	shunt_group_put(e);
	return result;
}
SHUNT_WEAK_ALIAS(CommAbort);

/*
 * Sets or clears a reason to keep our kernels off the communicator. These calls are collective, so all ranks do the
 * same.
 */
static void set_off_reason(ncclComm_t comm, int bit, bool on)
{
	struct shunt_entry *e = shunt_mode() == SHUNT_OVERLAY ? shunt_entry_find(comm) : NULL;

	if (!e)
		return;
	if (on)
		atomic_fetch_or(&e->off, bit);
	else
		atomic_fetch_and(&e->off, ~bit);
	if (on && bit == SHUNT_OFF_REVOKED)
		shunt_comm_abort(e->comm); /* revoking stops running kernels */
	shunt_entry_put(e);
}

ncclResult_t pncclCommRevoke(ncclComm_t comm, int flags)
{
	if (shunt_mode() == SHUNT_STANDALONE)
		return shunt_standalone_revoke(comm, flags);
	/*
	 * Before the real call, because NCCL waits for the streams. NCCL before 2.28.7 refuses, and then nothing is
	 * revoked.
	 */
	if (flags == NCCL_REVOKE_DEFAULT && shunt_real_symbol("ncclCommRevoke"))
		set_off_reason(comm, SHUNT_OFF_REVOKED, true);
	return real_CommRevoke(comm, flags);
}
SHUNT_WEAK_ALIAS(CommRevoke);

ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags)
{
	ncclResult_t result;

	if (shunt_mode() == SHUNT_STANDALONE)
		return shunt_standalone_suspend(comm, flags);
	result = real_CommSuspend(comm, flags);
	if ((result == ncclSuccess || result == ncclInProgress) && (flags & NCCL_SUSPEND_MEM))
		set_off_reason(comm, SHUNT_OFF_SUSPENDED, true);
	return result;
}
SHUNT_WEAK_ALIAS(CommSuspend);

ncclResult_t pncclCommResume(ncclComm_t comm)
{
	ncclResult_t result;

	if (shunt_mode() == SHUNT_STANDALONE)
		return shunt_standalone_resume(comm);
	result = real_CommResume(comm);
	if (result == ncclSuccess || result == ncclInProgress)
		set_off_reason(comm, SHUNT_OFF_SUSPENDED, false);
	return result;
}
SHUNT_WEAK_ALIAS(CommResume);

/* Watchdog threads call this often, while other threads use and destroy the communicator. */
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_entry *e;
	ncclResult_t result;

	if (mode == SHUNT_STANDALONE)
		return shunt_standalone_async_error(comm, state);
	result = real_CommGetAsyncError(comm, state);
	if (mode == SHUNT_PASSTHROUGH || result != ncclSuccess || !state)
		return result;
	shunt_pending_child_parent_state(comm, *state);
	if (*state != ncclSuccess)
		return result;
	e = shunt_entry_find(comm);
	if (e && !shunt_group_open())
		shunt_attach_ready(e, comm);
	if (e)
		shunt_comm_join_due(e->comm); /* NCCL's thread has launched the group by now */
	if (e && !(atomic_load(&e->off) & SHUNT_OFF_REVOKED))
		*state = shunt_to_nccl(shunt_comm_error(e->comm));
	shunt_entry_put(e);
	return result;
}
SHUNT_WEAK_ALIAS(CommGetAsyncError);

/* Standalone: queries a number of the communicator. */
static ncclResult_t query_standalone(
    ncclComm_t comm, const char *what, int (*query)(const struct shunt_comm *comm), int *out)
{
	ncclResult_t result = ncclSuccess;
	struct shunt_entry *e;

	if (!out) {
		shunt_warn("%s: the place for the result is NULL", what);
		return shunt_to_nccl(-EINVAL);
	}
	e = shunt_standalone_find(comm, what, &result);
	if (e)
		*out = query(e->comm);
	shunt_entry_put(e);
	return result;
}

ncclResult_t pncclCommCount(const ncclComm_t comm, int *count)
{
	return shunt_mode() == SHUNT_STANDALONE ? query_standalone(comm, "ncclCommCount", shunt_comm_nranks, count) :
	                                          real_CommCount(comm, count);
}
SHUNT_WEAK_ALIAS(CommCount);

ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device)
{
	return shunt_mode() == SHUNT_STANDALONE ?
	    query_standalone(comm, "ncclCommCuDevice", shunt_comm_device, device) :
	    real_CommCuDevice(comm, device);
}
SHUNT_WEAK_ALIAS(CommCuDevice);

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank)
{
	return shunt_mode() == SHUNT_STANDALONE ? query_standalone(comm, "ncclCommUserRank", shunt_comm_rank, rank) :
	                                          real_CommUserRank(comm, rank);
}
SHUNT_WEAK_ALIAS(CommUserRank);

/* In overlay both libraries have memory. Ours cannot be suspended, because graphs keep addresses in it. */
ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_entry *e;
	ncclResult_t result;

	if (mode == SHUNT_STANDALONE) {
		e = shunt_standalone_find(comm, "ncclCommMemStats", &result);
		if (!e)
			return result;
		if (!value || (unsigned)stat > ncclStatGpuMemTotal) {
			shunt_warn("ncclCommMemStats: %s",
			    value ? "there is no such number" : "the place for the result is NULL");
			shunt_entry_put(e);
			return shunt_to_nccl(-EINVAL);
		}
		*value = stat == ncclStatGpuMemSuspended && (atomic_load(&e->off) & SHUNT_OFF_SUSPENDED);
		result = ncclSuccess;
	} else {
		result = real_CommMemStats(comm, stat, value);
		e = mode == SHUNT_OVERLAY && result == ncclSuccess ? shunt_entry_find(comm) : NULL;
	}
	if (e && (stat == ncclStatGpuMemPersist || stat == ncclStatGpuMemTotal))
		*value += shunt_comm_memory(e->comm);
	shunt_entry_put(e);
	return result;
}
SHUNT_WEAK_ALIAS(CommMemStats);
