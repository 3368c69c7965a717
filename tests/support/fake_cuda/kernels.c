/* SPDX-License-Identifier: MIT */
/* The fake driver: kernels. The fake's fatbin is the source file's name. */
#include "tests/support/fake_cuda/state.h"
#include <stdio.h>
#include <string.h>
#include "kernels/kargs.h"
#include "kernels/kernel_list.h"

static int loaded[FAKE_MAX_DEVICES];
static char kernels[SHUNT_NKERNELS][48];
static unsigned nkernels;

#if !FAKE_CUDA_OLD
int cuLibraryLoadData(void **library, const void *code, int *jit_options, void **jit_values, unsigned njit,
    int *lib_options, void **lib_values, unsigned nlib)
{
	struct fake_object *o;

	ENTER();
	UNSAFE();
	if (!nlib && fake_cuda.image_result) {
		fake_cuda.image_text = strlen(code);
		return fake_cuda.image_result;
	}
	if (nlib != 1 || lib_options[0] != SHUNT_CU_LIBRARY_BINARY_IS_PRESERVED || !lib_values[0])
		return SHUNT_CU_INVALID_VALUE;
	o = fake_object_add(LIBRARY, 0, 0);
	o->data = code;
	*library = (void *)o->addr;
	return 0;
}
#endif

/* True: the kernel is one of the source file. */
static bool is_in(const char *source, const char *name)
{
#define IS_IN(shape, file, ...) { "ncclDevKernel_Shunt_" #shape "_", #file },
	static const struct {
		const char *kernel, *file;
	} rows[] = { SHUNT_SHAPE_LIST(IS_IN, ) };
#undef IS_IN

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (!strncmp(name, rows[i].kernel, strlen(rows[i].kernel)) && !strcmp(source, rows[i].file))
			return true;
	return false;
}

int cuLibraryUnload(void *library)
{
	return fake_object_drop(LIBRARY, (uintptr_t)library);
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
	struct fake_object *o = fake_object_find(LIBRARY, (uintptr_t)library);
	unsigned i;

	ENTER();
	if (!o || !is_in(o->data, name) || (fake_cuda.missing_kernel && !strcmp(name, fake_cuda.missing_kernel)))
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
	loaded[fake_device()]++;
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
	struct fake_object *capture;
	int res = fake_work_enqueue(stream, &capture);

	if (res)
		return res;
	snprintf(fake_cuda.launch.kernel, sizeof(fake_cuda.launch.kernel), "%s", (char *)func);
	fake_cuda.launch.blocks = blocks;
	fake_cuda.launch.threads = threads;
	fake_cuda.launch.device = fake_device();
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
	struct fake_object *o = fake_object_find(EVENT, (uintptr_t)event);

	return o && o->recorded;
}

/* The event of a launch, which is done when all of its blocks run; here at once. */
static int take_launch_event(const struct shunt_cu_launch_attr *attr)
{
	struct fake_object *o = fake_object_find(EVENT, (uintptr_t)attr->value.launch_completion.event);

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
