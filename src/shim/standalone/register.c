/* SPDX-License-Identifier: MIT */
/*
 * Standalone: memory and its registration. No memory needs registering: kernels stage what peers cannot reach. Windows
 * are used in place. Allocators register from their callbacks, with locks of their own held, so registering holds no
 * lock for long, does not wait, and touches no device: it asks the driver which memory there is. Another thread may
 * destroy the communicator meanwhile: the reference is put asynchronously, so that the destruction does not happen in
 * this call.
 */
#include <errno.h>
#include "base/log.h"
#include "kernels/set.h"
#include "comm/calls/windows.h"
#include "shim/nccl/result.h"
#include "shim/standalone/lookup.h"
#include "shim/standalone/standalone.h"
#include "shim/calls/thread.h"

ncclResult_t shunt_standalone_MemAlloc(void **ptr, size_t size)
{
	const struct shunt_gpu_ops *gpu = shunt_gpu();
	int device, err;

	if (!gpu)
		return shunt_to_nccl(-ENODEV);
	if (!ptr) {
		shunt_warn("ncclMemAlloc: the place for the pointer is NULL");
		return shunt_to_nccl(-EINVAL);
	}
	*ptr = NULL;
	if (!size) /* as NCCL's, which is cudaMalloc's then */
		return ncclSuccess;
	err = gpu->device_get(&device);
	if (!err)
		err = gpu->mem_alloc_shared(device, size, ptr);
	return err == -ENOMEM ? shunt_to_nccl(-EIO) : shunt_to_nccl(err); /* NCCL reports a CUDA error */
}

ncclResult_t shunt_standalone_MemFree(void *ptr)
{
	if (!ptr)
		return ncclSuccess;
	shunt_symmem_forget(ptr);
	return shunt_gpu() ? shunt_to_nccl(shunt_gpu()->mem_free(ptr)) : shunt_to_nccl(-ENODEV);
}

ncclResult_t shunt_standalone_CommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
	ncclResult_t result;

	if (!handle)
		return shunt_standalone_refuse("ncclCommRegister", "the place for the handle is NULL");
	result = shunt_standalone_check(comm, "ncclCommRegister");
	if (result == ncclSuccess)
		*handle = buff;
	return result;
}

ncclResult_t shunt_standalone_CommDeregister(const ncclComm_t comm, void *handle)
{
	return shunt_standalone_check(comm, "ncclCommDeregister");
}

/*
 * False: the buffer reaches over the end of the memory in which it begins, and of memory that is mapped right behind
 * that.
 */
static bool memory_has(const void *buff, size_t size)
{
	const struct shunt_gpu_ops *gpu = shunt_gpu();
	uintptr_t at = (uintptr_t)buff, end = at + size;
	size_t bytes;
	void *base;

	if (end < at)
		return false;
	while (at < end) {
		if (!gpu || gpu->mem_range((const void *)at, &base, &bytes) || (uintptr_t)base + bytes <= at)
			return at == (uintptr_t)buff; /* memory that the driver does not know: nothing can be said */
		at = (uintptr_t)base + bytes;
	}
	return true;
}

ncclResult_t shunt_standalone_CommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags)
{
	const char *me = "ncclCommWindowRegister";
	ncclResult_t result = shunt_standalone_check(comm, me);
	struct shunt_window *window;
	struct shunt_entry *e;

	if (result != ncclSuccess)
		return result;
	if (!win)
		return shunt_standalone_refuse(me, "the place for the window is NULL");
	*win = NULL;
	if (!buff || !size)
		return shunt_standalone_refuse(me, "there is no buffer, or it has no size");
	if (!memory_has(buff, size))
		return shunt_standalone_refuse(me, "the buffer ends behind its memory");
	e = shunt_entry_get(comm);
	if (!e)
		return shunt_standalone_refuse(me, "not a communicator");
	window = shunt_symmem_add(e->comm, buff, size, flags & NCCL_WIN_COLL_SYMMETRIC);
	shunt_entry_put_async(e);
	if (!window)
		return shunt_group_result(shunt_to_nccl(-ENOMEM));
	*win = (ncclWindow_t)window;
	return ncclSuccess;
}

ncclResult_t shunt_standalone_CommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
	const char *me = "ncclCommWindowDeregister";
	ncclResult_t result = shunt_standalone_check(comm, me);
	struct shunt_entry *e = result == ncclSuccess ? shunt_entry_get(comm) : NULL;
	bool known = e && shunt_symmem_remove(e->comm, win);

	shunt_entry_put_async(e);
	return result == ncclSuccess && win && !known ?
	    shunt_standalone_refuse(me, "not a window of the communicator") :
	    result;
}

ncclResult_t shunt_standalone_WinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **ptr)
{
	const char *me = "ncclWinGetUserPtr";
	ncclResult_t result = shunt_standalone_check(comm, me);
	struct shunt_entry *e;
	bool known;

	if (result != ncclSuccess)
		return result;
	if (!ptr)
		return shunt_standalone_refuse(me, "the place for the pointer is NULL");
	*ptr = NULL;
	e = win ? shunt_entry_get(comm) : NULL;
	known = !win || (e && shunt_symmem_base(e->comm, win, ptr));
	shunt_entry_put_async(e);
	return known ? ncclSuccess : shunt_standalone_refuse(me, "not a window of the communicator");
}
