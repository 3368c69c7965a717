/* SPDX-License-Identifier: MIT */
#include "tests/support/fake_cuda/fake_cuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device/cuda/cuda_abi.h"
#include "kernels/kargs.h"
#include "kernels/kernel_list.h"

#define API __attribute__((visibility("default")))

struct fake_cuda fake_cuda = { .cc = 90, .shared = 227 << 10, .fail_with = SHUNT_CU_OUT_OF_MEMORY };

/* Declared by the library's own list, so that a call with other parameters does not compile. */
#define PROTOTYPE(name, version, params) API int cu##name##version params;
SHUNT_CU_CALLS(PROTOTYPE)
SHUNT_CU_CALLS_OPTIONAL(PROTOTYPE)

enum kind { DEVICE_MEM, HOST_MEM, HOST_PAGES, HANDLE, RANGE, STREAM, EVENT, GRAPH, EXEC, LIBRARY, USER_OBJECT, NKINDS };
enum { MAX_EDGES = 16, MAX_KEPT = 4 };

struct work {
	void *dst;
	const void *src; /* NULL: memset */
	int value;
	size_t bytes;
	struct work *next;
};

/* Everything that a call hands out. */
struct object {
	enum kind kind;
	int device;
	uintptr_t addr;
	size_t bytes;
	int fd;
	bool mapped;
	int handle_types;
	unsigned access; /* bit per device */
	bool capturing;
	unsigned long long capture;
	uintptr_t tip; /* nodes are numbers, odd ones */
	struct {
		uintptr_t from, to;
	} edges[MAX_EDGES]; /* those that were added by hand */
	struct object *retained[MAX_KEPT];
	void (*drop_object)(void *);
	void *arg;
	long refs;
	struct work *work;
	bool recorded;
	const char *data;
	struct object *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects;
static int contexts[FAKE_MAX_DEVICES]; /* their addresses are the contexts */
static int loaded[FAKE_MAX_DEVICES];
static int resets[FAKE_MAX_DEVICES];
static char kernels[SHUNT_NKERNELS][48];
static unsigned nkernels;
static __thread void *ctx_stack[16];
static __thread int ctx_depth;
static __thread int thread_mode; /* 0: global */
static __thread int captures;
static __thread long pushed_contexts;

static bool fails_now(const char *name)
{
	bool now;

	pthread_mutex_lock(&lock);
	now = ++fake_cuda.calls == fake_cuda.fail_at;
	if (now)
		fake_cuda.failed = name;
	pthread_mutex_unlock(&lock);
	return now;
}
#define ENTER() \
	do { \
		if (fails_now(__func__)) \
			return fake_cuda.fail_with; \
	} while (0)
#define ENTER_CLEANUP() \
	do { \
		if (fake_cuda.fail_cleanup && fails_now(__func__)) \
			return fake_cuda.fail_with; \
	} while (0)
/* Calls that the driver refuses while this thread captures, unless the thread asked to be left alone. */
#define UNSAFE() \
	do { \
		if (captures && thread_mode != SHUNT_CU_CAPTURE_MODE_RELAXED) \
			return SHUNT_CU_STREAM_CAPTURE_UNSUPPORTED; \
	} while (0)

static int current_device(void)
{
	return ctx_depth && ctx_stack[ctx_depth - 1] ? (int)((int *)ctx_stack[ctx_depth - 1] - contexts) : -1;
}
#define NEED_CONTEXT() \
	do { \
		if (current_device() < 0) \
			return SHUNT_CU_INVALID_CONTEXT; \
	} while (0)

static struct object *add_object(enum kind kind, uintptr_t addr, size_t bytes)
{
	struct object *o = calloc(1, sizeof(*o));

	o->kind = kind;
	o->device = current_device();
	o->addr = addr ? addr : (uintptr_t)o;
	o->bytes = bytes;
	o->fd = -1;
	pthread_mutex_lock(&lock);
	o->next = objects;
	objects = o;
	fake_cuda.live_objects++;
	pthread_mutex_unlock(&lock);
	return o;
}

static struct object *find_object(enum kind kind, uintptr_t addr)
{
	struct object *o;

