/* SPDX-License-Identifier: MIT */
/* Memory on CUDA devices: shared with peers, plain, page-locked; copies. */
#include "device/cuda/dev.h"
#include "base/fd.h"
#include "base/lock.h"

#include <string.h>
#include <unistd.h>

/* Memory that peers can map, and NICs where they can have any. */
static struct shunt_cu_mem_prop share_prop(int device)
{
	return (struct shunt_cu_mem_prop){
		.type = SHUNT_CU_MEM_ALLOCATION_PINNED,
		.handle_types = SHUNT_CU_MEM_HANDLE_POSIX_FD,
		.location = { SHUNT_CU_MEM_LOCATION_DEVICE, shunt_cu_devices[device].dev },
		.flags.gpu_direct_rdma = shunt_cu_devices[device].rdma,
	};
}

/* Maps the handle's memory at a fresh address, readable and writable by `device`. The mapping outlives the handle. */
static int map_handle(int device, unsigned long long handle, size_t bytes, unsigned long long *ptr_p)
{
	const struct shunt_cu_mem_access access = {
		.location = { SHUNT_CU_MEM_LOCATION_DEVICE, shunt_cu_devices[device].dev },
		.flags = SHUNT_CU_MEM_ACCESS_READWRITE,
	};
	unsigned long long ptr;
	int res, err;

	res = shunt_cu.MemAddressReserve(&ptr, bytes, 0, 0, 0);
	if (res)
		return shunt_cu_error(res, "cuMemAddressReserve of %zu bytes", bytes);
	res = shunt_cu.MemMap(ptr, bytes, 0, handle, 0);
	if (res) {
		err = shunt_cu_error(res, "cuMemMap of %zu bytes", bytes);
		goto err_free_address;
	}
	res = shunt_cu.MemSetAccess(ptr, bytes, &access, 1);
	if (res) {
		err = shunt_cu_error(res, "cuMemSetAccess of %zu bytes for device %d", bytes, device);
		goto err_unmap;
	}
	*ptr_p = ptr;
	return 0;

err_unmap:
	shunt_cu.MemUnmap(ptr, bytes);
err_free_address:
	shunt_cu.MemAddressFree(ptr, bytes);
	return err;
}

static void unmap_range(unsigned long long ptr, size_t bytes)
{
	int res = shunt_cu.MemUnmap(ptr, bytes);

	if (res)
		shunt_cu_error(res, "cuMemUnmap of %zu bytes", bytes);
	res = shunt_cu.MemAddressFree(ptr, bytes);
	if (res)
		shunt_cu_error(res, "cuMemAddressFree of %zu bytes", bytes);
}

static int zero_memory(int device, unsigned long long ptr, size_t bytes)
{
	void *stream;
	int res, err;

	err = shunt_cu_copy_stream(device, &stream);
	if (err)
		return err;
	res = shunt_cu.MemsetD8Async(ptr, 0, bytes, stream);
	if (!res)
		res = shunt_cu.StreamSynchronize(stream);
	if (res)
		return shunt_cu_error(res, "zeroing %zu bytes on device %d", bytes, device);
	return 0;
}

/* Rounds *bytes_p up to the device's granularity, allocates and maps the memory. The caller releases the handle. */
static int create_mapped(int device, size_t *bytes_p, unsigned long long *handle_p, unsigned long long *ptr_p)
{
	struct shunt_cu_mem_prop prop = share_prop(device);
	size_t granularity, bytes = *bytes_p;
	int res, err;

	res = shunt_cu.MemGetAllocationGranularity(&granularity, &prop, SHUNT_CU_MEM_GRANULARITY_MINIMUM);
	if (res)
		return shunt_cu_error(res, "cuMemGetAllocationGranularity of device %d", device);
	if (!bytes || !granularity || bytes > SIZE_MAX - granularity)
		return -EINVAL;
	bytes = (bytes + granularity - 1) / granularity * granularity;
	res = shunt_cu.MemCreate(handle_p, bytes, &prop, 0);
	if (res)
		return shunt_cu_error(res, "cuMemCreate of %zu bytes on device %d", bytes, device);
	err = map_handle(device, *handle_p, bytes, ptr_p);
	if (err)
		shunt_cu.MemRelease(*handle_p);
	else
		*bytes_p = bytes;
	return err;
}

