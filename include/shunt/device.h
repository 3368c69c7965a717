/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_DEVICE_H
#define SHUNT_DEVICE_H
/*
 * The few device calls that a client needs in addition to nccl.h. They work the same on GPUs (CUDA driver) and on the
 * sim device, so one program runs on both. SHUNT_DEVICE=auto|cuda|sim chooses. auto means cuda with a real NCCL;
 * without one the GPUs if there are at least two, or one that the program already uses or that ranks may share
 * (SHUNT_MULTI_RANK_GPU), else the sim.
 *
 * Functions return 0 or a negative errno: -ENODEV without a device layer, -EINVAL for a device that does not exist or a
 * NULL where a value is needed, -ENOMEM, -EIO for an error of the device. They may be called from any thread. The
 * current device is per thread, and starts as 0; streams, events and graphs are used with their device current. The
 * caller that creates a stream, event or graph destroys it; memory is freed by shunt_free. Destroying or freeing NULL
 * does nothing. Streams and graphs are CUDA's own values: a stream can be passed as cudaStream_t. NULL is the default
 * stream, which cannot be captured. Sizes are bytes. A program that already uses CUDA needs none of this.
 */
#include <stddef.h>

/* The library hides all other functions. */
#ifndef SHUNT_API
#define SHUNT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* "cuda" or "sim", static storage; opens the device layer on first use. NULL if it cannot be opened. */
SHUNT_API const char *shunt_device_kind(void);
/* Human-readable name of a device, copied into name (at most bytes, always terminated). */
SHUNT_API int shunt_device_name(int device, char *name, size_t bytes);

/*
 * Describes a device, for tools. The caller sets size to that of the struct; later versions may add fields at its end.
 */
struct shunt_device_identity {
	size_t size;
	char name[64];      /* the same for all devices of the sim */
	unsigned cc;        /* compute capability x 10: 90; 0 on the sim */
	unsigned driver;    /* CUDA version of the driver: 13000; 0 on the sim */
	unsigned multicast; /* 1: the driver says that it can be part of NVLink multicast objects */
};
SHUNT_API int shunt_device_identify(int device, struct shunt_device_identity *identity);

SHUNT_API int shunt_device_count(int *count_p);
/* Sets the calling thread's current device: 0 to count - 1. */
SHUNT_API int shunt_device_set(int device);

/*
 * Streams do not synchronise with the default stream. A stream belongs to the device that was current when it was
 * created.
 */
SHUNT_API int shunt_stream_create(void **stream_p);
SHUNT_API int shunt_stream_synchronize(void *stream); /* reports errors of the work before it */
SHUNT_API int shunt_stream_destroy(void *stream);

/*
 * Plain device memory of the current device (not exportable to peers), at least 256-byte aligned. 0 bytes: an address
 * that can be freed.
 */
SHUNT_API int shunt_malloc(void **ptr_p, size_t bytes);
/*
 * Memory that peers can map, for windows; ncclMemAlloc returns the same without a real NCCL. At least 4096-byte
 * aligned; not for 0 bytes.
 */
SHUNT_API int shunt_malloc_shared(void **ptr_p, size_t bytes);
/*
 * The functions of a torch.cuda.memory.CUDAPluggableAllocator; libshunt.torch.pool() has made one. Memory of
 * ncclMemAlloc on this device, which windows and peers can have; NULL, with a line in the log, if there is none, which
 * PyTorch takes for a lack of memory. The stream does not matter, and the thread's current device stays what it is.
 * Freeing ends the windows in the memory, as ncclMemFree does; ptr may be NULL.
 */
SHUNT_API void *shunt_torch_alloc(size_t bytes, int device, void *stream);
SHUNT_API void shunt_torch_free(void *ptr, size_t bytes, int device, void *stream);
/* Frees memory of any device. May wait for all work of the device, as cudaFree does. */
SHUNT_API int shunt_free(void *ptr);
/* Either side may be host or device memory; returns when done. Does not wait for other streams. */
SHUNT_API int shunt_memcpy(void *dst, const void *src, size_t bytes);
/* Enqueues a copy between two places of the current device's memory. */
SHUNT_API int shunt_memcpy_async(void *dst, const void *src, size_t bytes, void *stream);
/* Enqueues the filling of so many bytes with the value's lowest 8 bits. */
SHUNT_API int shunt_memset_async(void *dst, int value, size_t bytes, void *stream);
/* Free and total memory of the current device. On the sim both are 0. */
SHUNT_API int shunt_mem_info(size_t *free_p, size_t *total_p);

/*
 * Events carry a time stamp. elapsed_us gives microseconds; -EAGAIN until both are complete, -EINVAL if one was never
 * recorded.
 */
SHUNT_API int shunt_event_create(void **event_p);
SHUNT_API int shunt_event_record(void *event, void *stream);
SHUNT_API int shunt_event_elapsed_us(void *start, void *stop, float *us_p);
SHUNT_API int shunt_event_destroy(void *event);

/*
 * Stream capture: the work enqueued on the stream between begin and end becomes a graph, which can be launched any
 * number of times.
 */
SHUNT_API int shunt_capture_begin(void *stream);
SHUNT_API int shunt_capture_end(void *stream, void **graph_p);
SHUNT_API int shunt_graph_launch(void *graph, void *stream);
SHUNT_API int shunt_graph_destroy(void *graph);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
