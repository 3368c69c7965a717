/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The ABI of NCCL's own expert parallel library, libnccl_ep.so.0, in declarations of our own: version 0.1.0, whose
 * structs are those of the interface's versions 1 and 2. Names are NCCL's because they are the ABI.
 *
 * Each struct that is passed by itself begins with its size and a magic number. A struct grows at its end:
 * size_1_of_TYPE is what the oldest caller has. A tensor is a description of memory that stays the caller's.
 */
#include <assert.h>
#include "shim/nccl/abi.h"

#define NCCL_EP_VERSION_CODE 100 /* MAJOR * 10000 + MINOR * 100 + PATCH */
#define NCCL_EP_MAGIC 0xc00fffeeu
#define NCCL_EP_TENSOR_MAGIC 0xcafecafeu
#define NCCL_EP_FLOAT4X2 12 /* an ncclDataType_t of this library alone: two elements to a byte */

/* 0 of those that begin with 1 is no value, or leaves it to the library. */
enum { NCCL_EP_ALGO_LOW_LATENCY = 0, NCCL_EP_ALGO_HIGH_THROUGHPUT = 1 };
enum { NCCL_EP_LAYOUT_EXPERT_MAJOR = 1, NCCL_EP_LAYOUT_RANK_MAJOR = 2, NCCL_EP_LAYOUT_FLAT = 3 };
enum { NCCL_EP_OVERFLOW_TRAP = 1, NCCL_EP_OVERFLOW_DROP = 2 };
enum { NCCL_EP_ZERO_COPY_OFF = 1, NCCL_EP_ZERO_COPY_ON = 2 };
enum { NCCL_EP_EXPERT_ID_LOCAL = 1, NCCL_EP_EXPERT_ID_GLOBAL = 2 };
enum { NCCL_EP_FWD_PASS = 0, NCCL_EP_BWD_PASS = 1 };
enum { NCCL_EP_DISP_QUANT_NONE = 0, NCCL_EP_DISP_QUANT_FWD = 1, NCCL_EP_DISP_QUANT_DS_FP8E3M4 = 2 };

typedef struct ncclEpGroup *ncclEpGroup_t;
typedef struct ncclEpHandle *ncclEpHandle_t;

typedef struct ncclEpTensor {
	unsigned int size, magic;
	unsigned int ndim;
	ncclDataType_t datatype;
	void *data;
	ncclWindow_t win_hdl;
	uint64_t win_offset;
	size_t *sizes; /* [ndim] */
} ncclEpTensor_t;

typedef struct {
	unsigned int size, magic;
} ncclEpTensorAllocConfig_t, ncclEpCompleteConfig_t;

/* Memory of handles; both functions return a cudaError_t. */
typedef struct {
	int (*alloc_fn)(void **ptr, size_t bytes, void *context);
	int (*free_fn)(void *ptr, void *context);
	void *context;
} ncclEpAllocConfig_t;

typedef struct {
	unsigned int size, magic;
	unsigned int version;
	int algorithm;
	unsigned int num_experts;
	unsigned int max_dispatch_tokens_per_rank;
	unsigned int max_recv_tokens_per_rank;
	unsigned int max_token_bytes;
	unsigned long rdma_buffer_size;
	unsigned int num_qp_per_rank;
	unsigned int num_channels;
	unsigned int max_num_sms;
	ncclEpAllocConfig_t alloc;
	unsigned int enable_mask;
	uint64_t timeout_ns; /* version 1: 96 bytes */
	int zero_copy;
	int overflow_policy;
	unsigned int num_topk; /* version 2: 112 */
} ncclEpGroupConfig_t;

typedef struct {
	unsigned int size, magic;
	ncclEpTensor_t *expert_counters;
	ncclEpTensor_t *src_rank_counters;
	ncclEpTensor_t *expert_offsets;
	ncclEpTensor_t *recv_total_counter; /* version 1: 40 */
	int recv_topk_idx_kind;             /* version 2: 48 */
} ncclEpLayoutInfo_t;

typedef struct {
	unsigned int size, magic;
	ncclEpTensor_t *tokens;
	ncclEpTensor_t *topk_weights;
	ncclEpTensor_t *scales;
} ncclEpDispatchInputs_t;

typedef struct {
	unsigned int size, magic;
	ncclEpTensor_t *tokens;
	ncclEpTensor_t *topk_weights;
	ncclEpTensor_t *scales;
	ncclEpTensor_t *topk_idx;
} ncclEpDispatchOutputs_t;

typedef struct {
	unsigned int size, magic;
	ncclEpTensor_t *tokens;
	ncclEpTensor_t *topk_weights; /* version 1: 24 */
	ncclEpTensor_t *scales;       /* version 2: 32 */
} ncclEpCombineInputs_t;

