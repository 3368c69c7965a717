/* SPDX-License-Identifier: MIT */
#pragma once
/* gpu.h for nvcc. The only place with PTX. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define GPU_FN static __device__ __forceinline__
#define GPU_FN_WRAPS GPU_FN
#define GPU_METHOD __device__ __forceinline__
#define GPU_NOINLINE static __device__ __noinline__
#define GPU_KERNEL __global__ __launch_bounds__(SHUNT_MAX_THREADS, 1)
#define GPU_ARG(T) const __grid_constant__ T
#define GPU_SHARED(T, name, n) __shared__ T name[n]
#define GPU_DYNAMIC_SHARED(name, most) extern __shared__ __align__(128) char name[]
#define GPU_UNROLL _Pragma("unroll")
#define GPU_ROLL _Pragma("unroll 1")

/* Polls between two checks of the abort word and the clock. */
#define GPU_SPIN_CHECK 1024

GPU_FN uint32_t gpu_tid(void) { return threadIdx.x; }
GPU_FN uint32_t gpu_ntid(void) { return blockDim.x; }
GPU_FN uint32_t gpu_bid(void) { return blockIdx.x; }
GPU_FN uint32_t gpu_nbid(void) { return gridDim.x; }
GPU_FN uint32_t gpu_lane(void) { return threadIdx.x & 31; }
GPU_FN void gpu_sync(void) { __syncthreads(); }
GPU_FN void gpu_warp_sync(void) { __syncwarp(); }
GPU_FN bool gpu_warp_all(bool v) { return __all_sync(0xffffffffu, v); }
GPU_FN uint32_t gpu_ballot(bool v) { return __ballot_sync(0xffffffffu, v); }
GPU_FN uint32_t gpu_popc(uint32_t v) { return (uint32_t)__popc(v); }
GPU_FN uint32_t gpu_shfl_xor32(uint32_t v, uint32_t mask) { return __shfl_xor_sync(0xffffffffu, v, (int)mask); }
GPU_FN uint32_t gpu_warp_max32(uint32_t v)
{
#if __CUDA_ARCH__ >= 800
	return __reduce_max_sync(0xffffffffu, v);
#else
	for (uint32_t mask = 16; mask; mask /= 2) {
		uint32_t other = gpu_shfl_xor32(v, mask);

		v = other > v ? other : v;
	}
	return v;
#endif
}
GPU_FN void gpu_relax(void) {}
template <typename T> GPU_FN T *gpu_here(T *value)
{
	asm volatile("" : "+l"(value));
	return value;
}
GPU_FN uint32_t gpu_here(uint32_t value)
{
	asm volatile("" : "+r"(value));
	return value;
}
GPU_FN void gpu_nanosleep(uint32_t ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }
GPU_FN void gpu_grid_dependency_wait(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

GPU_FN uint64_t gpu_clock_ns(void)
{
	uint64_t t;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}

GPU_FN uint64_t gpu_ld_relaxed(const uint64_t *p)
{
	uint64_t v;
	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}
GPU_FN uint32_t gpu_ld_relaxed32(const uint32_t *p)
{
	uint32_t v;
	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
GPU_FN uint32_t gpu_ld_block32(const uint32_t *p) { return *(const volatile uint32_t *)p; }
GPU_FN void gpu_st_relaxed(uint64_t *p, uint64_t v)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
GPU_FN uint64_t gpu_ld_acquire(const uint64_t *p)
{
	uint64_t v;
	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}
GPU_FN void gpu_st_release(uint64_t *p, uint64_t v)
{
	asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
GPU_FN uint32_t gpu_smem_addr(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
/* Atomic operations, which racecheck can tell from a race. */
GPU_FN uint32_t gpu_ld_acquire_block32(uint32_t *p)
{
	uint32_t v, at = gpu_smem_addr(p);
	asm volatile("atom.acquire.cta.shared.or.b32 %0, [%1], 0;" : "=r"(v) : "r"(at) : "memory");
	return v;
}
GPU_FN void gpu_st_release_block32(uint32_t *p, uint32_t v)
{
	[[maybe_unused]] uint32_t old;
	uint32_t at = gpu_smem_addr(p);
	asm volatile("atom.release.cta.shared.exch.b32 %0, [%1], %2;" : "=r"(old) : "r"(at), "r"(v) : "memory");
}
/*
 * Loads whose values were used are complete, and a store does not overtake a load that it depends on: no fence is
 * needed.
 */
GPU_FN uint64_t gpu_ld_credit(const uint64_t *p) { return gpu_ld_relaxed(p); }
GPU_FN uint64_t gpu_ld_credit_early(const uint64_t *p) { return gpu_ld_relaxed(p); }
GPU_FN void gpu_st_credit(uint64_t *p, uint64_t v) { gpu_st_relaxed(p, v); }
GPU_FN void gpu_add_release(uint64_t *p, uint64_t n)
{
	asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(p), "l"(n) : "memory");
}
GPU_FN void gpu_add_relaxed(uint64_t *p, uint64_t n)
{
	asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(n) : "memory");
}
GPU_FN uint64_t gpu_fetch_add(uint64_t *p, uint64_t n)
{
	uint64_t old;
	asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(n) : "memory");
	return old;
}
GPU_FN uint64_t gpu_fetch_add_credit(uint64_t *p, uint64_t n) { return gpu_fetch_add(p, n); }
GPU_FN uint64_t gpu_fetch_add_acq_rel(uint64_t *p, uint64_t n)
{
	uint64_t old;
	asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(n) : "memory");
	return old;
}
GPU_FN uint64_t gpu_ld_acquire_gpu(const uint64_t *p)
{
	uint64_t v;
	asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}
