/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * NCCL's ABI in declarations of our own: what a caller built against nccl.h 2.14 to 2.32 passes and expects. No NCCL or
 * CUDA header is needed; tests/abi compares every type, value, layout and prototype with a system nccl.h if there is
 * one. Names are NCCL's because they are the ABI. A cudaStream_t is only passed through, so void * will do.
 */
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *cudaStream_t;
typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct ncclWaitSignalDesc ncclWaitSignalDesc_t; /* never read by us */

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
	char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
	ncclSuccess = 0,
	ncclUnhandledCudaError = 1,
	ncclSystemError = 2,
	ncclInternalError = 3,
	ncclInvalidArgument = 4,
	ncclInvalidUsage = 5,
	ncclRemoteError = 6,
	ncclInProgress = 7,
	ncclTimeout = 8, /* since 2.30; we never return it, older callers cannot read it */
} ncclResult_t;

typedef enum {
	ncclInt8 = 0,
	ncclUint8 = 1,
	ncclInt32 = 2,
	ncclUint32 = 3,
	ncclInt64 = 4,
	ncclUint64 = 5,
	ncclFloat16 = 6,
	ncclFloat32 = 7,
	ncclFloat64 = 8,
	ncclBfloat16 = 9,
	ncclFloat8e4m3 = 10,
	ncclFloat8e5m2 = 11,
	ncclNumTypes = 12,
} ncclDataType_t;

/* Values from ncclNumOps on are operators that the program created. */
typedef enum {
	ncclSum = 0,
	ncclProd = 1,
	ncclMax = 2,
	ncclMin = 3,
	ncclAvg = 4,
	ncclNumOps = 5,
	ncclMaxRedOp = 0x7fffffff,
} ncclRedOp_t;

typedef enum {
	ncclScalarDevice = 0,
	ncclScalarHostImmediate = 1,
} ncclScalarResidence_t;

/* 2.29.7 */
typedef enum {
	ncclStatGpuMemSuspend = 0,
	ncclStatGpuMemSuspended = 1,
	ncclStatGpuMemPersist = 2,
	ncclStatGpuMemTotal = 3,
} ncclCommMemStat_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_REVOKE_DEFAULT 0x00
#define NCCL_SUSPEND_MEM 0x01
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

/* 2.32, of nvlsHostMode: no multicast in NCCL's kernels for windows, and in copies. Bit 0 is for all other calls. */
#define NCCL_NVLS_HOST_MODE_DISABLE_SYMMETRIC_MULTIMEM 0x02

#define SHUNT_NCCL_CONFIG_MAGIC 0xcafebeefu
#define SHUNT_NCCL_SIM_MAGIC 0x74685283u
/* The first 8 bytes of NCCL's communicators since 2.21; those of standalone mode have them, too. */
#define SHUNT_NCCL_COMM_MAGIC 0x0280028002800280ull
/* Grows at the end from version to version; `size` is the size of the struct that the caller has. */
typedef struct {
	size_t size;
	unsigned int magic;
	unsigned int version;
	int blocking; /* 2.14: 24 bytes */
	int cgaClusterSize;
	int minCTAs;
	int maxCTAs;
	const char *netName; /* 2.17: 40 */
	int splitShare;      /* 2.18: 48 */
	int trafficClass;    /* 2.26: 48, was padding */
	const char *commName;
	int collnetEnable;
	int CTAPolicy;
	int shrinkShare;
	int nvlsCTAs; /* 2.27: 72 */
	int nChannelsPerNetPeer;
	int nvlinkCentricSched; /* 2.28: 80 */
	int graphUsageMode;
	int numRmaCtx; /* 2.29: 88 */
	int maxP2pPeers;
	int graphStreamOrdering; /* 2.30: 96 */
	int launchOrderImplicit;
	int numRmaSig;
	int rmaEagerInit;
	int hostCftMode;  /* 2.31: 112 */
	int nvlsHostMode; /* 2.32: 120 */
} ncclConfig_t;

typedef struct {
	size_t size;
	unsigned int magic;
	unsigned int version;
	float estimatedTime;
} ncclSimInfo_t;

/* 2.29: what ncclCommQueryProperties answers; grows at the end like ncclConfig_t. It is in NCCL's nccl_device.h. */
typedef struct {
	size_t size;
	unsigned int magic;
	unsigned int version;
	int rank;
	int nRanks;
	int cudaDev;
	int nvmlDev;
	bool deviceApiSupport;
	bool multimemSupport;
	int ginType;   /* an enum; 0: none */
	int nLsaTeams; /* sets of ranks that load and store each other's memory */
	bool hostRmaSupport;
	int railedGinType; /* 2.29: 56 bytes */
	uint64_t commHash;
	int ginMinStride;
	int ginConnectionType;
	bool ginSupport[64];
	size_t devCommRuntimeVersionSize;
	bool cftSupport;
	bool cftMulticastSupport;
	bool cftCountedSupport; /* 2.32: 152 */
} ncclCommProperties_t;

/* 2.31: an option of one call; never read by us, only handed on. */
typedef struct ncclConfigExt {
	struct ncclConfigExt *next;
	struct {
		int vendorId;
		int optionId;
	} id;
	union {
		int i;
		const char *s;
		void *p;
	} value;
} ncclConfigExt_t;

typedef struct {
	size_t size;
	unsigned int magic;
	unsigned int version;
	const ncclConfigExt_t *ext;
	int minCTAs;
	int maxCTAs;
	int nvlsCTAs;
	int cgaClusterSize;
	const char *algSelection;
	int forceAlgSelection;
	int CTAPolicy;
	uint64_t userProfilerTag;    /* 2.31: 64 bytes */
	void *launchCompletionEvent; /* 2.32: 72; a CUDA event that NCCL records */
} ncclCollConfig_t;

/* The properties as in 2.29.2; with a newer version NCCL would set up its device API. */
#define SHUNT_NCCL_PROPERTIES_BYTES offsetof(ncclCommProperties_t, nLsaTeams)
#define SHUNT_NCCL_PROPERTIES_VERSION 22902

#ifndef __cplusplus
_Static_assert(SHUNT_NCCL_PROPERTIES_BYTES == 40 && offsetof(ncclCommProperties_t, multimemSupport) == 33, "2.29.2");
_Static_assert(sizeof(ncclUniqueId) == 128, "passed by value");
_Static_assert(sizeof(ncclRedOp_t) == 4 && sizeof(ncclDataType_t) == 4 && sizeof(ncclResult_t) == 4, "enums are ints");
_Static_assert(sizeof(ncclConfig_t) == 120 && offsetof(ncclConfig_t, trafficClass) == 44, "2.32");
_Static_assert(sizeof(ncclSimInfo_t) == 24 && sizeof(ncclConfigExt_t) == 24, "2.22, 2.31");
_Static_assert(sizeof(ncclCommProperties_t) == 152 && offsetof(ncclCommProperties_t, commHash) == 56, "2.29, 2.32");
_Static_assert(sizeof(ncclCollConfig_t) == 72 && offsetof(ncclCollConfig_t, launchCompletionEvent) == 64, "2.32");
#endif

/* Prototypes of the TYPED, TEXT and VOID functions: ncclX and its twin pncclX. */
#pragma GCC visibility push(default)
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
#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