	pthread_mutex_lock(&lock);
	for (o = objects; o; o = o->next)
		if (o->kind == kind && o->addr == addr)
			break;
	pthread_mutex_unlock(&lock);
	return o;
}

static void drop_work(struct object *o)
{
	while (o->work) {
		struct work *w = o->work;

		o->work = w->next;
		free(w);
	}
}

static int drop_object(enum kind kind, uintptr_t addr);

static void release_object(struct object *u, long count)
{
	u->refs -= count;
	if (u->refs)
		return;
	u->drop_object(u->arg);
	drop_object(USER_OBJECT, u->addr);
}

static void drop_retained(struct object *o)
{
	for (unsigned i = 0; i < MAX_KEPT; i++) {
		if (o->retained[i])
			release_object(o->retained[i], 1);
		o->retained[i] = NULL;
	}
}

static int drop_object(enum kind kind, uintptr_t addr)
{
	struct object *o = find_object(kind, addr), **p;

	if (!o)
		return SHUNT_CU_INVALID_HANDLE;
	pthread_mutex_lock(&lock);
	for (p = &objects; *p != o; p = &(*p)->next)
		;
	*p = o->next;
	fake_cuda.live_objects--;
	pthread_mutex_unlock(&lock);
	drop_work(o);
	drop_retained(o);
	if (o->fd >= 0)
		close(o->fd);
	free(o);
	return 0;
}

bool fake_cuda_access(int device, const void *ptr)
{
	struct object *o = find_object(RANGE, (uintptr_t)ptr);

	return o && o->mapped && (o->access & 1u << device);
}

int fake_cuda_capture_mode(void)
{
	return thread_mode;
}

long fake_cuda_pushed(void)
{
	return pushed_contexts;
}

void fake_cuda_reset_thread(void)
{
	ctx_depth = 0;
	pushed_contexts = 0;
}

void fake_cuda_device_reset(int device)
{
	struct object *o = objects, *next;

	for (; o; o = next) {
		next = o->next;
		if (o->kind == STREAM && o->device == device)
			drop_object(STREAM, o->addr);
	}
	fake_cuda.contexts[device] = 0;
	resets[device]++;
}

/* Initialisation and devices. */

int cuInit(unsigned flags)
{
	ENTER();
	return fake_cuda.init_result;
}

int cuDriverGetVersion(int *version)
{
#if FAKE_CUDA_OLD
	*version = 11080;
#else
	*version = fake_cuda.driver ? fake_cuda.driver : 12020;
#endif
	return 0;
}

int cuGetErrorName(int result, const char **name)
{
	*name = result == SHUNT_CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
	return 0;
}

int cuDeviceGetCount(int *count)
{
	ENTER();
	*count = fake_cuda.devices ? fake_cuda.devices : FAKE_DEVICES - 1; /* the last one is hidden */
	return 0;
}

int cuDeviceGet(int *dev, int ordinal)
{
	ENTER();
	*dev = ordinal;
	return 0;
}

int cuDeviceGetName(char *name, int bytes, int dev)
{
	ENTER();
	snprintf(name, (size_t)bytes, "Fake %d", dev);
	return 0;
}

int cuDeviceGetUuid_v2(struct shunt_cu_uuid *uuid, int dev)
{
	ENTER();
	memset(uuid->bytes, 0xa0 + dev, sizeof(uuid->bytes));
	return 0;
}

int cuDeviceGetPCIBusId(char *text, int bytes, int dev)
{
	ENTER();
	snprintf(text, (size_t)bytes, "0000:%02X:00.0", 0x10 + dev);
	return 0;
}

int cuDeviceGetAttribute(int *value, int attr, int dev)
{
	int cc = fake_cuda.ampere >> dev & 1 ? 80 : fake_cuda.cc;

	ENTER();
	*value = attr == SHUNT_CU_ATTR_MULTIPROCESSOR_COUNT                                       ? 132 :
	    attr == SHUNT_CU_ATTR_RDMA_OF_MAPPED_MEMORY || attr == SHUNT_CU_ATTR_DMABUF_SUPPORTED ? !fake_cuda.no_rdma :
	    attr == SHUNT_CU_ATTR_MAX_SHARED_BYTES_OPTIN                                          ? fake_cuda.shared :
	    attr == SHUNT_CU_ATTR_MULTICAST_SUPPORTED      ? (int)(fake_cuda.multicast >> dev & 1) :
	    attr == SHUNT_CU_ATTR_COMPUTE_CAPABILITY_MAJOR ? cc / 10 :
	                                                     cc % 10;
	return 0;
}

int cuDeviceCanAccessPeer(int *can, int dev, int peer)
{
	ENTER();
	*can = !fake_cuda.no_peer;
	return 0;
}

int cuDeviceGetP2PAttribute(int *value, int attr, int src, int dst)
{
	ENTER();
	*value = attr == SHUNT_CU_P2P_NATIVE_ATOMIC_SUPPORTED && !fake_cuda.no_nvlink;
	return 0;
}

/* Contexts. */

int cuDevicePrimaryCtxRetain(void **ctx, int dev)
{
	ENTER();
	UNSAFE();
	fake_cuda.contexts[dev]++;
	*ctx = &contexts[dev];
	return 0;
}

int cuDevicePrimaryCtxRelease_v2(int dev)
{
	fake_cuda.contexts[dev]--;
	return 0;
}

int cuDevicePrimaryCtxGetState(int dev, unsigned *flags, int *active)
{
	*flags = 0;
	*active = fake_cuda.contexts[dev] > 0;
	return 0;
}

int cuCtxGetId(void *ctx, unsigned long long *id)
{
	*id = (unsigned long long)(1 + ((int *)ctx - contexts) + FAKE_MAX_DEVICES * resets[(int *)ctx - contexts]);
	return 0;
}

int cuCtxGetCurrent(void **ctx)
{
	ENTER();
	*ctx = ctx_depth ? ctx_stack[ctx_depth - 1] : NULL;
	return 0;
}

int cuCtxSetCurrent(void *ctx)
{
	ENTER();
	if (!ctx_depth)
		ctx_depth = 1;
	ctx_stack[ctx_depth - 1] = ctx;
	return 0;
}

int cuCtxPushCurrent_v2(void *ctx)
{
	ENTER();
	ctx_stack[ctx_depth++] = ctx;
	pushed_contexts++;
	return 0;
}

int cuCtxPopCurrent_v2(void **ctx)
{
	ENTER_CLEANUP();
	if (!ctx_depth)
		return SHUNT_CU_INVALID_CONTEXT;
	*ctx = ctx_stack[--ctx_depth];
	pushed_contexts--;
	return 0;
}

int cuCtxGetDevice(int *dev)
{
	ENTER();
	NEED_CONTEXT();
	*dev = current_device();
	return 0;
}

int cuThreadExchangeStreamCaptureMode(int *m)
{
	int old = thread_mode;

	/* Going back is clean-up. */
	if (*m != SHUNT_CU_CAPTURE_MODE_RELAXED)
		ENTER_CLEANUP();
	else
		ENTER();
	thread_mode = *m;
	*m = old;
	return 0;
}

/* Memory. */

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	ENTER();
	NEED_CONTEXT();
	*free_bytes = 1000 + (size_t)current_device();
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
	add_object(DEVICE_MEM, (uintptr_t)p, bytes);
	*ptr = (uintptr_t)p;
	return 0;
}

