/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Whether the real NCCL uses NVLink multicast (NVLS: the switch adds, and copies to all GPUs) for calls in windows.
 * There it is faster than Shunt's kernels from some size on, so selection has to know. Each rank says what it knows;
 * the set-up asks all ranks, and a single obstacle counts for all.
 *
 * The result is a hint, not a proof: a device may have the attribute, and fail if the fabric manager does not run.
 * Nothing of Shunt makes a multicast object, to find out or otherwise. Any thread.
 */
#include <stdbool.h>
#include "device/gpu_ops.h"

/* A rank's facts about its real NCCL, from the communicator's configuration and from NCCL. */
struct shunt_nvls_nccl {
	int version;      /* 22809 for 2.28.9; 0: there is no real NCCL */
	bool windows_off; /* nvlsHostMode, which NCCL reads from 2.32 on, keeps multicast out of windows */
	bool denied;      /* ncclCommQueryProperties says that the communicator has no multicast */
};

/* The first obstacle, of a rank or of all; POSSIBLE: none. In the order in which they are looked at. */
enum shunt_nvls {
	SHUNT_NVLS_POSSIBLE,
	SHUNT_NVLS_NO_NCCL,
	SHUNT_NVLS_OLD_NCCL,
	SHUNT_NVLS_VARIABLE,
	SHUNT_NVLS_CONFIG,
	SHUNT_NVLS_CC,
	SHUNT_NVLS_DEVICE,
	SHUNT_NVLS_DENIED,
	SHUNT_NVLS_SHARED, /* of all ranks: two of them share a GPU */
	SHUNT_NVLS_N,
};

/* enable: NCCL_NVLS_ENABLE. */
enum shunt_nvls shunt_nvls_of_rank(const struct shunt_gpu_info *gpu, const struct shunt_nvls_nccl *nccl, int enable);
/* In words, to stand after "it cannot: ". */
const char *shunt_nvls_name(enum shunt_nvls nvls);
