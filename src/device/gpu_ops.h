/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The device layer: one table of operations, for two machines. src/device/cuda speaks to the CUDA driver
 * (libcuda.so.1, opened at run time). src/device/sim runs the same kernels on CPU threads. Callers hold the const
 * pointer from shunt_gpu_open() and need not know which machine it is.
 *
 *   Errors   Every int function returns 0 or a negative errno, and logs the cause once where it detects it (with the
 *            CUDA error's name).
 *   Threads  Every function may be called from any thread. Functions that take a device make it current for the call,
 *            and restore the current device.
 *   Streams  void *stream is a cudaStream_t value (NULL, 1 = legacy, 2 = per thread included).
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/link.h"
#include "device/kernel_set.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shunt_gpu_info {
	char name[64];
	uint8_t uuid[16]; /* the same for a device in every process of this host */
	char pci[16];     /* its address, "0000:19:00.0"; "" on the sim */
	uint32_t sms;     /* multiprocessors; upper limit of co-resident blocks */
	uint16_t cc;      /* compute capability x 10: 90 for sm_90; 0 on the sim */
	uint16_t sim;     /* 1 on the sim */
	uint32_t driver;  /* CUDA version of the driver, 13000 for 13.0; 0 on the sim */
	/* 1: kernels can have the kernel set's shared_bytes of shared memory, and TMA copies are asynchronous. */
	uint32_t tma;
	/* 1: the driver says that it can be part of NVLink multicast objects. Nothing of Shunt makes such an object. */
	uint32_t multicast;
};

/* Device memory that peers may map. The operations write all fields. */
struct shunt_gpu_mem {
	void *ptr; /* usable by kernels of `device`; NULL: no memory */
	size_t bytes;
	int device; /* the device whose kernels use ptr */
	/* Exporter: descriptor for peers. share_free closes it unless it has become -1. Importer: -1. */
	int fd;
	uint64_t handle; /* private */
	bool borrowed;   /* mapped by share_borrow: freeing it leaves the exporter's mapping alone */
	void *host;      /* of transport/symm/host_memory.h: its address for the CPU; NULL: memory of a device */
};

/* An allocation of this process, for peers to map. */
struct shunt_gpu_export {
	void *base;   /* the allocation */
	size_t bytes; /* of the whole allocation, as share_map expects */
	int fd;       /* the caller closes it */
};

enum shunt_capture { SHUNT_CAPTURE_NONE, SHUNT_CAPTURE_ACTIVE, SHUNT_CAPTURE_INVALID };

/* A capture in progress, seen from one stream. Unless state is SHUNT_CAPTURE_ACTIVE, only state is set. */
struct shunt_gpu_capture {
	enum shunt_capture state;
	uint64_t id; /* of the capture, the same for all of its streams; never used again in this process */
	void *graph; /* being built; valid until the capture ends */
	void *node;  /* the only node that the stream's next operation will follow; NULL: none, or several */
};

/* A kernel of the program's, which takes one structure as its only argument, or has parameters of its own. */
struct shunt_sim_ops; /* shunt/plugin.h */
typedef void shunt_sim_user_kernel(const struct shunt_sim_ops *ops, const void *args);
struct shunt_gpu_image {
	const void *image; /* cubin, fatbin or PTX */
	size_t bytes;
	const char *symbol;
	unsigned shared; /* most dynamic shared memory of a block */
	bool has_params; /* a launch's args are an array of their addresses */
	bool waits;      /* it waits for earlier work of its stream by itself, where its machine code can */
};
struct shunt_gpu_function {
	void *function;             /* on GPUs */
	shunt_sim_user_kernel *sim; /* on the sim: set by the caller, and there is no image */
	bool has_params, waits;
};

struct shunt_gpu_launch {
	unsigned kernel; /* index in the kernel set */
	unsigned blocks, threads;
	const void *args; /* the kernel's structure of arguments, as large as the set says; copied by the call */
	void *stream;
	/* Blocks of a cluster, if it divides `blocks` and the device has room for all clusters. 0: no clusters. */
	unsigned cluster;
	unsigned shared; /* bytes of a block's GPU_DYNAMIC_SHARED; only on devices with `tma` */
	/*
	 * An event without time stamps, recorded when all blocks have begun; NULL: none. Drivers for CUDA 12.2 and
	 * earlier record it before the launch.
	 */
	void *launched;
};

struct shunt_gpu_ops {
	const char *name; /* "cuda" or "sim" */
	/*
	 * More threads of a block than these make no kernel faster; 0: there is no such number. The sim has few cores,
	 * and runs threads as fibers.
	 */
	unsigned helpful_threads;
#define OP(result, name, params) result(*name) params;
#include "device/gpu_ops.def"
};

extern const struct shunt_gpu_ops shunt_gpu_cuda_ops; /* src/device/cuda/cuda.c */
extern const struct shunt_gpu_ops shunt_gpu_sim_ops;  /* src/device/sim/sim.cc */

/*
 * The chosen layer (src/device/choice.c), opened for these kernels, or NULL with one log line. The first call of a
 * process decides, by SHUNT_DEVICE:
 *
 *   cuda, sim  that layer
 *   auto       cuda if shunt_gpu_prefer_cuda was called; or with two devices or more (with one if ranks may share a
 *              GPU); or with one that the process uses, as each process may see only its own; else sim
 */
const struct shunt_gpu_ops *shunt_gpu_open(const struct shunt_kernel_set *kernels);
/* The same, without a choice: NULL if there was none yet. */
const struct shunt_gpu_ops *shunt_gpu_chosen(void);
/* To be called before shunt_gpu_open where there is a real NCCL: auto then means cuda. */
void shunt_gpu_prefer_cuda(void);

#ifdef __cplusplus
}
#endif
