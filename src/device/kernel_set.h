/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The kernels that a device layer loads and launches, described by the layer above (src/kernels/set.c). A launch
 * names a kernel by its index. All objects are constant and have static storage.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A kernel on the sim. args: the kernel's structure of arguments. */
typedef void shunt_sim_kernel(const void *args);

struct shunt_kernel_desc {
	const char *name;    /* of the function in its fatbin; NULL: no kernel has this index */
	uint16_t arg_bytes;  /* size of its structure of arguments */
	uint16_t fatbin;     /* index of its fatbin */
	bool dynamic_shared; /* launches may ask for up to shared_bytes of shared memory */
};

struct shunt_kernel_set {
	unsigned n;                             /* number of indices */
	const struct shunt_kernel_desc *kernel; /* n of them */
	shunt_sim_kernel *const *sim;           /* n of them; NULL: not in this build */
	const char *const *fatbin;              /* nfatbins of them; the first is NULL in a build without nvcc */
	unsigned nfatbins;
	const char *built_by; /* for messages: "nvcc 13.0 for sm_90" */
	/* The largest launch, for which the device layer queries the driver in advance. */
	unsigned max_blocks, max_threads;
	unsigned cluster_blocks; /* blocks of a cluster */
	unsigned cluster_kernel; /* the kernel launched as clusters that needs most */
	uint32_t shared_bytes;   /* most dynamic shared memory of a block */
};
