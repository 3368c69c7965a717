/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_KERNEL_H
#define SHUNT_KERNEL_H
/*
 * What a plug-in's kernel calls (docs/plugins.md), for nvcc, for NVRTC, and for g++ on the sim, where a block is a
 * thread of the CPU and its threads are fibers on it. A kernel that uses these functions needs nothing else to be
 * portable, and inherits the communicator's deadline, abort, dumps and doctor. C++17; include it in one file of a
 * plug-in.
 *
 * | function | what |
 * |---|---|
 * | SHUNT_PLUGIN_KERNEL(name) { body } | the GPU's kernel `name`, and name_sim for `sim`. The body has `call`, and
 * | | `epoch`: 1 in the first call, then one more in each, replays of graphs included; the same on all ranks |
 * | SHUNT_PLUGIN_IMAGE(name, "file") | name_image() and name_image_bytes(): the file's bytes; for g++ |
 * | shunt_k_tid, _ntid, _bid, _nbid | index and number of threads and blocks; blocks have a multiple of 32 threads |
 * | shunt_k_sync | barrier of the block |
 * | shunt_k_sync_all(ok) | the same; true on all threads if ok is true on each |
 * | shunt_k_ballot(vote) | the lanes of the warp that vote, as bits |
 * | shunt_k_load, _store | words of the system, relaxed |
 * | shunt_k_acquire, _release | the same, with order |
 * | shunt_k_load16, _store16 | 16 aligned bytes, plain |
 * | shunt_k_wait(call, word, at_least) | by one thread: acquires the word until it is at least so much. False: the
 * | | communicator is broken; return, and write nothing more |
 * | shunt_k_signal(call, peer, i, value) | by one thread: releases to word i of this rank at a peer |
 * | shunt_k_await(call, peer, i, value) | by one thread: waits for the word i that the peer signals here |
 * | shunt_k_barrier(call) | by a whole block: with the same block of all ranks. False as above, on all threads. As
 * | | often on all ranks, in the same number of blocks |
 * | shunt_k_packet_store(to, data, flag) | 16 aligned bytes that carry 8 bytes and their flag, which is not 0 |
 * | shunt_k_packet_load(from, flag, data_p) | one try. True: the packet has this flag, and *data_p is its data |
 * | shunt_k_packet_wait(call, from, flag, data_p) | the same until it is there. False as above |
 * | shunt_k_slot_get(p, left, aligned) | by a whole warp, as all of slots: this lane's bytes of the SHUNT_K_SLOT_DATA
 * | | at p, or of the `left`, not 0, that are there. aligned: both are multiples of 16 (SHUNT_PLUGIN_ALIGNED) |
 * | shunt_k_slot_put(p, left, aligned, v) | the same bytes to p |
 * | shunt_k_slot_store(to, v, flag) | a slot: SHUNT_K_SLOT_WIRE bytes, aligned to 128, with a flag of 64 bits in each
 * | | line, which is not 0. The last bytes of a line always are its flag, in every call |
 * | shunt_k_slots_wait(call, from, flag, v) | waits for N slots, from[0 .. N - 1], all loads under way together. v:
 * this | | lane's bytes of each. False as above, on all lanes |
 *
 * A reader that sees a packet or a slot may use its data and nothing else of the writer. A packet takes twice its data
 * on the wire, a slot an eighteenth more than its data.
 */
#include "shunt/plugin.h"

#if defined(__CUDACC__)
#define SHUNT_K_FN static __device__ __forceinline__
#define SHUNT_K_METHOD __device__ __forceinline__
#define SHUNT_K_COLD static __device__ __noinline__
#define SHUNT_K_UNROLL _Pragma("unroll")
#define SHUNT_K_ROLL _Pragma("unroll 1")
#define SHUNT_K_SPINS 1024u /* tries between two looks at the clock */
#else
#include <time.h>
#define SHUNT_K_FN static inline
#define SHUNT_K_METHOD inline
#define SHUNT_K_COLD static inline
#define SHUNT_K_UNROLL
#define SHUNT_K_ROLL
#define SHUNT_K_SPINS 16u
#endif

