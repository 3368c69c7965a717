/* SPDX-License-Identifier: MIT */
/* The fake driver: memory. */
#include "tests/support/fake_cuda/state.h"
#include "tools/common/libc.h"

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	ENTER();
	NEED_CONTEXT();
	*free_bytes = 1000 + (size_t)fake_device();
	*total = 2000;
	return 0;
}

int cuMemAlloc_v2(unsigned long long *ptr, size_t bytes)
{
	void *p;

	ENTER();
	NEED_CONTEXT();
	UNSAFE();
	p = aligned_alloc(256, (bytes + 255) / 256 * 256);
	fake_object_add(DEVICE_MEM, (uintptr_t)p, bytes);
	*ptr = (uintptr_t)p;
	return 0;
}

int cuMemFree_v2(unsigned long long ptr)
{
	struct fake_object *o;

	ENTER_CLEANUP();
	UNSAFE();
	o = fake_object_find(DEVICE_MEM, ptr);
	if (!o || o->device != fake_device())
		return SHUNT_CU_INVALID_VALUE;
	fake_object_drop(DEVICE_MEM, ptr);
	free((void *)(uintptr_t)ptr);
	return 0;
}

/* The mapped range that an address lies in. */
static struct fake_object *find_range(uintptr_t addr)
{
	struct fake_object *o;

	pthread_mutex_lock(&fake_lock);
	for (o = fake_objects; o; o = o->next)
		if (o->kind == RANGE && o->mapped && addr - o->addr < o->bytes)
			break;
	pthread_mutex_unlock(&fake_lock);
	return o;
}

int cuPointerGetAttribute(void *value, int attr, unsigned long long ptr)
{
	struct fake_object *o;

	ENTER();
	o = fake_object_find(DEVICE_MEM, ptr);
	if (!o)
		o = find_range(ptr);
	if (!o || attr != SHUNT_CU_POINTER_DEVICE_ORDINAL)
		return SHUNT_CU_INVALID_VALUE;
	*(int *)value = o->device;
	return 0;
}

int cuMemHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
	ENTER();
	NEED_CONTEXT();
	UNSAFE();
	if (flags != (SHUNT_CU_HOST_PORTABLE | SHUNT_CU_HOST_DEVICEMAP))
		return SHUNT_CU_INVALID_VALUE;
	*ptr = malloc(bytes);
	memset(*ptr, 0x5a, bytes);
	fake_object_add(HOST_MEM, (uintptr_t)*ptr, bytes);
	return 0;
}

int cuMemFreeHost(void *ptr)
{
	ENTER_CLEANUP();
	UNSAFE();
	if (fake_object_drop(HOST_MEM, (uintptr_t)ptr))
		return SHUNT_CU_INVALID_VALUE;
	free(ptr);
	return 0;
}

int cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned flags)
{
	ENTER();
	NEED_CONTEXT();
	UNSAFE();
	if (flags != (SHUNT_CU_HOST_PORTABLE | SHUNT_CU_HOST_DEVICEMAP))
		return SHUNT_CU_INVALID_VALUE;
	fake_object_add(HOST_PAGES, (uintptr_t)ptr, bytes);
	return 0;
}

int cuMemHostUnregister(void *ptr)
{
	ENTER_CLEANUP();
	UNSAFE();
	return fake_object_drop(HOST_PAGES, (uintptr_t)ptr) ? SHUNT_CU_INVALID_VALUE : 0;
}

int cuMemHostGetDevicePointer_v2(unsigned long long *dev_ptr, void *ptr, unsigned flags)
{
	ENTER();
	*dev_ptr = (uintptr_t)ptr;
	return 0;
}

int cuMemGetAllocationGranularity(size_t *bytes, const struct shunt_cu_mem_prop *prop, int option)
{
	ENTER();
	*bytes = FAKE_GRANULE;
	return 0;
}

int cuMemCreate(
    unsigned long long *handle, size_t bytes, const struct shunt_cu_mem_prop *prop, unsigned long long flags)
{
	struct fake_object *o;
	void *p;

	ENTER();
	UNSAFE();
	if (bytes % FAKE_GRANULE || prop->type != SHUNT_CU_MEM_ALLOCATION_PINNED ||
	    prop->handle_types != SHUNT_CU_MEM_HANDLE_POSIX_FD || prop->location.type != SHUNT_CU_MEM_LOCATION_DEVICE)
		return SHUNT_CU_INVALID_VALUE;
	o = fake_object_add(HANDLE, 0, bytes);
	o->device = prop->location.id;
	o->handle_types = prop->handle_types;
	o->fd = memfd_create("fake_cuda", MFD_CLOEXEC);
	/* Device memory comes as it was left. */
	p = fake_cuda.untouched ? NULL : malloc(bytes);
	if (p)
		memset(p, 0x5a, bytes);
	if (p ? write(o->fd, p, bytes) != (ssize_t)bytes : ftruncate(o->fd, (off_t)bytes))
		abort();
	free(p);
	*handle = o->addr;
	return 0;
}

int cuMemRelease(unsigned long long handle)
{
	ENTER_CLEANUP();
	return fake_object_drop(HANDLE, handle);
}

int cuMemAddressReserve(
    unsigned long long *ptr, size_t bytes, size_t align, unsigned long long addr, unsigned long long flags)
{
	void *p;

	ENTER();
	p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return SHUNT_CU_OUT_OF_MEMORY;
	fake_object_add(RANGE, (uintptr_t)p, bytes);
	*ptr = (uintptr_t)p;
	return 0;
}

