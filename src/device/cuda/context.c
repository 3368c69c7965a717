/* SPDX-License-Identifier: MIT */
/*
 * Functions for all files of src/device/cuda: the table of the driver's calls, the devices, errors, and entering a
 * device's context. cuda.c fills the tables.
 */
#include "device/cuda/dev.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/lock.h"
#include "base/log.h"

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

int shunt_cu_device_get(int *device_p)
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
	if (!shunt_cu.CtxGetCurrent(&ctx) && ctx && !shunt_cu_device_get(&device))
		return device;
	for (device = 0; device < shunt_cu_ndevices; device++)
		if (atomic_load_explicit(&shunt_cu_devices[device].ctx, memory_order_acquire))
			return device;
	return 0;
}
