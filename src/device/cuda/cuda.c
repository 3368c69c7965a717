/* SPDX-License-Identifier: MIT */
/* The CUDA driver: opening, devices and contexts, errors; and the table of operations. */
#include "device/cuda/dev.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/lock.h"

struct shunt_cu_table shunt_cu;
struct shunt_cu_device *shunt_cu_devices;
int shunt_cu_ndevices;
const struct shunt_kernel_set *shunt_cu_kernels;

/* All other results are -EIO: a kernel faulted, a link failed, or the driver is too new for this list. */
static const struct {
	short result, err;
} result_errnos[] = {
	{ SHUNT_CU_INVALID_VALUE, -EINVAL },
	{ SHUNT_CU_OUT_OF_MEMORY, -ENOMEM },
	{ SHUNT_CU_NOT_INITIALIZED, -ENODEV },
	{ SHUNT_CU_DEINITIALIZED, -ESHUTDOWN },
	{ SHUNT_CU_STUB_LIBRARY, -ENODEV },
	{ SHUNT_CU_DEVICE_UNAVAILABLE, -EBUSY },
	{ SHUNT_CU_NO_DEVICE, -ENODEV },
	{ SHUNT_CU_INVALID_DEVICE, -ENODEV },
	{ SHUNT_CU_INVALID_IMAGE, -ENOEXEC },
	{ SHUNT_CU_INVALID_CONTEXT, -EINVAL },
	{ SHUNT_CU_NO_BINARY_FOR_GPU, -ENOEXEC },
	{ SHUNT_CU_PEER_ACCESS_UNSUPPORTED, -ENOTSUP },
	{ SHUNT_CU_INVALID_PTX, -ENOEXEC },
	{ SHUNT_CU_JIT_COMPILER_NOT_FOUND, -ENOEXEC },
	{ SHUNT_CU_UNSUPPORTED_PTX_VERSION, -ENOEXEC },
	{ SHUNT_CU_INVALID_HANDLE, -EINVAL },
	{ SHUNT_CU_NOT_FOUND, -ENOENT },
	{ SHUNT_CU_NOT_READY, -EAGAIN },
	{ SHUNT_CU_LAUNCH_OUT_OF_RESOURCES, -E2BIG },
	{ SHUNT_CU_COOPERATIVE_LAUNCH_TOO_LARGE, -E2BIG },
	{ SHUNT_CU_NOT_PERMITTED, -EPERM },
	{ SHUNT_CU_NOT_SUPPORTED, -ENOTSUP },
	{ SHUNT_CU_SYSTEM_NOT_READY, -ENODEV },
	{ SHUNT_CU_SYSTEM_DRIVER_MISMATCH, -ENODEV },
	{ SHUNT_CU_COMPAT_NOT_SUPPORTED_ON_DEVICE, -ENODEV },
};

/* A forked child has no working driver, but it must not wait for a thread that it does not have. */
static void free_device_locks(void)
{
	for (int i = 0; i < shunt_cu_ndevices; i++)
		shunt_mutex_init(&shunt_cu_devices[i].lock, SHUNT_LOCK_DEVICE);
}
SHUNT_IN_FORKED_CHILD(free_device_locks)

static int to_errno(int result)
{
	if (shunt_cu_capture_error(result))
		return -EBUSY;
	for (size_t i = 0; i < sizeof(result_errnos) / sizeof(result_errnos[0]); i++)
		if (result_errnos[i].result == result)
			return result_errnos[i].err;
	return -EIO;
}

int shunt_cu_error(int result, const char *fmt, ...)
{
	const char *name = NULL;
	char what[256];
	va_list ap;

	/* At exit the driver is torn down before the last users of this layer: no error. */
	if (result == SHUNT_CU_DEINITIALIZED)
		return to_errno(result);
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap); /* NOLINT(clang-analyzer-valist.Uninitialized): it is, one line up */
	va_end(ap);
	if (shunt_cu.GetErrorName(result, &name) || !name)
		name = "unknown result";
	shunt_error("%s: %s (%d)", what, name, result);
	return to_errno(result);
}

/* The first driver that takes more than 4 KB of kernel parameters, which long lists of messages need. */
#define OLDEST_DRIVER 12010

