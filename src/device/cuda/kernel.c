/* SPDX-License-Identifier: MIT */
/*
 * The embedded kernels: one fatbin per source file, loaded once per process. All kernels are resident on a device
 * before the first launch.
 */
#include "device/cuda/dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/lock.h"

/* The first driver whose graphs support programmatic dependent launches, as CUDA version. */
#define PDL_DRIVER 12030
/* The first driver that records an event when a launch's blocks have begun. */
#define LAUNCHED_DRIVER 12030

/* Guards libraries, and func of a device until its `loaded` is set. */
static void **libraries; /* by fatbin */

bool shunt_cu_kernel_exists(unsigned kernel)
{
	const struct shunt_kernel_set *set = shunt_cu_kernels;

	return set && kernel < set->n && set->fatbin[0] && set->kernel[kernel].name;
}

/* Most often the nvcc that built the library is newer than the driver, or did not build for such a device. */
static int load_error(int res, int device, const char *what)
{
	const struct shunt_gpu_info *info = &shunt_cu_devices[device].info;

	return shunt_cu_error(res, "loading %s, built by %s, on device %d (sm_%d, driver for CUDA %u.%u)", what,
	    shunt_cu_kernels->built_by, device, info->cc, (unsigned)info->driver / 1000,
	    (unsigned)info->driver % 1000 / 10);
}

/* Makes one kernel resident: lazy loading at its first launch would wait for kernels that spin. */
static int load_kernel(int device, unsigned kernel, void **func_p)
{
	const struct shunt_kernel_desc *desc = &shunt_cu_kernels->kernel[kernel];
	void *handle, *func;
	int res, regs;

	res = shunt_cu.LibraryGetKernel(&handle, libraries[desc->fatbin], desc->name);
	if (!res)
		res = shunt_cu.KernelGetFunction(&func, handle);
	if (!res)
		res = shunt_cu.FuncLoad ? shunt_cu.FuncLoad(func) :
		                          shunt_cu.FuncGetAttribute(&regs, SHUNT_CU_FUNC_NUM_REGS, func);
	if (!res && desc->dynamic_shared && shunt_cu_devices[device].info.tma)
		res = shunt_cu.FuncSetAttribute(
		    func, SHUNT_CU_FUNC_MAX_DYNAMIC_SHARED_BYTES, (int)shunt_cu_kernels->shared_bytes);
	if (res)
		return load_error(res, device, desc->name);
	*func_p = func;
	return 0;
}

/*
 * Do the device's kernels wait for their stream by themselves? gpu_grid_dependency_wait() does so from compute
 * capability 9.0 on.
 */
static bool kernels_have_pdl(int device, void *func)
{
	int ptx_version = 0;

	return shunt_cu_devices[device].info.cc >= 90 && shunt_cu_devices[device].info.driver >= PDL_DRIVER &&
	    !shunt_cu.FuncGetAttribute(&ptx_version, SHUNT_CU_FUNC_PTX_VERSION, func) && ptx_version >= 90;
}

/* Most clusters at once, of the kernel that needs most. A slice of a GPU may have few. */
static unsigned query_max_clusters(int device, void *func)
{
	const struct shunt_kernel_set *set = shunt_cu_kernels;
	struct shunt_cu_launch_attr attr = { .id = SHUNT_CU_LAUNCH_ATTR_CLUSTER_DIMENSION,
		.value.cluster = { set->cluster_blocks, 1, 1 } };
	const struct shunt_cu_launch_config config = {
		.grid_x = set->max_blocks,
		.grid_y = 1,
		.grid_z = 1,
		.block_x = set->max_threads,
		.block_y = 1,
		.block_z = 1,
		.shared_bytes = shunt_cu_devices[device].info.tma ? set->shared_bytes : 0,
		.attrs = &attr,
		.nattrs = 1,
	};
	int clusters = 0;

	if (shunt_cu_devices[device].info.cc < 90 || !shunt_cu.OccupancyMaxActiveClusters ||
	    shunt_cu.OccupancyMaxActiveClusters(&clusters, func, &config))
		return 0;
	return clusters > 0 ? (unsigned)clusters : 0;
}

/* Tells the driver that the fatbin stays in memory (-z nodelete): without a copy, loading takes half the time. */
static int load_library(void **library_p, const void *fatbin)
{
	int option = SHUNT_CU_LIBRARY_BINARY_IS_PRESERVED;
	void *value = (void *)1;

	return shunt_cu.LibraryLoadData(library_p, fatbin, NULL, NULL, 0, &option, &value, 1);
}

