/* SPDX-License-Identifier: MIT */
/* Threads of a block: who they are, barriers, votes, lines, polling, and what happens when a kernel is wrong. */
#include "tests/device/sim_test.h"
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 4, THREADS = 128 };
/* Every thread of a block costs ThreadSanitizer a little at every barrier of any of them. */
#if defined(__SANITIZE_THREAD__)
enum { MANY_BLOCKS = 8, MANY_THREADS = 192, MANY_BARRIERS = 10 };
#else
enum { MANY_BLOCKS = 32, MANY_THREADS = 512, MANY_BARRIERS = 1000 };
#endif

static void k_identity(const struct shunt_kargs &a)
{
	uint32_t *out = (uint32_t *)a.recv + (gpu_bid() * gpu_ntid() + gpu_tid()) * 4;

	out[0] = gpu_bid() * 1000 + gpu_tid();
	gpu_warp_sync();
	gpu_relax();
	gpu_sync();
	out[1] = gpu_bid() * 1000 + gpu_tid();
	out[2] = gpu_nbid() * 1000 + gpu_ntid();
	out[3] = gpu_lane();
}

TEST(test_block_identity_holds_across_switches)
{
	static uint32_t out[BLOCKS * THREADS * 4];
	struct shunt_kargs a = make_kargs(NULL, out);

	assert_ok(run_kernel(k_identity, BLOCKS, THREADS, &a));
	for (uint32_t i = 0; i < BLOCKS * THREADS; i++) {
		assert_int_equal(out[4 * i], i / THREADS * 1000 + i % THREADS);
		assert_int_equal(out[4 * i + 1], out[4 * i]);
		assert_int_equal(out[4 * i + 2], BLOCKS * 1000 + THREADS);
		assert_int_equal(out[4 * i + 3], i % 32);
	}
}

/* A prefix sum whose every step needs the barrier. */
static void k_scan(const struct shunt_kargs &a)
{
	GPU_SHARED(uint64_t, sum, MANY_THREADS);
	uint32_t t = gpu_tid();
	uint64_t *out = (uint64_t *)a.recv + gpu_bid() * gpu_ntid();

	sum[t] = t + gpu_bid();
	gpu_sync();
	for (uint32_t d = 1; d < gpu_ntid(); d *= 2) {
		uint64_t add = t >= d ? sum[t - d] : 0;

		gpu_sync();
		sum[t] += add;
		gpu_sync();
	}
	out[t] = sum[t];
}

TEST(test_block_barrier_separates_steps)
{
	static uint64_t out[BLOCKS * MANY_THREADS];
	struct shunt_kargs a = make_kargs(NULL, out);

	for (unsigned threads : { 32u, 64u, (unsigned)MANY_THREADS }) {
		assert_ok(run_kernel(k_scan, BLOCKS, threads, &a));
		for (uint64_t b = 0; b < BLOCKS; b++)
			for (uint64_t t = 0; t < threads; t++)
				assert_int_equal(out[b * threads + t], t * (t + 1) / 2 + b * (t + 1));
	}
}

/* Lane l writes, lane l+1 reads, without a block barrier; votes in between. */
static void k_warp(const struct shunt_kargs &a)
{
	GPU_SHARED(uint32_t, slot, 512);
	uint32_t t = gpu_tid(), lane = gpu_lane(), wrong = 0;

	for (uint32_t i = 0; i < 100; i++) {
		slot[t] = i * 1000 + lane;
		gpu_warp_sync();
		wrong += slot[t - lane + (lane + 1) % 32] != i * 1000 + (lane + 1) % 32;
		wrong += !gpu_warp_all(true);
		wrong += gpu_warp_all(lane != i % 32);
		wrong += gpu_warp_all(false);
	}
	((uint32_t *)a.recv)[gpu_bid() * gpu_ntid() + t] = wrong;
}

TEST(test_warp_barrier_and_votes)
{
	static uint32_t wrong[BLOCKS * THREADS];
	struct shunt_kargs a = make_kargs(NULL, wrong);

	memset(wrong, 1, sizeof(wrong));
	assert_ok(run_kernel(k_warp, BLOCKS, THREADS, &a));
	for (uint32_t w : wrong)
		assert_int_equal(w, 0);
}