/* Loads every call of the lists in one pass. Returns the name of the first missing required call, else NULL. */
static const char *load_calls(void *lib)
{
	static const struct {
		const char *symbol;
		size_t offset;
		bool required;
	} calls[] = {
#define REQUIRED(name, version, params) { "cu" #name #version, offsetof(struct shunt_cu_table, name), true },
#define OPTIONAL(name, version, params) { "cu" #name #version, offsetof(struct shunt_cu_table, name), false },
		SHUNT_CU_CALLS(REQUIRED) SHUNT_CU_CALLS_OPTIONAL(OPTIONAL)
#undef REQUIRED
#undef OPTIONAL
	};

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *fn = dlsym(lib, calls[i].symbol);

		if (!fn && calls[i].required)
			return calls[i].symbol;
		memcpy((char *)&shunt_cu + calls[i].offset, &fn, sizeof(fn));
	}
	return NULL;
}

/* The driver's version, for a message; works without the table of calls. */
static int driver_version(void *lib)
{
	int (*get)(int *) = NULL;
	void *fn = dlsym(lib, "cuDriverGetVersion");
	int version = 0;

	memcpy(&get, &fn, sizeof(fn));
	if (get)
		get(&version);
	return version;
}

static int read_device(int device, struct shunt_cu_device *d)
{
	const struct {
		int attribute;
		uint32_t *has;
	} may[] = { { SHUNT_CU_ATTR_MULTICAST_SUPPORTED, &d->info.multicast },
		{ SHUNT_CU_ATTR_RDMA_OF_MAPPED_MEMORY, &d->rdma }, { SHUNT_CU_ATTR_DMABUF_SUPPORTED, &d->dmabuf } };
	int major, minor, sms, res, driver, shared;
	struct shunt_cu_uuid uuid;

	if ((res = shunt_cu.DeviceGet(&d->dev, device)) ||
	    (res = shunt_cu.DeviceGetName(d->info.name, sizeof(d->info.name), d->dev)) ||
	    (res = shunt_cu.DeviceGetUuid(&uuid, d->dev)) ||
	    (res = shunt_cu.DeviceGetPCIBusId(d->info.pci, sizeof(d->info.pci), d->dev)) ||
	    (res = shunt_cu.DeviceGetAttribute(&sms, SHUNT_CU_ATTR_MULTIPROCESSOR_COUNT, d->dev)) ||
	    (res = shunt_cu.DeviceGetAttribute(&major, SHUNT_CU_ATTR_COMPUTE_CAPABILITY_MAJOR, d->dev)) ||
	    (res = shunt_cu.DeviceGetAttribute(&minor, SHUNT_CU_ATTR_COMPUTE_CAPABILITY_MINOR, d->dev)) ||
	    (res = shunt_cu.DeviceGetAttribute(&shared, SHUNT_CU_ATTR_MAX_SHARED_BYTES_OPTIN, d->dev)))
		return shunt_cu_error(res, "reading the properties of device %d", device);
	for (size_t i = 0; i < sizeof(may) / sizeof(may[0]); i++) {
		int value = 0;

		res = shunt_cu.DeviceGetAttribute(&value, may[i].attribute, d->dev);
		if (res && res != SHUNT_CU_INVALID_VALUE) /* which a driver answers that does not know it */
			return shunt_cu_error(res, "reading the properties of device %d", device);
		*may[i].has = !res && value;
	}
	d->info.name[sizeof(d->info.name) - 1] = '\0';
	memcpy(d->info.uuid, uuid.bytes, sizeof(d->info.uuid));
	d->info.sms = (uint32_t)sms;
	d->info.cc = (uint16_t)(major * 10 + minor);
	if (!shunt_cu.DriverGetVersion(&driver))
		d->info.driver = (uint32_t)driver;
	/* Other shared memory, the kernels' barriers and the driver's part, is less than 4 KB. */
	d->info.tma = d->info.cc >= 90 && shared >= (int)shunt_cu_kernels->shared_bytes + 4096;
	return 0;
}

static const struct shunt_kernel_set no_kernels;