static int load_all(int device)
{
	struct shunt_cu_device *d = &shunt_cu_devices[device];
	const struct shunt_kernel_set *set = shunt_cu_kernels;
	unsigned last_kernel = 0;
	int res, err;

	if (!libraries)
		libraries = calloc(set->nfatbins, sizeof(*libraries));
	if (!libraries)
		return -ENOMEM;
	for (unsigned i = 0; i < set->nfatbins; i++) {
		if (libraries[i])
			continue;
		res = load_library(&libraries[i], set->fatbin[i]);
		if (res) {
			libraries[i] = NULL;
			return load_error(res, device, "our kernels");
		}
	}
	for (unsigned k = 0; k < set->n; k++) {
		if (!set->kernel[k].name)
			continue;
		err = load_kernel(device, k, &d->func[k]);
		if (err)
			return err;
		last_kernel = k;
	}
	d->pdl = shunt_config()->pdl && kernels_have_pdl(device, d->func[last_kernel]);
	d->max_clusters = query_max_clusters(device, d->func[set->cluster_kernel]);
	return 0;
}

int shunt_cu_kernels_load(int device)
{
	struct shunt_cu_ctx_guard guard;
	int err;

	if ((unsigned)device < (unsigned)shunt_cu_ndevices) {
		/* A communicator's set-up calls this function before any other that uses the device's context. */
		shunt_cu_drop_dead_ctx(device);
		if (atomic_load_explicit(&shunt_cu_devices[device].loaded, memory_order_acquire))
			return 0;
	}
	err = shunt_cu_enter(device, &guard);
	if (err)
		return err;
	shunt_log_hold();
	shunt_lock_acquire(SHUNT_LOCK_KERNELS);
	if (!atomic_load_explicit(&shunt_cu_devices[device].loaded, memory_order_relaxed)) {
		err = load_all(device);
		if (!err)
			atomic_store_explicit(&shunt_cu_devices[device].loaded, true, memory_order_release);
	}
	shunt_lock_release(SHUNT_LOCK_KERNELS);
	shunt_log_flush();
	shunt_cu_leave(&guard);
	return err;
}

/*
 * Memory synchronization domain: without it, system-wide fences of Shunt's kernels would also wait for the stores of
 * the program's concurrent kernels, and fences of those for Shunt's traffic to peers.
 *
 * Programmatic stream serialization: the kernels wait for earlier work of their stream by themselves, so they may be
 * launched before it ends, where the device and the driver support that (`pdl`).
 */
static const struct shunt_cu_launch_attr default_attrs[] = {
	{ .id = SHUNT_CU_LAUNCH_ATTR_MEM_SYNC_DOMAIN, .value.mem_sync_domain = SHUNT_CU_MEM_SYNC_DOMAIN_REMOTE },
	{ .id = SHUNT_CU_LAUNCH_ATTR_PROGRAMMATIC_STREAM_SERIALIZATION, .value.programmatic_stream_serialization = 1 },
};
enum { N_DEFAULT_ATTRS = sizeof(default_attrs) / sizeof(default_attrs[0]), N_OWN_ATTRS = 2 };

/*
 * A cluster's blocks are on one GPC. These GPUs have at most 8. When single blocks have taken SMs, each GPC may have
 * fewer SMs left than a cluster needs.
 */
#define GPCS 8u

unsigned shunt_cu_cluster_blocks(int device)
{
	const unsigned taken = shunt_cu_kernels->max_blocks + GPCS * (shunt_cu_kernels->cluster_blocks - 1);
	const struct shunt_cu_device *d = &shunt_cu_devices[device];

	return d->max_clusters && d->info.sms > taken ? d->info.sms - taken : 0;
}

/* The attributes that this launch alone has; their number. */
__attribute__((noinline)) static unsigned own_attrs(
    const struct shunt_cu_device *d, const struct shunt_gpu_launch *launch, struct shunt_cu_launch_attr *attrs)
{
	unsigned n = 0;

	if (d->info.cc >= 90 && launch->cluster && launch->blocks % launch->cluster == 0 &&
	    launch->blocks / launch->cluster <= d->max_clusters)
		attrs[n++] = (struct shunt_cu_launch_attr){ .id = SHUNT_CU_LAUNCH_ATTR_CLUSTER_DIMENSION,
			.value.cluster = { launch->cluster, 1, 1 } };
	if (launch->launched && d->info.driver >= LAUNCHED_DRIVER)
		attrs[n++] = (struct shunt_cu_launch_attr){ .id = SHUNT_CU_LAUNCH_ATTR_LAUNCH_COMPLETION_EVENT,
			.value.launch_completion = { launch->launched, 0 } };
	return n;
}

static inline int launch_func(
    const struct shunt_cu_device *d, const struct shunt_gpu_launch *launch, void *func, void **params, bool pdl)
{
	struct shunt_cu_launch_attr attrs[N_OWN_ATTRS + N_DEFAULT_ATTRS];
	unsigned own = launch->cluster || launch->launched ? own_attrs(d, launch, attrs) : 0;
	unsigned common = d->info.cc < 90 ? 0 : pdl ? 2 : 1;
	struct shunt_cu_launch_config config = {
		.grid_x = launch->blocks,
		.grid_y = 1,
		.grid_z = 1,
		.block_x = launch->threads,
		.block_y = 1,
		.block_z = 1,
		.shared_bytes = launch->shared,
		.stream = launch->stream,
		.attrs = own ? attrs : default_attrs,
		.nattrs = own + common,
	};
	int res = 0;

	if (launch->launched && d->info.driver < LAUNCHED_DRIVER)
		res = shunt_cu.EventRecord(launch->launched, launch->stream);
	if (res)
		return res;
	if (!config.nattrs)
		return shunt_cu.LaunchKernel(
		    func, launch->blocks, 1, 1, launch->threads, 1, 1, launch->shared, launch->stream, params, NULL);
	if (own)
		memcpy(attrs + own, default_attrs, common * sizeof(default_attrs[0]));
	return shunt_cu.LaunchKernelEx(&config, func, params, NULL);
}