struct shunt_k_v16 {
	uint64_t lo, hi;
};

/* Words behind those that are the plug-in's: the kernel's own. */
enum {
	SHUNT_K_CALLS = SHUNT_PLUGIN_EPOCHS, /* SHUNT_K_CALL for each; less for the blocks that have left one */
	SHUNT_K_BROKEN,                      /* not 0: a thread writes the fault */
	SHUNT_K_BARRIERS = 96,               /* of each block */
};
#define SHUNT_K_CALL (1u << 16) /* more than a launch has blocks */
#define SHUNT_K_SLOT_DATA 480u
#define SHUNT_K_SLOT_WIRE 512u
enum { SHUNT_K_BARRIER_SIGNALS = SHUNT_PLUGIN_RANKS * SHUNT_PLUGIN_SIGNALS };

/* ---- what differs */

#if defined(__CUDACC__)
SHUNT_K_FN uint32_t shunt_k_tid()
{
	return threadIdx.x;
}
SHUNT_K_FN uint32_t shunt_k_ntid()
{
	return blockDim.x;
}
SHUNT_K_FN uint32_t shunt_k_bid()
{
	return blockIdx.x;
}
SHUNT_K_FN uint32_t shunt_k_nbid()
{
	return gridDim.x;
}
SHUNT_K_FN void shunt_k_sync()
{
	__syncthreads();
}
SHUNT_K_FN bool shunt_k_sync_all(bool ok)
{
	return __syncthreads_and(ok);
}
SHUNT_K_FN uint32_t shunt_k_ballot(bool vote)
{
	return __ballot_sync(0xffffffffu, vote);
}
SHUNT_K_FN void shunt_k_relax()
{
}
SHUNT_K_FN void shunt_k_advanced()
{
}
SHUNT_K_FN void shunt_k_dependency_wait()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
SHUNT_K_FN uint64_t shunt_k_clock_ns()
{
	uint64_t t;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}
SHUNT_K_FN uint64_t shunt_k_load(const uint64_t *p)
{
	uint64_t v;
	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}
