/* SPDX-License-Identifier: MIT */
/* The system's nccl.h. That this compiles proves that our prototypes are compatible with its own. */
#include <stddef.h>
#include <stdint.h>
#include <nccl.h>
#include "tests/shim/layout.h"

/* In all versions this type is nccl_device.h's, which is for nvcc. */
typedef struct properties_of_the_device_header ncclCommProperties_t;
#if NCCL_VERSION_CODE < 23100 /* types of later versions, so that our list of prototypes can be read */
typedef struct later_coll_config ncclCollConfig_t;
#endif
#if NCCL_VERSION_CODE < 22902
typedef struct later_wait_signal_desc ncclWaitSignalDesc_t;
#endif
#if NCCL_VERSION_CODE < 22907
typedef enum { ncclStatGpuMemSuspend } ncclCommMemStat_t;
#endif
#if NCCL_VERSION_CODE < 22700
typedef struct ncclWindow_vidmem *ncclWindow_t;
#endif
#if NCCL_VERSION_CODE < 22200
typedef struct later_sim_info ncclSimInfo_t;
#endif

#define TYPED(name, params, args) \
	ncclResult_t nccl##name params; \
	ncclResult_t pnccl##name params;
#define TEXT(name, params, args) \
	const char *nccl##name params; \
	const char *pnccl##name params;
#define VOID(name, params, args) \
	void nccl##name params; \
	void pnccl##name params;
#include "shim/nccl/symbols.def"

const int system_version = NCCL_VERSION_CODE;
const struct fact system_facts[] = {
#include "tests/shim/layout.def"
	{ 0 }
};