static int cuda_open(const struct shunt_kernel_set *kernels)
{
	struct shunt_cu_device *devices;
	const char *missing;
	int count, res, err, version;
	void *lib, **funcs;

	shunt_cu_kernels = kernels ? kernels : &no_kernels;
	if (kernels && !kernels->fatbin[0]) {
		shunt_info(SHUNT_LOG_INIT, "this build has no CUDA kernels: GPUs are left alone");
		return -ENODEV;
	}
	lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		shunt_info(SHUNT_LOG_INIT, "no CUDA driver: %s", dlerror());
		return -ENODEV;
	}
	missing = load_calls(lib);
	version = driver_version(lib);
	if (missing || version < OLDEST_DRIVER) {
		shunt_warn("libcuda.so.1 is for CUDA %d.%d%s%s; Shunt needs a driver for CUDA %d.%d or newer",
		    version / 1000, version % 1000 / 10, missing ? " and lacks " : "", missing ? missing : "",
		    OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10);
		dlclose(lib);
		return -ENOSYS;
	}
	/* From here on the library stays loaded: the driver has threads and exit handlers of its own. */
	res = shunt_cu.Init(0);
	if (res == SHUNT_CU_NO_DEVICE) {
		shunt_info(SHUNT_LOG_INIT, "the CUDA driver sees no device");
		return -ENODEV;
	}
	if (res)
		return shunt_cu_error(res, "cuInit");
	res = shunt_cu.DeviceGetCount(&count);
	if (res)
		return shunt_cu_error(res, "cuDeviceGetCount");
	if (count < 1)
		return -ENODEV;
	devices = calloc((size_t)count, sizeof(*devices));
	funcs = calloc((size_t)count * shunt_cu_kernels->n + 1, sizeof(*funcs));
	if (!devices || !funcs) {
		err = -ENOMEM;
		goto err_free_devices;
	}
	for (int i = 0; i < count; i++) {
		devices[i].func = funcs + (size_t)i * shunt_cu_kernels->n;
		shunt_mutex_init(&devices[i].lock, SHUNT_LOCK_DEVICE);
		err = read_device(i, &devices[i]);
		if (err)
			goto err_free_devices;
	}
	shunt_cu_devices = devices;
	shunt_cu_ndevices = count;
	return 0;

err_free_devices:
	free(funcs);
	free(devices);
	return err;
}

/* With the device's lock held. Queries only the driver's own state: a destroyed context must not be used. */
static bool ctx_is_alive(const struct shunt_cu_device *d, void *ctx)
{
	unsigned long long id;
	unsigned flags;
	int active;

	if (shunt_cu.DevicePrimaryCtxGetState(d->dev, &flags, &active))
		return true;
	return active && (!shunt_cu.CtxGetId || shunt_cu.CtxGetId(ctx, &id) || id == d->ctx_id);
}

void shunt_cu_drop_dead_ctx(int device)
{
	struct shunt_cu_device *d = &shunt_cu_devices[device];
	void *ctx;

	shunt_mutex_lock(&d->lock);
	ctx = atomic_load_explicit(&d->ctx, memory_order_relaxed);
	if (ctx && !ctx_is_alive(d, ctx)) {
		atomic_store(&d->loaded, false);
		atomic_store(&d->copy_stream, NULL); /* destroyed with the context */
		atomic_store(&d->ctx, NULL);
	}
	shunt_mutex_unlock(&d->lock);
}

/*
 * Retains the device's context at its first use. The driver may create the context here, which takes hundreds of ms
 * and MiB.
 */
static int get_ctx(int device, void **ctx_p)
{
	struct shunt_cu_device *d = &shunt_cu_devices[device];
	void *ctx;
	int res = 0;

	shunt_mutex_lock(&d->lock);
	ctx = atomic_load_explicit(&d->ctx, memory_order_relaxed);
	if (!ctx) {
		res = shunt_cu.DevicePrimaryCtxRetain(&ctx, d->dev);
		if (!res && (!shunt_cu.CtxGetId || shunt_cu.CtxGetId(ctx, &d->ctx_id)))
			d->ctx_id = 0;
		if (!res)
			atomic_store_explicit(&d->ctx, ctx, memory_order_release);
	}
	shunt_mutex_unlock(&d->lock);
	if (res)
		return shunt_cu_error(res, "cuDevicePrimaryCtxRetain of device %d", device);
	*ctx_p = ctx;
	return 0;
}

static int push_ctx(int device, void *ctx, struct shunt_cu_ctx_guard *guard)
{
	void *current;
	int res;

	if (!shunt_cu.CtxGetCurrent(&current) && current == ctx)
		return 0;
	res = shunt_cu.CtxPushCurrent(ctx);
	if (res)
		return shunt_cu_error(res, "cuCtxPushCurrent of device %d", device);
	guard->pushed = true;
	return 0;
}

