/* SPDX-License-Identifier: MIT */
/* The entry points for which the modes have functions of their own. Collectives and messages are in entry_coll.c. */
#include "base/log.h"
#include "shim/mode.h"
#include "shim/real/real.h"

#define MODE(name, params, args) \
	ncclResult_t pnccl##name params \
	{ \
		return shunt_mode_ops()->name args; \
	} \
	SHUNT_WEAK_ALIAS(name);
#define TEXT(name, params, args) \
	const char *pnccl##name params \
	{ \
		return shunt_mode_ops()->name args; \
	} \
	SHUNT_WEAK_ALIAS(name);
#include "shim/nccl/symbols.def"

void pncclResetDebugInit(void)
{
	shunt_mode_ops(); /* opens the real library */
	shunt_log_reset();
	real_ResetDebugInit(); /* does nothing in standalone */
}
SHUNT_WEAK_ALIAS(ResetDebugInit);
