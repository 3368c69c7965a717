/* SPDX-License-Identifier: MIT */
/* With a real NCCL. Functions that are the same with Shunt and without go straight to it. */
#include "base/log.h"
#include "shim/real/real.h"
#include "shim/overlay/overlay.h"

static const char *last_error(ncclComm_t comm)
{
	const char *ours = shunt_last_error();

	return atomic_load(&shunt_real_error_is_last) || !ours || !*ours ? real_GetLastError(comm) : ours;
}

const struct shunt_mode_ops shunt_overlay_ops = {
	.coll = shunt_overlay_coll,
	.GetVersion = real_GetVersion,
	.GetErrorString = real_GetErrorString,
	.GetLastError = last_error,
	.GetUniqueId = shunt_overlay_unique_id,
	.CommInitRank = shunt_overlay_init_rank,
	.CommInitRankConfig = shunt_overlay_init_rank_config,
	.CommInitRankScalable = shunt_overlay_init_rank_scalable,
	.CommInitAll = shunt_overlay_init_all,
	.CommSplit = shunt_overlay_split,
	.CommShrink = shunt_overlay_shrink,
	.CommGrow = shunt_overlay_grow,
	.CommGetUniqueId = shunt_overlay_grow_id,
	.CommFinalize = shunt_overlay_finalize,
	.CommDestroy = shunt_overlay_destroy,
	.CommAbort = shunt_overlay_abort,
	.CommRevoke = shunt_overlay_revoke,
	.CommSuspend = shunt_overlay_suspend,
	.CommResume = shunt_overlay_resume,
	.CommGetAsyncError = shunt_overlay_async_error,
	.CommMemStats = shunt_overlay_mem_stats,
	.CommCount = real_CommCount,
	.CommCuDevice = real_CommCuDevice,
	.CommUserRank = real_CommUserRank,
	.CommQueryProperties = real_CommQueryProperties,
	.MemAlloc = real_MemAlloc,
	.MemFree = shunt_overlay_mem_free,
	.CommRegister = real_CommRegister,
	.CommDeregister = real_CommDeregister,
	.CommWindowRegister = shunt_overlay_window_register,
	.CommWindowDeregister = shunt_overlay_window_deregister,
	.WinGetUserPtr = real_WinGetUserPtr,
	.RedOpCreatePreMulSum = shunt_overlay_redop_create,
	.RedOpDestroy = shunt_overlay_redop_destroy,
	.GroupStart = shunt_overlay_group_start,
	.GroupEnd = shunt_overlay_group_end,
	.GroupSimulateEnd = shunt_overlay_group_simulate_end,
};
