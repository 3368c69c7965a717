/* SPDX-License-Identifier: MIT */
/* The CUDA driver: opening it, its devices, and the table of operations. context.c has what other files stand on. */
#include "device/cuda/dev.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/lock.h"

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

int shunt_cu_open(const struct shunt_kernel_set *kernels)
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

int shunt_cu_device_set(int device)
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

int shunt_cu_device_count(int *count_p)
{
	*count_p = shunt_cu_ndevices;
	return 0;
}

bool shunt_cu_in_use(void)
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

int shunt_cu_device_info(int device, struct shunt_gpu_info *info_p)
{
	if ((unsigned)device >= (unsigned)shunt_cu_ndevices)
		return -EINVAL;
	*info_p = shunt_cu_devices[device].info;
	return 0;
}

const struct shunt_gpu_ops shunt_gpu_cuda_ops = {
	.name = "cuda",
#define OP(result, name, params) .name = shunt_cu_##name,
#include "device/gpu_ops.def"
};
