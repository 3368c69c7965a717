/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_DEVICE_GPU_OPS_H
#define SHUNT_DEVICE_GPU_OPS_H
/*
 * The device layer: one table, two machines. cuda.c speaks to the CUDA driver (libcuda.so.1, opened at run time),
 * sim.cc runs the same kernels on CPU threads. Callers hold a const pointer from shunt_gpu() and never ask which it is.
 *
 * Every int function returns 0 or a negative errno and logs the cause once where it detects it (with the CUDA error's
 * name). Every function may be called from any thread; those that take a device make it current for the call and
 * restore what was current. `void *stream` is a cudaStream_t value (NULL, 1 = legacy, 2 = per thread included).
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "device/kernel_set.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shunt_gpu_info {
	char name[64];
	uint8_t uuid[16]; /* the same for one device in every process of this host */
	uint32_t sms;     /* multiprocessors; upper limit of co-resident blocks */
	uint16_t cc;      /* compute capability x 10: 90 for sm_90; the sim says 0 */
	uint16_t sim;     /* 1 on the sim */
	uint32_t driver;  /* CUDA version of the driver, 13000 for 13.0; the sim says 0 */
	uint32_t tma;     /* 1: kernels can have the set's shared_bytes of shared memory, and its TMA copies go on by
	                     themselves */
};

/* A piece of device memory that peers may map. All fields are the ops' to write. */
struct shunt_gpu_mem {
	void *ptr; /* usable by kernels of `device`; NULL: nothing here */
	size_t bytes;
	int device; /* the device whose kernels use ptr */
	int fd;     /* exporter: descriptor for peers, closed by share_free unless it is -1 by then; importer: -1 */
	uint64_t handle; /* private */
	bool borrowed;   /* mapped by share_borrow: freeing it leaves the exporter's mapping alone */
};

/* Memory of this process as peers can map it. */
struct shunt_gpu_export {
	void *base;   /* the allocation */
	size_t bytes; /* all of it, as share_map wants to know */
	int fd;       /* the caller's to close */
};

enum shunt_capture { SHUNT_CAPTURE_NONE, SHUNT_CAPTURE_ACTIVE, SHUNT_CAPTURE_INVALID };

/* A capture in progress, seen from one stream. Only state is set unless that is SHUNT_CAPTURE_ACTIVE. */
struct shunt_gpu_capture {
	enum shunt_capture state;
	uint64_t id; /* of the capture, whichever of its streams is asked; never used again in this process */
	void *graph; /* being built; valid until the capture ends */
	void *node;  /* the one node that the stream's next operation will follow; NULL: none, or several */
};

struct shunt_gpu_launch {
	unsigned kernel; /* index in the set of kernels */
	unsigned blocks, threads;
	const void *args; /* the kernel's structure of arguments, copied by the call */
	size_t arg_bytes;
	void *stream;
	unsigned cluster; /* 0, or in clusters of so many blocks, if it divides them and the device has room for all */
	unsigned shared;  /* bytes that a block has as GPU_DYNAMIC_SHARED; only on devices with `tma` */
};

struct shunt_gpu_ops {
	const char *name; /* "cuda" or "sim" */

	/*
	 * Opens the layer for these kernels, or NULL: to look at devices; called once per process before anything else.
	 * -ENODEV: no driver or no device, or no kernels in the set for it (not logged).
	 */
	int (*open)(const struct shunt_kernel_set *kernels);
	int (*device_count)(int *count_p);
	/* Has the program, or anybody else in this process, begun to work on one of them? False on the sim. */
	bool (*in_use)(void);
	int (*device_get)(int *device_p);
	int (*device_set)(int device);
	int (*device_info)(int device, struct shunt_gpu_info *info_p);
	/*
	 * Can kernels of `device` store to the memory of the device with this uuid over a link that keeps a warp's
	 * 128-byte store whole (NVLink)? 0: yes; -EOPNOTSUPP: no, and *reason_p (static storage) says why. The same
	 * device: yes.
	 */
	int (*peer_check)(int device, const struct shunt_gpu_info *peer, const char **reason_p);

	/* Zeroed memory that peers can map; bytes is rounded up by the call (mem_p->bytes). */
	int (*share_alloc)(int device, size_t bytes, struct shunt_gpu_mem *mem_p);
	/*
	 * Maps a peer's memory, received as descriptor; the caller keeps fd and closes it. bytes as the exporter's
	 * mem.bytes.
	 */
	int (*share_map)(int device, int fd, size_t bytes, struct shunt_gpu_mem *mem_p);
	/*
	 * The same for an exporter in this very process: same address, no second mapping; gives `device` access to it.
	 */
	int (*share_borrow)(int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p);
	/*
	 * The same for memory that share_export can pass on, of an owner who may free it before us: it lasts, and its
	 * address is not used again, until share_free. ptr and bytes are those of the allocation.
	 */
	int (*share_alias)(int device, void *ptr, size_t bytes, struct shunt_gpu_mem *mem_p);
	/* Unmaps or frees whatever the four above made; zeroes *mem. Accepts an all-zero *mem. */
	void (*share_free)(struct shunt_gpu_mem *mem);
	/*
	 * The one allocation of `device` that ptr to ptr + bytes lie in, whoever made it. -EOPNOTSUPP, not logged: it
	 * cannot be passed on, and *reason_p (static storage) says why.
	 */
	int (*share_export)(
	    int device, const void *ptr, size_t bytes, struct shunt_gpu_export *export_p, const char **reason_p);