static int share_alloc(int device, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	unsigned long long handle, ptr;
	int res, err, fd = -1;

	err = create_mapped(device, &bytes, &handle, &ptr);
	if (err)
		return err;
	err = zero_memory(device, ptr, bytes);
	if (err)
		goto err_unmap;
	res = shunt_cu.MemExportToShareableHandle(&fd, handle, SHUNT_CU_MEM_HANDLE_POSIX_FD, 0);
	if (res) {
		err = shunt_cu_error(res, "cuMemExportToShareableHandle of %zu bytes on device %d", bytes, device);
		goto err_unmap;
	}
	shunt_fd_note(fd);
	shunt_cu.MemRelease(handle);
	*mem_p = (struct shunt_gpu_mem){ .ptr = (void *)(uintptr_t)ptr, .bytes = bytes, .device = device, .fd = fd };
	return 0;

err_unmap:
	unmap_range(ptr, bytes);
	shunt_cu.MemRelease(handle);
	return err;
}

int shunt_cu_share_alloc(int device, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	struct shunt_cu_ctx_guard guard;
	int err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	err = share_alloc(device, bytes, mem_p);
	shunt_cu_leave(&guard);
	return err;
}

/* Maps another rank's memory, and releases the handle. */
static int take_handle(int device, unsigned long long handle, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	unsigned long long ptr;
	int err = map_handle(device, handle, bytes, &ptr);

	shunt_cu.MemRelease(handle);
	if (!err)
		*mem_p =
		    (struct shunt_gpu_mem){ .ptr = (void *)(uintptr_t)ptr, .bytes = bytes, .device = device, .fd = -1 };
	return err;
}

int shunt_cu_share_map(int device, int fd, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	unsigned long long handle;
	struct shunt_cu_ctx_guard guard;
	int res, err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	res = shunt_cu.MemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, SHUNT_CU_MEM_HANDLE_POSIX_FD);
	if (res)
		err = shunt_cu_error(
		    res, "cuMemImportFromShareableHandle of a peer's %zu bytes for device %d", bytes, device);
	else
		err = take_handle(device, handle, bytes, mem_p);
	shunt_cu_leave(&guard);
	return err;
}

int shunt_cu_share_borrow(int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	struct shunt_cu_mem_access access = { .flags = SHUNT_CU_MEM_ACCESS_READWRITE };
	struct shunt_cu_ctx_guard guard;
	unsigned long long has = 0;
	int res, err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	access.location = (struct shunt_cu_mem_location){ SHUNT_CU_MEM_LOCATION_DEVICE, shunt_cu_devices[device].dev };
	/*
	 * Concurrent calls for ranks of one device fail: the driver (580) returns CUDA_ERROR_ALREADY_MAPPED to one of
	 * them, and then kernels of all ranks fault at that memory.
	 */
	shunt_mutex_lock(&shunt_cu_devices[device].lock);
	res = shunt_cu.MemGetAccess(&has, &access.location, (uintptr_t)ptr);
	if (!res && has != SHUNT_CU_MEM_ACCESS_READWRITE)
		res = shunt_cu.MemSetAccess(
		    (uintptr_t)ptr, bytes, &access, 1); /* leaves the other devices' access unchanged */
	shunt_mutex_unlock(&shunt_cu_devices[device].lock);
	if (res)
		err = shunt_cu_error(res, "cuMemSetAccess of another rank's %zu bytes for device %d", bytes, device);
	else
		*mem_p =
		    (struct shunt_gpu_mem){ .ptr = ptr, .bytes = bytes, .device = device, .fd = -1, .borrowed = true };
	shunt_cu_leave(&guard);
	return err;
}

