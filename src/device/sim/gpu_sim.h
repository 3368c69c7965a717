/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * gpu.h for g++: a block is an OS thread, its threads are fibers on it (src/device/sim/block.cc).
 *
 * Plain accesses of kernels are plain accesses here, atomics are atomics. So a build with -fsanitize=thread reports a
 * kernel that relies on more than the contract promises, with its line. Functions that order memory know the file and
 * line of their call, so that a test can weaken that call (device/sim/site.h).
 */
#include <time.h>
#include <stdint.h>
#include "device/sim/gpu_sim_num.h"
#include "device/sim/site.h"

#define GPU_FN static inline
#define GPU_FN_WRAPS __attribute__((no_sanitize("signed-integer-overflow"))) static inline
#define GPU_METHOD inline
#define GPU_NOINLINE static __attribute__((noinline))
#define GPU_KERNEL
#define GPU_ARG(T) const T &
/* Not thread_local: a library that is loaded late has little room for thread-local storage. */
#define GPU_SHARED(T, name, n) \
	static const char name##_key = 0; \
	T *const name = (T *)shunt_sim_shared(&name##_key, sizeof(T) * (n))
#define GPU_DYNAMIC_SHARED(name, most) GPU_SHARED(char, name, most)
#define GPU_UNROLL
#define GPU_ROLL

/* A try may cost a sleep here, so check early. */
#define GPU_SPIN_CHECK 16

struct gpu_v16 {
	uint64_t lo, hi;
};

struct shunt_sim_self {
	uint32_t tid, ntid, bid, nbid;
};

extern "C" {
/* Not initial-exec: a library that is opened at run time may find no room for that. */
extern __thread struct shunt_sim_self *shunt_sim_self __attribute__((visibility("hidden")));
uint32_t shunt_sim_ballot(bool vote);
bool shunt_sim_all(bool vote);
uint32_t shunt_sim_shfl_xor(uint32_t v, uint32_t mask);
void shunt_sim_block_barrier(void);
void shunt_sim_relax(void);
void shunt_sim_linger(void);   /* between two parts of a line: now and then for as long as tests ask for */
void shunt_sim_advanced(void); /* the thread made progress: others need not slow down their polling */
void shunt_sim_fence(void);
/*
 * Links that are not as good as memory (device/sim/sim_link.cc). Takes: true if the store is not to be made, because it
 * is lost or comes later. Looks: true if the word is what it has seen. Forbid: ends the process if the address is
 * behind a link on which `what` is an error.
 */
enum sim_store { SIM_STORE_PLAIN, SIM_STORE_RELAXED, SIM_STORE_PACKET, SIM_STORE_RELEASE };
enum sim_look { SIM_LOOK_PLAIN, SIM_LOOK_PACKET, SIM_LOOK_ACQUIRE };
bool shunt_sim_link_takes(void *to, struct gpu_v16 *v, uint32_t bytes, enum sim_store how);
bool shunt_sim_link_looks(const uint64_t *at, enum sim_look how, uint64_t *seen_p);
void shunt_sim_link_release(void); /* what the block has stored arrives */
void shunt_sim_link_forbid(const void *at, const char *what);
extern bool shunt_sim_links_play __attribute__((visibility("hidden"))); /* some link is not honest */
void *shunt_sim_shared(const void *key, uint64_t bytes); /* the running block's shared memory for this key */
}

GPU_FN uint32_t gpu_tid(void) { return shunt_sim_self->tid; }
GPU_FN uint32_t gpu_ntid(void) { return shunt_sim_self->ntid; }
GPU_FN uint32_t gpu_bid(void) { return shunt_sim_self->bid; }
GPU_FN uint32_t gpu_nbid(void) { return shunt_sim_self->nbid; }
GPU_FN uint32_t gpu_lane(void) { return shunt_sim_self->tid & 31; }

GPU_FN void gpu_sync(struct sim_site at = SIM_SITE_HERE)
{
	if (!sim_weak(at, SIM_SITE_BARRIER))
		shunt_sim_block_barrier();
}
GPU_FN void gpu_warp_sync(void) { shunt_sim_ballot(true); }
GPU_FN bool gpu_warp_all(bool v) { return shunt_sim_all(v); }
GPU_FN uint32_t gpu_ballot(bool v) { return shunt_sim_ballot(v); }
GPU_FN uint32_t gpu_popc(uint32_t v) { return (uint32_t)__builtin_popcount(v); }
GPU_FN uint32_t gpu_shfl_xor32(uint32_t v, uint32_t mask) { return shunt_sim_shfl_xor(v, mask); }
GPU_FN uint32_t gpu_warp_max32(uint32_t v)
{
	for (uint32_t mask = 16; mask; mask /= 2) {
		uint32_t other = gpu_shfl_xor32(v, mask);

		v = other > v ? other : v;
	}
	return v;
}
GPU_FN void gpu_grid_dependency_wait(void) {}
GPU_FN void gpu_relax(void) { shunt_sim_relax(); }
template <typename T> GPU_FN T gpu_here(T value) { return value; }
GPU_FN void gpu_nanosleep(uint32_t) { shunt_sim_relax(); }

GPU_FN uint64_t gpu_clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

GPU_FN bool sim_play(void) { return __builtin_expect(shunt_sim_links_play, 0); }
template <typename Word> inline bool sim_link_takes(Word *to, Word word, enum sim_store how)
{
	struct gpu_v16 v = { word, 0 };

	return sim_play() && shunt_sim_link_takes(to, &v, sizeof(Word), how);
}
/* Of an operation that needs more than stores and loads. */
GPU_FN void sim_link_forbid(const void *p, const char *what)
{
	if (sim_play())
		shunt_sim_link_forbid(p, what);
}
GPU_FN void sim_link_release(void)
{
	if (sim_play())
		shunt_sim_link_release();
}

GPU_FN uint64_t sim_look(const uint64_t *p, enum sim_look how)
{
	uint64_t v;

	if (sim_play() && shunt_sim_link_looks(p, how, &v))
		return v;
	return how == SIM_LOOK_PLAIN ? __atomic_load_n(p, __ATOMIC_RELAXED) : __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
GPU_FN uint64_t gpu_ld_relaxed(const uint64_t *p) { return sim_look(p, SIM_LOOK_PLAIN); }
GPU_FN uint32_t gpu_ld_relaxed32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
GPU_FN uint32_t gpu_ld_block32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
GPU_FN void gpu_st_relaxed(uint64_t *p, uint64_t v)
{
	if (!sim_link_takes(p, v, SIM_STORE_RELAXED))
		__atomic_store_n(p, v, __ATOMIC_RELAXED);
}
template <typename Word> inline Word sim_ld_acquire(const Word *p, struct sim_site at)
{
	bool weak = sim_weak(at, SIM_SITE_ACQUIRE);
	Word v;

	if (sizeof(Word) == sizeof(uint64_t))
		v = (Word)sim_look((const uint64_t *)p, weak ? SIM_LOOK_PLAIN : SIM_LOOK_ACQUIRE);
	else
		v = weak ? __atomic_load_n(p, __ATOMIC_RELAXED) : __atomic_load_n(p, __ATOMIC_ACQUIRE);
	return v + sim_weak(at, SIM_SITE_OLDER);
}
/* how: SIM_STORE_PACKET orders nothing but the packet's own data. */
template <typename Word>
inline void sim_st_release(Word *p, Word v, struct sim_site at, enum sim_store how = SIM_STORE_RELEASE)
{
	bool weak = sim_weak(at, SIM_SITE_RELEASE);

	shunt_sim_advanced();
	if (sim_link_takes(p, v, weak ? SIM_STORE_RELAXED : how))
		return;
	if (weak)
		__atomic_store_n(p, v, __ATOMIC_RELAXED);
	else
		__atomic_store_n(p, v, __ATOMIC_RELEASE);
}
GPU_FN uint64_t gpu_ld_acquire(const uint64_t *p, struct sim_site at = SIM_SITE_HERE) { return sim_ld_acquire(p, at); }
GPU_FN void gpu_st_release(uint64_t *p, uint64_t v, struct sim_site at = SIM_SITE_HERE) { sim_st_release(p, v, at); }
GPU_FN uint32_t gpu_ld_acquire_block32(uint32_t *p, struct sim_site at = SIM_SITE_HERE)
{
	return sim_ld_acquire(p, at);
}
GPU_FN void gpu_st_release_block32(uint32_t *p, uint32_t v, struct sim_site at = SIM_SITE_HERE)
{
	sim_st_release(p, v, at);
}
GPU_FN uint64_t gpu_ld_credit(const uint64_t *p, struct sim_site at = SIM_SITE_HERE) { return gpu_ld_acquire(p, at); }
GPU_FN uint64_t gpu_ld_credit_early(const uint64_t *) { return 0; } /* so that each call reaches its wait */
GPU_FN void gpu_st_credit(uint64_t *p, uint64_t v, struct sim_site at = SIM_SITE_HERE) { gpu_st_release(p, v, at); }
GPU_FN void gpu_add_release(uint64_t *p, uint64_t n, struct sim_site at = SIM_SITE_HERE)
{
	bool weak = sim_weak(at, SIM_SITE_RELEASE);

	sim_link_forbid(p, "an addition");
	if (!weak)
		sim_link_release();
	if (weak)
		__atomic_fetch_add(p, n, __ATOMIC_RELAXED);
	else
		__atomic_fetch_add(p, n, __ATOMIC_RELEASE);
	shunt_sim_advanced();
}
/* Release, for sim_copy(): a device has no such order, but the host needs longer than the stores take. */
GPU_FN void gpu_add_relaxed(uint64_t *p, uint64_t n)
{
	sim_link_forbid(p, "an addition");
	__atomic_fetch_add(p, n, __ATOMIC_RELEASE);
}
GPU_FN uint64_t gpu_fetch_add(uint64_t *p, uint64_t n)
{
	sim_link_forbid(p, "an addition");
	return __atomic_fetch_add(p, n, __ATOMIC_RELAXED);
}
GPU_FN uint64_t gpu_fetch_add_acq_rel(uint64_t *p, uint64_t n, struct sim_site at = SIM_SITE_HERE)
{
	sim_link_forbid(p, "an addition");
	shunt_sim_advanced();
	if (!sim_weak(at, SIM_SITE_RELEASE))
		sim_link_release();
	if (sim_weak(at, SIM_SITE_ACQUIRE))
		return __atomic_fetch_add(p, n, __ATOMIC_RELEASE);
	if (sim_weak(at, SIM_SITE_RELEASE))
		return __atomic_fetch_add(p, n, __ATOMIC_ACQUIRE);
	return __atomic_fetch_add(p, n, __ATOMIC_ACQ_REL);
}
GPU_FN uint64_t gpu_fetch_add_credit(uint64_t *p, uint64_t n, struct sim_site at = SIM_SITE_HERE)
{
	return gpu_fetch_add_acq_rel(p, n, at);
}
GPU_FN uint64_t gpu_ld_acquire_gpu(const uint64_t *p, struct sim_site at = SIM_SITE_HERE)
{
	return gpu_ld_acquire(p, at);
}
GPU_FN bool gpu_sem_acquire(uint64_t *p, struct sim_site at = SIM_SITE_HERE)
{
	uint64_t seen = gpu_ld_relaxed(p);

	sim_link_forbid(p, "a semaphore");
	if (!seen)
		return sim_weak(at, SIM_SITE_OLDER);
	if (sim_weak(at, SIM_SITE_ACQUIRE))
		return __atomic_compare_exchange_n(p, &seen, seen - 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	return __atomic_compare_exchange_n(p, &seen, seen - 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}
GPU_FN void gpu_sem_release(uint64_t *p, struct sim_site at = SIM_SITE_HERE) { gpu_add_release(p, 1, at); }
GPU_FN bool gpu_test_and_set32(uint32_t *p)
{
	uint32_t seen = 0;

	sim_link_forbid(p, "a test and set");
	return __atomic_compare_exchange_n(p, &seen, 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
GPU_FN void gpu_or_block32(uint32_t *p, uint32_t bits) { __atomic_fetch_or(p, bits, __ATOMIC_RELAXED); }
GPU_FN void gpu_fence(struct sim_site at = SIM_SITE_HERE)
{
	if (!sim_weak(at, SIM_SITE_FENCE))
		shunt_sim_fence();
}

/* A device refuses an unaligned address; this machine would not. */
GPU_FN void shunt_sim_aligned(const void *p, uintptr_t to = 16)
{
	if ((uintptr_t)p & (to - 1))
		__builtin_trap();
}

GPU_FN struct gpu_v16 gpu_ld16(const void *p)
{
	shunt_sim_aligned(p);
	return *(const struct gpu_v16 *)p;
}
GPU_FN void gpu_st16(void *p, struct gpu_v16 v)
{
	shunt_sim_aligned(p);
	if (!sim_play() || !shunt_sim_link_takes(p, &v, sizeof(v), SIM_STORE_PLAIN))
		*(struct gpu_v16 *)p = v;
}
GPU_FN struct gpu_v16 gpu_ll16_ld(const void *p, struct sim_site at = SIM_SITE_HERE)
{
	const uint64_t *half = (const uint64_t *)p;
	enum sim_look how = sim_weak(at, SIM_SITE_ACQUIRE) ? SIM_LOOK_PLAIN : SIM_LOOK_PACKET;

	shunt_sim_aligned(p);
	return { sim_look(half, how), sim_look(half + 1, how) };
}
GPU_FN void gpu_ll8_st(uint64_t *p, uint64_t v, struct sim_site at = SIM_SITE_HERE)
{
	sim_st_release(p, v, at, SIM_STORE_PACKET);
}
GPU_FN void gpu_ll16_st(void *p, struct gpu_v16 v, struct sim_site at = SIM_SITE_HERE)
{
	shunt_sim_aligned(p);
	gpu_ll8_st((uint64_t *)p, v.lo, at);
	gpu_ll8_st((uint64_t *)p + 1, v.hi, at);
}
GPU_FN bool gpu_ll16_ready(struct gpu_v16 v, uint32_t flag, struct sim_site at = SIM_SITE_HERE)
{
	if (sim_weak(at, SIM_SITE_OLDER))
		return v.lo >> 32 && v.hi >> 32;
	return (uint32_t)(v.lo >> 32) == flag && (uint32_t)(v.hi >> 32) == flag;
}
GPU_FN bool gpu_ll32_ready(struct gpu_v16 a, struct gpu_v16 b, uint32_t flag, struct sim_site at = SIM_SITE_HERE)
{
	return gpu_ll16_ready(a, flag, at) && gpu_ll16_ready(b, flag, at);
}
GPU_FN struct gpu_v16 gpu_ld16_stream(const void *p) { return gpu_ld16(p); }
GPU_FN void gpu_st16_stream(void *p, struct gpu_v16 v) { gpu_st16(p, v); }

/*
 * A line is stored as data, then its flag with release. The flag's lane stores the flag for all eight lanes, so the
 * warp synchronizes in between. A load reads the data, plainly, only if the flag is present. Otherwise the lanes get
 * a pattern that no right result contains.
 */
#define GPU_LL128_FLAG_LANE (gpu_lane() % 8 == 7)
#define SHUNT_SIM_NO_DATA 0xbad11e57a1edda7au

GPU_FN void gpu_ll128_st(
    void *slot, struct gpu_v16 v, uint64_t flag, uint32_t lines = 4, struct sim_site at = SIM_SITE_HERE)
{
	uint64_t *p = (uint64_t *)slot + gpu_lane() * 2;
	bool mine = gpu_lane() / 8 < lines;

	shunt_sim_aligned(slot, 128);
	sim_link_forbid(slot, "a line of 128 bytes");
	if (mine)
		p[0] = v.lo;
	if (mine && !GPU_LL128_FLAG_LANE)
		p[1] = v.hi;
	shunt_sim_ballot(true);
	if (mine && GPU_LL128_FLAG_LANE)
		gpu_st_release(&p[1], flag, at);
}

GPU_FN void gpu_ll128_ld(
    const void *slot, struct gpu_v16 *v, uint64_t flag, uint32_t lines = 4, struct sim_site at = SIM_SITE_HERE)
{
	const uint64_t *p = (const uint64_t *)slot + gpu_lane() * 2;
	uint64_t seen = flag;
	bool mine = gpu_lane() / 8 < lines;

	shunt_sim_aligned(slot, 128);
	sim_link_forbid(slot, "a line of 128 bytes");
	if (mine && GPU_LL128_FLAG_LANE)
		seen = sim_weak(at, SIM_SITE_ACQUIRE) ? __atomic_load_n(&p[1], __ATOMIC_RELAXED) :
		                                        __atomic_load_n(&p[1], __ATOMIC_ACQUIRE);
	if (seen && sim_weak(at, SIM_SITE_OLDER))
		seen = flag;
	uint32_t there = shunt_sim_ballot(seen == flag);
	v->lo = v->hi = SHUNT_SIM_NO_DATA;
	if (mine && (there >> (gpu_lane() | 7) & 1)) {
		v->lo = p[0];
		v->hi = GPU_LL128_FLAG_LANE ? seen : p[1];
	}
}

GPU_FN bool gpu_ll128_ready(struct gpu_v16 v, uint64_t flag, uint32_t lines = 4, struct sim_site at = SIM_SITE_HERE)
{
	return !GPU_LL128_FLAG_LANE || gpu_lane() / 8 >= lines || v.hi == flag || sim_weak(at, SIM_SITE_OLDER);
}

/*
 * A sector's halves arrive one after the other, in either order, and a reader may look in between. Then its sum does
 * not fit. The words are atomics, as reader and writer meet there.
 */
#define GPU_SECTOR_FLAG_LANE (gpu_lane() % 2 == 1)

GPU_FN uint64_t shunt_sim_sector_flag(struct gpu_v16 v, uint64_t flag)
{
	uint64_t mixed = v.lo * 0x9e3779b97f4a7c15u;

	if (!GPU_SECTOR_FLAG_LANE)
		mixed += (v.hi ^ v.hi >> 29) * 0xbf58476d1ce4e5b9u;
	uint32_t sum = (uint32_t)(mixed >> 32) ^ (uint32_t)mixed * 0x85ebca6bu;
	return (uint32_t)flag | (uint64_t)(sum + shunt_sim_shfl_xor(sum, 1)) << 32;
}
GPU_FN void gpu_sector_st(void *slot, struct gpu_v16 v, uint64_t flag, struct sim_site at = SIM_SITE_HERE)
{
	uint64_t *p = (uint64_t *)slot + gpu_lane() * 2, whole = shunt_sim_sector_flag(v, flag);
	bool late = (gpu_lane() ^ (whole >> 40)) & 1;

	shunt_sim_aligned(slot, 32);
	if (GPU_SECTOR_FLAG_LANE)
		v.hi = whole;
	for (int turn = 0; turn < 2; turn++) {
		if (late == (turn == 1)) {
			sim_st_release(&p[0], v.lo, at, SIM_STORE_PACKET);
			sim_st_release(&p[1], v.hi, at, SIM_STORE_PACKET);
		}
		if (turn == 0 && shunt_sim_ballot(true) && gpu_lane() == 0)
			shunt_sim_linger();
	}
}
GPU_FN void gpu_sector_ld(const void *slot, struct gpu_v16 *v, uint64_t, struct sim_site at = SIM_SITE_HERE)
{
	*v = gpu_ll16_ld((const char *)slot + gpu_lane() * 16, at);
}
GPU_FN bool gpu_sector_ready(struct gpu_v16 v, uint64_t flag, struct sim_site at = SIM_SITE_HERE)
{
	uint64_t whole = shunt_sim_sector_flag(v, flag);

	if (sim_weak(at, SIM_SITE_OLDER))
		return !GPU_SECTOR_FLAG_LANE || (uint32_t)v.hi;
	if (sim_weak(at, SIM_SITE_SUM))
		return !GPU_SECTOR_FLAG_LANE || (uint32_t)v.hi == (uint32_t)flag;
	return !GPU_SECTOR_FLAG_LANE || v.hi == whole;
}

/*
 * TMA copies take place as late as possible: in the wait for them. All belong to lane 0. One out of shared memory may
 * read at once, which is for ThreadSanitizer to see.
 */
struct gpu_mbar {
	const void *from;
	void *to;
	uint32_t bytes, uses;
};
struct gpu_tma_group {
	struct {
		void *to;
		const void *from;
		uint32_t bytes;
	} out[2]; /* the older copy first */
	uint32_t n = 0;
};

GPU_FN void shunt_sim_tma_copy(void *to, const void *from, uint32_t bytes)
{
	for (uint32_t at = 0; at < bytes; at += 16)
		gpu_st16((char *)to + at, gpu_ld16((const char *)from + at));
	shunt_sim_advanced();
}
GPU_FN void shunt_sim_tma_check(const void *a, const void *b, uint32_t bytes)
{
	shunt_sim_aligned(a);
	shunt_sim_aligned(b);
	if (!bytes || bytes % 16)
		__builtin_trap();
}

GPU_FN void shunt_sim_tma_peek(const void *from, uint32_t bytes)
{
#if defined(__SANITIZE_THREAD__)
	for (uint32_t at = 0; at < bytes; at += 8)
		(void)*(const volatile uint64_t *)((const char *)from + at);
#endif
}

GPU_FN void gpu_tma_fence(struct sim_site at = SIM_SITE_HERE)
{
	if (!sim_weak(at, SIM_SITE_FENCE))
		gpu_warp_sync();
}
GPU_FN void gpu_mbar_init(struct gpu_mbar *bar)
{
	if (gpu_lane() == 0)
		bar->uses = 0;
	gpu_warp_sync();
}
GPU_FN void gpu_tma_load(void *to, const void *from, uint32_t bytes, struct gpu_mbar *bar)
{
	if (gpu_lane() != 0)
		return;
	shunt_sim_tma_check(to, from, bytes);
	bar->to = to;
	bar->from = from;
	bar->bytes = bytes;
}
GPU_FN void gpu_mbar_wait(struct gpu_mbar *bar, uint32_t parity, struct sim_site at = SIM_SITE_HERE)
{
	if (gpu_lane() == 0) {
		if ((bar->uses++ & 1) != parity) /* a device would not wait, or would wait for ever */
			__builtin_trap();
		if (!sim_weak(at, SIM_SITE_WAIT))
			shunt_sim_tma_copy(bar->to, bar->from, bar->bytes);
	}
	gpu_warp_sync();
}
GPU_FN void gpu_tma_store(struct gpu_tma_group *b, void *to, const void *from, uint32_t bytes)
{
	if (gpu_lane() != 0)
		return;
	shunt_sim_tma_check(to, from, bytes);
	if (b->n == 2)
		__builtin_trap();
	b->out[b->n++] = { to, from, bytes };
	shunt_sim_tma_peek(from, bytes);
}
template <int N> GPU_FN void gpu_tma_store_wait(struct gpu_tma_group *b, struct sim_site at = SIM_SITE_HERE)
{
	for (; b->n > N && !sim_weak(at, SIM_SITE_WAIT); b->n--) {
		shunt_sim_tma_copy(b->out[0].to, b->out[0].from, b->out[0].bytes);
		b->out[0] = b->out[1];
	}
	gpu_warp_sync();
}
GPU_FN void shunt_sim_tma_finish(struct gpu_tma_group *b, bool copies)
{
	if (copies)
		shunt_sim_tma_copy(b->out[0].to, b->out[0].from, b->out[0].bytes);
	b->out[0] = b->out[1];
	b->n--;
}
GPU_FN void gpu_tma_scatter(struct gpu_tma_group *b, void *to, const void *from, uint32_t bytes)
{
	shunt_sim_tma_check(to, from, bytes);
	if (b->n == 2)
		shunt_sim_tma_finish(b, true);
	b->out[b->n++] = { to, from, bytes };
	shunt_sim_tma_peek(from, bytes);
}
GPU_FN void gpu_tma_scatter_fence(struct sim_site at = SIM_SITE_HERE) { gpu_tma_fence(at); }
GPU_FN void gpu_tma_scatter_wait(struct gpu_tma_group *b, struct sim_site at = SIM_SITE_HERE)
{
	while (b->n)
		shunt_sim_tma_finish(b, !sim_weak(at, SIM_SITE_WAIT));
	gpu_warp_sync();
}
