/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A libcuda.so.1 without a GPU: device memory is host memory, shareable memory is a memfd, work is done when it is
 * enqueued and kernels are only noted down. It keeps count of everything that it hands out and can make any one call
 * fail. A libnvidia-ml.so.1 stands beside it.
 */
#include <stdbool.h>
#include <stddef.h>

enum { FAKE_DEVICES = 3, FAKE_MAX_DEVICES = 12, FAKE_GRANULE = 64 << 10, FAKE_MAX_ARGS = 256 };

struct fake_cuda {
	/* Set by tests. */
	long fail_at;      /* the call with this number (see calls) fails; 0: none */
	bool fail_cleanup; /* calls that give something back may fail too */
	int fail_with;     /* with this result */
	int init_result;
	int devices; /* visible ones, at most FAKE_MAX_DEVICES; 0: FAKE_DEVICES - 1. Before the first call */
	unsigned multicast,
	    ampere;           /* bits of the devices that have multicast, and of those of compute capability 8.0 */
	int capturing_result; /* of cuStreamIsCapturing */
	int image_result;     /* of cuLibraryLoadData for an image of a plug-in's */
	size_t image_text;    /* bytes of that image's text, up to its NUL, as of PTX */
	bool busy;            /* nothing that was put on a stream is done yet, say the queries */
	bool not_shareable;   /* memory looks as if it had not been made to be shared */
	bool edges_hidden;    /* the edges of a capture cannot be told */
	bool untouched;       /* memory comes as zeros, and nobody writes zeros over it */
	int driver;           /* CUDA version of the driver; 0: 12020 */
	int cc;               /* compute capability x 10 */
	int clusters;         /* that have room on a device */
	int shared;           /* most bytes of shared memory that a block can have */
	bool no_peer, no_nvlink, no_rdma, no_marks;
	const char *missing_kernel;
	/* Does what a kernel would, if it is set: its arguments, and how many warps it has. */
	void (*kernel)(const void *args, unsigned warps);
	/* Kept by the fake. */
	long calls;
	const char *failed;                        /* the call that failed by request */
	long live_objects;                         /* objects, mappings and references handed out and not given back */
	long contexts[FAKE_MAX_DEVICES];           /* references to the primary contexts */
	long kernels_loaded, kernels_large_shared; /* ... that may have more than 48 KB of shared memory */
	long added_dependencies;                   /* edges from elsewhere in its capture that a stream was given */
	struct {
		char kernel[64];
		unsigned blocks, threads, cluster;
		int device, mem_sync_domain; /* -1: no such attribute */
		unsigned shared;
		void *stream;
		void *event; /* that the launch records, of the last launch with attributes */
		unsigned char args[FAKE_MAX_ARGS];
		long count;
	} launch;
};
extern struct fake_cuda fake_cuda __attribute__((visibility("default")));

/* May `device` use the shareable memory mapped at ptr? */
bool fake_cuda_access(int device, const void *ptr) __attribute__((visibility("default")));
/* Edges to a node of a graph that is being captured, of those that were added by hand. */
long fake_cuda_edges(void *graph, void *node) __attribute__((visibility("default")));
/* Has the event a record? */
bool fake_cuda_recorded(void *event) __attribute__((visibility("default")));
/* The calling thread's capture mode (0 global, 1 thread-local, 2 relaxed). */
int fake_cuda_capture_mode(void) __attribute__((visibility("default")));
/* Contexts that the calling thread pushed and did not pop. */
long fake_cuda_pushed(void) __attribute__((visibility("default")));
/* cudaDeviceReset(): the primary context goes with its streams, and the next one has its address. */
void fake_cuda_device_reset(int device) __attribute__((visibility("default")));
/* Drops the calling thread's contexts. */
void fake_cuda_reset_thread(void) __attribute__((visibility("default")));

struct fake_nvml {
	bool no_init, no_nvlink, no_write;
	int users;
};
extern struct fake_nvml fake_nvml __attribute__((visibility("default")));