/* A second mapping, at a new address: the owner's address may later refer to other memory. */
int shunt_cu_share_alias(int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	unsigned long long handle;
	struct shunt_cu_ctx_guard guard;
	int res, err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	res = shunt_cu.MemRetainAllocationHandle(&handle, ptr);
	if (res)
		err = shunt_cu_error(
		    res, "cuMemRetainAllocationHandle of another rank's %zu bytes for device %d", bytes, device);
	else
		err = take_handle(device, handle, bytes, mem_p);
	shunt_cu_leave(&guard);
	return err;
}

void shunt_cu_share_free(struct shunt_gpu_mem *mem)
{
	struct shunt_cu_ctx_guard guard;

	if (!mem->ptr)
		goto out_clear;
	/*
	 * Borrowed access ends with the exporter's mapping. It is not revoked here: the exporter may have freed its
	 * memory already, and another communicator may use the address.
	 */
	if (!mem->borrowed && !shunt_cu_enter(mem->device, &guard)) {
		unmap_range((uintptr_t)mem->ptr, mem->bytes);
		shunt_cu_leave(&guard);
	}
	if (!mem->borrowed)
		shunt_close_fd(&mem->fd);
out_clear:
	*mem = (struct shunt_gpu_mem){ 0 };
}

/* Exports memory of cuMemCreate, as ncclMemAlloc and some allocators make it. Memory of cudaMalloc has no handle. */
static int export_handle(int device, unsigned long long handle, int *fd_p, const char **reason_p)
{
	struct shunt_cu_mem_prop prop;
	int res = shunt_cu.MemGetAllocationPropertiesFromHandle(&prop, handle);

	if (res)
		return shunt_cu_error(res, "cuMemGetAllocationPropertiesFromHandle");
	if (prop.location.type != SHUNT_CU_MEM_LOCATION_DEVICE || prop.location.id != shunt_cu_devices[device].dev)
		*reason_p = "it is not memory of the communicator's device";
	else if (!(prop.handle_types & SHUNT_CU_MEM_HANDLE_POSIX_FD))
		*reason_p = "it was not allocated to be shared; use ncclMemAlloc";
	else if (shunt_cu.MemExportToShareableHandle(fd_p, handle, SHUNT_CU_MEM_HANDLE_POSIX_FD, 0))
		*reason_p = "the driver gives no descriptor for it";
	else
		return 0;
	return -EOPNOTSUPP;
}

int shunt_cu_share_export(
    int device, const void *ptr, size_t bytes, struct shunt_gpu_export *export_p, const char **reason_p)
{
	unsigned long long handle, base;
	struct shunt_cu_ctx_guard guard;
	size_t all;
	int res, err, fd = -1;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	if (shunt_cu.MemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr)) {
		*reason_p = "it is not from ncclMemAlloc (memory of cudaMalloc cannot be passed on)";
		err = -EOPNOTSUPP;
		goto out_leave;
	}
	res = shunt_cu.MemGetAddressRange(&base, &all, (uintptr_t)ptr);
	if (res) {
		err = shunt_cu_error(res, "cuMemGetAddressRange of %p", ptr);
	} else if ((uintptr_t)ptr - base > all || bytes > all - ((uintptr_t)ptr - base)) {
		*reason_p = "it spans several allocations";
		err = -EOPNOTSUPP;
	} else {
		err = export_handle(device, handle, &fd, reason_p);
	}
	shunt_cu.MemRelease(handle);
	shunt_fd_note(fd);
	if (!err)
		*export_p = (struct shunt_gpu_export){ .base = (void *)(uintptr_t)base, .bytes = all, .fd = fd };
out_leave:
	shunt_cu_leave(&guard);
	return err;
}

int shunt_cu_mem_alloc(int device, size_t bytes, void **ptr_p)
{
	struct shunt_cu_ctx_guard guard;
	unsigned long long ptr;
	int res, err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	res = shunt_cu.MemAlloc(&ptr, bytes ? bytes : 1);
	if (res)
		err = shunt_cu_error(res, "cuMemAlloc of %zu bytes on device %d", bytes, device);
	else
		*ptr_p = (void *)(uintptr_t)ptr;
	shunt_cu_leave(&guard);
	return err;
}

