/* SPDX-License-Identifier: MIT */
/* shunt/device.h on the chosen device layer, for the thread's current device. */
#include "shunt/device.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "kernels/set.h"
#include "shim/mode.h"

/*
 * The layer, or NULL. Looks for the real NCCL first, so that the meaning of SHUNT_DEVICE=auto does not depend on
 * whether the program asks for a device or for NCCL first.
 */
static const struct shunt_gpu_ops *layer(void)
{
	shunt_mode_ops();
	return shunt_gpu();
}

/* The layer and the current device, or -ENODEV. */
static int current_device(const struct shunt_gpu_ops **ops_p, int *device_p)
{
	*ops_p = layer();
	return *ops_p ? (*ops_p)->device_get(device_p) : -ENODEV;
}

/* A function that does `call`, with `ops` and `device`, on the current device; -EINVAL unless its arguments are good.
 */
#define ON_DEVICE(name, params, good, call) \
	int shunt_##name params \
	{ \
		const struct shunt_gpu_ops *ops; \
		int device, err = (good) ? current_device(&ops, &device) : -EINVAL; \
\
		return err ? err : (call); \
	}

const char *shunt_device_kind(void)
{
	const struct shunt_gpu_ops *ops = layer();

	return ops ? ops->name : NULL;
}

int shunt_device_name(int device, char *name, size_t bytes)
{
	const struct shunt_gpu_ops *ops = layer();
	struct shunt_gpu_info info;
	int err;

	if (!name || !bytes)
		return -EINVAL;
	if (!ops)
		return -ENODEV;
	err = ops->device_info(device, &info);
	if (!err)
		snprintf(name, bytes, "%s", info.name);
	return err;
}

int shunt_device_identify(int device, struct shunt_device_identity *identity)
{
	const struct shunt_gpu_ops *ops = layer();
	struct shunt_gpu_info info;
	int err;

	if (!identity || identity->size < offsetof(struct shunt_device_identity, multicast))
		return -EINVAL;
	if (!ops)
		return -ENODEV;
	err = ops->device_info(device, &info);
	if (err)
		return err;
	snprintf(identity->name, sizeof(identity->name), "%s", info.sim ? "Shunt sim" : info.name);
	identity->cc = info.cc;
	identity->driver = info.driver;
	if (identity->size >= sizeof(*identity)) /* which programs built with an earlier header do not have */
		identity->multicast = info.multicast;
	return 0;
}

int shunt_device_count(int *count_p)
{
	const struct shunt_gpu_ops *ops = layer();

	if (!count_p)
		return -EINVAL;
	return ops ? ops->device_count(count_p) : -ENODEV;
}

int shunt_device_set(int device)
{
	const struct shunt_gpu_ops *ops = layer();

	return ops ? ops->device_set(device) : -ENODEV;
}

/* PyTorch makes the device current before it calls; other callers need not. */
void *shunt_torch_alloc(size_t bytes, int device, void *stream)
{
	const struct shunt_gpu_ops *ops;
	void *ptr = NULL;
	int before, err;

	(void)stream;
	err = current_device(&ops, &before);
	if (!err && device != before)
		err = ops->device_set(device);
	if (err) {
		shunt_warn("shunt_torch_alloc: %zu bytes on device %d: %s; the device must be one that the process has",
		    bytes, device, strerror(-err));
		return NULL;
	}
	if (shunt_mode_ops()->MemAlloc(&ptr, bytes ? bytes : 1) != ncclSuccess) {
		shunt_warn("shunt_torch_alloc: ncclMemAlloc has no %zu bytes on device %d", bytes, device);
		ptr = NULL;
	}
	if (device != before)
		ops->device_set(before);
	return ptr;
}

void shunt_torch_free(void *ptr, size_t bytes, int device, void *stream)
{
	(void)stream;
	if (shunt_mode_ops()->MemFree(ptr) != ncclSuccess)
		shunt_warn("shunt_torch_free: %zu bytes at %p on device %d were not freed", bytes, ptr, device);
}

int shunt_free(void *ptr)
{
	const struct shunt_gpu_ops *ops = layer();

	if (!ptr)
		return 0;
	return ops ? ops->mem_free(ptr) : -ENODEV;
}

/* clang-format off */
ON_DEVICE(stream_create, (void **stream_p), stream_p, ops->stream_create(device, stream_p))
ON_DEVICE(stream_synchronize, (void *stream), true, ops->stream_sync(device, stream))
ON_DEVICE(stream_destroy, (void *stream), true, (ops->stream_destroy(device, stream), 0))
ON_DEVICE(malloc, (void **ptr_p, size_t bytes), ptr_p, ops->mem_alloc(device, bytes, ptr_p))
ON_DEVICE(malloc_shared, (void **ptr_p, size_t bytes), ptr_p, ops->mem_alloc_shared(device, bytes, ptr_p))
ON_DEVICE(memcpy, (void *dst, const void *src, size_t bytes), !bytes || (dst && src), ops->copy(device, dst, src,
	bytes))
ON_DEVICE(memset_async, (void *dst, int value, size_t bytes, void *stream), !bytes || dst, ops->memset_async(device,
	dst, value, bytes, stream))
ON_DEVICE(mem_info, (size_t *free_p, size_t *total_p), free_p && total_p, ops->mem_info(device, free_p, total_p))
ON_DEVICE(event_create, (void **event_p), event_p, ops->event_create(device, true, event_p))
ON_DEVICE(event_record, (void *event, void *stream), event, ops->event_record(device, event, stream))
ON_DEVICE(event_elapsed_us, (void *start, void *stop, float *us_p), start && stop && us_p,
	ops->event_elapsed_us(device, start, stop, us_p))
ON_DEVICE(event_destroy, (void *event), true, (ops->event_destroy(device, event), 0))
ON_DEVICE(capture_begin, (void *stream), true, ops->capture_begin(device, stream))
ON_DEVICE(capture_end, (void *stream, void **graph_p), graph_p, ops->capture_end(device, stream, graph_p))
ON_DEVICE(graph_launch, (void *graph, void *stream), graph, ops->graph_launch(device, graph, stream))
ON_DEVICE(graph_destroy, (void *graph), true, (ops->graph_destroy(device, graph), 0))
/* clang-format on */

/* Of no bytes: nothing to do, with or without a device. */
int shunt_memcpy_async(void *dst, const void *src, size_t bytes, void *stream)
{
	const struct shunt_gpu_ops *ops;
	int device, err;

	if (!bytes)
		return 0;
	err = dst && src ? current_device(&ops, &device) : -EINVAL;
	return err ? err : ops->copy_async(device, dst, src, bytes, stream);
}