int cuMemAddressFree(unsigned long long ptr, size_t bytes)
{
	struct fake_object *o;

	ENTER_CLEANUP();
	o = fake_object_find(RANGE, ptr);
	if (!o || o->bytes != bytes || o->mapped)
		return SHUNT_CU_INVALID_VALUE;
	munmap((void *)(uintptr_t)ptr, bytes);
	return fake_object_drop(RANGE, ptr);
}

int cuMemMap(unsigned long long ptr, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags)
{
	struct fake_object *range, *mem;

	ENTER();
	range = fake_object_find(RANGE, ptr);
	mem = fake_object_find(HANDLE, handle);
	if (!range || !mem || range->bytes != bytes || mem->bytes != bytes || range->mapped || offset || flags)
		return SHUNT_CU_INVALID_VALUE;
	mmap((void *)(uintptr_t)ptr, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, mem->fd, 0);
	range->mapped = true;
	range->fd = fcntl(mem->fd, F_DUPFD_CLOEXEC, 0); /* the mapping keeps the memory */
	range->device = mem->device;
	range->handle_types = mem->handle_types;
	fake_cuda.live_objects++;
	return 0;
}

int cuMemUnmap(unsigned long long ptr, size_t bytes)
{
	struct fake_object *range;

	ENTER_CLEANUP();
	range = fake_object_find(RANGE, ptr);
	if (!range || range->bytes != bytes || !range->mapped)
		return SHUNT_CU_INVALID_VALUE;
	mmap((void *)(uintptr_t)ptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	range->mapped = false;
	close(range->fd);
	range->fd = -1;
	range->access = 0;
	fake_cuda.live_objects--;
	return 0;
}

int cuMemGetAccess(unsigned long long *flags, const struct shunt_cu_mem_location *location, unsigned long long ptr)
{
	const struct fake_object *range = fake_object_find(RANGE, ptr);

	ENTER();
	if (!range || !range->mapped)
		return SHUNT_CU_INVALID_VALUE;
	*flags = range->access & 1u << location->id ? SHUNT_CU_MEM_ACCESS_READWRITE : 0;
	return 0;
}

int cuMemSetAccess(unsigned long long ptr, size_t bytes, const struct shunt_cu_mem_access *desc, size_t count)
{
	struct fake_object *range;

	ENTER();
	range = fake_object_find(RANGE, ptr);
	if (!range || range->bytes != bytes || !range->mapped)
		return SHUNT_CU_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (range->access & 1u << desc[i].location.id) /* the driver minds it only if it happens at once */
			return SHUNT_CU_INVALID_VALUE;
		else if (desc[i].flags == SHUNT_CU_MEM_ACCESS_READWRITE)
			range->access |= 1u << desc[i].location.id;
	mprotect((void *)(uintptr_t)ptr, bytes, PROT_READ | PROT_WRITE);
	return 0;
}

int cuMemRetainAllocationHandle(unsigned long long *handle, void *ptr)
{
	struct fake_object *range = find_range((uintptr_t)ptr), *o;

	ENTER();
	if (!range)
		return SHUNT_CU_INVALID_VALUE;
	o = fake_object_add(HANDLE, 0, range->bytes);
	o->device = range->device;
	o->handle_types = range->handle_types;
	o->fd = fcntl(range->fd, F_DUPFD_CLOEXEC, 0);
	*handle = o->addr;
	return 0;
}

int cuMemGetAllocationPropertiesFromHandle(struct shunt_cu_mem_prop *prop, unsigned long long handle)
{
	struct fake_object *o = fake_object_find(HANDLE, handle);

	ENTER();
	if (!o)
		return SHUNT_CU_INVALID_VALUE;
	*prop = (struct shunt_cu_mem_prop){ .type = SHUNT_CU_MEM_ALLOCATION_PINNED,
		.handle_types = fake_cuda.not_shareable ? 0 : o->handle_types,
		.location = { SHUNT_CU_MEM_LOCATION_DEVICE, o->device } };
	return 0;
}

int cuMemGetAddressRange_v2(unsigned long long *base, size_t *bytes, unsigned long long ptr)
{
	struct fake_object *o = find_range(ptr);

	ENTER();
	if (!o)
		o = fake_object_find(DEVICE_MEM, ptr);
	if (!o)
		return SHUNT_CU_INVALID_VALUE;
	*base = o->addr;
	*bytes = o->bytes;
	return 0;
}

int cuMemExportToShareableHandle(void *shareable, unsigned long long handle, int type, unsigned long long flags)
{
	struct fake_object *o;

	ENTER();
	o = fake_object_find(HANDLE, handle);
	if (!o || type != SHUNT_CU_MEM_HANDLE_POSIX_FD)
		return SHUNT_CU_INVALID_VALUE;
	*(int *)shareable = fcntl(o->fd, F_DUPFD_CLOEXEC, 0);
	return 0;
}

int cuMemGetHandleForAddressRange(
    void *handle, unsigned long long ptr, size_t bytes, int type, unsigned long long flags)
{
	struct fake_object *o = find_range(ptr);

	ENTER();
	if (!o || o->addr != ptr || bytes > o->bytes || type != SHUNT_CU_RANGE_HANDLE_DMABUF || flags)
		return SHUNT_CU_INVALID_VALUE;
	*(int *)handle = fcntl(o->fd, F_DUPFD_CLOEXEC, 0);
	return 0;
}

int cuMemImportFromShareableHandle(unsigned long long *handle, void *shareable, int type)
{
	struct fake_object *o;
	struct stat st;

	ENTER();
	UNSAFE();
	if (type != SHUNT_CU_MEM_HANDLE_POSIX_FD || fstat((int)(intptr_t)shareable, &st))
		return SHUNT_CU_INVALID_VALUE;
	o = fake_object_add(HANDLE, 0, (size_t)st.st_size);
	o->fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
	*handle = o->addr;
	return 0;
}
