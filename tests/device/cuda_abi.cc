/* SPDX-License-Identifier: MIT */
/* Our declarations of the CUDA driver against NVIDIA's: this file compiles if they agree. */
/* The versions of calls that newer headers have renamed as well. */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <stddef.h>
#include <type_traits>
#include "device/cuda/cuda_abi.h"

/* Size of what a pointer points to; 0 for void, opaque handles and values. */
template <class T, class = void> struct target : std::integral_constant<size_t, 0> {
};
template <class T>
struct target<T *, std::enable_if_t<!std::is_void<T>::value, std::void_t<decltype(sizeof(T))>>>
    : std::integral_constant<size_t, sizeof(T)> {
};

/*
 * Two parameters travel alike: same size and register class, and an output or struct behind a pointer has the same
 * size.
 */
template <class A, class B> constexpr bool alike()
{
	return sizeof(A) == sizeof(B) && std::is_floating_point<A>::value == std::is_floating_point<B>::value &&
	    std::is_pointer<A>::value == std::is_pointer<B>::value &&
	    (target<A>::value == target<B>::value || !target<A>::value || !target<B>::value);
}
template <class A, class B> struct same_call : std::false_type {
};
template <class... A, class... B> struct same_call<CUresult (*)(A...), int (*)(B...)> {
	static constexpr bool test()
	{
		if constexpr (sizeof...(A) == sizeof...(B))
			return (alike<A, B>() && ...);
		else
			return false;
	}
	static constexpr bool value = test();
};