GPU_FN bool gpu_sem_acquire(uint64_t *p)
{
	uint64_t seen = gpu_ld_relaxed(p), old;

	if (!seen)
		return false;
	asm volatile("atom.acquire.gpu.global.cas.b64 %0, [%1], %2, %3;"
	    : "=l"(old)
	    : "l"(p), "l"(seen), "l"(seen - 1)
	    : "memory");
	return old == seen;
}
GPU_FN void gpu_sem_release(uint64_t *p)
{
	asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"((uint64_t)1) : "memory");
}
GPU_FN bool gpu_test_and_set32(uint32_t *p) { return atomicCAS(p, 0u, 1u) == 0; }
GPU_FN void gpu_or_block32(uint32_t *p, uint32_t bits)
{
	asm volatile("red.relaxed.cta.shared.or.b32 [%0], %1;" ::"r"(gpu_smem_addr(p)), "r"(bits) : "memory");
}
GPU_FN void gpu_fence(void) { __threadfence_system(); }

struct gpu_v16 {
	uint64_t lo, hi;
};

GPU_FN struct gpu_v16 gpu_ld16(const void *p)
{
	struct gpu_v16 v;
	asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.lo), "=l"(v.hi) : "l"(p) : "memory");
	return v;
}
GPU_FN void gpu_st16(void *p, struct gpu_v16 v)
{
	asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v.lo), "l"(v.hi) : "memory");
}
GPU_FN struct gpu_v16 gpu_ll16_ld(const void *p)
{
	struct gpu_v16 v;
	asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.lo), "=l"(v.hi) : "l"(p) : "memory");
	return v;
}
GPU_FN void gpu_ll16_st(void *p, struct gpu_v16 v)
{
	asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v.lo), "l"(v.hi) : "memory");
}
GPU_FN void gpu_ll8_st(uint64_t *p, uint64_t v) { gpu_st_relaxed(p, v); }
GPU_FN bool gpu_ll16_ready(struct gpu_v16 v, uint32_t flag)
{
	return (uint32_t)(v.lo >> 32) == flag && (uint32_t)(v.hi >> 32) == flag;
}
/* Not a function: nvcc orders the branches of an inlined one otherwise. */
#define gpu_ll32_ready(a, b, flag) \
	((uint32_t)((a).lo >> 32) == (flag) && (uint32_t)((a).hi >> 32) == (flag) && \
	    (uint32_t)((b).lo >> 32) == (flag) && (uint32_t)((b).hi >> 32) == (flag))
GPU_FN struct gpu_v16 gpu_ld16_stream(const void *p)
{
	struct gpu_v16 v;
	asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];" : "=l"(v.lo), "=l"(v.hi) : "l"(p) : "memory");
	return v;
}
GPU_FN void gpu_st16_stream(void *p, struct gpu_v16 v) { gpu_st16(p, v); }

/*
 * A warp's four 128-byte lines: one aligned store instruction of 16 bytes a lane leaves the SM as whole lines, and
 * NVLink keeps a line whole (NCCL's LL128 relies on the same). The host forbids these kernels where the link is not
 * NVLink.
 */
