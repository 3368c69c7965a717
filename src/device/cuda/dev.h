/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Shared by the files of src/device/cuda: the driver's calls, the devices, and entering a device's context (context.c);
 * then the operations, for the table in cuda.c. The files of operations do not call each other.
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
/* A device for calls that any device serves: the thread's, else one in use, else 0. */
int shunt_cu_any_device(void);

/* The operations, each in the file of its subject. */
#define OP(result, name, params) result shunt_cu_##name params;
#include "device/gpu_ops.def"
