/* SPDX-License-Identifier: MIT */
/* Memory and its registration. In standalone nothing needs registering: kernels stage what peers cannot reach. */
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

/* In standalone: is it one of our communicators? */
static ncclResult_t check_alone(ncclComm_t comm, const char *what)
{
	ncclResult_t result = ncclSuccess;

	shunt_entry_put(shunt_alone_find(comm, what, &result));
	return result;
}

ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
	ncclResult_t result;

	if (shunt_mode() != SHUNT_STANDALONE)
		return real_CommRegister(comm, buff, size, handle);
	if (!handle)
		return shunt_to_nccl(-EINVAL);
	result = check_alone(comm, "ncclCommRegister");
	if (result == ncclSuccess)
		*handle = buff;
	return result;
}
SHUNT_TWIN(CommRegister);

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle)
{
	if (shunt_mode() != SHUNT_STANDALONE)
		return real_CommDeregister(comm, handle);
	return check_alone(comm, "ncclCommDeregister");
}
SHUNT_TWIN(CommDeregister);

/* A NULL window with success is how NCCL itself says that there is no symmetric memory. */
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags)
{
	ncclResult_t result;

	if (shunt_mode() != SHUNT_STANDALONE)
		return real_CommWindowRegister(comm, buff, size, win, flags);
	if (!win)
		return shunt_to_nccl(-EINVAL);
	result = check_alone(comm, "ncclCommWindowRegister");
	if (result == ncclSuccess)
		*win = NULL;
	return result;
}
SHUNT_TWIN(CommWindowRegister);

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
	if (shunt_mode() != SHUNT_STANDALONE)
		return real_CommWindowDeregister(comm, win);
	return check_alone(comm, "ncclCommWindowDeregister");
}
SHUNT_TWIN(CommWindowDeregister);