	/* Plain memory of a device; free finds the device by itself. */
	int (*mem_alloc)(int device, size_t bytes, void **ptr_p);
	int (*mem_free)(void *ptr);
	/* The same in an allocation of its own that share_export can pass on. */
	int (*mem_alloc_shared)(int device, size_t bytes, void **ptr_p);
	/* The allocation that ptr lies in. -ENOENT, not logged: nobody knows. */
	int (*mem_range)(const void *ptr, void **base_p, size_t *bytes_p);
	int (*mem_info)(int device, size_t *free_p, size_t *total_p);
	/* Page-locked host memory that kernels of every device reach at *dev_p; zeroed. */
	int (*host_alloc)(size_t bytes, void **host_p, void **dev_p);
	void (*host_free)(void *host);

	/*
	 * Synchronous copy, either side host or device, on a stream of its own: it does not wait for kernels that run,
	 * so it may be used to reach a kernel that spins. Allowed while another stream captures.
	 */
	int (*copy)(int device, void *dst, const void *src, size_t bytes);
	int (*copy_async)(int device, void *dst, const void *src, size_t bytes, void *stream);
	int (*memset_async)(int device, void *dst, int value, size_t bytes, void *stream);

	/*
	 * Loads every kernel onto the device now (lazy loading deadlocks against kernels that spin). Repeated calls are
	 * cheap.
	 */
	int (*kernels_load)(int device);
	/* Is this kernel part of the build? The same answer on all ranks of one build. */
	bool (*kernel_exists)(unsigned kernel);
	int (*launch)(int device, const struct shunt_gpu_launch *launch);
	/*
	 * How many blocks a launch in clusters may have so that it and one of the set's max_blocks single blocks
	 * always find room beside each other, whichever comes first; 0: none, or the kernels are not loaded.
	 */
	unsigned (*cluster_blocks)(int device);

	int (*stream_create)(int device, void **stream_p); /* non-blocking */
	int (*stream_sync)(int device, void *stream);
	/* Would stream_sync return at once? Not for a stream that captures. */
	int (*stream_idle)(int device, void *stream, bool *idle_p);
	int (*device_sync)(int device); /* every stream of this device in this process */
	void (*stream_destroy)(int device, void *stream);
	int (*stream_capture)(int device, void *stream, enum shunt_capture *state_p);
	int (*event_create)(int device, bool timing, void **event_p);
	int (*event_record)(int device, void *event, void *stream);
	int (*event_wait)(int device, void *event, void *stream); /* stream waits for event */
	/* Has what the last record covers been done? True without a record. */
	int (*event_done)(int device, void *event, bool *done_p);
	int (*event_elapsed_us)(int device, void *start, void *stop, float *us_p);
	void (*event_destroy)(int device, void *event);
	int (*capture_begin)(int device, void *stream);
	int (*capture_end)(int device, void *stream, void **graph_p); /* instantiated */
	/*
	 * What comm/stream_order.c puts into a capture in progress. The graph's nodes for an event speak of the event
	 * as it is outside of the graph: each launch of the graph waits for what the event's last record covered when
	 * the launch was issued, and records it anew.
	 */
	int (*capture_info)(int device, void *stream, struct shunt_gpu_capture *info_p);
	/* What the stream captures from now on waits for the event. */
	int (*capture_wait)(int device, void *event, void *stream);
	/* What the stream captures from now on also follows node, of the same capture. */
	int (*capture_join)(int device, void *stream, void *node);
	/* Adds a node that records the event after info->node; no stream follows it. */
	int (*capture_record)(int device, const struct shunt_gpu_capture *info, void *event, void **record_p);
	/* Makes such a node follow info->node in the place of `from`. */
	int (*capture_move_record)(int device, const struct shunt_gpu_capture *info, void *from, void *record);
	/*
	 * Has drop(arg) called once: when the graph, all that was instantiated from it and all launches of that are
	 * gone, or before the return of an error. From any thread; it may not call the device layer.
	 */
	int (*capture_retain)(int device, const struct shunt_gpu_capture *info, void (*drop)(void *arg), void *arg);
	int (*graph_launch)(int device, void *graph, void *stream);
	void (*graph_destroy)(int device, void *graph);
};

extern const struct shunt_gpu_ops shunt_gpu_cuda_ops; /* src/device/cuda/cuda.c */
extern const struct shunt_gpu_ops shunt_gpu_sim_ops;  /* src/device/sim/sim.cc */

/*
 * The chosen layer (src/device/choice.c), opened for these kernels, or NULL with one log line. Decided by the first
 * call of a process: SHUNT_DEVICE=cuda|sim, or auto: cuda where shunt_gpu_prefer_cuda was called; else cuda with two
 * devices or more, or one that the program uses (each process may be shown only its own), else sim.
 */
const struct shunt_gpu_ops *shunt_gpu_open(const struct shunt_kernel_set *kernels);
/* Before shunt_gpu_open: there is a real NCCL, so that auto means cuda. */
void shunt_gpu_prefer_cuda(void);

#ifdef __cplusplus
}
#endif
#endif
