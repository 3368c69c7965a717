/* SPDX-License-Identifier: MIT */
/* Memory on CUDA devices: what peers may map, plain, page-locked; copies. */
#include "gpu/cuda_dev.h"

#include <string.h>
#include <unistd.h>

static struct shunt_cu_mem_prop share_prop(int device)
{
	return (struct shunt_cu_mem_prop){
		.type = SHUNT_CU_MEM_ALLOCATION_PINNED,
		.handle_types = SHUNT_CU_MEM_HANDLE_POSIX_FD,
		.location = { SHUNT_CU_MEM_LOCATION_DEVICE, shunt_cu_devices[device].dev },
	};
}

/* Makes what handle stands for readable and writable by `device` at a fresh address; the mapping outlives the handle. */
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

static void unmap(unsigned long long ptr, size_t bytes)
{
	int res = shunt_cu.MemUnmap(ptr, bytes);

	if (res)
		shunt_cu_error(res, "cuMemUnmap of %zu bytes", bytes);
	res = shunt_cu.MemAddressFree(ptr, bytes);
	if (res)
		shunt_cu_error(res, "cuMemAddressFree of %zu bytes", bytes);
}

static int zero(int device, unsigned long long ptr, size_t bytes)
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

static int share_alloc(int device, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	struct shunt_cu_mem_prop prop = share_prop(device);
	unsigned long long handle, ptr;
	size_t grain;
	int res, err, fd = -1;

	res = shunt_cu.MemGetAllocationGranularity(&grain, &prop, SHUNT_CU_MEM_GRANULARITY_MINIMUM);
	if (res)
		return shunt_cu_error(res, "cuMemGetAllocationGranularity of device %d", device);
	if (!bytes || !grain || bytes > SIZE_MAX - grain)
		return -EINVAL;
	bytes = (bytes + grain - 1) / grain * grain;
	res = shunt_cu.MemCreate(&handle, bytes, &prop, 0);
	if (res)
		return shunt_cu_error(res, "cuMemCreate of %zu bytes on device %d", bytes, device);
	err = map_handle(device, handle, bytes, &ptr);
	if (err)
		goto err_release;
	err = zero(device, ptr, bytes);
	if (err)
		goto err_unmap;
	res = shunt_cu.MemExportToShareableHandle(&fd, handle, SHUNT_CU_MEM_HANDLE_POSIX_FD, 0);
	if (res) {
		err = shunt_cu_error(res, "cuMemExportToShareableHandle of %zu bytes on device %d", bytes, device);
		goto err_unmap;
	}
	shunt_cu.MemRelease(handle);
	*mem_p = (struct shunt_gpu_mem){ .ptr = (void *)(uintptr_t)ptr, .bytes = bytes, .device = device, .fd = fd };
	return 0;

err_unmap:
	unmap(ptr, bytes);
err_release:
	shunt_cu.MemRelease(handle);
	return err;
}

int shunt_cu_share_alloc(int device, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	struct shunt_cu_scope scope;
	int err;

	err = shunt_cu_enter(device, &scope);
	if (err)
		return err;
	err = share_alloc(device, bytes, mem_p);
	shunt_cu_leave(&scope);
	return err;
}

int shunt_cu_share_map(int device, int fd, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	unsigned long long handle, ptr;
	struct shunt_cu_scope scope;
	int res, err;

	err = shunt_cu_enter(device, &scope);
	if (err)
		return err;
	res = shunt_cu.MemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, SHUNT_CU_MEM_HANDLE_POSIX_FD);
	if (res) {
		err = shunt_cu_error(res, "cuMemImportFromShareableHandle of a peer's %zu bytes for device %d", bytes, device);
		goto out_leave;
	}
	err = map_handle(device, handle, bytes, &ptr);
	shunt_cu.MemRelease(handle);
	if (!err)
		*mem_p = (struct shunt_gpu_mem){ .ptr = (void *)(uintptr_t)ptr, .bytes = bytes, .device = device, .fd = -1 };
out_leave:
	shunt_cu_leave(&scope);
	return err;
}

int shunt_cu_share_borrow(int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p)
{
	struct shunt_cu_mem_access access = { .flags = SHUNT_CU_MEM_ACCESS_READWRITE };
	struct shunt_cu_scope scope;
	int res, err;

	err = shunt_cu_enter(device, &scope);
	if (err)
		return err;
	access.location = (struct shunt_cu_mem_location){ SHUNT_CU_MEM_LOCATION_DEVICE, shunt_cu_devices[device].dev };
	res = shunt_cu.MemSetAccess((uintptr_t)ptr, bytes, &access, 1); /* leaves the other devices' access as it is */
	if (res)
		err = shunt_cu_error(res, "cuMemSetAccess of another rank's %zu bytes for device %d", bytes, device);
	else
		*mem_p = (struct shunt_gpu_mem){ .ptr = ptr, .bytes = bytes, .device = device, .fd = -1, .borrowed = true };
	shunt_cu_leave(&scope);
	return err;
}

void shunt_cu_share_free(struct shunt_gpu_mem *mem)
{
	struct shunt_cu_scope scope;

	if (!mem->ptr)
		goto out_clear;
	/*
	 * Access that was borrowed ends with the exporter's mapping. It is not taken back here: the exporter may have freed its
	 * memory already, and the address may belong to another communicator by now.
	 */
	if (!mem->borrowed && !shunt_cu_enter(mem->device, &scope)) {
		unmap((uintptr_t)mem->ptr, mem->bytes);
		shunt_cu_leave(&scope);
	}
	if (!mem->borrowed && mem->fd >= 0)
		close(mem->fd);
out_clear:
	*mem = (struct shunt_gpu_mem){ 0 };
}

