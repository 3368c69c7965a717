/* SPDX-License-Identifier: MIT */
/*
 * Puts, signals and device communicators always go to the real NCCL. They are TYPED, unlike the rest of those
 * functions, because NCCL takes them into an open group.
 */
#include "shim/mode.h"
#include "shim/real/real.h"

#define ALWAYS_REAL(name, params, args) \
	ncclResult_t pnccl##name params \
	{ \
		shunt_mode_ops(); /* opens the real library */ \
		return shunt_group_result(real_##name args); \
	} \
	SHUNT_WEAK_ALIAS(name)

ALWAYS_REAL(PutSignal,
    (const void *send, size_t count, ncclDataType_t dtype, int peer, ncclWindow_t win, size_t offset, int signal,
        int context, unsigned flags, ncclComm_t comm, cudaStream_t stream),
    (send, count, dtype, peer, win, offset, signal, context, flags, comm, stream));
ALWAYS_REAL(Signal, (int peer, int signal, int context, unsigned flags, ncclComm_t comm, cudaStream_t stream),
    (peer, signal, context, flags, comm, stream));
ALWAYS_REAL(
    WaitSignal, (int n, ncclWaitSignalDesc_t *descs, ncclComm_t comm, cudaStream_t stream), (n, descs, comm, stream));
ALWAYS_REAL(DevCommCreate, (ncclComm_t comm, const void *requirements, void *devcomm), (comm, requirements, devcomm));
ALWAYS_REAL(DevCommDestroy, (ncclComm_t comm, const void *devcomm), (comm, devcomm));
