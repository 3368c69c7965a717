/* SPDX-License-Identifier: MIT */
/*
 * Memory and its registration. In standalone nothing needs registering: kernels stage what peers cannot reach. Allocators register
 * from their callbacks, with locks of their own held: that takes no lock here, waits for nothing, and touches no device.
 */
#include <errno.h>
#include "core/log.h"
#include "gpu/gpu_ops.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/standalone.h"

ncclResult_t pncclMemAlloc(void **ptr, size_t size)
{
	const struct shunt_gpu_ops *gpu;
	int device, err;

	if (shunt_mode() != SHUNT_STANDALONE)
		return real_MemAlloc(ptr, size);
	gpu = shunt_gpu();
	if (!gpu)
		return shunt_to_nccl(-ENODEV);
	if (!ptr || !size) {
		shunt_warn("ncclMemAlloc: no place for the pointer, or no size");
		return shunt_to_nccl(-EINVAL);
	}
	err = gpu->device_get(&device);
	if (!err)
		err = gpu->mem_alloc(device, size, ptr);
	return err == -ENOMEM ? shunt_to_nccl(-EIO) : shunt_to_nccl(err); /* NCCL calls it a CUDA error */
}
SHUNT_TWIN(MemAlloc);

ncclResult_t pncclMemFree(void *ptr)
{
	if (shunt_mode() != SHUNT_STANDALONE)
		return real_MemFree(ptr);
	if (!ptr)
		return ncclSuccess;
	return shunt_gpu() ? shunt_to_nccl(shunt_gpu()->mem_free(ptr)) : shunt_to_nccl(-ENODEV);
}
SHUNT_TWIN(MemFree);

ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
	ncclResult_t result;

	if (shunt_mode() != SHUNT_STANDALONE)
		return real_CommRegister(comm, buff, size, handle);
	if (!handle)
		return shunt_alone_refuse("ncclCommRegister", "the place for the handle is NULL");
	result = shunt_alone_check(comm, "ncclCommRegister");
	if (result == ncclSuccess)
		*handle = buff;
	return result;
}
SHUNT_TWIN(CommRegister);

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle)
{
	if (shunt_mode() != SHUNT_STANDALONE)
		return real_CommDeregister(comm, handle);
	return shunt_alone_check(comm, "ncclCommDeregister");
}
SHUNT_TWIN(CommDeregister);

/* A NULL window with success is how NCCL itself says that there is no symmetric memory. */
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags)
{
	ncclResult_t result;

	if (shunt_mode() != SHUNT_STANDALONE)
		return real_CommWindowRegister(comm, buff, size, win, flags);
	result = shunt_alone_check(comm, "ncclCommWindowRegister");
	if (result != ncclSuccess)
		return result;
	if (!win)
		return shunt_alone_refuse("ncclCommWindowRegister", "the place for the window is NULL");
	*win = NULL;
	if (!buff || !size)
		return shunt_alone_refuse("ncclCommWindowRegister", "there is no buffer, or it has no size");
	return ncclSuccess;
}
SHUNT_TWIN(CommWindowRegister);

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
	if (shunt_mode() != SHUNT_STANDALONE)
		return real_CommWindowDeregister(comm, win);
	return shunt_alone_check(comm, "ncclCommWindowDeregister");
}
SHUNT_TWIN(CommWindowDeregister);

ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **ptr)
{
	ncclResult_t result;

	if (shunt_mode() != SHUNT_STANDALONE)
		return real_WinGetUserPtr(comm, win, ptr);
	result = shunt_alone_check(comm, "ncclWinGetUserPtr");
	if (result == ncclSuccess && !ptr)
		return shunt_alone_refuse("ncclWinGetUserPtr", "the place for the pointer is NULL");
	if (result == ncclSuccess)
		*ptr = NULL;
	return result;
}
SHUNT_TWIN(WinGetUserPtr);