/* Lanes hand values to each other, twice behind each other without a barrier between; and votes, as bits. */
static void k_exchange(const struct shunt_kargs &a)
{
	uint32_t t = gpu_tid(), lane = gpu_lane(), wrong = 0;

	for (uint32_t i = 0; i < 100; i++) {
		uint32_t mask = i % 32;

		wrong += gpu_shfl_xor32(i * 1000 + t, mask) != i * 1000 + (t ^ mask);
		wrong += gpu_shfl_xor32(i * 7 + lane, 31 - mask) != i * 7 + (lane ^ (31 - mask));
		wrong += gpu_ballot(lane < mask) != (1u << mask) - 1;
		wrong += gpu_popc(gpu_ballot(lane < mask)) != mask;
	}
	((uint32_t *)a.recv)[gpu_bid() * gpu_ntid() + t] = wrong;
}

TEST(test_warp_exchange)
{
	static uint32_t wrong[BLOCKS * THREADS];
	struct shunt_kargs a = make_kargs(NULL, wrong);

	memset(wrong, 1, sizeof(wrong));
	assert_ok(run_kernel(k_exchange, BLOCKS, THREADS, &a));
	for (uint32_t w : wrong)
		assert_int_equal(w, 0);
}

/* Warp 0 sends units to warp 1 of the same block. */
static void k_ll128(const struct shunt_kargs &a)
{
	char *slots = (char *)a.send;
	uint64_t *out = (uint64_t *)a.recv, lane = gpu_lane();

	for (uint64_t i = 1; i <= a.count; i++) {
		struct gpu_v16 v = { i * 100 + lane, i * 100 + 50 + lane };
		char *slot_at = slots + (i - 1) * 512;

		if (gpu_tid() < 32) {
			/* Nothing is there before the store ... */
			gpu_ll128_ld(slot_at, &v, i);
			if (gpu_ll128_ready(v, i) && GPU_LL128_FLAG_LANE)
				out[0]++;
			v = { i * 100 + lane, i * 100 + 50 + lane };
			for (int k = 0; k < 3; k++)
				gpu_relax();
			gpu_ll128_st(slot_at, v, i);
			continue;
		}
		struct gpu_v16 got;
		for (;;) {
			gpu_ll128_ld(slot_at, &got, i);
			if (gpu_warp_all(gpu_ll128_ready(got, i)))
				break;
			gpu_relax();
		}
		/* ... and all of it after the flag. */
		if (got.lo != v.lo || got.hi != (GPU_LL128_FLAG_LANE ? i : v.hi))
			out[1 + gpu_tid()]++;
	}
}

TEST(test_ll128_line_is_whole_when_its_flag_is_there)
{
	enum { SLOTS = 200 };
	static uint64_t out[1 + 64];
	char *slots = (char *)aligned_alloc(512, SLOTS * 512);
	struct shunt_kargs a = make_kargs(slots, out, SLOTS);

	memset(slots, 0, SLOTS * 512);
	assert_ok(run_kernel(k_ll128, 1, 64, &a));
	for (uint64_t wrong : out)
		assert_int_equal(wrong, 0);
	/* Memory is laid out as on the wire. */
	const uint64_t *w = (const uint64_t *)(slots + 512);
	for (uint64_t lane = 0; lane < 32; lane++) {
		assert_int_equal(w[2 * lane], 200 + lane);
		assert_int_equal(w[2 * lane + 1], lane % 8 == 7 ? 2 : 250 + lane);
	}
	free(slots);
}

/* Blocks poll each other in a circle: all must run at once. */
static void k_circle(const struct shunt_kargs &a)
{
	uint64_t *word = (uint64_t *)a.recv;

	for (uint64_t round = 1; round <= 20; round++) {
		if (gpu_tid() == 0) {
			uint32_t before = (gpu_bid() + gpu_nbid() - 1) % gpu_nbid();

			if (gpu_bid() == 0)
				gpu_st_release(&word[0], round);
			while (gpu_ld_acquire(&word[before]) < round)
				gpu_relax();
			if (gpu_bid())
				gpu_st_release(&word[gpu_bid()], round);
		}
		gpu_sync();
	}
}

TEST(test_block_all_blocks_of_a_launch_run_at_once)
{
	static uint64_t word[MANY_BLOCKS];
	struct shunt_kargs a = make_kargs(NULL, word);

	assert_ok(run_kernel(k_circle, MANY_BLOCKS, 64, &a));
	for (uint64_t w : word)
		assert_int_equal(w, 20);
	memset(word, 0, sizeof(word));
	shunt_sim_set_jitter(7, 200);
	assert_ok(run_kernel(k_circle, 8, 64, &a));
	shunt_sim_set_jitter(0, 0);
	assert_int_equal(word[7], 20);
}

