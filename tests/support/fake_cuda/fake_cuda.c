/* SPDX-License-Identifier: MIT */
/* The fake driver: its objects and failures, devices and contexts. */
#include "tests/support/fake_cuda/state.h"
#include "tools/common/libc.h"

struct fake_cuda fake_cuda = { .cc = 90, .shared = 227 << 10, .fail_with = SHUNT_CU_OUT_OF_MEMORY };

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
struct fake_object *fake_objects;
static int contexts[FAKE_MAX_DEVICES]; /* their addresses are the contexts */
static int resets[FAKE_MAX_DEVICES];
static __thread void *ctx_stack[16];
static __thread int ctx_depth;
__thread int fake_thread_mode; /* 0: global */
__thread int fake_captures;
static __thread long pushed_contexts;

bool fake_fails_now(const char *name)
{
	bool now;

	pthread_mutex_lock(&fake_lock);
	now = ++fake_cuda.calls == fake_cuda.fail_at;
	if (now)
		fake_cuda.failed = name;
	pthread_mutex_unlock(&fake_lock);
	return now;
}

int fake_device(void)
{
	return ctx_depth && ctx_stack[ctx_depth - 1] ? (int)((int *)ctx_stack[ctx_depth - 1] - contexts) : -1;
}
struct fake_object *fake_object_add(enum fake_kind kind, uintptr_t addr, size_t bytes)
{
	struct fake_object *o = calloc(1, sizeof(*o));

	o->kind = kind;
	o->device = fake_device();
	o->addr = addr ? addr : (uintptr_t)o;
	o->bytes = bytes;
	o->fd = -1;
	pthread_mutex_lock(&fake_lock);
	o->next = fake_objects;
	fake_objects = o;
	fake_cuda.live_objects++;
	pthread_mutex_unlock(&fake_lock);
	return o;
}

struct fake_object *fake_object_find(enum fake_kind kind, uintptr_t addr)
{
	struct fake_object *o;

	pthread_mutex_lock(&fake_lock);
	for (o = fake_objects; o; o = o->next)
		if (o->kind == kind && o->addr == addr)
			break;
	pthread_mutex_unlock(&fake_lock);
	return o;
}

void fake_work_drop(struct fake_object *o)
{
	while (o->work) {
		struct work *w = o->work;

		o->work = w->next;
		free(w);
	}
}

int fake_object_drop(enum fake_kind kind, uintptr_t addr);

void fake_object_release(struct fake_object *u, long count)
{
	u->refs -= count;
	if (u->refs)
		return;
	u->drop_object(u->arg);
	fake_object_drop(USER_OBJECT, u->addr);
}

void fake_retained_drop(struct fake_object *o)
{
	for (unsigned i = 0; i < MAX_KEPT; i++) {
		if (o->retained[i])
			fake_object_release(o->retained[i], 1);
		o->retained[i] = NULL;
	}
}

int fake_object_drop(enum fake_kind kind, uintptr_t addr)
{
	struct fake_object *o = fake_object_find(kind, addr), **p;

	if (!o)
		return SHUNT_CU_INVALID_HANDLE;
	pthread_mutex_lock(&fake_lock);
	for (p = &fake_objects; *p != o; p = &(*p)->next)
		;
	*p = o->next;
	fake_cuda.live_objects--;
	pthread_mutex_unlock(&fake_lock);
	fake_work_drop(o);
	fake_retained_drop(o);
	if (o->fd >= 0)
		close(o->fd);
	free(o);
	return 0;
}

bool fake_cuda_access(int device, const void *ptr)
{
	struct fake_object *o = fake_object_find(RANGE, (uintptr_t)ptr);

	return o && o->mapped && (o->access & 1u << device);
}

int fake_cuda_capture_mode(void)
{
	return fake_thread_mode;
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
	struct fake_object *o = fake_objects, *next;

	for (; o; o = next) {
		next = o->next;
		if (o->kind == STREAM && o->device == device)
			fake_object_drop(STREAM, o->addr);
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
	*dev = fake_device();
	return 0;
}

int cuThreadExchangeStreamCaptureMode(int *m)
{
	int old = fake_thread_mode;

	/* Going back is clean-up. */
	if (*m != SHUNT_CU_CAPTURE_MODE_RELAXED)
		ENTER_CLEANUP();
	else
		ENTER();
	fake_thread_mode = *m;
	*m = old;
	return 0;
}