int cuMemFree_v2(unsigned long long ptr)
{
	struct object *o;

	ENTER_CLEANUP();
	UNSAFE();
	o = find_object(DEVICE_MEM, ptr);
	if (!o || o->device != current_device())
		return SHUNT_CU_INVALID_VALUE;
	drop_object(DEVICE_MEM, ptr);
	free((void *)(uintptr_t)ptr);
	return 0;
}

/* The mapped range that an address lies in. */
static struct object *find_range(uintptr_t addr)
{
	struct object *o;

	pthread_mutex_lock(&lock);
	for (o = objects; o; o = o->next)
		if (o->kind == RANGE && o->mapped && addr - o->addr < o->bytes)
			break;
	pthread_mutex_unlock(&lock);
	return o;
}

int cuPointerGetAttribute(void *value, int attr, unsigned long long ptr)
{
	struct object *o;

	ENTER();
	o = find_object(DEVICE_MEM, ptr);
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
	add_object(HOST_MEM, (uintptr_t)*ptr, bytes);
	return 0;
}

int cuMemFreeHost(void *ptr)
{
	ENTER_CLEANUP();
	UNSAFE();
	if (drop_object(HOST_MEM, (uintptr_t)ptr))
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
	add_object(HOST_PAGES, (uintptr_t)ptr, bytes);
	return 0;
}

int cuMemHostUnregister(void *ptr)
{
	ENTER_CLEANUP();
	UNSAFE();
	return drop_object(HOST_PAGES, (uintptr_t)ptr) ? SHUNT_CU_INVALID_VALUE : 0;
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
	struct object *o;
	void *p;

	ENTER();
	UNSAFE();
	if (bytes % FAKE_GRANULE || prop->type != SHUNT_CU_MEM_ALLOCATION_PINNED ||
	    prop->handle_types != SHUNT_CU_MEM_HANDLE_POSIX_FD || prop->location.type != SHUNT_CU_MEM_LOCATION_DEVICE)
		return SHUNT_CU_INVALID_VALUE;
	o = add_object(HANDLE, 0, bytes);
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
	return drop_object(HANDLE, handle);
}

int cuMemAddressReserve(
    unsigned long long *ptr, size_t bytes, size_t align, unsigned long long addr, unsigned long long flags)
{
	void *p;

	ENTER();
	p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return SHUNT_CU_OUT_OF_MEMORY;
	add_object(RANGE, (uintptr_t)p, bytes);
	*ptr = (uintptr_t)p;
	return 0;
}