#define CALL(name, version, params) \
	static_assert( \
	    same_call<decltype(&::cu##name##version), decltype(shunt_cu_table::name)>::value, "cu" #name #version);
SHUNT_CU_CALLS(CALL)
#if CUDA_VERSION >= 12040
SHUNT_CU_CALLS_OPTIONAL(CALL)
#endif

/* clang-format off */
#define RESULT(name) static_assert((int)SHUNT_CU_##name == (int)CUDA_ERROR_##name, #name);
RESULT(INVALID_VALUE) RESULT(OUT_OF_MEMORY) RESULT(NOT_INITIALIZED) RESULT(DEINITIALIZED) RESULT(STUB_LIBRARY)
RESULT(DEVICE_UNAVAILABLE) RESULT(NO_DEVICE) RESULT(INVALID_DEVICE) RESULT(INVALID_IMAGE) RESULT(INVALID_CONTEXT)
RESULT(NO_BINARY_FOR_GPU) RESULT(PEER_ACCESS_UNSUPPORTED) RESULT(INVALID_PTX) RESULT(JIT_COMPILER_NOT_FOUND)
RESULT(UNSUPPORTED_PTX_VERSION) RESULT(INVALID_HANDLE) RESULT(NOT_FOUND) RESULT(NOT_READY) RESULT(ILLEGAL_ADDRESS)
RESULT(LAUNCH_OUT_OF_RESOURCES) RESULT(COOPERATIVE_LAUNCH_TOO_LARGE) RESULT(NOT_PERMITTED) RESULT(NOT_SUPPORTED)
RESULT(SYSTEM_NOT_READY) RESULT(SYSTEM_DRIVER_MISMATCH) RESULT(COMPAT_NOT_SUPPORTED_ON_DEVICE)
RESULT(STREAM_CAPTURE_UNSUPPORTED) RESULT(STREAM_CAPTURE_INVALIDATED) RESULT(STREAM_CAPTURE_IMPLICIT)
RESULT(STREAM_CAPTURE_WRONG_THREAD) RESULT(TIMEOUT)
#if CUDA_VERSION >= 12030
RESULT(LOSSY_QUERY)
#endif

#define SAME(ours, theirs) static_assert((int)(ours) == (int)(theirs), #ours);
SAME(SHUNT_CU_SUCCESS, CUDA_SUCCESS)
SAME(SHUNT_CU_ATTR_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
SAME(SHUNT_CU_ATTR_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
SAME(SHUNT_CU_ATTR_COMPUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
SAME(SHUNT_CU_P2P_NATIVE_ATOMIC_SUPPORTED, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)
SAME(SHUNT_CU_POINTER_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
SAME(SHUNT_CU_FUNC_NUM_REGS, CU_FUNC_ATTRIBUTE_NUM_REGS)
SAME(SHUNT_CU_FUNC_PTX_VERSION, CU_FUNC_ATTRIBUTE_PTX_VERSION)
SAME(SHUNT_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING)
SAME(SHUNT_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING)
SAME(SHUNT_CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE)
SAME(SHUNT_CU_HOST_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP)
SAME(SHUNT_CU_MEM_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED)
SAME(SHUNT_CU_MEM_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
SAME(SHUNT_CU_MEM_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE)
SAME(SHUNT_CU_MEM_ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
SAME(SHUNT_CU_MEM_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM)
SAME(SHUNT_CU_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_NONE)
SAME(SHUNT_CU_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE)
SAME(SHUNT_CU_CAPTURE_STATUS_INVALIDATED, CU_STREAM_CAPTURE_STATUS_INVALIDATED)
SAME(SHUNT_CU_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
SAME(SHUNT_CU_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED)
SAME(SHUNT_CU_EVENT_WAIT_EXTERNAL, CU_EVENT_WAIT_EXTERNAL)
SAME(SHUNT_CU_STREAM_ADD_CAPTURE_DEPENDENCIES, CU_STREAM_ADD_CAPTURE_DEPENDENCIES)
SAME(SHUNT_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
SAME(SHUNT_CU_GRAPH_USER_OBJECT_MOVE, CU_GRAPH_USER_OBJECT_MOVE)
SAME(SHUNT_CU_LIBRARY_BINARY_IS_PRESERVED, CU_LIBRARY_BINARY_IS_PRESERVED)
SAME(SHUNT_CU_LAUNCH_ATTR_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
SAME(SHUNT_CU_LAUNCH_ATTR_PROGRAMMATIC_STREAM_SERIALIZATION, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
SAME(SHUNT_CU_LAUNCH_ATTR_MEM_SYNC_DOMAIN, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN)
SAME(SHUNT_CU_MEM_SYNC_DOMAIN_REMOTE, CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE)

#define FIELD(ours, field, theirs, their_field) \
	static_assert(offsetof(ours, field) == offsetof(theirs, their_field) && \
		sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->their_field), #ours "." #field);
#define SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs) && alignof(ours) == alignof(theirs), #ours);
SIZE(shunt_cu_uuid, CUuuid)
SIZE(shunt_cu_mem_location, CUmemLocation)
FIELD(shunt_cu_mem_location, type, CUmemLocation, type)
FIELD(shunt_cu_mem_location, id, CUmemLocation, id)
SIZE(shunt_cu_mem_prop, CUmemAllocationProp)
FIELD(shunt_cu_mem_prop, type, CUmemAllocationProp, type)
FIELD(shunt_cu_mem_prop, handle_types, CUmemAllocationProp, requestedHandleTypes)
FIELD(shunt_cu_mem_prop, location, CUmemAllocationProp, location)
FIELD(shunt_cu_mem_prop, win32_meta, CUmemAllocationProp, win32HandleMetaData)
FIELD(shunt_cu_mem_prop, flags, CUmemAllocationProp, allocFlags)
FIELD(shunt_cu_mem_prop, flags.compression, CUmemAllocationProp, allocFlags.compressionType)
FIELD(shunt_cu_mem_prop, flags.gpu_direct_rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)
FIELD(shunt_cu_mem_prop, flags.usage, CUmemAllocationProp, allocFlags.usage)
SIZE(shunt_cu_mem_access, CUmemAccessDesc)
FIELD(shunt_cu_mem_access, location, CUmemAccessDesc, location)
FIELD(shunt_cu_mem_access, flags, CUmemAccessDesc, flags)
SIZE(shunt_cu_launch_attr, CUlaunchAttribute)
FIELD(shunt_cu_launch_attr, id, CUlaunchAttribute, id)
FIELD(shunt_cu_launch_attr, value, CUlaunchAttribute, value)
FIELD(shunt_cu_launch_attr, value.programmatic_stream_serialization, CUlaunchAttribute,
    value.programmaticStreamSerializationAllowed)
FIELD(shunt_cu_launch_attr, value.mem_sync_domain, CUlaunchAttribute, value.memSyncDomain)
FIELD(shunt_cu_launch_attr, value.cluster, CUlaunchAttribute, value.clusterDim)
FIELD(shunt_cu_launch_attr, value.cluster.x, CUlaunchAttribute, value.clusterDim.x)
FIELD(shunt_cu_launch_attr, value.cluster.y, CUlaunchAttribute, value.clusterDim.y)
FIELD(shunt_cu_launch_attr, value.cluster.z, CUlaunchAttribute, value.clusterDim.z)
SIZE(shunt_cu_launch_config, CUlaunchConfig)
FIELD(shunt_cu_launch_config, grid_x, CUlaunchConfig, gridDimX)
FIELD(shunt_cu_launch_config, grid_y, CUlaunchConfig, gridDimY)
FIELD(shunt_cu_launch_config, grid_z, CUlaunchConfig, gridDimZ)
FIELD(shunt_cu_launch_config, block_x, CUlaunchConfig, blockDimX)
FIELD(shunt_cu_launch_config, block_y, CUlaunchConfig, blockDimY)
FIELD(shunt_cu_launch_config, block_z, CUlaunchConfig, blockDimZ)
FIELD(shunt_cu_launch_config, shared_bytes, CUlaunchConfig, sharedMemBytes)
FIELD(shunt_cu_launch_config, stream, CUlaunchConfig, hStream)
FIELD(shunt_cu_launch_config, attrs, CUlaunchConfig, attrs)
FIELD(shunt_cu_launch_config, nattrs, CUlaunchConfig, numAttrs)

int main(void)
{
	return 0;
}