static void k_claim(const struct shunt_kargs &a)
{
	if (gpu_test_and_set32((uint32_t *)a.send))
		gpu_st_relaxed((uint64_t *)a.recv, gpu_ld_relaxed((const uint64_t *)a.recv) + 1);
	gpu_fence();
}

TEST(test_claim_has_one_winner)
{
	static uint32_t word;
	static uint64_t winners;
	struct shunt_kargs a = make_kargs(&word, &winners);

	assert_ok(run_kernel(k_claim, BLOCKS, THREADS, &a));
	assert_int_equal(winners, 1);
	assert_int_equal(word, 1);
}

/* Warps that return early do not hold up the others' barriers. */
static void k_early(const struct shunt_kargs &a)
{
	if (gpu_tid() >= 64)
		return;
	gpu_sync();
	if (gpu_tid() >= 32)
		return;
	gpu_sync();
	((uint32_t *)a.recv)[gpu_bid() * 32 + gpu_tid()] = 1;
}

TEST(test_block_barrier_does_not_wait_for_returned_threads)
{
	static uint32_t out[2 * 32];
	struct shunt_kargs a = make_kargs(NULL, out);

	assert_ok(run_kernel(k_early, 2, 128, &a));
	for (uint32_t o : out)
		assert_int_equal(o, 1);
}

static void k_stuck(const struct shunt_kargs &a)
{
	if (gpu_tid() == 5)
		gpu_sync();
	else
		gpu_warp_sync();
}

TEST(test_block_barriers_that_never_complete_are_an_error)
{
	static uint32_t wrong[32];
	struct shunt_kargs a = make_kargs(NULL, wrong);
	void *stream;

	assert_ok(ops->stream_create(0, &stream));
	assert_ok(launch_fn(k_stuck, 0, 2, 32, &a, stream));
	assert_int_equal(ops->stream_sync(0, stream), -EDEADLK);
	/* The error stays, the stream works. */
	memset(wrong, 1, sizeof(wrong));
	assert_ok(launch_fn(k_warp, 0, 1, 32, &a, stream));
	assert_int_equal(ops->stream_sync(0, stream), -EDEADLK);
	for (uint32_t w : wrong)
		assert_int_equal(w, 0);
	ops->stream_destroy(0, stream);
}

TEST(test_launch_bad_shape_is_refused)
{
	struct shunt_kargs a = make_kargs(NULL, NULL);

	assert_int_equal(run_kernel(k_warp, 0, 32, &a), -EINVAL);
	assert_int_equal(run_kernel(k_warp, 1, 0, &a), -EINVAL);
	assert_int_equal(run_kernel(k_warp, 1, 33, &a), -EINVAL);
	assert_int_equal(run_kernel(k_warp, 1, SHUNT_MAX_THREADS + 32, &a), -EINVAL);
	assert_int_equal(run_kernel(k_warp, 100000, 32, &a), -EINVAL);
	assert_int_equal(run_kernel(NULL, 1, 32, &a), -EINVAL);
}

static void k_many_barriers(const struct shunt_kargs &a)
{
	for (int i = 0; i < MANY_BARRIERS; i++)
		gpu_warp_sync();
}

#if defined(__x86_64__) || defined(__aarch64__)
/* How often the sim goes from one thread of a kernel to another; the linker leads it here. */
static uint64_t switches;

extern "C" void __real_shunt_sim_switch(void **save_sp, void *sp);
extern "C" void __wrap_shunt_sim_switch(void **save_sp, void *sp);
extern "C" void __wrap_shunt_sim_switch(void **save_sp, void *sp)
{
	__atomic_fetch_add(&switches, 1, __ATOMIC_RELAXED);
	__real_shunt_sim_switch(save_sp, sp);
}
#else
static const uint64_t switches;
#endif

/* Each thread is left once at each of them. */
TEST(test_warp_barriers_are_cheap)
{
	struct shunt_kargs a = make_kargs(NULL, NULL);
	uint64_t before = __atomic_load_n(&switches, __ATOMIC_RELAXED);

	assert_ok(run_kernel(k_many_barriers, BLOCKS, THREADS, &a));
	assert_true(
	    __atomic_load_n(&switches, __ATOMIC_RELAXED) - before <= (uint64_t)BLOCKS * THREADS * (MANY_BARRIERS + 4));
}

/* ---- posted links (SHUNT_SIM_LINKS): this device's stores into memory of device 1 */

enum { POSTED_WORDS = 64, POSTED_TIMES = 100 };
struct posted {
	uint64_t word[POSTED_WORDS], counter, other;
};