typedef struct {
	unsigned int size, magic;
	ncclEpTensor_t *tokens;
	ncclEpTensor_t *topk_weights;
} ncclEpCombineOutputs_t;

typedef struct {
	unsigned int size, magic;
	size_t dispatch_output_per_expert_alignment;
} ncclEpHandleConfig_t;

typedef struct {
	unsigned int size, magic;
	unsigned int send_only;
	unsigned int round_scales;
	int pass_direction; /* version 1: 20 */
	int quant_recipe;   /* version 2: 24 */
} ncclEpDispatchConfig_t;

typedef struct {
	unsigned int size, magic;
	unsigned int send_only;
	int pass_direction; /* version 1: 16 */
	int quant_recipe;   /* version 2: 20 */
} ncclEpCombineConfig_t;

/* Each struct with the sizes of its version 1 and of today. */
#define NCCL_EP_STRUCTS(ROW) \
	ROW(ncclEpTensor_t, 48, 48) \
	ROW(ncclEpTensorAllocConfig_t, 8, 8) \
	ROW(ncclEpGroupConfig_t, 96, 112) \
	ROW(ncclEpLayoutInfo_t, 40, 48) \
	ROW(ncclEpDispatchInputs_t, 32, 32) \
	ROW(ncclEpDispatchOutputs_t, 40, 40) \
	ROW(ncclEpCombineInputs_t, 24, 32) \
	ROW(ncclEpCombineOutputs_t, 24, 24) \
	ROW(ncclEpHandleConfig_t, 16, 16) \
	ROW(ncclEpDispatchConfig_t, 20, 24) \
	ROW(ncclEpCombineConfig_t, 16, 20) \
	ROW(ncclEpCompleteConfig_t, 8, 8)
#define NCCL_EP_SIZES(type, first, now) \
	static_assert(sizeof(type) == (now), #type " is that of version 2"); \
	enum { size_1_of_##type = (first) };
NCCL_EP_STRUCTS(NCCL_EP_SIZES)

#pragma GCC visibility push(default)
ncclResult_t ncclEpGetVersion(int *version);
ncclResult_t ncclEpTensorAlloc(ncclEpTensor_t **tensor, unsigned int ndim, ncclDataType_t datatype, const size_t *sizes,
    const ncclEpTensorAllocConfig_t *config);
ncclResult_t ncclEpTensorDestroy(ncclEpTensor_t *tensor);
ncclResult_t ncclEpCreateGroup(ncclEpGroup_t *group, ncclComm_t comm, const ncclEpGroupConfig_t *config);
ncclResult_t ncclEpGroupDestroy(ncclEpGroup_t group);
ncclResult_t ncclEpHandleMemSize(
    ncclEpGroup_t group, int layout, const ncclEpHandleConfig_t *config, size_t *size_out, int num_topk);
ncclResult_t ncclEpInitHandle(ncclEpHandle_t *handle, ncclEpGroup_t group, int layout,
    const ncclEpHandleConfig_t *config, int num_topk, const ncclEpTensor_t *handle_mem);
ncclResult_t ncclEpUpdateHandle(
    ncclEpHandle_t handle, const ncclEpTensor_t *topk_idx, const ncclEpLayoutInfo_t *layout_info, cudaStream_t stream);
ncclResult_t ncclEpCreateHandle(ncclEpHandle_t *handle, ncclEpGroup_t group, int layout, const ncclEpTensor_t *topk_idx,
    const ncclEpLayoutInfo_t *layout_info, const ncclEpHandleConfig_t *config, cudaStream_t stream);
ncclResult_t ncclEpHandleDestroy(ncclEpHandle_t handle);
ncclResult_t ncclEpDispatch(ncclEpHandle_t handle, const ncclEpDispatchInputs_t *inputs,
    const ncclEpDispatchOutputs_t *outputs, const ncclEpLayoutInfo_t *layout_info, const ncclEpDispatchConfig_t *config,
    cudaStream_t stream);
ncclResult_t ncclEpCombine(ncclEpHandle_t handle, const ncclEpCombineInputs_t *inputs,
    const ncclEpCombineOutputs_t *outputs, const ncclEpCombineConfig_t *config, cudaStream_t stream);
ncclResult_t ncclEpComplete(ncclEpHandle_t handle, const ncclEpCompleteConfig_t *config, cudaStream_t stream);
ncclResult_t ncclEpMaskQuery(ncclEpGroup_t group, int *mask_status, cudaStream_t stream);
ncclResult_t ncclEpMaskUpdate(ncclEpGroup_t group, const int *mask, cudaStream_t stream);
ncclResult_t ncclEpMaskClean(ncclEpGroup_t group, cudaStream_t stream);
ncclResult_t ncclEpGetAsyncError(ncclEpGroup_t group, int *error_out);
ncclResult_t ncclEpErrorClear(ncclEpGroup_t group);
#pragma GCC visibility pop