int cuMemAddressFree(unsigned long long ptr, size_t bytes)
{
	struct object *o;

	ENTER_CLEANUP();
	o = find_object(RANGE, ptr);
	if (!o || o->bytes != bytes || o->mapped)
		return SHUNT_CU_INVALID_VALUE;
	munmap((void *)(uintptr_t)ptr, bytes);
	return drop_object(RANGE, ptr);
}

int cuMemMap(unsigned long long ptr, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags)
{
	struct object *range, *mem;

	ENTER();
	range = find_object(RANGE, ptr);
	mem = find_object(HANDLE, handle);
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
	struct object *range;

	ENTER_CLEANUP();
	range = find_object(RANGE, ptr);
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
	const struct object *range = find_object(RANGE, ptr);

	ENTER();
	if (!range || !range->mapped)
		return SHUNT_CU_INVALID_VALUE;
	*flags = range->access & 1u << location->id ? SHUNT_CU_MEM_ACCESS_READWRITE : 0;
	return 0;
}

int cuMemSetAccess(unsigned long long ptr, size_t bytes, const struct shunt_cu_mem_access *desc, size_t count)
{
	struct object *range;

	ENTER();
	range = find_object(RANGE, ptr);
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
	struct object *range = find_range((uintptr_t)ptr), *o;

	ENTER();
	if (!range)
		return SHUNT_CU_INVALID_VALUE;
	o = add_object(HANDLE, 0, range->bytes);
	o->device = range->device;
	o->handle_types = range->handle_types;
	o->fd = fcntl(range->fd, F_DUPFD_CLOEXEC, 0);
	*handle = o->addr;
	return 0;
}

int cuMemGetAllocationPropertiesFromHandle(struct shunt_cu_mem_prop *prop, unsigned long long handle)
{
	struct object *o = find_object(HANDLE, handle);

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
	struct object *o = find_range(ptr);

	ENTER();
	if (!o)
		o = find_object(DEVICE_MEM, ptr);
	if (!o)
		return SHUNT_CU_INVALID_VALUE;
	*base = o->addr;
	*bytes = o->bytes;
	return 0;
}

int cuMemExportToShareableHandle(void *shareable, unsigned long long handle, int type, unsigned long long flags)
{
	struct object *o;

	ENTER();
	o = find_object(HANDLE, handle);
	if (!o || type != SHUNT_CU_MEM_HANDLE_POSIX_FD)
		return SHUNT_CU_INVALID_VALUE;
	*(int *)shareable = fcntl(o->fd, F_DUPFD_CLOEXEC, 0);
	return 0;
}

int cuMemGetHandleForAddressRange(
    void *handle, unsigned long long ptr, size_t bytes, int type, unsigned long long flags)
{
	struct object *o = find_range(ptr);

	ENTER();
	if (!o || o->addr != ptr || bytes > o->bytes || type != SHUNT_CU_RANGE_HANDLE_DMABUF || flags)
		return SHUNT_CU_INVALID_VALUE;
	*(int *)handle = fcntl(o->fd, F_DUPFD_CLOEXEC, 0);
	return 0;
}

int cuMemImportFromShareableHandle(unsigned long long *handle, void *shareable, int type)
{
	struct object *o;
	struct stat st;

	ENTER();
	UNSAFE();
	if (type != SHUNT_CU_MEM_HANDLE_POSIX_FD || fstat((int)(intptr_t)shareable, &st))
		return SHUNT_CU_INVALID_VALUE;
	o = add_object(HANDLE, 0, (size_t)st.st_size);
	o->fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
	*handle = o->addr;
	return 0;
}

/* Streams, and what is put on them. */

int cuStreamCreate(void **stream, unsigned flags)
{
	ENTER();
	NEED_CONTEXT();
	if (flags != SHUNT_CU_STREAM_NON_BLOCKING)
		return SHUNT_CU_INVALID_VALUE;
	*stream = (void *)add_object(STREAM, 0, 0)->addr;
	return 0;
}

int cuStreamDestroy_v2(void *stream)
{
	ENTER_CLEANUP();
	return drop_object(STREAM, (uintptr_t)stream);
}

int cuStreamSynchronize(void *stream)
{
	struct object *o = find_object(STREAM, (uintptr_t)stream);

	ENTER();
	UNSAFE();
	return o && o->capturing ? SHUNT_CU_STREAM_CAPTURE_UNSUPPORTED : 0;
}

int cuStreamQuery(void *stream)
{
	struct object *o = find_object(STREAM, (uintptr_t)stream);

	ENTER();
	UNSAFE();
	if (o && o->capturing)
		return SHUNT_CU_STREAM_CAPTURE_UNSUPPORTED;
	return fake_cuda.busy ? SHUNT_CU_NOT_READY : 0;
}

