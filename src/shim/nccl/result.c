/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include "shim/nccl/result.h"

atomic_bool shunt_real_error_is_last;

static const struct {
	int err;
	ncclResult_t result;
} map[] = {
	{ EINVAL, ncclInvalidArgument },
	{ EOPNOTSUPP, ncclInvalidUsage },
	{ ECANCELED, ncclInvalidUsage }, /* as NCCL does for an aborted or revoked communicator */
	{ EEXIST, ncclInvalidUsage },    /* a unique id or a rank that was used before */
	{ EXDEV, ncclInvalidUsage },     /* ranks on several hosts */
	{ EBUSY, ncclInvalidUsage },
	{ EBADMSG, ncclInvalidUsage }, /* messages to itself that do not pair up, streams that capture apart */
	{ EBADE, ncclInvalidUsage },   /* ranks whose calls differ */
	{ ETIMEDOUT, ncclRemoteError },
	{ EOWNERDEAD, ncclRemoteError },
	{ EPROTO, ncclRemoteError },
	{ ECONNRESET, ncclRemoteError },
	{ ECONNREFUSED, ncclRemoteError },
	{ EPIPE, ncclRemoteError },
	{ EINPROGRESS, ncclInProgress },
	{ EIO, ncclUnhandledCudaError },
	{ ENODEV, ncclUnhandledCudaError },
	{ EFAULT, ncclUnhandledCudaError },
};

ncclResult_t shunt_to_nccl(int err)
{
	if (!err)
		return ncclSuccess;
	if (err != -EINPROGRESS)
		atomic_store_explicit(&shunt_real_error_is_last, false, memory_order_relaxed);
	for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++)
		if (map[i].err == -err)
			return map[i].result;
	return ncclSystemError;
}