int shunt_cu_mem_alloc(int device, size_t bytes, void **ptr_p)
{
	struct shunt_cu_scope scope;
	unsigned long long ptr;
	int res, err;

	err = shunt_cu_enter(device, &scope);
	if (err)
		return err;
	res = shunt_cu.MemAlloc(&ptr, bytes ? bytes : 1);
	if (res)
		err = shunt_cu_error(res, "cuMemAlloc of %zu bytes on device %d", bytes, device);
	else
		*ptr_p = (void *)(uintptr_t)ptr;
	shunt_cu_leave(&scope);
	return err;
}

int shunt_cu_mem_free(void *ptr)
{
	struct shunt_cu_scope scope;
	int device, res, err;

	if (!ptr)
		return 0;
	res = shunt_cu.PointerGetAttribute(&device, SHUNT_CU_POINTER_DEVICE_ORDINAL, (uintptr_t)ptr);
	if (res)
		return shunt_cu_error(res, "asking which device %p belongs to", ptr);
	err = shunt_cu_enter(device, &scope);
	if (err)
		return err;
	res = shunt_cu.MemFree((uintptr_t)ptr);
	if (res)
		err = shunt_cu_error(res, "cuMemFree of %p", ptr);
	shunt_cu_leave(&scope);
	return err;
}

int shunt_cu_mem_info(int device, size_t *free_p, size_t *total_p)
{
	struct shunt_cu_scope scope;
	size_t free_bytes, total;
	int res, err;

	err = shunt_cu_enter(device, &scope);
	if (err)
		return err;
	res = shunt_cu.MemGetInfo(&free_bytes, &total);
	if (res) {
		err = shunt_cu_error(res, "cuMemGetInfo of device %d", device);
	} else {
		*free_p = free_bytes;
		*total_p = total;
	}
	shunt_cu_leave(&scope);
	return err;
}

int shunt_cu_host_alloc(size_t bytes, void **host_p, void **dev_p)
{
	struct shunt_cu_scope scope;
	unsigned long long dev;
	void *host;
	int res, err;

	if (!bytes)
		return -EINVAL;
	err = shunt_cu_enter(shunt_cu_any_device(), &scope);
	if (err)
		return err;
	res = shunt_cu.MemHostAlloc(&host, bytes, SHUNT_CU_HOST_PORTABLE | SHUNT_CU_HOST_DEVICEMAP);
	if (res) {
		err = shunt_cu_error(res, "cuMemHostAlloc of %zu bytes", bytes);
		goto out_leave;
	}
	res = shunt_cu.MemHostGetDevicePointer(&dev, host, 0);
	if (res) {
		err = shunt_cu_error(res, "cuMemHostGetDevicePointer");
		shunt_cu.MemFreeHost(host);
		goto out_leave;
	}
	memset(host, 0, bytes);
	*host_p = host;
	*dev_p = (void *)(uintptr_t)dev;
out_leave:
	shunt_cu_leave(&scope);
	return err;
}

void shunt_cu_host_free(void *host)
{
	struct shunt_cu_scope scope;
	int res;

	if (!host || shunt_cu_enter(shunt_cu_any_device(), &scope))
		return;
	res = shunt_cu.MemFreeHost(host);
	if (res)
		shunt_cu_error(res, "cuMemFreeHost");
	shunt_cu_leave(&scope);
}

int shunt_cu_copy(int device, void *dst, const void *src, size_t bytes)
{
	struct shunt_cu_scope scope;
	void *stream;
	int res, err;

	if (!bytes)
		return 0;
	err = shunt_cu_enter(device, &scope);
	if (err)
		return err;
	err = shunt_cu_copy_stream(device, &stream);
	if (err)
		goto out_leave;
	/*
	 * The stream is shared by all threads without a lock: at worst a thread also waits for another one's copy. It waits for no
	 * kernel, and non-blocking keeps it apart from the default stream, behind which a spinning kernel may sit.
	 */
	res = shunt_cu.MemcpyAsync((uintptr_t)dst, (uintptr_t)src, bytes, stream);
	if (!res)
		res = shunt_cu.StreamSynchronize(stream);
	if (res)
		err = shunt_cu_error(res, "copying %zu bytes on device %d", bytes, device);
out_leave:
	shunt_cu_leave(&scope);
	return err;
}

int shunt_cu_copy_async(int device, void *dst, const void *src, size_t bytes, void *stream)
{
	struct shunt_cu_scope scope;
	int res, err;

	if (!bytes)
		return 0;
	err = shunt_cu_enter_hot(device, &scope);
	if (err)
		return err;
	res = shunt_cu.MemcpyAsync((uintptr_t)dst, (uintptr_t)src, bytes, stream);
	if (res)
		err = shunt_cu_error(res, "cuMemcpyAsync of %zu bytes on device %d", bytes, device);
	shunt_cu_leave(&scope);
	return err;
}

int shunt_cu_memset_async(int device, void *dst, int value, size_t bytes, void *stream)
{
	struct shunt_cu_scope scope;
	int res, err;

	if (!bytes)
		return 0;
	err = shunt_cu_enter_hot(device, &scope);
	if (err)
		return err;
	res = shunt_cu.MemsetD8Async((uintptr_t)dst, (unsigned char)value, bytes, stream);
	if (res)
		err = shunt_cu_error(res, "cuMemsetD8Async of %zu bytes on device %d", bytes, device);
	shunt_cu_leave(&scope);
	return err;
}