int cuCtxSynchronize(void)
{
	ENTER();
	UNSAFE();
	return current_device() < 0 ? SHUNT_CU_INVALID_CONTEXT : 0;
}

/* *o_p: the stream if it captures, else NULL. The default stream is allowed. */
static int enqueue_work(void *stream, struct object **o_p)
{
	struct object *o = find_object(STREAM, (uintptr_t)stream);

	*o_p = o && o->capturing ? o : NULL;
	if (current_device() < 0)
		return SHUNT_CU_INVALID_CONTEXT;
	if (stream && (!o || o->device != current_device()))
		return SHUNT_CU_INVALID_HANDLE;
	return 0;
}

/* A new node at the end of what the stream captures. */
static uintptr_t tail_node(struct object *capture)
{
	static uintptr_t nodes = 1;

	pthread_mutex_lock(&lock);
	capture->tip = nodes += 2;
	pthread_mutex_unlock(&lock);
	return capture->tip;
}

static void append_node(struct object *capture, struct work w)
{
	struct work **p;

	if (!capture) {
		if (w.src)
			memcpy(w.dst, w.src, w.bytes);
		else if (w.value || !fake_cuda.untouched)
			memset(w.dst, w.value, w.bytes);
		return;
	}
	tail_node(capture);
	for (p = &capture->work; *p; p = &(*p)->next)
		;
	*p = malloc(sizeof(w));
	**p = w;
}

int cuMemcpyAsync(unsigned long long dst, unsigned long long src, size_t bytes, void *stream)
{
	struct object *capture;
	int res;

	ENTER();
	res = enqueue_work(stream, &capture);
	if (!res)
		append_node(capture,
		    (struct work){ .dst = (void *)(uintptr_t)dst, .src = (void *)(uintptr_t)src, .bytes = bytes });
	return res;
}

int cuMemsetD8Async(unsigned long long dst, unsigned char value, size_t bytes, void *stream)
{
	struct object *capture;
	int res;

	ENTER();
	res = enqueue_work(stream, &capture);
	if (!res)
		append_node(capture, (struct work){ .dst = (void *)(uintptr_t)dst, .value = value, .bytes = bytes });
	return res;
}

int cuStreamIsCapturing(void *stream, int *status)
{
	struct object *o = find_object(STREAM, (uintptr_t)stream);

	ENTER();
	if (fake_cuda.capturing_result)
		return fake_cuda.capturing_result;
	*status = o && o->capturing ? SHUNT_CU_CAPTURE_STATUS_ACTIVE : SHUNT_CU_CAPTURE_STATUS_NONE;
	return 0;
}

static unsigned long long last_capture;

int cuStreamBeginCapture_v2(void *stream, int capture_mode)
{
	struct object *o = find_object(STREAM, (uintptr_t)stream);

	ENTER();
	if (!o || o->capturing || capture_mode != SHUNT_CU_CAPTURE_MODE_THREAD_LOCAL)
		return SHUNT_CU_INVALID_VALUE;
	o->capturing = true;
	o->capture = __atomic_add_fetch(&last_capture, 1, __ATOMIC_RELAXED);
	o->tip = 0;
	memset(o->edges, 0, sizeof(o->edges));
	captures++;
	return 0;
}

int cuStreamGetCaptureInfo_v2(
    void *stream, int *status, unsigned long long *id, void **graph, void *const **nodes, size_t *nnodes)
{
	static __thread void *node;
	struct object *o = find_object(STREAM, (uintptr_t)stream);

	ENTER();
	if (fake_cuda.capturing_result)
		return fake_cuda.capturing_result;
	if (fake_cuda.edges_hidden && nodes)
		return SHUNT_CU_LOSSY_QUERY;
	*status = o && o->capturing ? SHUNT_CU_CAPTURE_STATUS_ACTIVE : SHUNT_CU_CAPTURE_STATUS_NONE;
	if (!o || !o->capturing)
		return 0;
	*id = o->capture;
	*graph = o;
	node = (void *)o->tip;
	if (nodes) {
		*nodes = &node;
		*nnodes = o->tip ? 1 : 0;
	}
	return 0;
}

int cuStreamUpdateCaptureDependencies(void *stream, void **nodes, size_t nnodes, unsigned flags)
{
	struct object *o = find_object(STREAM, (uintptr_t)stream);

	ENTER();
	if (!o || !o->capturing || nnodes != 1 || !nodes[0] || flags != SHUNT_CU_STREAM_ADD_CAPTURE_DEPENDENCIES)
		return SHUNT_CU_INVALID_VALUE;
	fake_cuda.added_dependencies++;
	return 0;
}

/* A graph that is being captured, by the handle that cuStreamGetCaptureInfo gave. */
static struct object *find_capture(void *graph)
{
	struct object *o = find_object(STREAM, (uintptr_t)graph);

