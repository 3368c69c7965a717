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

	/*
	 * Opens the layer for these kernels; NULL: only to query devices. Called once per process before any other
	 * function. -ENODEV: no driver, no device, or no kernels for it in the set (not logged).
	 */
	int (*open)(const struct shunt_kernel_set *kernels);
	int (*device_count)(int *count_p);
	/* Has any code of this process begun to use one of the devices? False on the sim. */
	bool (*in_use)(void);
	int (*device_get)(int *device_p);
	int (*device_set)(int device);
	int (*device_info)(int device, struct shunt_gpu_info *info_p);
	/*
	 * By which link can kernels of `device` store to the memory of the device with this uuid? SHUNT_LINK_SELF (the
	 * same device), SHUNT_LINK_NVLINK or SHUNT_LINK_PEER; NVLink alone keeps a warp's 128-byte store whole.
	 * -EOPNOTSUPP: by none. *reason_p (static storage): why it is not NVLink.
	 */
	int (*peer_check)(int device, const struct shunt_gpu_info *peer, const char **reason_p);

	/* Allocates zeroed memory that peers can map. The call rounds bytes up (mem_p->bytes). */
	int (*share_alloc)(int device, size_t bytes, struct shunt_gpu_mem *mem_p);
	/*
	 * Maps a peer's memory, received as a descriptor. The caller keeps fd and closes it. bytes: the exporter's
	 * mem.bytes.
	 */
	int (*share_map)(int device, int fd, size_t bytes, struct shunt_gpu_mem *mem_p);
	/* The same for an exporter in this process: same address, no second mapping. Gives `device` access to it. */
	int (*share_borrow)(int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p);
	/*
	 * The same for memory that share_export can pass on, whose owner may free it earlier: until share_free the
	 * memory lasts and its address is not used again. ptr and bytes: of the allocation.
	 */
	int (*share_alias)(int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p);
	/* Unmaps or frees memory of the four functions above; zeroes *mem. Accepts an all-zero *mem. */
	void (*share_free)(struct shunt_gpu_mem *mem);
	/*
	 * Exports the allocation of `device` that contains ptr to ptr + bytes, by whichever allocator. -EOPNOTSUPP,
	 * not logged: it cannot be passed on; *reason_p (static storage) is the reason.
	 */
	int (*share_export)(
	    int device, const void *ptr, size_t bytes, struct shunt_gpu_export *export_p, const char **reason_p);

	/* Plain memory of a device. mem_free finds the device by itself. */
	int (*mem_alloc)(int device, size_t bytes, void **ptr_p);
	int (*mem_free)(void *ptr);
	/* The same, in an allocation of its own that share_export can pass on. */
	int (*mem_alloc_shared)(int device, size_t bytes, void **ptr_p);
	/*
	 * A descriptor (dma-buf) by which a NIC reads and writes memory of mem_alloc_shared, from its start on; the
	 * caller closes it. -EOPNOTSUPP, not logged: this device, or its driver, has no such descriptors.
	 */
	int (*mem_dmabuf)(int device, const void *ptr, size_t bytes, int *fd_p);
	/* The allocation that contains ptr. -ENOENT, not logged: unknown. */
	int (*mem_range)(const void *ptr, void **base_p, size_t *bytes_p);
	int (*mem_info)(int device, size_t *free_p, size_t *total_p);
	/* Zeroed page-locked host memory, which kernels of every device access at *dev_p. */
	int (*host_alloc)(size_t bytes, void **host_p, void **dev_p);
	void (*host_free)(void *host);
	/*
	 * Page-locks whole pages of the caller's, which may be shared with other processes, for kernels of every
	 * device. The caller unmaps them after host_unregister.
	 */
	int (*host_register)(void *host, size_t bytes, void **dev_p);
	void (*host_unregister)(void *host);

	/*
	 * Synchronous copy, either side host or device, on a stream of its own. It does not wait for running kernels,
	 * so it can reach a kernel that spins. Allowed while another stream captures.
	 */
	int (*copy)(int device, void *dst, const void *src, size_t bytes);
	int (*copy_async)(int device, void *dst, const void *src, size_t bytes, void *stream);
	int (*memset_async)(int device, void *dst, int value, size_t bytes, void *stream);
	/*
	 * The stream writes value to a word of host_alloc's memory, behind all work that it has got. word: as the
	 * device sees it. -EOPNOTSUPP, not logged: the driver refuses.
	 */
	int (*mark)(int device, void *stream, uint64_t *word, uint64_t value);

	/*
	 * Loads every kernel onto the device now: lazy loading deadlocks with kernels that spin. Repeated calls are
	 * cheap.
	 */
	int (*kernels_load)(int device);
	/* Is this kernel part of the build? The same on all ranks of one build. */
	bool (*kernel_exists)(unsigned kernel);
	int (*launch)(int device, const struct shunt_gpu_launch *launch);
	/*
	 * Loads a kernel of the program's, for good. -ENOEXEC, not logged: it is none for this device, or broken; why
	 * has the driver's words. -EOPNOTSUPP: on the sim.
	 */
	int (*image_load)(int device, const struct shunt_gpu_image *image, struct shunt_gpu_function *function_p,
	    char *why, size_t bytes);
	/* As launch, with this function in place of launch->kernel, and args of arg_bytes. */
	int (*launch_function)(int device, const struct shunt_gpu_function *function,
	    const struct shunt_gpu_launch *launch, size_t arg_bytes);
	/*
	 * Most blocks of a launch in clusters such that this launch and a launch of the set's max_blocks single
	 * blocks always fit on the device together, in either order. 0: none, or the kernels are not loaded.
	 */
	unsigned (*cluster_blocks)(int device);

	int (*stream_create)(int device, void **stream_p); /* non-blocking */
	int (*stream_sync)(int device, void *stream);
	/* Would stream_sync return at once? Not allowed for a stream that captures. */
	int (*stream_idle)(int device, void *stream, bool *idle_p);
	int (*device_sync)(int device); /* waits for every stream of this device in this process */
	void (*stream_destroy)(int device, void *stream);
	int (*stream_capture)(int device, void *stream, enum shunt_capture *state_p);
	int (*event_create)(int device, bool timing, void **event_p);
	int (*event_record)(int device, void *event, void *stream);
	int (*event_wait)(int device, void *event, void *stream); /* stream waits for event */
	/* Is the work that the last record covers done? True without a record. */
	int (*event_done)(int device, void *event, bool *done_p);
	int (*event_elapsed_us)(int device, void *start, void *stop, float *us_p);
	void (*event_destroy)(int device, void *event);
	int (*capture_begin)(int device, void *stream);
	int (*capture_end)(int device, void *stream, void **graph_p); /* instantiated */
	/*
	 * For comm/parts/stream_order.c: changes to a capture in progress. A graph's nodes for an event refer to the
	 * event outside of the graph: each launch of the graph waits for the event's last record at the time of the
	 * launch, and records the event anew.
	 */
	int (*capture_info)(int device, void *stream, struct shunt_gpu_capture *info_p);
	/* The operations that the stream captures from now on wait for the event. */
	int (*capture_wait)(int device, void *event, void *stream);
	/* The operations that the stream captures from now on also follow node, of the same capture. */
	int (*capture_join)(int device, void *stream, void *node);
	/* Adds a node that records the event after info->node. No stream follows the node. */
	int (*capture_record)(int device, const struct shunt_gpu_capture *info, void *event, void **record_p);
	/* Makes such a node follow info->node instead of `from`. */
	int (*capture_move_record)(int device, const struct shunt_gpu_capture *info, void *from, void *record);
	/*
	 * Calls drop(arg) once: when the graph, all instances of it and all their launches are gone, or before an
	 * error is returned. From any thread. drop must not call the device layer.
	 */
	int (*capture_retain)(int device, const struct shunt_gpu_capture *info, void (*drop)(void *arg), void *arg);
	int (*graph_launch)(int device, void *graph, void *stream);
	void (*graph_destroy)(int device, void *graph);
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