static uint64_t now_there(const uint64_t *p)
{
	return *(const volatile uint64_t *)p;
} /* no look of a kernel */
static uint64_t missing(const struct posted *to, uint64_t time)
{
	uint64_t n = 0;

	for (const uint64_t &word : to->word)
		n += now_there(&word) != time;
	return n;
}
static void post_words(struct posted *to, uint64_t time)
{
	for (uint32_t i = 0; i < POSTED_WORDS; i += 2)
		gpu_st16(&to->word[i], { time, time });
}

/* seen: words that a counter overtook; that were missing behind a release, and behind a fence; old looks; wrong ones.
 */
static void k_posted(const struct shunt_kargs &a)
{
	struct posted *to = (struct posted *)a.send;
	uint64_t *seen = (uint64_t *)a.recv;

	if (gpu_tid())
		return;
	for (uint64_t t = 1; t < POSTED_TIMES; t += 3) {
		post_words(to, t);
		gpu_st_relaxed(&to->counter, t);
		while (now_there(&to->counter) != t)
			gpu_relax();
		seen[0] += missing(to, t);
		post_words(to, t + 1);
		gpu_st_release(&to->counter, t + 1);
		seen[1] += missing(to, t + 1) + (now_there(&to->counter) != t + 1);
		post_words(to, t + 2);
		gpu_fence();
		seen[2] += missing(to, t + 2);

		*(volatile uint64_t *)&to->other = t;
		seen[3] += gpu_ld_relaxed(&to->other) != t;
		*(volatile uint64_t *)&to->other = t + 1;
		gpu_ld_acquire(&to->counter);
		seen[4] += gpu_ld_relaxed(&to->other) != t + 1;
		gpu_st_relaxed(&to->other, t + 2);
		seen[4] += gpu_ld_relaxed(&to->other) != t + 2;
	}
	post_words(to, POSTED_TIMES);
}

TEST(test_posted_stores_arrive_in_any_order_and_looks_are_old)
{
	uint64_t seen[5] = {};
	struct shunt_gpu_mem mem;

	assert_ok(ops->share_alloc(1, sizeof(struct posted), &mem));

	struct shunt_kargs a = make_kargs(mem.ptr, seen);

	assert_ok(run_kernel(k_posted, 1, 32, &a));
	assert_true(seen[0] && seen[3]);
	assert_int_equal(seen[1] + seen[2] + seen[4], 0);
	assert_int_equal(missing((struct posted *)mem.ptr, POSTED_TIMES), 0); /* the launch is over */
	ops->share_free(&mem);
}

/* ThreadSanitizer wants no threads in a child. */
#if !defined(__SANITIZE_THREAD__)
static void k_forbidden(const struct shunt_kargs &a)
{
	uint64_t *p = (uint64_t *)a.send;

	if (a.count == 0)
		gpu_add_release(p, 1);
	else if (a.count == 1)
		gpu_fetch_add(p, 1);
	else if (a.count == 2)
		gpu_sem_acquire(p);
	else if (a.count == 3)
		gpu_test_and_set32((uint32_t *)p);
	else if (a.count == 4)
		gpu_ll128_st(p, {}, 1);
	else
		gpu_st_release(p, 1);
}

TEST(test_posted_links_have_no_atomics)
{
	static const char *const texts[] = { "an addition", "an addition", "a semaphore", "a test and set",
		"a line of 128 bytes" };
	struct shunt_gpu_mem mem;

	assert_ok(ops->share_alloc(1, 4096, &mem));
	for (uint64_t i = 0; i <= 5; i++) {
		struct shunt_kargs a = make_kargs(mem.ptr, NULL, i);
		char said[4096] = "";
		int out[2], status;

		assert_ok(pipe(out));
		pid_t child = fork();
		if (child == 0) {
			dup2(out[1], 2);
			_exit(run_kernel(k_forbidden, 1, 32, &a));
		}
		close(out[1]);
		assert_true(waitpid(child, &status, 0) == child);
		if (i < 5) {
			assert_true(read(out[0], said, sizeof(said) - 1) > 0);
			assert_non_null(strstr(said, texts[i]));
			assert_non_null(strstr(said, "on memory behind a link that has only stores and loads"));
		}
		assert_int_equal(status == 0, i == 5);
		close(out[0]);
	}
	ops->share_free(&mem);
}
#endif

TESTS_BEGIN
{
	setenv("SHUNT_SIM_LINKS", "0-1:peer,stores=posted", 1);
	if (ops->open(NULL))
		exit(1);
}