int shunt_cu_launch(int device, const struct shunt_gpu_launch *launch)
{
	const struct shunt_kernel_set *set = shunt_cu_kernels;
	const struct shunt_cu_device *d;
	struct shunt_cu_ctx_guard guard;
	void *params[] = { (void *)(uintptr_t)launch->args }, *func;
	int res, err;

	err = shunt_cu_enter_fast(device, &guard);
	if (err)
		return err;
	d = &shunt_cu_devices[device];
	func = launch->kernel < set->n ? d->func[launch->kernel] : NULL;
	if (!func) {
		shunt_error("launch of kernel %u on device %d: not a kernel that was loaded", launch->kernel, device);
		err = -EINVAL;
		goto out_leave;
	}
	res = launch_func(d, launch, func, params, d->pdl);
	if (res)
		err = shunt_cu_error(res, "launch of %s, %u blocks of %u threads, on device %d",
		    set->kernel[launch->kernel].name, launch->blocks, launch->threads, device);
out_leave:
	shunt_cu_leave(&guard);
	return err;
}

/* ---- kernels of the program's */

/* An image comes from a user: what is wrong with it is told to that user, and is none of the log's errors. */
static int image_load(
    int device, const struct shunt_gpu_image *image, struct shunt_gpu_function *f, char *why, size_t bytes)
{
	const struct shunt_gpu_info *info = &shunt_cu_devices[device].info;
	char log[512] = "";
	int options[] = { SHUNT_CU_JIT_ERROR_LOG_BUFFER, SHUNT_CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
	void *values[] = { log, (void *)sizeof(log) }, *library = NULL, *kernel;
	const char *name = NULL, *what = "its kernel";
	int res = shunt_cu.LibraryLoadData(&library, image->image, options, values, 2, NULL, NULL, 0), regs;

	if (res)
		what = "the image";
	else
		res = shunt_cu.LibraryGetKernel(&kernel, library, image->symbol);
	if (!res)
		res = shunt_cu.KernelGetFunction(&f->function, kernel);
	if (!res)
		res = shunt_cu.FuncLoad ? shunt_cu.FuncLoad(f->function) :
		                          shunt_cu.FuncGetAttribute(&regs, SHUNT_CU_FUNC_NUM_REGS, f->function);
	if (!res && image->shared > 48u << 10)
		res =
		    shunt_cu.FuncSetAttribute(f->function, SHUNT_CU_FUNC_MAX_DYNAMIC_SHARED_BYTES, (int)image->shared);
	if (!res) {
		f->has_params = image->has_params;
		f->waits = image->waits && shunt_config()->pdl && kernels_have_pdl(device, f->function);
		return 0;
	}
	if (shunt_cu.GetErrorName(res, &name) || !name)
		name = "unknown result";
	log[sizeof(log) - 1] = '\0';
	log[strcspn(log, "\n")] = '\0';
	snprintf(why, bytes, "%s, %s, on sm_%d: %s (%d)%s%s", what, image->symbol, info->cc, name, res,
	    *log ? ": " : "", log);
	if (library)
		shunt_cu.LibraryUnload(library);
	return res == SHUNT_CU_OUT_OF_MEMORY ? -ENOMEM : -ENOEXEC;
}

int shunt_cu_image_load(
    int device, const struct shunt_gpu_image *image, struct shunt_gpu_function *function_p, char *why, size_t bytes)
{
	struct shunt_cu_ctx_guard guard;
	int err = shunt_cu_enter(device, &guard);

	if (err) {
		snprintf(why, bytes, "device %d cannot be used", device);
		return err;
	}
	*function_p = (struct shunt_gpu_function){ 0 };
	err = image_load(device, image, function_p, why, bytes);
	shunt_cu_leave(&guard);
	return err;
}

int shunt_cu_launch_function(
    int device, const struct shunt_gpu_function *function, const struct shunt_gpu_launch *launch, size_t arg_bytes)
{
	struct shunt_cu_ctx_guard guard;
	int res, err = shunt_cu_enter_fast(device, &guard);

	void *one[] = { (void *)(uintptr_t)launch->args };
	void **params = function->has_params ? (void **)(uintptr_t)launch->args : one;

	(void)arg_bytes; /* the driver knows how many the kernel has */
	if (err)
		return err;
	res = launch_func(&shunt_cu_devices[device], launch, function->function, params, function->waits);
	if (res)
		err = shunt_cu_error(res, "launch of a kernel of the program's, %u blocks of %u threads, on device %d",
		    launch->blocks, launch->threads, device);
	shunt_cu_leave(&guard);
	return err;
}
