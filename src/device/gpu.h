/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_DEVICE_GPU_H
#define SHUNT_DEVICE_GPU_H
/*
 * The device portability contract. Kernels include this header and nothing else; gpu_cuda.h implements it for nvcc,
 * gpu_sim.h for g++ (CPU threads: a block is an OS thread, its threads are fibers on it). C-style functions, templates
 * on element type and operator only; no <<<>>>, threadIdx, asm, lambdas, STL, printf or recursion in .cu files.
 *
 *   GPU_KERNEL                    before a kernel's return type; kernels are extern "C" and take one GPU_ARG(struct
 * shunt_kargs) GPU_FN                        before every device function (inlined); GPU_NOINLINE: one that is kept out
 * of line; GPU_METHOD: before a member function GPU_ARG(T)                    a kernel's parameter of type T, read only
 *   GPU_SHARED(T, name, n)        n elements of T shared by the block; uninitialised
 *   GPU_DYNAMIC_SHARED(name, most)   char *name: what the launch says beside those, 16-byte aligned; most: bytes that
 * any launch may say GPU_UNROLL                    before a loop with a constant trip count; GPU_ROLL: before one that
 * must stay a loop
 *
 *   gpu_tid() gpu_ntid() gpu_bid() gpu_nbid()   thread and block index and number, one dimension
 *   gpu_lane()                    gpu_tid() % 32; blocks have a multiple of 32 threads
 *   gpu_sync()                    block barrier; orders plain accesses of the block's threads
 *   gpu_warp_sync()               barrier of the 32 lanes; likewise. All warp functions are collective over the full
 * warp gpu_warp_all(bool) -> bool    the same on all lanes gpu_grid_dependency_wait()             first thing in every
 * kernel: a launch may begin before the one ahead of it in its stream is over, and nothing may be read or written until
 * this returns gpu_relax()                   in every spin; GPU_SPIN_CHECK: after how many tries a spin looks at the
 * abort word and the clock gpu_nanosleep(ns)                   does nothing for about so long, at most a few
 * microseconds gpu_clock_ns()                a monotonic clock in ns
 *
 *   gpu_ld_relaxed / gpu_st_relaxed / gpu_ld_acquire / gpu_st_release (const uint64_t *, ...) system scope: peers too
 *   gpu_add_release(uint64_t *, n)  an atomic addition with release, system scope
 *   gpu_fetch_add(uint64_t *, n) -> what was there: relaxed. gpu_fetch_add_acq_rel: the same with acquire and release.
 * These and the next two: this device gpu_ld_acquire_gpu(const uint64_t *)   gpu_sem_acquire(uint64_t *) -> bool: takes
 * 1 away if there is one, with acquire;  gpu_sem_release(uint64_t *) gpu_ld_relaxed32(const uint32_t *)
 * gpu_test_and_set32(uint32_t *p) -> bool: sets *p from 0 to 1, true for the one who did gpu_add_relaxed(uint64_t *, n)
 * a relaxed addition that is waited for by nobody; for this device. A host that copies the sum finds what was stored
 * before it some microseconds later at most, which is less than a copy and a launch take gpu_ld_block32(const uint32_t
 * *)   of memory shared by the block: what another thread may have claimed meanwhile gpu_ld_credit / gpu_st_credit
 * (uint64_t *, ...)   a counter by which a reader gives slots back: what the reader has read (and whose values it has
 * used) is read before the writer sees the counter and writes again gpu_ld_acquire_block32 / gpu_st_release_block32
 * (uint32_t *, ...)   of memory shared by the block, among its threads. Together with a gpu_st_release by the thread
 * that loads, the chain orders what the storing thread did for the system, too gpu_fence()                   orders
 * everything before it, for the whole system (release side of gpu_st_release by one thread after gpu_sync covers the
 * block's stores; no extra fence needed)
 *
 *   struct gpu_v16 { uint64_t lo, hi; }
 *   gpu_ld16 / gpu_st16           16 aligned bytes of device memory, plain (of shared memory: by pointer)
 *   gpu_ll16_ld / gpu_ll16_st   16 aligned bytes, system scope: each half arrives whole. Who sees a half may overwrite
 * what its writer had read for it, and whatever led to that; it may not rely on what the writer has written elsewhere
 *                                 (the sim cannot tell the two apart). gpu_ll8_st(uint64_t *, v): one half
 *   gpu_ld16_stream / gpu_st16_stream   the same for data used once (cache hints only)
 *
 * TMA copies between shared and device memory, which go on by themselves. The warp's functions, with the same values on
 * all lanes; addresses and sizes are multiples of 16. Without hardware for it (compute capability below 9.0) each
 * copies at once. gpu_mbar_init(struct gpu_mbar *)  in shared memory, before its first use gpu_tma_load(void *shared,
 * const void *from, bytes, struct gpu_mbar *)   begins; gpu_mbar_wait(bar, parity): until it is there. parity: 0 of the
 *                                 barrier's first use, and then in turns
 *   gpu_tma_store(struct gpu_tma_group *, void *to, const void *shared, bytes)   begins; gpu_tma_store_wait<N>(struct
 * gpu_tma_group *): until all but the N latest, 0 or 1, are done: shared memory may be used again, and what a lane
 * releases then covers them. At most 2 are under way gpu_tma_fence()                between the lanes' own accesses of
 * memory and TMA copies of the same, whichever come first
 *
 * Lines. A warp moves a slot of 512 aligned bytes, 16 per lane; lanes 0-7, 8-15, 16-23, 24-31 are its four lines. The
 * last lane of a line carries 8 bytes of data (lo) and the line's flag (hi). It is promised that a reader who sees the
 * flag sees all of the line's data. No other code may rely on that. `lines`, the same on all lanes: only the first so
 * many of the slot's lines, the others are left alone; the slot need begin only at a multiple of 128 then.
 *   gpu_ll128_st(void *slot, struct gpu_v16 v, uint64_t flag, uint32_t lines = 4)   v.hi of the last lanes is replaced
 * by flag; `slot` equal on all lanes gpu_ll128_ld(const void *slot, struct gpu_v16 *v, uint64_t flag, uint32_t lines =
 * 4)   one try (the sim reads the data only if the awaited flag is there; v.hi of the last lanes is the flag)
 *   gpu_ll128_ready(struct gpu_v16 v, uint64_t flag, uint32_t lines = 4) -> bool   of what that has loaded: on the last
 * lanes true if the line's flag is the awaited one, on the others true. gpu_warp_all() of it says that all lines are
 *                                 there; only then is v meaningful. Ask when all slots are under way: to look at one
 * waits for it GPU_LL128_FLAG_LANE                 true on the last lane of a line
 *
 * Numbers: struct f16, bf16, f8e4m3, f8e5m2 { raw bits x; };  float gpu_to_f32(T);  T gpu_from_f32<T>(float): round to
 * nearest even; f8 saturates to the largest finite number (NaN stays NaN, e5m2 infinity saturates too).
 */
#include <stdint.h>
#if defined(__CUDACC__)
#include "device/cuda/gpu_cuda.h"
#else
#include "device/sim/gpu_sim.h"
#endif

GPU_FN bool gpu_ll128_ready(struct gpu_v16 v, uint64_t flag, uint32_t lines = 4)
{
	return !GPU_LL128_FLAG_LANE || gpu_lane() / 8 >= lines || v.hi == flag;
}
#endif