int shunt_cu_enter_fast(int device, struct shunt_cu_ctx_guard *guard)
{
	void *ctx;

	shunt_lock_check_blocking("calls the driver", true);
	if ((unsigned)device >= (unsigned)shunt_cu_ndevices) {
		shunt_error("device %d does not exist: the CUDA driver shows %d", device, shunt_cu_ndevices);
		return -EINVAL;
	}
	*guard = (struct shunt_cu_ctx_guard){ 0 };
	ctx = atomic_load_explicit(&shunt_cu_devices[device].ctx, memory_order_acquire);
	if (!ctx)
		return shunt_cu_enter(device, guard);
	return push_ctx(device, ctx, guard);
}

int shunt_cu_enter(int device, struct shunt_cu_ctx_guard *guard)
{
	int mode = SHUNT_CU_CAPTURE_MODE_RELAXED;
	void *ctx = NULL;
	int res, err;

	shunt_lock_check_blocking("calls the driver", true);
	if ((unsigned)device >= (unsigned)shunt_cu_ndevices) {
		shunt_error("device %d does not exist: the CUDA driver shows %d", device, shunt_cu_ndevices);
		return -EINVAL;
	}
	*guard = (struct shunt_cu_ctx_guard){ 0 };
	res = shunt_cu.ThreadExchangeStreamCaptureMode(&mode);
	if (res)
		return shunt_cu_error(res, "cuThreadExchangeStreamCaptureMode");
	guard->relaxed = true;
	guard->mode = mode;
	err = get_ctx(device, &ctx);
	if (!err)
		err = push_ctx(device, ctx, guard);
	if (err)
		shunt_cu_leave(guard);
	return err;
}

void shunt_cu_leave(const struct shunt_cu_ctx_guard *guard)
{
	int mode = guard->mode;
	void *ctx;
	int res;

	if (guard->pushed) {
		res = shunt_cu.CtxPopCurrent(&ctx);
		if (res)
			shunt_cu_error(res, "cuCtxPopCurrent");
	}
	if (guard->relaxed) {
		res = shunt_cu.ThreadExchangeStreamCaptureMode(&mode);
		if (res)
			shunt_cu_error(res, "cuThreadExchangeStreamCaptureMode");
	}
}

int shunt_cu_leave_with(const struct shunt_cu_ctx_guard *guard, int device, int result, const char *call)
{
	int err = result ? shunt_cu_error(result, "%s on device %d", call, device) : 0;

	shunt_cu_leave(guard);
	return err;
}

int shunt_cu_copy_stream(int device, void **stream_p)
{
	struct shunt_cu_device *d = &shunt_cu_devices[device];
	void *stream = atomic_load_explicit(&d->copy_stream, memory_order_acquire);
	int res = 0;

	if (!stream) {
		shunt_mutex_lock(&d->lock);
		stream = atomic_load_explicit(&d->copy_stream, memory_order_relaxed);
		if (!stream) {
			res = shunt_cu.StreamCreate(&stream, SHUNT_CU_STREAM_NON_BLOCKING);
			if (!res)
				atomic_store_explicit(&d->copy_stream, stream, memory_order_release);
		}
		shunt_mutex_unlock(&d->lock);
		if (res)
			return shunt_cu_error(res, "cuStreamCreate on device %d", device);
	}
	*stream_p = stream;
	return 0;
}

static int device_get(int *device_p)
{
	void *ctx;
	int dev, res;

	res = shunt_cu.CtxGetCurrent(&ctx);
	if (res)
		return shunt_cu_error(res, "cuCtxGetCurrent");
	if (!ctx) {
		*device_p = 0;
		return 0;
	}
	res = shunt_cu.CtxGetDevice(&dev);
	if (res)
		return shunt_cu_error(res, "cuCtxGetDevice");
	for (int i = 0; i < shunt_cu_ndevices; i++) {
		if (shunt_cu_devices[i].dev == dev) {
			*device_p = i;
			return 0;
		}
	}
	shunt_error("the current context belongs to a device that the CUDA driver does not list");
	return -ENODEV;
}

