/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The part of the ABI of the CUDA driver and of NVML that Shunt calls, in declarations of its own: the library builds
 * without their headers and finds libcuda.so.1 and libnvidia-ml.so.1 at run time. tests/device/cuda_abi.cc compares
 * the driver's part with cuda.h where that is installed.
 *
 * Results and enums are int, device pointers unsigned long long, handles void *. C and C++.
 */
#include <stddef.h>

enum shunt_cu_result {
	SHUNT_CU_SUCCESS = 0,
	SHUNT_CU_INVALID_VALUE = 1,
	SHUNT_CU_OUT_OF_MEMORY = 2,
	SHUNT_CU_NOT_INITIALIZED = 3,
	SHUNT_CU_DEINITIALIZED = 4,
	SHUNT_CU_STUB_LIBRARY = 34,
	SHUNT_CU_DEVICE_UNAVAILABLE = 46,
	SHUNT_CU_NO_DEVICE = 100,
	SHUNT_CU_INVALID_DEVICE = 101,
	SHUNT_CU_INVALID_IMAGE = 200,
	SHUNT_CU_INVALID_CONTEXT = 201,
	SHUNT_CU_NO_BINARY_FOR_GPU = 209,
	SHUNT_CU_PEER_ACCESS_UNSUPPORTED = 217,
	SHUNT_CU_INVALID_PTX = 218,
	SHUNT_CU_JIT_COMPILER_NOT_FOUND = 221,
	SHUNT_CU_UNSUPPORTED_PTX_VERSION = 222,
	SHUNT_CU_INVALID_HANDLE = 400,
	SHUNT_CU_LOSSY_QUERY = 402, /* from CUDA 12.3 on */
	SHUNT_CU_NOT_FOUND = 500,
	SHUNT_CU_NOT_READY = 600,
	SHUNT_CU_ILLEGAL_ADDRESS = 700,
	SHUNT_CU_LAUNCH_OUT_OF_RESOURCES = 701,
	SHUNT_CU_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
	SHUNT_CU_NOT_PERMITTED = 800,
	SHUNT_CU_NOT_SUPPORTED = 801,
	SHUNT_CU_SYSTEM_NOT_READY = 802,
	SHUNT_CU_SYSTEM_DRIVER_MISMATCH = 803,
	SHUNT_CU_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
	/* 900 ... 909: the call is not allowed while this stream, or a stream that it depends on, captures */
	SHUNT_CU_STREAM_CAPTURE_UNSUPPORTED = 900,
	SHUNT_CU_STREAM_CAPTURE_INVALIDATED = 901,
	SHUNT_CU_STREAM_CAPTURE_IMPLICIT = 906,
	SHUNT_CU_STREAM_CAPTURE_WRONG_THREAD = 908,
	SHUNT_CU_TIMEOUT = 909,
};

enum {
	SHUNT_CU_ATTR_MULTIPROCESSOR_COUNT = 16,
	SHUNT_CU_ATTR_COMPUTE_CAPABILITY_MAJOR = 75,
	SHUNT_CU_ATTR_COMPUTE_CAPABILITY_MINOR = 76,
	SHUNT_CU_ATTR_MAX_SHARED_BYTES_OPTIN = 97,
	SHUNT_CU_ATTR_RDMA_OF_MAPPED_MEMORY = 110,
	SHUNT_CU_ATTR_DMABUF_SUPPORTED = 124,
	SHUNT_CU_ATTR_MULTICAST_SUPPORTED = 132,

	SHUNT_CU_P2P_NATIVE_ATOMIC_SUPPORTED = 3,

	SHUNT_CU_POINTER_DEVICE_ORDINAL = 9,
	SHUNT_CU_FUNC_NUM_REGS = 4,
	SHUNT_CU_FUNC_PTX_VERSION = 5,
	SHUNT_CU_FUNC_MAX_DYNAMIC_SHARED_BYTES = 8,

	SHUNT_CU_STREAM_NON_BLOCKING = 1,
	SHUNT_CU_EVENT_DISABLE_TIMING = 2,
	SHUNT_CU_EVENT_WAIT_EXTERNAL = 1,