int shunt_cu_mem_alloc_shared(int device, size_t bytes, void **ptr_p)
{
	unsigned long long handle = 0, ptr = 0;
	struct shunt_cu_ctx_guard guard;
	int err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	err = create_mapped(device, &bytes, &handle, &ptr);
	if (!err) {
		shunt_cu.MemRelease(handle); /* the mapping keeps the memory */
		*ptr_p = (void *)(uintptr_t)ptr;
	}
	shunt_cu_leave(&guard);
	return err;
}

int shunt_cu_mem_range(const void *ptr, void **base_p, size_t *bytes_p)
{
	struct shunt_cu_ctx_guard guard;
	unsigned long long base;
	size_t bytes;
	int res, err;

	err = shunt_cu_enter(shunt_cu_any_device(), &guard);
	if (err)
		return err;
	res = shunt_cu.MemGetAddressRange(&base, &bytes, (uintptr_t)ptr);
	shunt_cu_leave(&guard);
	if (res)
		return -ENOENT;
	*base_p = (void *)(uintptr_t)base;
	*bytes_p = bytes;
	return 0;
}

int shunt_cu_mem_dmabuf(int device, const void *ptr, size_t bytes, int *fd_p)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct shunt_cu_ctx_guard guard;
	int err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	if (!shunt_cu_devices[device].dmabuf ||
	    shunt_cu.MemGetHandleForAddressRange(
	        fd_p, (uintptr_t)ptr, (bytes + page - 1) / page * page, SHUNT_CU_RANGE_HANDLE_DMABUF, 0))
		err = -EOPNOTSUPP;
	else
		shunt_fd_note(*fd_p);
	shunt_cu_leave(&guard);
	return err;
}

/* True: ptr was memory of mem_alloc_shared, and is freed. */
static bool free_vmm(unsigned long long ptr)
{
	unsigned long long handle, base;
	size_t bytes;

	if (shunt_cu.MemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr))
		return false;
	shunt_cu.MemRelease(handle);
	if (shunt_cu.MemGetAddressRange(&base, &bytes, ptr) || base != ptr)
		return false;
	unmap_range(ptr, bytes);
	return true;
}

int shunt_cu_mem_free(void *ptr)
{
	struct shunt_cu_ctx_guard guard;
	int device, res, err;

	if (!ptr)
		return 0;
	res = shunt_cu.PointerGetAttribute(&device, SHUNT_CU_POINTER_DEVICE_ORDINAL, (uintptr_t)ptr);
	if (res)
		return shunt_cu_error(res, "asking which device %p belongs to", ptr);
	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	res = shunt_cu.MemFree((uintptr_t)ptr);
	if (res && !free_vmm((uintptr_t)ptr))
		err = shunt_cu_error(res, "cuMemFree of %p", ptr);
	shunt_cu_leave(&guard);
	return err;
}

int shunt_cu_mem_info(int device, size_t *free_p, size_t *total_p)
{
	struct shunt_cu_ctx_guard guard;
	size_t free_bytes, total;
	int res, err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	res = shunt_cu.MemGetInfo(&free_bytes, &total);
	if (res) {
		err = shunt_cu_error(res, "cuMemGetInfo of device %d", device);
	} else {
		*free_p = free_bytes;
		*total_p = total;
	}
	shunt_cu_leave(&guard);
	return err;
}

/* Where devices see page-locked memory. */
static int host_address(void *host, void **dev_p)
{
	unsigned long long dev;
	int res = shunt_cu.MemHostGetDevicePointer(&dev, host, 0);

	if (res)
		return shunt_cu_error(res, "cuMemHostGetDevicePointer");
	*dev_p = (void *)(uintptr_t)dev;
	return 0;
}

