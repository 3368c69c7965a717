/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The contract between kernels and devices. Kernels include this header and nothing else. gpu_cuda.h implements it for
 * nvcc, gpu_sim.h for g++ (CPU threads: a block is an OS thread, its threads are fibers on it). .cu files have C-style
 * functions, and templates on element type and operator only; no <<<>>>, threadIdx, asm, lambdas, STL, printf or
 * recursion.
 *
 * Declarations
 *
 *   GPU_KERNEL          before a kernel's return type. Kernels are extern "C" and take one GPU_ARG(struct shunt_kargs).
 *   GPU_ARG(T)          a kernel's parameter of type T, read only
 *   GPU_FN              before every device function: inlined
 *   GPU_FN_WRAPS        the same, in which signed integers may wrap around
 *   GPU_NOINLINE        as GPU_FN, kept out of line
 *   GPU_METHOD          before a member function
 *   GPU_SHARED(T, name, n)
 *                       n elements of T shared by the block; uninitialised
 *   GPU_DYNAMIC_SHARED(name, most)
 *                       char *name: memory shared by the block, in addition, of the size that the launch names;
 *                       16-byte aligned. most: bytes that a launch may name at most
 *   GPU_UNROLL          before a loop with a constant trip count
 *   GPU_ROLL            before a loop that must stay a loop
 *
 * Threads. Warp functions are collective over the full warp.
 *
 *   gpu_tid() gpu_ntid() gpu_bid() gpu_nbid()
 *                       index and number of threads and blocks, in one dimension
 *   gpu_lane()          gpu_tid() % 32. Blocks have a multiple of 32 threads.
 *   gpu_sync()          barrier of the block; orders plain accesses of the block's threads
 *   gpu_warp_sync()     barrier of the 32 lanes; orders their plain accesses
 *   gpu_warp_all(bool) -> bool
 *                       true on all lanes if it is true on each lane
 *   gpu_ballot(bool) -> uint32_t
 *                       the lanes for which it is true, as bits
 *   gpu_popc(uint32_t)  number of bits that are set; not collective
 *   gpu_shfl_xor32(uint32_t v, mask)
 *                       v of lane gpu_lane() ^ mask; mask: the same on all lanes, below 32
 *   gpu_warp_max32(uint32_t v)
 *                       the largest v of the 32 lanes
 *   gpu_grid_dependency_wait()
 *                       called first in every kernel: a launch may begin before the launch ahead of it in its stream
 *                       is over, and must not read or write anything before this returns
 *   gpu_relax()         called in every spin
 *   GPU_SPIN_CHECK      number of tries after which a spin checks the abort word and the clock
 *   gpu_here(x)         x, a pointer or a uint32_t; what is made of it is made here, and not in front of a loop
 *   gpu_nanosleep(ns)   waits for about ns, at most a few microseconds
 *   gpu_clock_ns()      a monotonic clock in ns
 *
 * Atomics. Scope: system (peers and hosts too), device or block. *_block32 access memory shared by the block.
 *
 *   gpu_ld_relaxed(const uint64_t *)               system
 *   gpu_st_relaxed(uint64_t *, v)                  system
 *   gpu_ld_acquire(const uint64_t *)               system
 *   gpu_st_release(uint64_t *, v)                  system
 *   gpu_ld_relaxed32(const uint32_t *)             system
 *   gpu_add_release(uint64_t *, n)                 system; atomic addition
 *   gpu_add_relaxed(uint64_t *, n)                 device; atomic addition that no thread waits for. A host that copies
 *                                                  the sum finds earlier stores some microseconds later at most, which
 *                                                  is less than a copy and a launch take.
 *   gpu_fetch_add(uint64_t *, n) -> old value      device; relaxed
 *   gpu_fetch_add_acq_rel(uint64_t *, n) -> old    device; acquire and release
 *   gpu_ld_acquire_gpu(const uint64_t *)           device
 *   gpu_sem_acquire(uint64_t *) -> bool            device; takes 1 away if the value is not 0, with acquire
 *   gpu_sem_release(uint64_t *)                    device; adds 1, with release
 *   gpu_test_and_set32(uint32_t *p) -> bool        device or block; sets *p from 0 to 1, true for the thread that did
 *   gpu_or_block32(uint32_t *p, bits)              block, in its shared memory; relaxed. Plain loads see it behind
 *                                                  gpu_sync().
 *   gpu_ld_block32(const uint32_t *)               block; sees what gpu_test_and_set32() of another thread set
 *   gpu_ld_acquire_block32(uint32_t *)             block
 *   gpu_st_release_block32(uint32_t *, v)          block. If the thread that loads then does a gpu_st_release, this
 *                                                  chain orders the storing thread's accesses for the system, too.
 *   gpu_ld_credit(const uint64_t *)                system; a counter by which a reader returns slots: the loads of the
 *   gpu_st_credit(uint64_t *, v)                   reader, whose values it has used, are complete before the writer
 *                                                  sees the counter and writes again.
 *   gpu_ld_credit_early(const uint64_t *)          system; the same where a look in advance saves time, else 0
 *   gpu_fetch_add_credit(uint64_t *, n) -> old     device; the same for a thread that returns slots for all blocks:
 *                                                  what these have loaded and used before they add is complete.
 *   gpu_fence()                                    system; orders everything before it. A gpu_st_release by one thread
 *                                                  after gpu_sync covers the block's stores without a fence.
 *
 * 16-byte accesses: struct gpu_v16 { uint64_t lo, hi; }, aligned.
 *
 *   gpu_ld16 / gpu_st16                plain, device memory. Shared memory is accessed by pointer.
 *   gpu_ld16_stream / gpu_st16_stream  the same for data used once (cache hints only)
 *   gpu_ll16_ld / gpu_ll16_st          system scope; each half arrives whole. A reader that sees a half may overwrite
 *                                      the data from which its writer computed it, and all data that led to that data.
 *                                      It must not rely on other stores of the writer (the sim cannot tell them apart).
 *   gpu_ll8_st(uint64_t *, v)          one half
 *   gpu_ll16_ready(struct gpu_v16, uint32_t flag) -> bool
 *                                      the upper 4 bytes of both halves are the flag
 *   gpu_ll32_ready(struct gpu_v16 a, struct gpu_v16 b, uint32_t flag) -> bool
 *                                      the same, of both a and b
 *
 * TMA copies between shared and device memory are asynchronous. Their functions are the warp's, with the same values on
 * all lanes. Addresses and sizes are multiples of 16. Without hardware for TMA (compute capability below 9.0) each copy
 * takes place at once.
 *
 *   gpu_mbar_init(struct gpu_mbar *)   in shared memory, before its first use
 *   gpu_tma_load(void *shared, const void *from, bytes, struct gpu_mbar *)
 *                                      starts a copy
 *   gpu_mbar_wait(struct gpu_mbar *, parity)
 *                                      waits for the copy. parity: 0 for the barrier's first use, then in turns
 *   gpu_tma_store(struct gpu_tma_group *, void *to, const void *shared, bytes)
 *                                      starts a copy. At most 2 of a group are under way.
 *   gpu_tma_store_wait<N>(struct gpu_tma_group *)
 *                                      waits for all copies but the N latest, 0 or 1. Shared memory may be used again
 *                                      then, and what a lane releases afterwards covers these copies.
 *   gpu_tma_fence()                    between the lanes' own accesses of memory and TMA copies of the same memory, in
 *                                      either order
 *   gpu_tma_scatter(struct gpu_tma_group *, void *to, const void *shared, bytes)
 *                                      starts a copy, by each lane for itself. Any number may be under way.
 *   gpu_tma_scatter_fence()            between the lanes' stores to shared memory and copies of it
 *   gpu_tma_scatter_wait(struct gpu_tma_group *)
 *                                      shared memory may be used again. At the end of the launch the copies are done.
 *
 * LL128. A warp handles a slot of 512 aligned bytes, 16 per lane. Lanes 0-7, 8-15, 16-23, 24-31 are its four lines. The
 * last lane of a line has 8 bytes of data (lo) and the line's flag (hi). A reader that sees the flag sees all data of
 * the line; only these functions may rely on that. lines, the same on all lanes: only the first `lines` lines of the
 * slot are accessed. A slot whose lines are given may begin at any multiple of 128.
 *
 *   gpu_ll128_st(void *slot, struct gpu_v16 v, uint64_t flag, uint32_t lines = 4)
 *                                      the flag replaces v.hi of the last lanes; slot: the same on all lanes
 *   gpu_ll128_ld(const void *slot, struct gpu_v16 *v, uint64_t flag, uint32_t lines = 4)
 *                                      one try; lines may be 0, at any address of the device; v has no meaning then.
 *                                      v.hi of the last lanes is the flag. The sim reads the data only if the
 *                                      awaited flag is present.
 *   gpu_ll128_ready(struct gpu_v16 v, uint64_t flag, uint32_t lines = 4) -> bool
 *                                      v is loaded. Last lanes: the line's flag is the awaited one. Other lanes: true.
 *                                      If gpu_warp_all() of it is true, all lines have arrived; before, v has no
 *                                      meaning. Check when the loads of all slots are under way: a check waits for its
 *                                      load.
 *   GPU_LL128_FLAG_LANE                true on the last lane of a line
 *
 * Sectors. The same for memory behind any link: a line is 32 aligned bytes, of two lanes, and may arrive in parts. The
 * odd lane has 8 bytes of data (lo) and the line's flag (hi), which holds a sum over the line's data. A line that is
 * there in part is not ready. All these functions are the warp's.
 *
 *   gpu_sector_st(void *slot, struct gpu_v16 v, uint64_t flag)
 *   gpu_sector_ld(const void *slot, struct gpu_v16 *v, uint64_t flag)
 *   gpu_sector_ready(struct gpu_v16 v, uint64_t flag) -> bool
 *                                      as of LL128; the lower 4 bytes of the flag count
 *   GPU_SECTOR_FLAG_LANE               true on the odd lane of a line
 *
 * Numbers: struct f16, bf16, f8e4m3, f8e5m2 { raw bits x; }.
 *
 *   float gpu_to_f32(T)
 *   float gpu_mul(float, float)        the product, rounded: no compiler fuses it with an addition
 *   uint32_t gpu_bits(float), float gpu_float(uint32_t)
 *                                      the same bits
 *   T gpu_from_f32<T>(float)           rounds to nearest even. f8 saturates to the largest finite number: NaN stays
 *                                      NaN, e5m2 infinity saturates too.
 */
#include <stdint.h>
#if defined(__CUDACC__)
#include "device/cuda/gpu_cuda.h"
#else
#include "device/sim/gpu_sim.h"
#endif