	return o && o->capturing ? o : NULL;
}

static bool set_edge(struct object *o, uintptr_t from, uintptr_t to, uintptr_t new_from, uintptr_t new_to)
{
	for (unsigned i = 0; i < MAX_EDGES; i++) {
		if (o->edges[i].from != from || o->edges[i].to != to)
			continue;
		o->edges[i].from = new_from;
		o->edges[i].to = new_to;
		return true;
	}
	return false;
}

long fake_cuda_edges(void *graph, void *node)
{
	struct object *o = find_capture(graph);
	long count = 0;

	for (unsigned i = 0; o && i < MAX_EDGES; i++)
		count += o->edges[i].to == (uintptr_t)node;
	return count;
}

int cuGraphAddEventRecordNode(void **node, void *graph, void *const *after, size_t nafter, void *event)
{
	struct object *o = find_capture(graph);
	uintptr_t tip;

	ENTER();
	if (!o || nafter != 1 || !after[0] || !find_object(EVENT, (uintptr_t)event))
		return SHUNT_CU_INVALID_VALUE;
	tip = o->tip;
	*node = (void *)tail_node(o);
	o->tip = tip; /* no stream follows it */
	return set_edge(o, 0, 0, (uintptr_t)after[0], (uintptr_t)*node) ? 0 : SHUNT_CU_OUT_OF_MEMORY;
}

int cuGraphAddDependencies(void *graph, void *const *from, void *const *to, size_t count)
{
	struct object *o = find_capture(graph);

	ENTER();
	if (!o || count != 1 || !from[0] || !to[0])
		return SHUNT_CU_INVALID_VALUE;
	if (set_edge(o, (uintptr_t)from[0], (uintptr_t)to[0], (uintptr_t)from[0], (uintptr_t)to[0]))
		return SHUNT_CU_INVALID_VALUE; /* it is there */
	return set_edge(o, 0, 0, (uintptr_t)from[0], (uintptr_t)to[0]) ? 0 : SHUNT_CU_OUT_OF_MEMORY;
}

int cuGraphRemoveDependencies(void *graph, void *const *from, void *const *to, size_t count)
{
	struct object *o = find_capture(graph);

	ENTER();
	if (!o || count != 1 || !set_edge(o, (uintptr_t)from[0], (uintptr_t)to[0], 0, 0))
		return SHUNT_CU_INVALID_VALUE;
	return 0;
}

int cuUserObjectCreate(void **object, void *arg, void (*drop_arg)(void *), unsigned count, unsigned flags)
{
	struct object *u;

	ENTER();
	if (!drop_arg || !count || flags != SHUNT_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
		return SHUNT_CU_INVALID_VALUE;
	u = add_object(USER_OBJECT, 0, 0);
	u->drop_object = drop_arg;
	u->arg = arg;
	u->refs = count;
	*object = (void *)u->addr;
	return 0;
}

int cuUserObjectRelease(void *object, unsigned count)
{
	struct object *u = find_object(USER_OBJECT, (uintptr_t)object);

	ENTER_CLEANUP();
	if (!u || u->refs < (long)count)
		return SHUNT_CU_INVALID_VALUE;
	release_object(u, count);
	return 0;
}

static bool retain_object(struct object *o, struct object *u)
{
	for (unsigned i = 0; i < MAX_KEPT; i++) {
		if (o->retained[i])
			continue;
		o->retained[i] = u;
		return true;
	}
	return false;
}

int cuGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags)
{
	struct object *o = find_capture(graph), *u = find_object(USER_OBJECT, (uintptr_t)object);

	ENTER();
	if (!o || !u || count != 1 || flags != SHUNT_CU_GRAPH_USER_OBJECT_MOVE)
		return SHUNT_CU_INVALID_VALUE;
	return retain_object(o, u) ? 0 : SHUNT_CU_OUT_OF_MEMORY;
}

int cuStreamEndCapture(void *stream, void **graph)
{
	struct object *o = find_object(STREAM, (uintptr_t)stream), *g;
	bool fail = fails_now(__func__);

	if (!o || !o->capturing)
		return SHUNT_CU_INVALID_VALUE;
	/* Whatever the result, the capture is over. */
	o->capturing = false;
	captures--;
	*graph = NULL;
	if (fail) {
		drop_work(o);
		drop_retained(o);
		return fake_cuda.fail_with;
	}
	g = add_object(GRAPH, 0, 0);
	g->work = o->work;
	o->work = NULL;
	memcpy(g->retained, o->retained, sizeof(g->retained));
	memset(o->retained, 0, sizeof(o->retained));
	*graph = (void *)g->addr;
	return 0;
}