SHUNT_K_FN uint32_t shunt_k_load32(const uint32_t *p)
{
	uint32_t v;
	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
SHUNT_K_FN void shunt_k_store(uint64_t *p, uint64_t v)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
SHUNT_K_FN uint64_t shunt_k_acquire(const uint64_t *p)
{
	uint64_t v;
	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}
SHUNT_K_FN void shunt_k_release(uint64_t *p, uint64_t v)
{
	asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
SHUNT_K_FN uint64_t shunt_k_count(uint64_t *p, uint64_t n)
{
	uint64_t old;
	asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(n) : "memory");
	return old;
}
SHUNT_K_FN void shunt_k_add(uint64_t *p, uint64_t n)
{
	asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(n) : "memory");
}
SHUNT_K_FN void shunt_k_release32(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
SHUNT_K_FN struct shunt_k_v16 shunt_k_load16(const void *p)
{
	struct shunt_k_v16 v;
	asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.lo), "=l"(v.hi) : "l"(p) : "memory");
	return v;
}
SHUNT_K_FN void shunt_k_store16(void *p, struct shunt_k_v16 v)
{
	asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v.lo), "l"(v.hi) : "memory");
}
SHUNT_K_FN struct shunt_k_v16 shunt_k_packet_halves(const void *p)
{
	struct shunt_k_v16 v;
	asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.lo), "=l"(v.hi) : "l"(p) : "memory");
	return v;
}
SHUNT_K_FN void shunt_k_packet_put(void *p, struct shunt_k_v16 v)
{
	asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v.lo), "l"(v.hi) : "memory");
}
/* An aligned store instruction of a warp leaves the multiprocessor as whole lines, and NVLink keeps a line whole. */
SHUNT_K_FN void shunt_k_slot_lane_put(void *p, struct shunt_k_v16 v, bool)
{
	shunt_k_packet_put(p, v);
}
SHUNT_K_FN struct shunt_k_v16 shunt_k_slot_lane(const void *p, bool, uint64_t)
{
	return shunt_k_packet_halves(p);
}
SHUNT_K_FN float shunt_k_float(uint32_t bits)
{
	return __uint_as_float(bits);
}
SHUNT_K_FN uint32_t shunt_k_bits(float v)
{
	return __float_as_uint(v);
}
#else
static const struct shunt_sim_ops *shunt_k_sim;
SHUNT_K_FN const struct shunt_sim_ops *shunt_k_ops()
{
	return __atomic_load_n(&shunt_k_sim, __ATOMIC_RELAXED);
}
SHUNT_K_FN uint32_t shunt_k_tid()
{
	return shunt_k_ops()->self()[0];
}
SHUNT_K_FN uint32_t shunt_k_ntid()
{
	return shunt_k_ops()->self()[1];
}
SHUNT_K_FN uint32_t shunt_k_bid()
{
	return shunt_k_ops()->self()[2];
}
SHUNT_K_FN uint32_t shunt_k_nbid()
{
	return shunt_k_ops()->self()[3];
}
SHUNT_K_FN void shunt_k_sync()
{
	shunt_k_ops()->block_barrier();
}
SHUNT_K_FN uint32_t shunt_k_ballot(bool vote)
{
	return shunt_k_ops()->ballot(vote);
}
SHUNT_K_FN void shunt_k_relax()
{
	shunt_k_ops()->relax();
}
SHUNT_K_FN void shunt_k_advanced()
{
	shunt_k_ops()->advanced();
}
SHUNT_K_FN void shunt_k_dependency_wait()
{
}
SHUNT_K_FN bool shunt_k_sync_all(bool ok)
{
	static const char key = 0;
	uint32_t *failed = (uint32_t *)shunt_k_ops()->shared(&key, sizeof(*failed));

	shunt_k_sync();
	if (shunt_k_tid() == 0)
		__atomic_store_n(failed, 0, __ATOMIC_RELAXED);
	shunt_k_sync();
	if (!ok)
		__atomic_store_n(failed, 1, __ATOMIC_RELAXED);
	shunt_k_sync();
	return !__atomic_load_n(failed, __ATOMIC_RELAXED);
}
SHUNT_K_FN uint64_t shunt_k_clock_ns()
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
SHUNT_K_FN uint64_t shunt_k_load(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}
SHUNT_K_FN uint32_t shunt_k_load32(const uint32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}
SHUNT_K_FN void shunt_k_store(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELAXED);
}
SHUNT_K_FN uint64_t shunt_k_acquire(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
SHUNT_K_FN void shunt_k_release(uint64_t *p, uint64_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
	shunt_k_advanced();
}
SHUNT_K_FN uint64_t shunt_k_count(uint64_t *p, uint64_t n)
{
	return __atomic_fetch_add(p, n, __ATOMIC_ACQ_REL);
}
/* Release: the host that copies the sum may free what the kernel has read. */
SHUNT_K_FN void shunt_k_add(uint64_t *p, uint64_t n)
{
	__atomic_fetch_add(p, n, __ATOMIC_RELEASE);
}
SHUNT_K_FN void shunt_k_release32(uint32_t *p, uint32_t v)
{
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
}
/* A device refuses an unaligned address; this machine would not. */
SHUNT_K_FN void shunt_k_aligned(const void *p)
{
	if ((uintptr_t)p & 15)
		__builtin_trap();
}
SHUNT_K_FN struct shunt_k_v16 shunt_k_load16(const void *p)
{
	shunt_k_aligned(p);
	return *(const struct shunt_k_v16 *)p;
}
SHUNT_K_FN void shunt_k_store16(void *p, struct shunt_k_v16 v)
{
	shunt_k_aligned(p);
	*(struct shunt_k_v16 *)p = v;
}
SHUNT_K_FN struct shunt_k_v16 shunt_k_packet_halves(const void *p)
{
	const uint64_t *half = (const uint64_t *)p;

	shunt_k_aligned(p);
	return { __atomic_load_n(half, __ATOMIC_ACQUIRE), __atomic_load_n(half + 1, __ATOMIC_ACQUIRE) };
}
SHUNT_K_FN void shunt_k_packet_put(void *p, struct shunt_k_v16 v)
{
	uint64_t *half = (uint64_t *)p;

	shunt_k_aligned(p);
	__atomic_store_n(half, v.lo, __ATOMIC_RELEASE);
	__atomic_store_n(half + 1, v.hi, __ATOMIC_RELEASE);
	shunt_k_advanced();
}
/* A line's data is plain, its flag orders it. */
SHUNT_K_FN void shunt_k_slot_lane_put(void *p, struct shunt_k_v16 v, bool has_flag)
{
	uint64_t *half = (uint64_t *)p;

	shunt_k_aligned(p);
	half[0] = v.lo;
	if (!has_flag)
		half[1] = v.hi;
	shunt_k_ballot(true);
	if (has_flag)
		shunt_k_release(&half[1], v.hi);
}
SHUNT_K_FN struct shunt_k_v16 shunt_k_slot_lane(const void *p, bool has_flag, uint64_t flag)
{
	const uint64_t *half = (const uint64_t *)p;
	const uint64_t seen = has_flag ? shunt_k_acquire(&half[1]) : flag;
	struct shunt_k_v16 v = { 0, seen };

	shunt_k_aligned(p);
	if (shunt_k_ballot(seen == flag) >> (shunt_k_tid() % 32 | 7) & 1)
		v = { half[0], has_flag ? seen : half[1] };
	return v;
}
SHUNT_K_FN float shunt_k_float(uint32_t bits)
{
	float v;

	__builtin_memcpy(&v, &bits, sizeof(v));
	return v;
}
SHUNT_K_FN uint32_t shunt_k_bits(float v)
{
	uint32_t bits;

	__builtin_memcpy(&bits, &v, sizeof(bits));
	return bits;
}
#endif

/* ---- what does not */

SHUNT_K_FN float shunt_k_from_bf16(uint32_t bits)
{
	return shunt_k_float(bits << 16);
}
/* Rounds to nearest even. */
SHUNT_K_FN uint32_t shunt_k_to_bf16(float v)
{
	uint32_t bits = shunt_k_bits(v);

	if (v != v)
		return (bits >> 16) | 0x40u;
	return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

SHUNT_K_FN bool shunt_k_aborted(const struct shunt_plugin_call &call)
{
	return shunt_k_load32(call.abort) || shunt_k_load(call.limit_ns) == ~0ull;
}

/* The first thread that gives up tells the host why; the others leave, too. */
SHUNT_K_COLD void shunt_k_give_up(uint64_t *broken, struct shunt_plugin_fault *fault, const uint32_t *abort,
    uint32_t peer, uint64_t expected, uint64_t seen)
{
	if (!shunt_k_count(broken, 1)) {
		fault->peer = peer;
		fault->expected = expected;
		fault->seen = seen;
		shunt_k_release32(&fault->set, 2);
	}
	shunt_k_release32((uint32_t *)abort, 1);
}

struct shunt_k_spin {
	uint64_t began;
	uint32_t tries;
};

/*
 * When a wait began, as far as there is a limit; 0: the communicator is broken; UINT64_MAX: the wait is too long. A
 * function of its own: kernels wait for instructions. It takes words and not the call, whose address in the memory of
 * the launch's parameters a kernel would load at its beginning.
 */
SHUNT_K_COLD uint64_t shunt_k_look(const uint32_t *abort, const uint64_t *limit_ns, uint64_t began)
{
	uint64_t limit = shunt_k_load(limit_ns), now = shunt_k_clock_ns();

	if (shunt_k_load32(abort) || limit == ~0ull)
		return 0;
	if (!limit || !began)
		return now;
	return now - began <= limit ? began : ~0ull;
}

/* After a try in vain. True: give up. */
SHUNT_K_FN bool shunt_k_expired(
    const struct shunt_plugin_call &call, struct shunt_k_spin *spin, uint32_t peer, uint64_t expected, uint64_t seen)
{
	shunt_k_relax();
	if (++spin->tries % SHUNT_K_SPINS)
		return false;
	/* The index is 0, which compilers do not know: else they load the call's words where the kernel begins. */
	const struct shunt_plugin_call &late = (&call)[shunt_k_clock_ns() >> 63];
	spin->began = shunt_k_look(late.abort, late.limit_ns, spin->began);
	if (spin->began == ~0ull)
		shunt_k_give_up(&late.epoch[SHUNT_K_BROKEN], late.fault, late.abort, peer, expected, seen);
	return spin->began == 0 || spin->began == ~0ull;
}

SHUNT_K_FN bool shunt_k_wait(const struct shunt_plugin_call &call, const uint64_t *word, uint64_t at_least)
{
	const uint64_t *mine = call.signals[call.rank];
	struct shunt_k_spin spin = { 0, 0 };
	uint64_t seen;

	while ((seen = shunt_k_acquire(word)) < at_least) {
		uint64_t at = (uint64_t)(word - mine) % SHUNT_K_BARRIER_SIGNALS / SHUNT_PLUGIN_SIGNALS;
		bool ours = word >= mine && word < mine + 2 * SHUNT_K_BARRIER_SIGNALS;

		if (shunt_k_expired(call, &spin, ours ? (uint32_t)at : ~0u, at_least, seen))
			return false;
	}
	return true;
}

SHUNT_K_FN void shunt_k_signal(const struct shunt_plugin_call &call, uint32_t peer, uint32_t i, uint64_t value)
{
	shunt_k_release(&call.signals[peer][call.rank * SHUNT_PLUGIN_SIGNALS + i], value);
}

SHUNT_K_FN bool shunt_k_await(const struct shunt_plugin_call &call, uint32_t peer, uint32_t i, uint64_t value)
{
	return shunt_k_wait(call, &call.signals[call.rank][peer * SHUNT_PLUGIN_SIGNALS + i], value);
}

SHUNT_K_FN bool shunt_k_barrier(const struct shunt_plugin_call &call)
{
	uint64_t *count = &call.epoch[SHUNT_K_BARRIERS + shunt_k_bid()], number = *count + 1;
	uint32_t peer = shunt_k_tid(), own = SHUNT_K_BARRIER_SIGNALS + shunt_k_bid();
	bool ok = true;

	shunt_k_sync(); /* the block's stores come before the signals, and its loads of the count before its store */
	if (peer == 0)
		*count = number;
	if (peer < call.nranks && peer != call.rank) {
		shunt_k_signal(call, peer, own, number);
		ok = shunt_k_await(call, peer, own, number);
	}
	return shunt_k_sync_all(ok);
}

SHUNT_K_FN void shunt_k_packet_store(void *to, uint64_t data, uint32_t flag)
{
	shunt_k_packet_put(to, { (data & 0xffffffffu) | (uint64_t)flag << 32, data >> 32 | (uint64_t)flag << 32 });
}

SHUNT_K_FN bool shunt_k_packet_load(const void *from, uint32_t flag, uint64_t *data_p)
{
	struct shunt_k_v16 v = shunt_k_packet_halves(from);

	*data_p = (v.lo & 0xffffffffu) | v.hi << 32;
	return (uint32_t)(v.lo >> 32) == flag && (uint32_t)(v.hi >> 32) == flag;
}

SHUNT_K_FN bool shunt_k_packet_wait(
    const struct shunt_plugin_call &call, const void *from, uint32_t flag, uint64_t *data_p)
{
	struct shunt_k_spin spin = { 0, 0 };

	while (!shunt_k_packet_load(from, flag, data_p))
		if (shunt_k_expired(call, &spin, ~0u, flag, *data_p))
			return false;
	return true;
}

/*
 * A slot is four lines of 128 bytes. Lanes 0-6 of a line hold 16 bytes of data, lane 7 holds 8 and the flag. Packs stay
 * aligned: the 28 full packs of the slot come first, then the 4 halves.
 */
SHUNT_K_FN bool shunt_k_slot_has_flag()
{
	return shunt_k_tid() % 8 == 7;
}

/* Where the lane's bytes begin. packs: the aligned pack that contains them. */
SHUNT_K_FN uint32_t shunt_k_slot_at(bool packs)
{
	const uint32_t line = shunt_k_tid() % 32 / 8, half = packs ? line / 2 * 16 : line * 8;

	return shunt_k_slot_has_flag() ? 28 * 16 + half : (line * 7 + shunt_k_tid() % 8) * 16;
}

/* The lane's bytes of a message that is not aligned: apart from the code for others, as small calls wait for
 * instructions. */
SHUNT_K_COLD struct shunt_k_v16 shunt_k_slot_get_bytes(const char *p, uint64_t left)
{
	struct shunt_k_v16 v = { 0, 0 };

	for (uint64_t i = 0, at = shunt_k_slot_at(false); i < 16 && at + i < left; i++)
		(i < 8 ? v.lo : v.hi) |= (uint64_t)(unsigned char)p[at + i] << i % 8 * 8;
	return v;
}

SHUNT_K_COLD void shunt_k_slot_put_bytes(char *p, uint64_t left, struct shunt_k_v16 v)
{
	const uint64_t at = shunt_k_slot_at(false), most = shunt_k_slot_has_flag() ? 8 : 16;

	for (uint64_t i = 0; i < most && at + i < left; i++)
		p[at + i] = (char)((i < 8 ? v.lo : v.hi) >> i % 8 * 8);
}

/* All lanes load a pack: a load with a condition would have to be waited for by itself. */
SHUNT_K_FN struct shunt_k_v16 shunt_k_slot_get(const void *p, uint64_t left, bool aligned)
{
	const uint32_t at = shunt_k_slot_at(true);
	struct shunt_k_v16 v;

	if (__builtin_expect(!aligned, 0))
		return shunt_k_slot_get_bytes((const char *)p, left);
	v = shunt_k_load16((const char *)p + (at < left ? at : 0));
	if (shunt_k_slot_has_flag() && shunt_k_tid() / 8 % 2)
		v.lo = v.hi;
	return v;
}

SHUNT_K_FN void shunt_k_slot_put(void *p, uint64_t left, bool aligned, struct shunt_k_v16 v)
{
	char *to = (char *)p + shunt_k_slot_at(false);

	if (__builtin_expect(!aligned, 0))
		shunt_k_slot_put_bytes((char *)p, left, v);
	else if (shunt_k_slot_at(false) >= left)
		return;
	else if (shunt_k_slot_has_flag())
		*(uint64_t *)to = v.lo;
	else
		shunt_k_store16(to, v);
}

SHUNT_K_FN void shunt_k_slot_store(void *to, struct shunt_k_v16 v, uint64_t flag)
{
	if (shunt_k_slot_has_flag())
		v.hi = flag;
	shunt_k_slot_lane_put((char *)to + shunt_k_tid() % 32 * 16, v, shunt_k_slot_has_flag());
}

template <uint32_t N>
SHUNT_K_FN bool shunt_k_slots_wait(
    const struct shunt_plugin_call &call, const char *const (&from)[N], uint64_t flag, struct shunt_k_v16 (&v)[N])
{
	struct shunt_k_spin spin = { 0, 0 };

	for (;;) {
		uint32_t missing = N;

		SHUNT_K_UNROLL for (uint32_t i = 0; i < N; i++) v[i] =
		    shunt_k_slot_lane(from[i] + shunt_k_tid() % 32 * 16, shunt_k_slot_has_flag(), flag);
		SHUNT_K_UNROLL for (uint32_t i = 0; i < N; i++) if (shunt_k_slot_has_flag() && v[i].hi != flag)
		    missing = i;
		if (!shunt_k_ballot(missing != N))
			return true;
		if (shunt_k_ballot(missing != N && shunt_k_expired(call, &spin, missing, flag, 0)))
			return false;
	}
}

/* The number of a call, of the word that counts them: made where it is used, so that no other load waits for it. */
struct shunt_k_epoch {
	uint64_t word;

	SHUNT_K_METHOD operator uint64_t() const
	{
#if defined(__CUDACC__)
		uint64_t calls;
		asm volatile("shr.u64 %0, %1, 16;" : "=l"(calls) : "l"(word));
		return calls + 1;
#else
		return word / SHUNT_K_CALL + 1;
#endif
	}
};

/* First in every thread of a kernel. */
SHUNT_K_FN struct shunt_k_epoch shunt_k_begin(const struct shunt_plugin_call &call)
{
	enum { NOW, EAGER, REPLAYS, BEGUN };

	shunt_k_dependency_wait();
	if (call.op && !shunt_k_bid() && !shunt_k_tid()) {
		shunt_k_store(&call.progress[NOW], call.op);
		if (call.op >> 63) /* its graph runs */
			shunt_k_add(&call.progress[REPLAYS], 1);
		else
			shunt_k_store(&call.progress[EAGER], call.op);
		shunt_k_add(&call.progress[BEGUN], shunt_k_nbid() * shunt_k_ntid() / 32);
	}
	return { shunt_k_load(&call.epoch[SHUNT_K_CALLS]) };
}

/*
 * Last in every thread, on every path. The count reaches the next call when all blocks have left this one. No thread
 * waits for the addition, nor for its own stores to peers, as it would for an addition with order.
 */
SHUNT_K_FN void shunt_k_end(const struct shunt_plugin_call &call)
{
	enum { ENDED = 4 };

	shunt_k_sync();
	if (shunt_k_tid() == 0)
		shunt_k_add(&call.epoch[SHUNT_K_CALLS], shunt_k_bid() ? 1 : SHUNT_K_CALL + 1 - shunt_k_nbid());
	if (call.op && shunt_k_tid() % 32 == 0)
		shunt_k_add(&call.progress[ENDED], 1);
}

#if defined(__CUDACC__)
#define SHUNT_PLUGIN_KERNEL(name) \
	static __device__ void name##_body(const struct shunt_plugin_call &call, struct shunt_k_epoch epoch); \
	extern "C" __global__ void __launch_bounds__(SHUNT_PLUGIN_MAX_THREADS, 1) \
	    name(const __grid_constant__ struct shunt_plugin_call call) \
	{ \
		struct shunt_k_epoch epoch = shunt_k_begin(call); \
		name##_body(call, epoch); \
		shunt_k_end(call); \
	} \
	static __device__ __forceinline__ void name##_body( \
	    [[maybe_unused]] const struct shunt_plugin_call &call, [[maybe_unused]] struct shunt_k_epoch epoch)
#else
#define SHUNT_PLUGIN_KERNEL(name) \
	static void name##_body(const struct shunt_plugin_call &call, struct shunt_k_epoch epoch); \
	static void name##_sim(const struct shunt_sim_ops *ops, const struct shunt_plugin_call *call) \
	{ \
		__atomic_store_n(&shunt_k_sim, ops, __ATOMIC_RELAXED); \
		struct shunt_k_epoch epoch = shunt_k_begin(*call); \
		name##_body(*call, epoch); \
		shunt_k_end(*call); \
	} \
	static void name##_body( \
	    [[maybe_unused]] const struct shunt_plugin_call &call, [[maybe_unused]] struct shunt_k_epoch epoch)

#define SHUNT_PLUGIN_IMAGE(name, file) \
	__asm__(".pushsection .rodata\n.balign 16\n" #name "_image_first:\n.incbin \"" file "\"\n" #name \
	        "_image_last:\n.byte 0\n.popsection\n"); \
	extern "C" __attribute__((visibility("hidden"))) const char name##_image_first[], name##_image_last[]; \
	static inline const void *name##_image() \
	{ \
		return name##_image_first; \
	} \
	static inline uint64_t name##_image_bytes() \
	{ \
		return (uint64_t)(name##_image_last - name##_image_first); \
	}
#endif
#endif
