/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Shared by the files of src/device/cuda: the driver's calls, the devices, and entering a device's context (context.c);
 * then the operations of each file, for the table in cuda.c. The files of operations do not call each other.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/lock.h"
#include "device/cuda/cuda_abi.h"
#include "device/gpu_ops.h"

struct shunt_cu_device {
	int dev;                    /* the driver's CUdevice */
	struct shunt_gpu_info info; /* written by open() */
	void *_Atomic ctx;          /* primary context; NULL until first used, then kept */
	unsigned long long ctx_id;  /* after a reset the next context has the same address and another id */
	void *_Atomic copy_stream;  /* NULL until first used, then kept */
	uint32_t rdma, dmabuf;      /* 1: NICs may have memory that is mapped, and by a dma-buf; written by open() */
	atomic_bool loaded;         /* func, pdl and max_clusters are complete */
	bool pdl; /* kernels may be launched before their stream reaches them (programmatic dependent launch) */
	unsigned max_clusters;   /* clusters of the set's cluster_blocks */
	void **func;             /* by kernel; NULL: not in this build */
	struct shunt_mutex lock; /* of the first use of the context and the copy stream; for access by other ranks */
};

/* The driver's calls, valid after open(). */
extern struct shunt_cu_table shunt_cu;
/* All devices; written by open() only. */
extern struct shunt_cu_device *shunt_cu_devices;
extern int shunt_cu_ndevices;
/* The kernel set that open() was given. */
extern const struct shunt_kernel_set *shunt_cu_kernels;

/*
 * Turns a driver's result other than 0 into a negative errno. Logs it with the message, which says what was being
 * done.
 */
int shunt_cu_error(int result, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* True: a capture prevents the call. It was invalidated, or it forbids the call. */
static inline bool shunt_cu_capture_error(int result)
{
	return result >= SHUNT_CU_STREAM_CAPTURE_UNSUPPORTED && result <= SHUNT_CU_TIMEOUT;
}

/* The thread's state that a call changed. */
struct shunt_cu_ctx_guard {
	bool pushed;
	bool relaxed;
	int mode;
};

/*
 * Makes the device's primary context current. On failure nothing is changed and leave must not be called.
 *
 * shunt_cu_enter also allows the thread to make calls that would disturb a capture (allocations and the like).
 * shunt_cu_enter_fast does not: work on a capturing stream is checked as the program expects. It costs one driver
 * call.
 */
int shunt_cu_enter(int device, struct shunt_cu_ctx_guard *guard);
int shunt_cu_enter_fast(int device, struct shunt_cu_ctx_guard *guard);
/*
 * Forgets the objects of the device's context if the program has destroyed the context (cudaDeviceReset) since its
 * first use.
 */
void shunt_cu_drop_dead_ctx(int device);
void shunt_cu_leave(const struct shunt_cu_ctx_guard *guard);
/* Leaves after a driver call, with its result. Returns 0, or as shunt_cu_error(). */
int shunt_cu_leave_with(const struct shunt_cu_ctx_guard *guard, int device, int result, const char *call);
/* The device's private non-blocking stream. The device must have been entered. */
int shunt_cu_copy_stream(int device, void **stream_p);
/* The device of the thread's context, else 0. 0 or a negative errno. */
int shunt_cu_current_device(int *device_p);
/* A device for calls that any device serves: the thread's, else one in use, else 0. */
int shunt_cu_any_device(void);

/* peer.c */
int shunt_cu_peer_check(int device, const struct shunt_gpu_info *peer, const char **reason_p);
/* cuda_mem.c */
int shunt_cu_share_alloc(int device, size_t bytes, struct shunt_gpu_mem *mem_p);
int shunt_cu_share_map(int device, int fd, size_t bytes, struct shunt_gpu_mem *mem_p);
int shunt_cu_share_borrow(int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p);
int shunt_cu_share_alias(int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p);
void shunt_cu_share_free(struct shunt_gpu_mem *mem);
int shunt_cu_share_export(
    int device, const void *ptr, size_t bytes, struct shunt_gpu_export *export_p, const char **reason_p);
int shunt_cu_mem_alloc(int device, size_t bytes, void **ptr_p);
int shunt_cu_mem_free(void *ptr);
int shunt_cu_mem_alloc_shared(int device, size_t bytes, void **ptr_p);
int shunt_cu_mem_dmabuf(int device, const void *ptr, size_t bytes, int *fd_p);
int shunt_cu_mem_range(const void *ptr, void **base_p, size_t *bytes_p);
int shunt_cu_mem_info(int device, size_t *free_p, size_t *total_p);
int shunt_cu_host_alloc(size_t bytes, void **host_p, void **dev_p);
void shunt_cu_host_free(void *host);
int shunt_cu_host_register(void *host, size_t bytes, void **dev_p);
void shunt_cu_host_unregister(void *host);
int shunt_cu_copy(int device, void *dst, const void *src, size_t bytes);
int shunt_cu_copy_async(int device, void *dst, const void *src, size_t bytes, void *stream);
int shunt_cu_memset_async(int device, void *dst, int value, size_t bytes, void *stream);
/* kernel.c */
int shunt_cu_kernels_load(int device);
bool shunt_cu_kernel_exists(unsigned kernel);
int shunt_cu_launch(int device, const struct shunt_gpu_launch *launch);
int shunt_cu_image_load(
    int device, const struct shunt_gpu_image *image, struct shunt_gpu_function *function_p, char *why, size_t bytes);
int shunt_cu_launch_function(
    int device, const struct shunt_gpu_function *function, const struct shunt_gpu_launch *launch, size_t arg_bytes);
unsigned shunt_cu_cluster_blocks(int device);
/* cuda_stream.c */
int shunt_cu_stream_create(int device, void **stream_p);
int shunt_cu_stream_sync(int device, void *stream);
int shunt_cu_mark(int device, void *stream, uint64_t *word, uint64_t value);
int shunt_cu_stream_idle(int device, void *stream, bool *idle_p);
int shunt_cu_device_sync(int device);
void shunt_cu_stream_destroy(int device, void *stream);
int shunt_cu_stream_capture(int device, void *stream, enum shunt_capture *state_p);
int shunt_cu_event_create(int device, bool timing, void **event_p);
int shunt_cu_event_record(int device, void *event, void *stream);
int shunt_cu_event_wait(int device, void *event, void *stream);
int shunt_cu_event_done(int device, void *event, bool *done_p);
int shunt_cu_event_elapsed_us(int device, void *start, void *stop, float *us_p);
void shunt_cu_event_destroy(int device, void *event);
int shunt_cu_capture_begin(int device, void *stream);
int shunt_cu_capture_end(int device, void *stream, void **graph_p);
int shunt_cu_graph_launch(int device, void *graph, void *stream);
void shunt_cu_graph_destroy(int device, void *graph);
/* capture.c */
int shunt_cu_capture_info(int device, void *stream, struct shunt_gpu_capture *info_p);
int shunt_cu_capture_wait(int device, void *event, void *stream);
int shunt_cu_capture_join(int device, void *stream, void *node);
int shunt_cu_capture_record(int device, const struct shunt_gpu_capture *info, void *event, void **record_p);
int shunt_cu_capture_move_record(int device, const struct shunt_gpu_capture *info, void *from, void *record);
int shunt_cu_capture_retain(int device, const struct shunt_gpu_capture *info, void (*drop)(void *arg), void *arg);
