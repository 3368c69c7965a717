/* SPDX-License-Identifier: MIT */
/* With a real NCCL. Functions that are the same with Shunt and without go straight to it. */
#include "base/log.h"
#include "shim/real/real.h"
#include "shim/overlay/overlay.h"

const char *shunt_overlay_GetLastError(ncclComm_t comm)
{
	const char *ours = shunt_last_error();

	return atomic_load(&shunt_real_error_is_last) || !ours || !*ours ? real_GetLastError(comm) : ours;
}

/* The same with Shunt and without. */
#define shunt_overlay_GetVersion real_GetVersion
#define shunt_overlay_GetErrorString real_GetErrorString
#define shunt_overlay_CommCount real_CommCount
#define shunt_overlay_CommCuDevice real_CommCuDevice
#define shunt_overlay_CommUserRank real_CommUserRank
#define shunt_overlay_CommQueryProperties real_CommQueryProperties
#define shunt_overlay_MemAlloc real_MemAlloc
#define shunt_overlay_CommRegister real_CommRegister
#define shunt_overlay_CommDeregister real_CommDeregister
#define shunt_overlay_WinGetUserPtr real_WinGetUserPtr

const struct shunt_mode_ops shunt_overlay_ops = {
	.coll = shunt_overlay_coll,
#define MODE(name, params, args) .name = shunt_overlay_##name,
#define TEXT(name, params, args) .name = shunt_overlay_##name,
#include "shim/nccl/symbols.def"
};