int shunt_cu_any_device(void)
{
	void *ctx;
	int device = 0;

	/* A context takes hundreds of MiB: create none on device 0 in a process that uses another device. */
	if (!shunt_cu.CtxGetCurrent(&ctx) && ctx && !device_get(&device))
		return device;
	for (device = 0; device < shunt_cu_ndevices; device++)
		if (atomic_load_explicit(&shunt_cu_devices[device].ctx, memory_order_acquire))
			return device;
	return 0;
}

static int device_set(int device)
{
	struct shunt_cu_ctx_guard guard;
	int res, err;

	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	shunt_cu_leave(&guard);
	res = shunt_cu.CtxSetCurrent(atomic_load(&shunt_cu_devices[device].ctx));
	if (res)
		return shunt_cu_error(res, "cuCtxSetCurrent of device %d", device);
	return 0;
}

static int device_count(int *count_p)
{
	*count_p = shunt_cu_ndevices;
	return 0;
}

static bool in_use(void)
{
	int active = 0;
	unsigned flags;
	void *ctx;

	if (!shunt_cu.CtxGetCurrent(&ctx) && ctx)
		return true;
	for (int i = 0; i < shunt_cu_ndevices && !active; i++)
		if (shunt_cu.DevicePrimaryCtxGetState(shunt_cu_devices[i].dev, &flags, &active))
			active = 0;
	return active;
}

static int device_info(int device, struct shunt_gpu_info *info_p)
{
	if ((unsigned)device >= (unsigned)shunt_cu_ndevices)
		return -EINVAL;
	*info_p = shunt_cu_devices[device].info;
	return 0;
}

const struct shunt_gpu_ops shunt_gpu_cuda_ops = {
	.name = "cuda",
	.open = cuda_open,
	.device_count = device_count,
	.in_use = in_use,
	.device_get = device_get,
	.device_set = device_set,
	.device_info = device_info,
	.peer_check = shunt_cu_peer_check,
	.share_alloc = shunt_cu_share_alloc,
	.share_map = shunt_cu_share_map,
	.share_borrow = shunt_cu_share_borrow,
	.share_alias = shunt_cu_share_alias,
	.share_free = shunt_cu_share_free,
	.share_export = shunt_cu_share_export,
	.mem_alloc = shunt_cu_mem_alloc,
	.mem_free = shunt_cu_mem_free,
	.mem_alloc_shared = shunt_cu_mem_alloc_shared,
	.mem_dmabuf = shunt_cu_mem_dmabuf,
	.mem_range = shunt_cu_mem_range,
	.mem_info = shunt_cu_mem_info,
	.host_alloc = shunt_cu_host_alloc,
	.host_free = shunt_cu_host_free,
	.host_register = shunt_cu_host_register,
	.host_unregister = shunt_cu_host_unregister,
	.copy = shunt_cu_copy,
	.copy_async = shunt_cu_copy_async,
	.memset_async = shunt_cu_memset_async,
	.kernels_load = shunt_cu_kernels_load,
	.cluster_blocks = shunt_cu_cluster_blocks,
	.kernel_exists = shunt_cu_kernel_exists,
	.launch = shunt_cu_launch,
	.stream_create = shunt_cu_stream_create,
	.stream_sync = shunt_cu_stream_sync,
	.stream_idle = shunt_cu_stream_idle,
	.device_sync = shunt_cu_device_sync,
	.stream_destroy = shunt_cu_stream_destroy,
	.stream_capture = shunt_cu_stream_capture,
	.event_create = shunt_cu_event_create,
	.event_record = shunt_cu_event_record,
	.event_wait = shunt_cu_event_wait,
	.event_done = shunt_cu_event_done,
	.event_elapsed_us = shunt_cu_event_elapsed_us,
	.event_destroy = shunt_cu_event_destroy,
	.capture_begin = shunt_cu_capture_begin,
	.capture_end = shunt_cu_capture_end,
	.capture_info = shunt_cu_capture_info,
	.capture_wait = shunt_cu_capture_wait,
	.capture_join = shunt_cu_capture_join,
	.capture_record = shunt_cu_capture_record,
	.capture_move_record = shunt_cu_capture_move_record,
	.capture_retain = shunt_cu_capture_retain,
	.graph_launch = shunt_cu_graph_launch,
	.graph_destroy = shunt_cu_graph_destroy,
};