	SHUNT_CU_HOST_PORTABLE = 1,
	SHUNT_CU_HOST_DEVICEMAP = 2,

	SHUNT_CU_MEM_ALLOCATION_PINNED = 1,
	SHUNT_CU_MEM_HANDLE_POSIX_FD = 1,
	SHUNT_CU_RANGE_HANDLE_DMABUF = 1,
	SHUNT_CU_MEM_LOCATION_DEVICE = 1,
	SHUNT_CU_MEM_ACCESS_READWRITE = 3,
	SHUNT_CU_MEM_GRANULARITY_MINIMUM = 0,

	SHUNT_CU_CAPTURE_STATUS_NONE = 0,
	SHUNT_CU_CAPTURE_STATUS_ACTIVE = 1,
	SHUNT_CU_CAPTURE_STATUS_INVALIDATED = 2,
	SHUNT_CU_CAPTURE_MODE_THREAD_LOCAL = 1,
	SHUNT_CU_CAPTURE_MODE_RELAXED = 2,
	SHUNT_CU_STREAM_ADD_CAPTURE_DEPENDENCIES = 0,
	SHUNT_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1,
	SHUNT_CU_GRAPH_USER_OBJECT_MOVE = 1,

	SHUNT_CU_LIBRARY_BINARY_IS_PRESERVED = 1,

	SHUNT_CU_JIT_ERROR_LOG_BUFFER = 5,
	SHUNT_CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,

	SHUNT_CU_LAUNCH_ATTR_CLUSTER_DIMENSION = 4,
	SHUNT_CU_LAUNCH_ATTR_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
	SHUNT_CU_LAUNCH_ATTR_MEM_SYNC_DOMAIN = 10,
	SHUNT_CU_LAUNCH_ATTR_LAUNCH_COMPLETION_EVENT = 12,
	SHUNT_CU_MEM_SYNC_DOMAIN_REMOTE = 1,
};

struct shunt_cu_uuid {
	char bytes[16];
};

struct shunt_cu_mem_location {
	int type;
	int id;
};

