/* SPDX-License-Identifier: MIT */
/*
 * Overlay: the program's memory and windows are the real NCCL's. Shunt notes the windows' memory, so that its own
 * collectives may use it in place. Another thread may destroy the communicator meanwhile: references are put
 * asynchronously, so that the destruction does not happen in these calls, which an allocator may make with its locks
 * held.
 */
#include <errno.h>
#include "comm/calls/windows.h"
#include "shim/real/real.h"
#include "shim/nccl/result.h"
#include "shim/overlay/real_group.h"
#include "shim/overlay/overlay.h"
#include "shim/calls/thread.h"

ncclResult_t shunt_overlay_MemFree(void *ptr)
{
	if (ptr)
		shunt_symmem_forget(ptr);
	return real_MemFree(ptr);
}

ncclResult_t shunt_overlay_CommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags)
{
	struct shunt_window *window;
	struct shunt_group *group = shunt_group_open();
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
	if (window && group) {
		shunt_group_window(group, e, window, win);
		return result;
	}
	if (!window) {
		/* The other ranks count on our window: without it the program gets none. */
		if (!group && result == ncclSuccess)
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

ncclResult_t shunt_overlay_CommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
	struct shunt_entry *e = shunt_entry_get(comm);

	/* NCCL may have written no handle for the window, or not yet when we looked. */
	if (e && !shunt_symmem_remove(e->comm, win))
		shunt_symmem_remove_unnamed(e->comm);
	shunt_entry_put_async(e);
	return real_CommWindowDeregister(comm, win);
}
