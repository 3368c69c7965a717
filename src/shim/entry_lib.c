/* SPDX-License-Identifier: MIT */
/* NCCL's version and errors. */
#include <errno.h>
#include "base/log.h"
#include "shim/nccl/real.h"
#include "shim/nccl/result.h"

ncclResult_t pncclGetVersion(int *version)
{
	if (shunt_mode() != SHUNT_STANDALONE)
		return real_GetVersion(version);
	if (!version)
		return shunt_to_nccl(-EINVAL);
	*version = SHUNT_NCCL_VERSION;
	return ncclSuccess;
}
SHUNT_WEAK_ALIAS(GetVersion);

const char *pncclGetErrorString(ncclResult_t result)
{
	static const char *const texts[] = {
		[ncclSuccess] = "no error",
		[ncclUnhandledCudaError] = "a CUDA call failed (see the log; NCCL_DEBUG=INFO tells more)",
		[ncclSystemError] = "a system call failed (see the log; NCCL_DEBUG=INFO tells more)",
		[ncclInternalError] = "internal error",
		[ncclInvalidArgument] = "invalid argument (see the log; NCCL_DEBUG=WARN tells more)",
		[ncclInvalidUsage] = "invalid usage (see the log; NCCL_DEBUG=WARN tells more)",
		[ncclRemoteError] = "a remote process exited or the connection to it failed",
		[ncclInProgress] = "operation in progress",
		[ncclTimeout] = "operation timed out",
	};

	if (shunt_mode() != SHUNT_STANDALONE)
		return real_GetErrorString(result);
	if ((unsigned)result >= sizeof(texts) / sizeof(texts[0]))
		return "unknown result code";
	return texts[result];
}
SHUNT_WEAK_ALIAS(GetErrorString);

const char *pncclGetLastError(ncclComm_t comm)
{
	enum shunt_mode mode = shunt_mode();
	const char *ours = shunt_last_error();

	if (mode == SHUNT_PASSTHROUGH ||
	    (mode == SHUNT_OVERLAY && (atomic_load(&shunt_real_error_is_last) || !ours || !*ours)))
		return real_GetLastError(comm);
	return ours ? ours : "";
}
SHUNT_WEAK_ALIAS(GetLastError);

void pncclResetDebugInit(void)
{
	shunt_mode(); /* opens the real library */
	shunt_log_reset();
	real_ResetDebugInit(); /* does nothing in standalone */
}
SHUNT_WEAK_ALIAS(ResetDebugInit);