struct shunt_cu_mem_prop {
	int type;
	int handle_types;
	struct shunt_cu_mem_location location;
	void *win32_meta;
	struct {
		unsigned char compression;
		unsigned char gpu_direct_rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};

struct shunt_cu_mem_access {
	struct shunt_cu_mem_location location;
	int flags;
};

struct shunt_cu_launch_attr {
	int id;
	char pad[4];
	union {
		char pad[64];
		int programmatic_stream_serialization;
		int mem_sync_domain;
		struct {
			unsigned x, y, z;
		} cluster;
		struct {
			void *event;
			int flags;
		} launch_completion;
		unsigned long long align;
	} value;
};

struct shunt_cu_launch_config {
	unsigned grid_x, grid_y, grid_z;
	unsigned block_x, block_y, block_z;
	unsigned shared_bytes;
	void *stream;
	const struct shunt_cu_launch_attr *attrs;
	unsigned nattrs;
};

/*
 * X(name, version, parameters): the symbol is cu<name><version>. The driver keeps old versions for ever, so these are
 * the names that a program built against CUDA 12.0 uses. All are required.
 */
#define SHUNT_CU_CALLS(X) \
	X(Init, , (unsigned flags)) \
	X(DriverGetVersion, , (int *version)) \
	X(GetErrorName, , (int result, const char **name)) \
	X(DeviceGetCount, , (int *count)) \
	X(DeviceGet, , (int *dev, int ordinal)) \
	X(DeviceGetName, , (char *name, int bytes, int dev)) \
	X(DeviceGetUuid, _v2, (struct shunt_cu_uuid * uuid, int dev)) \
	X(DeviceGetPCIBusId, , (char *text, int bytes, int dev)) \
	X(DeviceGetAttribute, , (int *value, int attr, int dev)) \
	X(DeviceCanAccessPeer, , (int *can, int dev, int peer)) \
	X(DeviceGetP2PAttribute, , (int *value, int attr, int src, int dst)) \
	X(DevicePrimaryCtxRetain, , (void **ctx, int dev)) \
	X(DevicePrimaryCtxRelease, _v2, (int dev)) \
	X(DevicePrimaryCtxGetState, , (int dev, unsigned *flags, int *active)) \
	X(CtxGetCurrent, , (void **ctx)) \
	X(CtxSetCurrent, , (void *ctx)) \
	X(CtxPushCurrent, _v2, (void *ctx)) \
	X(CtxPopCurrent, _v2, (void **ctx)) \
	X(CtxGetDevice, , (int *dev)) \
	X(ThreadExchangeStreamCaptureMode, , (int *mode)) \
	X(MemGetInfo, _v2, (size_t *free, size_t *total)) \
	X(MemAlloc, _v2, (unsigned long long *ptr, size_t bytes)) \
	X(MemFree, _v2, (unsigned long long ptr)) \
	X(MemHostAlloc, , (void **ptr, size_t bytes, unsigned flags)) \
	X(MemFreeHost, , (void *ptr)) \
	X(MemHostRegister, _v2, (void *ptr, size_t bytes, unsigned flags)) \
	X(MemHostUnregister, , (void *ptr)) \
	X(MemHostGetDevicePointer, _v2, (unsigned long long *dev_ptr, void *ptr, unsigned flags)) \
	X(MemcpyAsync, , (unsigned long long dst, unsigned long long src, size_t bytes, void *stream)) \
	X(MemsetD8Async, , (unsigned long long dst, unsigned char value, size_t bytes, void *stream)) \
	X(PointerGetAttribute, , (void *value, int attr, unsigned long long ptr)) \
	X(MemGetAllocationGranularity, , (size_t *bytes, const struct shunt_cu_mem_prop *prop, int option)) \
	X(MemCreate, , \
	    (unsigned long long *handle, size_t bytes, const struct shunt_cu_mem_prop *prop, \
	        unsigned long long flags)) \
	X(MemRelease, , (unsigned long long handle)) \
	X(MemAddressReserve, , \
	    (unsigned long long *ptr, size_t bytes, size_t align, unsigned long long addr, unsigned long long flags)) \
	X(MemAddressFree, , (unsigned long long ptr, size_t bytes)) \
	X(MemMap, , \
	    (unsigned long long ptr, size_t bytes, size_t offset, unsigned long long handle, \
	        unsigned long long flags)) \
	X(MemUnmap, , (unsigned long long ptr, size_t bytes)) \
	X(MemGetAddressRange, _v2, (unsigned long long *base, size_t *bytes, unsigned long long ptr)) \
	X(MemRetainAllocationHandle, , (unsigned long long *handle, void *ptr)) \
	X(MemGetAllocationPropertiesFromHandle, , (struct shunt_cu_mem_prop * prop, unsigned long long handle)) \
	X(MemGetAccess, , \
	    (unsigned long long *flags, const struct shunt_cu_mem_location *location, unsigned long long ptr)) \
	X(MemSetAccess, , \
	    (unsigned long long ptr, size_t bytes, const struct shunt_cu_mem_access *desc, size_t count)) \
	X(MemExportToShareableHandle, , \
	    (void *shareable, unsigned long long handle, int type, unsigned long long flags)) \
	X(MemGetHandleForAddressRange, , \
	    (void *handle, unsigned long long ptr, size_t bytes, int type, unsigned long long flags)) \
	X(MemImportFromShareableHandle, , (unsigned long long *handle, void *shareable, int type)) \
	X(StreamCreate, , (void **stream, unsigned flags)) \
	X(StreamDestroy, _v2, (void *stream)) \
	X(StreamSynchronize, , (void *stream)) \
	X(StreamQuery, , (void *stream)) \
	X(CtxSynchronize, , (void)) \
	X(StreamWaitEvent, , (void *stream, void *event, unsigned flags)) \
	X(StreamIsCapturing, , (void *stream, int *status)) \
	X(StreamBeginCapture, _v2, (void *stream, int mode)) \
	X(StreamEndCapture, , (void *stream, void **graph)) \
	X(StreamGetCaptureInfo, _v2, \
	    (void *stream, int *status, unsigned long long *id, void **graph, void *const **nodes, size_t *nnodes)) \
	X(StreamUpdateCaptureDependencies, , (void *stream, void **nodes, size_t nnodes, unsigned flags)) \
	X(EventCreate, , (void **event, unsigned flags)) \
	X(EventDestroy, _v2, (void *event)) \
	X(EventRecord, , (void *event, void *stream)) \
	X(EventQuery, , (void *event)) \
	X(EventElapsedTime, , (float *ms, void *start, void *stop)) \
	X(GraphInstantiateWithFlags, , (void **exec, void *graph, unsigned long long flags)) \
	X(GraphDestroy, , (void *graph)) \
	X(GraphLaunch, , (void *exec, void *stream)) \
	X(GraphExecDestroy, , (void *exec)) \
	X(GraphAddEventRecordNode, , (void **node, void *graph, void *const *after, size_t nafter, void *event)) \
	X(GraphAddDependencies, , (void *graph, void *const *from, void *const *to, size_t count)) \
	X(GraphRemoveDependencies, , (void *graph, void *const *from, void *const *to, size_t count)) \
	X(GraphRetainUserObject, , (void *graph, void *object, unsigned count, unsigned flags)) \
	X(UserObjectCreate, , (void **object, void *arg, void (*drop)(void *), unsigned count, unsigned flags)) \
	X(UserObjectRelease, , (void *object, unsigned count)) \
	X(LibraryLoadData, , \
	    (void **library, const void *code, int *jit_options, void **jit_values, unsigned njit, int *lib_options, \
	        void **lib_values, unsigned nlib)) \
	X(LibraryUnload, , (void *library)) \
	X(LibraryGetKernel, , (void **kernel, void *library, const char *name)) \
	X(KernelGetFunction, , (void **func, void *kernel)) \
	X(FuncGetAttribute, , (int *value, int attr, void *func)) \
	X(FuncSetAttribute, , (void *func, int attr, int value)) \
	X(LaunchKernel, , \
	    (void *func, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
	        unsigned block_z, unsigned shared_bytes, void *stream, void **params, void **extra)) \
	X(LaunchKernelEx, , (const struct shunt_cu_launch_config *config, void *func, void **params, void **extra))

/* NULL in the table if the driver lacks them. */
#define SHUNT_CU_CALLS_OPTIONAL(X) \
	X(CtxGetId, , (void *ctx, unsigned long long *id)) \
	X(FuncLoad, , (void *func)) \
	X(StreamWriteValue64, _v2, (void *stream, unsigned long long ptr, unsigned long long value, unsigned flags)) \
	X(OccupancyMaxActiveClusters, , (int *clusters, void *func, const struct shunt_cu_launch_config *config))

#define SHUNT_CU_FIELD(name, version, params) int(*name) params;
struct shunt_cu_table {
	SHUNT_CU_CALLS(SHUNT_CU_FIELD)
	SHUNT_CU_CALLS_OPTIONAL(SHUNT_CU_FIELD)
};
#undef SHUNT_CU_FIELD

/* NVML: the links of devices that CUDA_VISIBLE_DEVICES hides from this process. */
enum {
	SHUNT_NVML_P2P_WRITE = 1,
	SHUNT_NVML_P2P_NVLINK = 2,
	SHUNT_NVML_P2P_STATUS_OK = 0,
};

#define SHUNT_NVML_CALLS(X) \
	X(Init, _v2, (void)) \
	X(Shutdown, , (void)) \
	X(DeviceGetHandleByUUID, , (const char *uuid, void **dev)) \
	X(DeviceGetP2PStatus, , (void *dev, void *peer, int cap, int *status))

#define SHUNT_NVML_FIELD(name, version, params) int(*name) params;
struct shunt_nvml_table {
	SHUNT_NVML_CALLS(SHUNT_NVML_FIELD)
};
#undef SHUNT_NVML_FIELD