#define GPU_LL128_FLAG_LANE ((threadIdx.x & 7) == 7)

GPU_FN void gpu_ll128_st(void *slot, struct gpu_v16 v, uint64_t flag, uint32_t lines = 4)
{
	char *p = (char *)slot + (threadIdx.x & 31) * 16;

	if (GPU_LL128_FLAG_LANE)
		v.hi = flag;
	if ((threadIdx.x & 31) / 8 < lines)
		asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v.lo), "l"(v.hi) : "memory");
}
GPU_FN void gpu_ll128_ld(const void *slot, struct gpu_v16 *v, uint64_t flag, uint32_t lines = 4)
{
	/* All lanes load: ptxas moves what a load with a condition brings, and so waits for each load by itself. */
	const char *p = (const char *)slot + ((threadIdx.x & 31) / 8 < lines ? threadIdx.x & 31 : threadIdx.x & 7) * 16;

	asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(v->lo), "=l"(v->hi) : "l"(p) : "memory");
}
GPU_FN bool gpu_ll128_ready(struct gpu_v16 v, uint64_t flag, uint32_t lines = 4)
{
	return !GPU_LL128_FLAG_LANE || gpu_lane() / 8 >= lines || v.hi == flag;
}

/*
 * Sectors of 32 bytes, through memory of the host: a line may be seen in part, so its flag holds a sum over its data.
 * Every step of mixing a word can be undone: a change of one word changes the sum.
 */
#define GPU_SECTOR_FLAG_LANE ((threadIdx.x & 1) == 1)

GPU_FN uint32_t gpu_sector_mix(uint32_t w)
{
	w ^= w >> 16;
	w *= 0x7feb352du;
	return w ^ w >> 15;
}
GPU_FN uint64_t gpu_sector_flag(struct gpu_v16 v, uint64_t flag)
{
	uint32_t x = gpu_sector_mix((uint32_t)v.lo), y = gpu_sector_mix((uint32_t)(v.lo >> 32)),
	         z = gpu_sector_mix((uint32_t)v.hi), w = gpu_sector_mix((uint32_t)(v.hi >> 32));
	uint32_t sum = GPU_SECTOR_FLAG_LANE ? x * 0x9e3779b1u + y * 0x85ebca6bu :
	                                      x * 0x27d4eb2fu + y * 0x165667b1u + z * 0xd3a2646du + w * 0xfd7046c5u;

	return (uint32_t)flag | (uint64_t)(sum + gpu_shfl_xor32(sum, 1)) << 32;
}
GPU_FN void gpu_sector_st(void *slot, struct gpu_v16 v, uint64_t flag)
{
	uint64_t whole = gpu_sector_flag(v, flag);

	if (GPU_SECTOR_FLAG_LANE)
		v.hi = whole;
	gpu_ll16_st((char *)slot + (threadIdx.x & 31) * 16, v);
}
GPU_FN void gpu_sector_ld(const void *slot, struct gpu_v16 *v, uint64_t)
{
	*v = gpu_ll16_ld((const char *)slot + (threadIdx.x & 31) * 16);
}
GPU_FN bool gpu_sector_ready(struct gpu_v16 v, uint64_t flag)
{
	uint64_t whole = gpu_sector_flag(v, flag);

	return !GPU_SECTOR_FLAG_LANE || v.hi == whole;
}

struct gpu_mbar {
	uint64_t state;
};
struct gpu_tma_group {
}; /* hardware has groups for each thread; lane 0 has all copies */