int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
	struct object *g = find_object(GRAPH, (uintptr_t)graph), *x;

	ENTER();
	UNSAFE();
	if (!g || flags)
		return SHUNT_CU_INVALID_VALUE;
	x = add_object(EXEC, 0, 0);
	for (struct work *w = g->work; w; w = w->next) {
		struct work copy = *w;

		copy.next = NULL;
		append_node(x, copy);
	}
	for (unsigned i = 0; i < MAX_KEPT; i++)
		if ((x->retained[i] = g->retained[i]))
			x->retained[i]->refs++;
	*exec = (void *)x->addr;
	return 0;
}

int cuGraphDestroy(void *graph)
{
	ENTER_CLEANUP();
	return drop_object(GRAPH, (uintptr_t)graph);
}

int cuGraphLaunch(void *exec, void *stream)
{
	struct object *x = find_object(EXEC, (uintptr_t)exec), *capture;
	int res;

	ENTER();
	res = x ? enqueue_work(stream, &capture) : SHUNT_CU_INVALID_HANDLE;
	if (res)
		return res;
	for (struct work *w = x->work; w; w = w->next) {
		struct work copy = *w;

		copy.next = NULL;
		append_node(capture, copy);
	}
	return 0;
}

int cuGraphExecDestroy(void *exec)
{
	ENTER_CLEANUP();
	return drop_object(EXEC, (uintptr_t)exec);
}

int cuEventCreate(void **event, unsigned flags)
{
	struct object *o;

	ENTER();
	NEED_CONTEXT();
	o = add_object(EVENT, 0, 0);
	o->bytes = flags;
	*event = (void *)o->addr;
	return 0;
}

int cuEventDestroy_v2(void *event)
{
	ENTER_CLEANUP();
	return drop_object(EVENT, (uintptr_t)event);
}

int cuEventRecord(void *event, void *stream)
{
	struct object *o = find_object(EVENT, (uintptr_t)event), *capture;
	int res;

	ENTER();
	res = o ? enqueue_work(stream, &capture) : SHUNT_CU_INVALID_HANDLE;
	if (!res)
		o->recorded = true;
	return res;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
	struct object *capture;

	int res;

	ENTER();
	res = find_object(EVENT, (uintptr_t)event) ? enqueue_work(stream, &capture) : SHUNT_CU_INVALID_HANDLE;
	if (!res && flags && (flags != SHUNT_CU_EVENT_WAIT_EXTERNAL || !capture))
		return SHUNT_CU_INVALID_VALUE;
	if (!res && capture && flags)
		tail_node(capture);
	return res;
}

int cuEventQuery(void *event)
{
	ENTER();
	UNSAFE();
	if (!find_object(EVENT, (uintptr_t)event))
		return SHUNT_CU_INVALID_HANDLE;
	return fake_cuda.busy ? SHUNT_CU_NOT_READY : 0;
}

int cuEventElapsedTime(float *ms, void *start, void *stop)
{
	struct object *a = find_object(EVENT, (uintptr_t)start), *b = find_object(EVENT, (uintptr_t)stop);

	ENTER();
	if (!a || !b || a->bytes || b->bytes)
		return SHUNT_CU_INVALID_HANDLE;
	if (!a->recorded || !b->recorded)
		return SHUNT_CU_NOT_READY;
	*ms = 1.5f;
	return 0;
}

/* Kernels. The fake's fatbin is the source file's name. */

#if !FAKE_CUDA_OLD
int cuLibraryLoadData(void **library, const void *code, int *jit_options, void **jit_values, unsigned njit,
    int *lib_options, void **lib_values, unsigned nlib)
{
	struct object *o;

	ENTER();
	UNSAFE();
	if (nlib != 1 || lib_options[0] != SHUNT_CU_LIBRARY_BINARY_IS_PRESERVED || !lib_values[0])
		return SHUNT_CU_INVALID_VALUE;
	o = add_object(LIBRARY, 0, 0);
	o->data = code;
	*library = (void *)o->addr;
	return 0;
}
#endif

int cuLibraryUnload(void *library)
{
	return drop_object(LIBRARY, (uintptr_t)library);
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
	struct object *o = find_object(LIBRARY, (uintptr_t)library);
	unsigned i;

	ENTER();
	if (!o || !strstr(name, o->data) || (fake_cuda.missing_kernel && !strcmp(name, fake_cuda.missing_kernel)))
		return SHUNT_CU_NOT_FOUND;
	for (i = 0; i < nkernels; i++)
		if (!strcmp(kernels[i], name))
			break;
	if (i == nkernels)
		snprintf(kernels[nkernels++], sizeof(kernels[0]), "%s", name);
	*kernel = kernels[i];
	return 0;
}