int shunt_cu_host_alloc(size_t bytes, void **host_p, void **dev_p)
{
	struct shunt_cu_ctx_guard guard;
	void *host;
	int res, err;

	if (!bytes)
		return -EINVAL;
	err = shunt_cu_enter(shunt_cu_any_device(), &guard);
	if (err)
		return err;
	res = shunt_cu.MemHostAlloc(&host, bytes, SHUNT_CU_HOST_PORTABLE | SHUNT_CU_HOST_DEVICEMAP);
	err = res ? shunt_cu_error(res, "cuMemHostAlloc of %zu bytes", bytes) : host_address(host, dev_p);
	if (!err) {
		memset(host, 0, bytes);
		*host_p = host;
	} else if (!res) {
		shunt_cu.MemFreeHost(host);
	}
	shunt_cu_leave(&guard);
	return err;
}

int shunt_cu_host_register(void *host, size_t bytes, void **dev_p)
{
	struct shunt_cu_ctx_guard guard;
	int res, err;

	if (!host || !bytes)
		return -EINVAL;
	err = shunt_cu_enter(shunt_cu_any_device(), &guard);
	if (err)
		return err;
	res = shunt_cu.MemHostRegister(host, bytes, SHUNT_CU_HOST_PORTABLE | SHUNT_CU_HOST_DEVICEMAP);
	err = res ? shunt_cu_error(res, "cuMemHostRegister of %zu bytes", bytes) : host_address(host, dev_p);
	if (err && !res)
		shunt_cu.MemHostUnregister(host);
	shunt_cu_leave(&guard);
	return err;
}

/* By this call of the driver. */
static void release_host(void *host, int (*release)(void *host), const char *call)
{
	struct shunt_cu_ctx_guard guard;
	int res;

	if (!host || shunt_cu_enter(shunt_cu_any_device(), &guard))
		return;
	res = release(host);
	if (res)
		shunt_cu_error(res, "%s", call);
	shunt_cu_leave(&guard);
}

void shunt_cu_host_free(void *host) { release_host(host, shunt_cu.MemFreeHost, "cuMemFreeHost"); }

void shunt_cu_host_unregister(void *host) { release_host(host, shunt_cu.MemHostUnregister, "cuMemHostUnregister"); }

int shunt_cu_copy(int device, void *dst, const void *src, size_t bytes)
{
	struct shunt_cu_ctx_guard guard;
	void *stream;
	int res, err;

	if (!bytes)
		return 0;
	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	err = shunt_cu_copy_stream(device, &stream);
	if (err)
		goto out_leave;
	/*
	 * All threads share the stream without a lock: at worst a thread also waits for another thread's copy, but
	 * for no kernel. The stream is non-blocking, so it does not wait for the default stream, on which a kernel
	 * may spin.
	 */
	res = shunt_cu.MemcpyAsync((uintptr_t)dst, (uintptr_t)src, bytes, stream);
	if (!res)
		res = shunt_cu.StreamSynchronize(stream);
	if (res)
		err = shunt_cu_error(res, "copying %zu bytes on device %d", bytes, device);
out_leave:
	shunt_cu_leave(&guard);
	return err;
}

int shunt_cu_copy_async(int device, void *dst, const void *src, size_t bytes, void *stream)
{
	struct shunt_cu_ctx_guard guard;
	int res, err;

	if (!bytes)
		return 0;
	err = shunt_cu_enter_fast(device, &guard);
	if (err)
		return err;
	res = shunt_cu.MemcpyAsync((uintptr_t)dst, (uintptr_t)src, bytes, stream);
	if (res)
		err = shunt_cu_error(res, "cuMemcpyAsync of %zu bytes on device %d", bytes, device);
	shunt_cu_leave(&guard);
	return err;
}

int shunt_cu_memset_async(int device, void *dst, int value, size_t bytes, void *stream)
{
	struct shunt_cu_ctx_guard guard;
	int res, err;

	if (!bytes)
		return 0;
	err = shunt_cu_enter_fast(device, &guard);
	if (err)
		return err;
	res = shunt_cu.MemsetD8Async((uintptr_t)dst, (unsigned char)value, bytes, stream);
	if (res)
		err = shunt_cu_error(res, "cuMemsetD8Async of %zu bytes on device %d", bytes, device);
	shunt_cu_leave(&guard);
	return err;
}
