/* SPDX-License-Identifier: MIT */
/*
 * Memory and its registration. No memory needs registering: kernels stage what peers cannot reach. Windows are used in
 * place. Allocators register from their callbacks, with locks of their own held, so registering holds no lock for long,
 * does not wait, and touches no device.
 */
#include <errno.h>
#include "base/log.h"
#include "comm/symmem.h"
#include "comm/gpu.h"
#include "shim/group.h"
#include "shim/nccl/real.h"
#include "shim/nccl/result.h"
#include "shim/standalone/standalone.h"

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
		err = gpu->mem_alloc_shared(device, size, ptr);
	return err == -ENOMEM ? shunt_to_nccl(-EIO) : shunt_to_nccl(err); /* NCCL reports a CUDA error */
}
SHUNT_WEAK_ALIAS(MemAlloc);

ncclResult_t pncclMemFree(void *ptr)
{
	enum shunt_mode mode = shunt_mode();

	if (ptr && mode != SHUNT_PASSTHROUGH)
		shunt_symmem_forget(ptr);
	if (mode != SHUNT_STANDALONE)
		return real_MemFree(ptr);
	if (!ptr)
		return ncclSuccess;
	return shunt_gpu() ? shunt_to_nccl(shunt_gpu()->mem_free(ptr)) : shunt_to_nccl(-ENODEV);
}
SHUNT_WEAK_ALIAS(MemFree);

ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
	ncclResult_t result;

	if (shunt_mode() != SHUNT_STANDALONE)
		return real_CommRegister(comm, buff, size, handle);
	if (!handle)
		return shunt_standalone_refuse("ncclCommRegister", "the place for the handle is NULL");
	result = shunt_standalone_check(comm, "ncclCommRegister");
	if (result == ncclSuccess)
		*handle = buff;
	return result;
}
SHUNT_WEAK_ALIAS(CommRegister);

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle)
{
	if (shunt_mode() != SHUNT_STANDALONE)
		return real_CommDeregister(comm, handle);
	return shunt_standalone_check(comm, "ncclCommDeregister");
}
SHUNT_WEAK_ALIAS(CommDeregister);

/*
 * Windows. In overlay the program's window is the real NCCL's, and Shunt notes the memory, so that its own collectives
 * may use it in place. In standalone the window is Shunt's. Another thread may destroy the communicator meanwhile: the
 * reference is put asynchronously, so that the destruction does not happen in this call.
 */
static ncclResult_t register_overlay(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags)
{
	struct shunt_window *window;
	struct shunt_entry *e;
	ncclResult_t result;

	/*
	 * Before 2.30 NCCL may return success although a thread of its own writes the handle later, or never. Until
	 * then there must be no value that looks like a handle.
	 */
	if (win)
		*win = NULL;
	result = real_CommWindowRegister(comm, buff, size, win, flags);
	if ((result != ncclSuccess && result != ncclInProgress) || !buff || !size || !win)
		return result;
	e = shunt_entry_get(comm);
	if (!e)
		return result;
	window = shunt_symmem_add(e->comm, buff, size, flags & NCCL_WIN_COLL_SYMMETRIC);
	if (window && shunt_group_open()) {
		shunt_group_window(e, window, win);
		return result;
	}
	if (!window) {
		/* The other ranks count on our window: without it the program gets none. */
		if (!shunt_group_open() && result == ncclSuccess)
			real_CommWindowDeregister(comm, *win);
		result = shunt_group_result(shunt_to_nccl(-ENOMEM));
	} else {
		/* A handle that NCCL writes later is not known here: no name. */
		shunt_symmem_set_name(
		    e->comm, window, result == ncclSuccess ? __atomic_load_n(win, __ATOMIC_ACQUIRE) : NULL);
	}
	shunt_entry_put_async(e);
	return result;
}

static ncclResult_t window_register_standalone(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags)
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

ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags)
{
	switch (shunt_mode()) {
	case SHUNT_STANDALONE:
		return window_register_standalone(comm, buff, size, win, flags);
	case SHUNT_OVERLAY:
		return register_overlay(comm, buff, size, win, flags);
	default:
		return real_CommWindowRegister(comm, buff, size, win, flags);
	}
}
SHUNT_WEAK_ALIAS(CommWindowRegister);

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
	enum shunt_mode mode = shunt_mode();
	ncclResult_t result =
	    mode == SHUNT_STANDALONE ? shunt_standalone_check(comm, "ncclCommWindowDeregister") : ncclSuccess;
	struct shunt_entry *e = mode != SHUNT_PASSTHROUGH && result == ncclSuccess ? shunt_entry_get(comm) : NULL;
	bool known = e && shunt_symmem_remove(e->comm, win);

	/* NCCL may have written no handle for the window, or not yet when we looked. */
	if (e && !known && mode == SHUNT_OVERLAY)
		shunt_symmem_remove_unnamed(e->comm);
	shunt_entry_put_async(e);
	if (mode != SHUNT_STANDALONE)
		return real_CommWindowDeregister(comm, win);
	return result == ncclSuccess && win && !known ?
	    shunt_standalone_refuse("ncclCommWindowDeregister", "not a window of the communicator") :
	    result;
}
SHUNT_WEAK_ALIAS(CommWindowDeregister);

ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **ptr)
{
	const char *me = "ncclWinGetUserPtr";
	struct shunt_entry *e;
	ncclResult_t result;
	bool known;

	if (shunt_mode() != SHUNT_STANDALONE)
		return real_WinGetUserPtr(comm, win, ptr);
	result = shunt_standalone_check(comm, me);
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
SHUNT_WEAK_ALIAS(WinGetUserPtr);