/* Devices without TMA: 16 bytes a lane. */
GPU_FN void gpu_tma_fallback(char *to, const char *from, uint32_t bytes)
{
	for (uint32_t at = (threadIdx.x & 31) * 16; at < bytes; at += 512)
		*(uint4 *)(to + at) = *(const uint4 *)(from + at);
	__syncwarp();
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
GPU_FN void gpu_tma_fence(void)
{
	asm volatile("fence.proxy.async;" ::: "memory");
	__syncwarp();
}
GPU_FN void gpu_mbar_init(struct gpu_mbar *bar)
{
	if ((threadIdx.x & 31) == 0)
		asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(gpu_smem_addr(bar)) : "memory");
	gpu_tma_fence();
}
GPU_FN void gpu_tma_load(void *to, const void *from, uint32_t bytes, struct gpu_mbar *bar)
{
	if ((threadIdx.x & 31) != 0)
		return;
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(gpu_smem_addr(bar)), "r"(bytes)
	    : "memory");
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
	                 gpu_smem_addr(to)),
	    "l"(from), "r"(bytes), "r"(gpu_smem_addr(bar))
	    : "memory");
}
GPU_FN void gpu_mbar_wait(struct gpu_mbar *bar, uint32_t parity)
{
	uint32_t here;

	do
		asm volatile(
		    "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
		    : "=r"(here)
		    : "r"(gpu_smem_addr(bar)), "r"(parity)
		    : "memory");
	while (!here);
	__syncwarp();
}
GPU_FN void gpu_tma_store(struct gpu_tma_group *, void *to, const void *from, uint32_t bytes)
{
	if ((threadIdx.x & 31) == 0)
		asm volatile(
		    "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2; cp.async.bulk.commit_group;" ::"l"(to),
		    "r"(gpu_smem_addr(from)), "r"(bytes)
		    : "memory");
}
template <int N> GPU_FN void gpu_tma_store_wait(struct gpu_tma_group *)
{
	asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
	__syncwarp();
}
GPU_FN void gpu_tma_scatter(struct gpu_tma_group *, void *to, const void *from, uint32_t bytes)
{
	asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(gpu_smem_addr(from)),
	    "r"(bytes)
	    : "memory");
}
GPU_FN void gpu_tma_scatter_fence(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
	__syncwarp();
}
GPU_FN void gpu_tma_scatter_wait(struct gpu_tma_group *)
{
	asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::: "memory");
	__syncwarp();
}
#else
GPU_FN void gpu_tma_fence(void) { __syncwarp(); }
GPU_FN void gpu_mbar_init(struct gpu_mbar *) {}
GPU_FN void gpu_tma_load(void *to, const void *from, uint32_t bytes, struct gpu_mbar *)
{
	gpu_tma_fallback((char *)to, (const char *)from, bytes);
}
GPU_FN void gpu_mbar_wait(struct gpu_mbar *, uint32_t) {}
GPU_FN void gpu_tma_store(struct gpu_tma_group *, void *to, const void *from, uint32_t bytes)
{
	gpu_tma_fallback((char *)to, (const char *)from, bytes);
}
template <int N> GPU_FN void gpu_tma_store_wait(struct gpu_tma_group *) {}
GPU_FN void gpu_tma_scatter(struct gpu_tma_group *, void *to, const void *from, uint32_t bytes)
{
	for (uint32_t at = 0; at < bytes; at += 16)
		*(uint4 *)((char *)to + at) = *(const uint4 *)((const char *)from + at);
}
GPU_FN void gpu_tma_scatter_fence(void) { __syncwarp(); }
GPU_FN void gpu_tma_scatter_wait(struct gpu_tma_group *) { __syncwarp(); }
#endif

struct f16 {
	uint16_t x;
};
struct bf16 {
	uint16_t x;
};
struct f8e4m3 {
	uint8_t x;
};
struct f8e5m2 {
	uint8_t x;
};

GPU_FN float gpu_mul(float a, float b) { return __fmul_rn(a, b); }
GPU_FN uint32_t gpu_bits(float v) { return __float_as_uint(v); }
GPU_FN float gpu_float(uint32_t bits) { return __uint_as_float(bits); }
GPU_FN float gpu_to_f32(struct f16 v) { return __half2float(__ushort_as_half(v.x)); }
GPU_FN float gpu_to_f32(struct bf16 v) { return __uint_as_float((uint32_t)v.x << 16); }
GPU_FN float gpu_to_f32(struct f8e4m3 v) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(v.x, __NV_E4M3))); }
GPU_FN float gpu_to_f32(struct f8e5m2 v) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(v.x, __NV_E5M2))); }

template <typename T> GPU_FN T gpu_from_f32(float v);
template <> __device__ __forceinline__ struct f16 gpu_from_f32<struct f16>(float v) {
	return { __half_as_ushort(__float2half_rn(v)) };
} template <> __device__ __forceinline__ struct bf16 gpu_from_f32<struct bf16>(float v) {
	return { __bfloat16_as_ushort(__float2bfloat16_rn(v)) };
} template <> __device__ __forceinline__ struct f8e4m3 gpu_from_f32<struct f8e4m3>(float v) {
	return { (uint8_t)__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3) };
} template <> __device__ __forceinline__ struct f8e5m2 gpu_from_f32<struct f8e5m2>(float v) {
	return { (uint8_t)__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E5M2) };
}