int cuKernelGetFunction(void **func, void *kernel)
{
	ENTER();
	NEED_CONTEXT();
	*func = kernel;
	return 0;
}

int cuFuncGetAttribute(int *value, int attr, void *func)
{
	ENTER();
	*value = 32;
	return 0;
}

/* As a device does: more than 48 KB only after this. */
int cuFuncSetAttribute(void *func, int attr, int value)
{
	ENTER();
	NEED_CONTEXT();
	if (attr != SHUNT_CU_FUNC_MAX_DYNAMIC_SHARED_BYTES || value > fake_cuda.shared)
		return SHUNT_CU_INVALID_VALUE;
	fake_cuda.kernels_large_shared++;
	return 0;
}

int cuFuncLoad(void *func)
{
	ENTER();
	NEED_CONTEXT();
	loaded[current_device()]++;
	fake_cuda.kernels_loaded++;
	return 0;
}

int cuOccupancyMaxActiveClusters(int *clusters, void *func, const struct shunt_cu_launch_config *config)
{
	ENTER();
	NEED_CONTEXT();
	if (config->nattrs != 1 || config->attrs[0].id != SHUNT_CU_LAUNCH_ATTR_CLUSTER_DIMENSION ||
	    config->grid_x % config->attrs[0].value.cluster.x)
		return SHUNT_CU_INVALID_VALUE;
	*clusters = fake_cuda.clusters;
	return 0;
}

static int record_launch(void *func, unsigned blocks, unsigned threads, unsigned shared, void *stream, void **params,
    int domain, unsigned cluster)
{
	struct object *capture;
	int res = enqueue_work(stream, &capture);

	if (res)
		return res;
	snprintf(fake_cuda.launch.kernel, sizeof(fake_cuda.launch.kernel), "%s", (char *)func);
	fake_cuda.launch.blocks = blocks;
	fake_cuda.launch.threads = threads;
	fake_cuda.launch.device = current_device();
	fake_cuda.launch.mem_sync_domain = domain;
	fake_cuda.launch.cluster = cluster;
	fake_cuda.launch.shared = shared;
	fake_cuda.launch.stream = stream;
	memcpy(fake_cuda.launch.args, params[0], sizeof(struct shunt_kargs));
	fake_cuda.launch.count++;
	if (fake_cuda.kernel)
		fake_cuda.kernel(fake_cuda.launch.args, blocks * threads / 32);
	return 0;
}

int cuLaunchKernel(void *func, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared_bytes, void *stream, void **params, void **extra)
{
	ENTER();
	if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || shared_bytes || extra)
		return SHUNT_CU_INVALID_VALUE;
	return record_launch(func, grid_x, block_x, 0, stream, params, -1, 0);
}

bool fake_cuda_recorded(void *event)
{
	struct object *o = find_object(EVENT, (uintptr_t)event);

	return o && o->recorded;
}

/* The event of a launch, which is done when all of its blocks run; here at once. */
static int take_launch_event(const struct shunt_cu_launch_attr *attr)
{
	struct object *o = find_object(EVENT, (uintptr_t)attr->value.launch_completion.event);

	if (!o || attr->value.launch_completion.flags)
		return SHUNT_CU_INVALID_VALUE;
	fake_cuda.launch.event = attr->value.launch_completion.event;
	o->recorded = true;
	return 0;
}

int cuLaunchKernelEx(const struct shunt_cu_launch_config *config, void *func, void **params, void **extra)
{
	ENTER();
	int domain = -1, res = 0;
	unsigned cluster = 0;

	if (config->grid_y != 1 || config->grid_z != 1 || config->block_y != 1 || config->block_z != 1 ||
	    config->shared_bytes > (unsigned)fake_cuda.shared || extra || config->nattrs < 1)
		return SHUNT_CU_INVALID_VALUE;
	fake_cuda.launch.event = NULL;
	for (unsigned i = 0; i < config->nattrs && !res; i++) {
		const struct shunt_cu_launch_attr *attr = &config->attrs[i];

		if (attr->id == SHUNT_CU_LAUNCH_ATTR_MEM_SYNC_DOMAIN)
			domain = attr->value.mem_sync_domain;
		else if (attr->id == SHUNT_CU_LAUNCH_ATTR_CLUSTER_DIMENSION)
			cluster = attr->value.cluster.x;
		else if (attr->id == SHUNT_CU_LAUNCH_ATTR_LAUNCH_COMPLETION_EVENT)
			res = take_launch_event(attr);
		else
			res = SHUNT_CU_INVALID_VALUE;
	}
	if (res || (cluster && config->grid_x % cluster))
		return SHUNT_CU_INVALID_VALUE;
	return record_launch(
	    func, config->grid_x, config->block_x, config->shared_bytes, config->stream, params, domain, cluster);
}
