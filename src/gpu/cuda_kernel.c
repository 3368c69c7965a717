/* SPDX-License-Identifier: MIT */
/*
 * The embedded kernels: one fatbin per source file, loaded once per process; all resident on a device before the first
 * launch.
 */
#include "gpu/cuda_dev.h"

#include <pthread.h>
#include <string.h>

#include "core/config.h"
#include "core/log.h"
#include "kernels/fatbin.h"
#include "kernels/kargs.h"

/* The first driver whose graphs know of launches that begin early, in CUDA's version. */
#define EARLY_DRIVER 12030

static const char *const kernel_names[SHUNT_NKERNELS] = {
#define TEXT(name) #name
#define TEXT_OF(name) TEXT(name)
#define NAME(shape, op, opn, type, typen) \
	[SHUNT_KERNEL(SHUNT_SHAPE_##shape, opn, typen)] = TEXT_OF(SHUNT_KERNEL_NAME(shape, op, type)),
	SHUNT_KERNEL_LIST(NAME)
#undef NAME
#undef TEXT_OF
#undef TEXT
};

/* Guards libraries, and func of a device until its `loaded` is set. */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static void *libraries[SHUNT_NSOURCES];

static const enum shunt_source source_of[SHUNT_NSHAPES] = {
#define SOURCE(name, source, args) [SHUNT_SHAPE_##name] = SHUNT_SOURCE_##source,
	SHUNT_SHAPE_LIST(SOURCE)
#undef SOURCE
};

bool shunt_cu_have_kernels(void) { return shunt_fatbins[0]; }

bool shunt_cu_kernel_exists(unsigned kernel)
{
	return kernel < SHUNT_NKERNELS && shunt_fatbins[0] && kernel_names[kernel];
}

/* Most often the library was built by an nvcc that is newer than the driver, or not for such a device. */
static int load_error(int res, int device, const char *what)
{
	const struct shunt_gpu_info *info = &shunt_cu_devices[device].info;

	return shunt_cu_error(res, "loading %s, built by %s, on device %d (sm_%d, driver for CUDA %u.%u)", what,
	    shunt_fatbins_made, device, info->cc, (unsigned)info->driver / 1000, (unsigned)info->driver % 1000 / 10);
}

/*
 * Makes one kernel resident: a lazily loaded one would be loaded at its first launch, and wait for kernels that spin.
 */
static int load_kernel(int device, unsigned kernel, void **func_p)
{
	unsigned shape = SHUNT_SHAPE_OF(kernel);
	void *handle, *func;
	int res, regs;

	res = shunt_cu.LibraryGetKernel(&handle, libraries[source_of[shape]], kernel_names[kernel]);
	if (!res)
		res = shunt_cu.KernelGetFunction(&func, handle);
	if (!res)
		res = shunt_cu.FuncLoad ? shunt_cu.FuncLoad(func) :
		                          shunt_cu.FuncGetAttribute(&regs, SHUNT_CU_FUNC_NUM_REGS, func);
	if (!res && source_of[shape] == SHUNT_SOURCE_bulk && shunt_cu_devices[device].info.bulk)
		res = shunt_cu.FuncSetAttribute(func, SHUNT_CU_FUNC_MAX_DYNAMIC_SHARED_BYTES, (int)SHUNT_BULK_MOST);
	if (res)
		return load_error(res, device, kernel_names[kernel]);
	*func_p = func;
	return 0;
}

/*
 * Whether the kernels that the device has wait for their stream by themselves: gpu_stream_wait() does so from compute
 * capability 9.0 on.
 */
static bool kernels_wait(int device, void *func)
{
	int made_for = 0;

	return shunt_cu_devices[device].info.cc >= 90 && shunt_cu_devices[device].info.driver >= EARLY_DRIVER &&
	    !shunt_cu.FuncGetAttribute(&made_for, SHUNT_CU_FUNC_PTX_VERSION, func) && made_for >= 90;
}

/* Of the kernel that needs most. A slice of a GPU may have few. */
static unsigned ask_cluster_room(int device, void *func)
{
	struct shunt_cu_launch_attr attr = { .id = SHUNT_CU_LAUNCH_ATTR_CLUSTER_DIMENSION,
		.value.cluster = { SHUNT_CHUNKS_SIDE, 1, 1 } };
	const struct shunt_cu_launch_config config = {
		.grid_x = SHUNT_MAX_BLOCKS,
		.grid_y = 1,
		.grid_z = 1,
		.block_x = SHUNT_MAX_THREADS,
		.block_y = 1,
		.block_z = 1,
		.shared_bytes = shunt_cu_devices[device].info.bulk ? SHUNT_BULK_MOST : 0,
		.attrs = &attr,
		.nattrs = 1,
	};
	int clusters = 0;

	if (shunt_cu_devices[device].info.cc < 90 || !shunt_cu.OccupancyMaxActiveClusters ||
	    shunt_cu.OccupancyMaxActiveClusters(&clusters, func, &config))
		return 0;
	return clusters > 0 ? (unsigned)clusters : 0;
}

/* The driver need not copy what lies in a library that stays loaded (-z nodelete), and takes half the time. */
static int load_library(void **library_p, const void *fatbin)
{
	int option = SHUNT_CU_LIBRARY_BINARY_IS_PRESERVED;
	void *value = (void *)1;

	return shunt_cu.LibraryLoadData(library_p, fatbin, NULL, NULL, 0, &option, &value, 1);
}

static int load_all(int device)
{
	struct shunt_cu_device *d = &shunt_cu_devices[device];
	unsigned last = 0;
	int res, err;

	for (unsigned source = 0; source < SHUNT_NSOURCES; source++) {
		if (libraries[source])
			continue;
		res = load_library(&libraries[source], shunt_fatbins[source]);
		if (res) {
			libraries[source] = NULL;
			return load_error(res, device, "our kernels");
		}
	}
	for (unsigned k = 0; k < SHUNT_NKERNELS; k++) {
		if (!kernel_names[k])
			continue;
		err = load_kernel(device, k, &d->func[k]);
		if (err)
			return err;
		last = k;
	}
	d->early = shunt_config()->early_launch && kernels_wait(device, d->func[last]);
	d->cluster_room = ask_cluster_room(device, d->func[SHUNT_KERNEL(SHUNT_SHAPE_bulk2, SHUNT_KOP_SUM, SHUNT_F16)]);
	return 0;
}

int shunt_cu_kernels_load(int device)
{
	struct shunt_cu_scope scope;
	int err;

	if ((unsigned)device < (unsigned)shunt_cu_ndevices) {
		/* The first that a communicator's set-up wants of the device. */
		shunt_cu_forget_reset(device);
		if (atomic_load_explicit(&shunt_cu_devices[device].loaded, memory_order_acquire))
			return 0;
	}
	err = shunt_cu_enter(device, &scope);
	if (err)
		return err;
	pthread_mutex_lock(&loading);
	if (!atomic_load_explicit(&shunt_cu_devices[device].loaded, memory_order_relaxed)) {
		err = load_all(device);
		if (!err)
			atomic_store_explicit(&shunt_cu_devices[device].loaded, true, memory_order_release);
	}
	pthread_mutex_unlock(&loading);
	shunt_cu_leave(&scope);
	return err;
}

/*
 * Our kernels' system-wide fences would otherwise also wait for the stores of the program's kernels that run beside
 * them, and those kernels' fences for our traffic to peers. And they wait for what is ahead of them in the stream by
 * themselves, so they may be launched meanwhile, where that goes (`early`).
 */
static const struct shunt_cu_launch_attr usual[] = {
	{ .id = SHUNT_CU_LAUNCH_ATTR_MEM_SYNC_DOMAIN, .value.mem_sync_domain = SHUNT_CU_MEM_SYNC_DOMAIN_REMOTE },
	{ .id = SHUNT_CU_LAUNCH_ATTR_PROGRAMMATIC_STREAM_SERIALIZATION, .value.programmatic_stream_serialization = 1 },
};
enum { N_USUAL = sizeof(usual) / sizeof(usual[0]) };

/*
 * A cluster's blocks are on one GPC, of which these GPUs have at most 8. On each of them fewer SMs than a cluster needs
 * may be left over, when single blocks have taken theirs.
 */
#define GPCS 8u

unsigned shunt_cu_cluster_blocks(int device)
{
	const unsigned taken = SHUNT_MAX_BLOCKS + GPCS * (SHUNT_CHUNKS_SIDE - 1);
	const struct shunt_cu_device *d = &shunt_cu_devices[device];

	return d->cluster_room && d->info.sms > taken ? d->info.sms - taken : 0;
}

int shunt_cu_launch(int device, const struct shunt_gpu_launch *launch)
{
	void *params[] = { (void *)(uintptr_t)launch->args };
	struct shunt_cu_scope scope;
	void *func;
	int res, err;

	err = shunt_cu_enter_hot(device, &scope);
	if (err)
		return err;
	func = launch->kernel < SHUNT_NKERNELS ? shunt_cu_devices[device].func[launch->kernel] : NULL;
	if (!func || launch->arg_bytes != shunt_kernel_arg_bytes(launch->kernel)) {
		shunt_error(
		    "launch of kernel %u with %zu bytes of arguments on device %d: not a kernel that was loaded",
		    launch->kernel, launch->arg_bytes, device);
		err = -EINVAL;
		goto out_leave;
	}
	if (shunt_cu_devices[device].info.cc >= 90) {
		struct shunt_cu_launch_attr clustered[1 + N_USUAL];
		struct shunt_cu_launch_config config = {
			.grid_x = launch->blocks,
			.grid_y = 1,
			.grid_z = 1,
			.block_x = launch->threads,
			.block_y = 1,
			.block_z = 1,
			.shared_bytes = launch->shared,
			.stream = launch->stream,
			.attrs = usual,
			.nattrs = shunt_cu_devices[device].early ? 2 : 1,
		};

		if (launch->cluster && launch->blocks % launch->cluster == 0 &&
		    launch->blocks / launch->cluster <= shunt_cu_devices[device].cluster_room) {
			clustered[0] = (struct shunt_cu_launch_attr){ .id = SHUNT_CU_LAUNCH_ATTR_CLUSTER_DIMENSION,
				.value.cluster = { launch->cluster, 1, 1 } };
			memcpy(clustered + 1, usual, sizeof(usual));
			config.attrs = clustered;
			config.nattrs++;
		}
		res = shunt_cu.LaunchKernelEx(&config, func, params, NULL);
	} else {
		res = shunt_cu.LaunchKernel(
		    func, launch->blocks, 1, 1, launch->threads, 1, 1, 0, launch->stream, params, NULL);
	}
	if (res)
		err = shunt_cu_error(res, "launch of %s, %u blocks of %u threads, on device %d",
		    kernel_names[launch->kernel], launch->blocks, launch->threads, device);
out_leave:
	shunt_cu_leave(&scope);
	return err;
}
