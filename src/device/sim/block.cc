/* SPDX-License-Identifier: MIT */
#include "device/sim/block.h"
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include "device/sim/hooks.h"
#include "device/sim/sim.h"
#include "device/sim/sync.h"
extern "C" {
#include "base/log.h"
}

/*
 * The stacks of a warp are one mapping with a guard page below. Their distance is no round size, or the hot tops of
 * all stacks would fall into the same cache sets. A word at the low end of each stack detects an overrun into the
 * neighbour.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(SHUNT_SIM_TSAN)
enum { STACK = 256 << 10 };
#else
enum { STACK = 64 << 10 };
#endif
enum { GUARD = 64 << 10 /* the largest page that a kernel has */, PITCH = STACK + 5 * 64 };
enum { STACKS = (GUARD + SIM_LANES * PITCH + GUARD - 1) / GUARD * GUARD };
static const uint64_t CANARY = 0x5348554e54534b21u;

__thread struct shunt_sim_self *shunt_sim_self;

static struct {
	uint32_t seed, max_us;
} jitter_config;

void shunt_sim_set_jitter(unsigned seed, unsigned max_us)
{
	__atomic_store_n(&jitter_config.seed, seed, __ATOMIC_RELAXED);
	__atomic_store_n(&jitter_config.max_us, max_us, __ATOMIC_RELAXED);
}

void sim_block_jitter(struct sim_block *b)
{
	unsigned max_us = __atomic_load_n(&jitter_config.max_us, __ATOMIC_RELAXED);

	if (!max_us)
		return;
	uint64_t seed = __atomic_load_n(&jitter_config.seed, __ATOMIC_RELAXED) * 65536ull +
	    (unsigned)b->launch->device * 1024u + b->self.bid + 1;
	if (b->seed != seed) {
		b->seed = seed;
		b->random = seed * 0x9e3779b97f4a7c15u;
	}
	sim_sleep_us((unsigned)sim_random(&b->random) % (max_us + 1));
}

static struct sim_warp *this_warp(struct sim_block *b) { return b->warp[b->self.tid / SIM_LANES]; }

static uint32_t lane_bit(struct sim_block *b) { return 1u << b->self.tid % SIM_LANES; }

/* A pause takes this much longer with each round of polls in vain: after n of them it is about 2 / n of the wait. */
enum { PAUSE_STEP_US = 12, PAUSE_STEPS = 160 };

/*
 * Called once a round, when every ready fiber has run. If all fibers only polled, others need the core. There may be
 * many more blocks than cores, so soon sleep rather than yield.
 */
static void end_round(struct sim_block *b)
{
	sim_link_drain(b, false);
	if (b->progressed)
		sim_block_set_idle(b, 0);
	else if (b->has_polled && b->idle_rounds < 4)
		sched_yield();
	else if (b->has_polled)
		sim_sleep_us(PAUSE_STEP_US * (b->idle_rounds < PAUSE_STEPS ? b->idle_rounds : (unsigned)PAUSE_STEPS));
	sim_block_set_idle(b, b->idle_rounds + b->has_polled);
	b->has_polled = b->progressed = false;
}

/* The next ready fiber after the current one, in a circle; NULL: none. */
static struct sim_fiber *next_fiber(struct sim_block *b)
{
	unsigned warp = b->self.tid / SIM_LANES, lane = b->self.tid % SIM_LANES;
	uint32_t ready = b->warp[warp]->ready & (uint32_t)~(((uint64_t)2 << lane) - 1);

	for (unsigned i = 0; !ready; i++) {
		if (i > b->warps)
			return nullptr;
		if (++warp == b->warps) {
			warp = 0;
			end_round(b);
		}
		ready = b->warp[warp]->ready;
	}
	lane = (unsigned)__builtin_ctz(ready);
	b->self.tid = warp * SIM_LANES + lane;
	return &b->warp[warp]->lane[lane];
}

/* Runs other fibers; returns when this fiber is next in turn and ready. */
static void switch_fiber(struct sim_block *b)
{
	struct sim_fiber *me = &this_warp(b)->lane[b->self.tid % SIM_LANES], *to = next_fiber(b);

	if (to == me)
		return;
	if (!to) {
		b->deadlocked = b->live > 0;
		to = &b->main;
	}
	sim_fiber_switch(me, to, &b->prev);
}

static void open_warp_barrier(struct sim_warp *w)
{
	w->ballots[w->generation++ & 1] = w->ballot;
	w->ballot = 0;
	w->ready |= w->waiting;
	w->waiting = 0;
}

static void open_block_barrier(struct sim_block *b)
{
	for (unsigned i = 0; i < b->warps; i++) {
		b->warp[i]->ready |= b->warp[i]->block_waiting;
		b->warp[i]->block_waiting = 0;
	}
	b->arrived = 0;
	b->generation++;
}

/* Lanes of the warp that voted true. A barrier of the warp's lanes that still run. */
extern "C" uint32_t shunt_sim_ballot(bool vote)
{
	struct sim_block *b = sim_this_block();
	struct sim_warp *w = this_warp(b);
	uint32_t bit = lane_bit(b), parity = w->generation & 1;

	tsan_release(&w->order[parity]);
	if (vote)
		w->ballot |= bit;
	w->waiting |= bit;
	if (w->waiting == w->live) {
		open_warp_barrier(w);
	} else {
		w->ready &= ~bit;
		switch_fiber(b);
	}
	tsan_acquire(&w->order[parity]);
	return w->ballots[parity];
}

/* A lane that is an exchange ahead writes the other half of value, and cannot be two ahead. */
extern "C" uint32_t shunt_sim_shfl_xor(uint32_t v, uint32_t mask)
{
	struct sim_block *b = sim_this_block();
	struct sim_warp *w = this_warp(b);
	uint32_t lane = b->self.tid % SIM_LANES, parity = w->generation & 1;

	w->value[parity][lane] = v;
	shunt_sim_ballot(true);
	return w->value[parity][lane ^ mask];
}

extern "C" bool shunt_sim_all(bool vote)
{
	uint32_t live = this_warp(sim_this_block())->live;

	return (shunt_sim_ballot(vote) & live) == live;
}

extern "C" void shunt_sim_block_barrier(void)
{
	struct sim_block *b = sim_this_block();
	struct sim_warp *w = this_warp(b);
	uint32_t bit = lane_bit(b), parity = b->generation & 1;

	tsan_release(&b->order[parity]);
	b->progressed = true;
	w->block_waiting |= bit;
	if (++b->arrived == b->live) {
		open_block_barrier(b);
	} else {
		w->ready &= ~bit;
		switch_fiber(b);
	}
	tsan_acquire(&b->order[parity]);
}

extern "C" void shunt_sim_relax(void)
{
	struct sim_block *b = sim_this_block();

	b->has_polled = true;
	if (++b->polls % 64 == 0)
		sim_block_jitter(b);
	switch_fiber(b);
}

extern "C" void shunt_sim_linger(void)
{
	struct sim_block *b = sim_this_block();

	if (++b->polls % 8 == 0)
		sim_block_jitter(b);
}

extern "C" void shunt_sim_advanced(void) { sim_this_block()->progressed = true; }

extern "C" void shunt_sim_fence(void)
{
	static char order;

	/* Treats two fences of any threads as ordered by time, as a fence next to an atomic would be. */
	shunt_sim_link_release();
	tsan_release(&order);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	tsan_acquire(&order);
}

/* A returned lane no longer counts: opens barriers that only wait for it. */
static void lane_exit(struct sim_block *b)
{
	struct sim_warp *w = this_warp(b);
	uint32_t bit = lane_bit(b);

	b->progressed = true;
	b->live--;
	w->live &= ~bit;
	w->ready &= ~bit;
	if (w->live && w->waiting == w->live)
		open_warp_barrier(w);
	if (b->live && b->arrived == b->live)
		open_block_barrier(b);
	switch_fiber(b);
}

static void fiber_main(void)
{
	struct sim_block *b = sim_this_block();

	sim_fiber_entered(&b->prev);
	for (;;) {
		tsan_acquire(&b->start_order);
		tsan_acquire(&b->tsan_edges->start);
		b->launch->fn(b->launch->args);
		tsan_release(&b->tsan_edges->end);
		lane_exit(b);
	}
}

static char *stack_of(const struct sim_warp *w, unsigned lane) { return w->stacks + GUARD + lane * (size_t)PITCH; }

static void warp_destroy(struct sim_warp *w)
{
	if (!w)
		return;
	for (unsigned i = 0; i < SIM_LANES; i++)
		sim_fiber_finish(&w->lane[i]);
	asan_forget(w->stacks, STACKS);
	munmap(w->stacks, STACKS);
	sim_delete(w);
}

#if defined(SHUNT_SIM_TSAN)
/*
 * SIM_LANES=together: ThreadSanitizer takes a warp's lanes for one thread. It does not see races between them then, and
 * needs a fifth of the time where launches are most of the work: each of its threads keeps a clock of all others.
 */
static bool lanes_together(void)
{
	const char *lanes = getenv("SIM_LANES");

	return lanes && !strcmp(lanes, "together");
}
#else
static bool lanes_together(void) { return false; }
#endif

static struct sim_warp *warp_create(void)
{
	struct sim_warp *w = (struct sim_warp *)sim_new(sizeof(*w));
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
	bool together = lanes_together();
	void *stacks;

	if (!w)
		return nullptr;
	/* cppcheck-suppress invalidFunctionArg; without a file it is -1 */
	stacks = mmap(nullptr, STACKS, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (stacks == MAP_FAILED) {
		sim_delete(w);
		return nullptr;
	}
	mprotect(stacks, GUARD, PROT_NONE);
	madvise(stacks, STACKS, MADV_NOHUGEPAGE);
	w->stacks = (char *)stacks;
	for (unsigned i = 0; i < SIM_LANES; i++) {
		*(uint64_t *)stack_of(w, i) = CANARY;
		sim_fiber_init(&w->lane[i], stack_of(w, i) + sizeof(CANARY), PITCH - sizeof(CANARY), fiber_main,
		    together && i ? &w->lane[0] : nullptr);
	}
	return w;
}

int sim_block_reserve(struct sim_block *b, unsigned threads)
{
	for (unsigned i = 0; i < threads / SIM_LANES; i++)
		if (!b->warp[i] && !(b->warp[i] = warp_create()))
			return -ENOMEM;
	return 0;
}

/* Replaces fibers that are stuck in a kernel. */
static void replace_warps(struct sim_block *b)
{
	for (unsigned i = 0; i < b->warps; i++) {
		warp_destroy(b->warp[i]);
		b->warp[i] = warp_create();
	}
	b->arrived = 0;
}

static bool stacks_intact(const struct sim_block *b)
{
	for (unsigned w = 0; w < b->warps; w++)
		for (unsigned i = 0; i < SIM_LANES; i++)
			if (*(const uint64_t *)stack_of(b->warp[w], i) != CANARY)
				return false;
	return true;
}

int sim_block_run(struct sim_block *b, const struct sim_launch *launch, unsigned bid, struct sim_tsan_edges *tsan_edges)
{
	int err = 0;

	b->self = { 0, launch->threads, bid, launch->blocks };
	b->launch = launch;
	b->tsan_edges = tsan_edges;
	b->warps = launch->threads / SIM_LANES;
	b->live = launch->threads;
	b->deadlocked = false;
	for (unsigned i = 0; i < b->warps; i++) {
		if (!b->warp[i])
			return -ENOMEM;
		b->warp[i]->live = b->warp[i]->ready = ~0u;
	}
	sim_block_jitter(b);
	shunt_sim_self = &b->self;
	sim_fiber_adopt(&b->main);
	tsan_release(
	    /* Orders accesses to this thread's thread-local storage, which its fibers share. */
	    &b->start_order);
	sim_fiber_switch(&b->main, &b->warp[0]->lane[0], &b->prev);
	sim_link_drain(b, true);
	shunt_sim_self = nullptr;
	if (b->deadlocked) {
		shunt_error(
		    "sim: block %u of %u can never go on: its threads wait in different barriers", bid, launch->blocks);
		replace_warps(b);
		err = -EDEADLK;
	} else if (!stacks_intact(b)) {
		shunt_error("sim: a kernel needs more than %d bytes of stack", (int)STACK);
		err = -EFAULT;
	}
	sim_block_set_idle(b, SIM_STUCK_ROUNDS);
	return err;
}

struct sim_shared {
	struct sim_shared *next;
	const void *key;
	alignas(16) char memory[];
};

extern "C" void *shunt_sim_shared(const void *key, uint64_t bytes)
{
	struct sim_block *b = (struct sim_block *)shunt_sim_self; /* self is its first member */
	struct sim_shared *s;

	for (s = b->shared; s; s = s->next)
		if (s->key == key)
			return s->memory;
	s = (struct sim_shared *)sim_new(sizeof(*s) + bytes);
	if (!s) {
		/* A kernel cannot return an error. */
		shunt_error("sim: no memory for what a block shares");
		__builtin_trap();
	}
	s->key = key;
	s->next = b->shared;
	b->shared = s;
	return s->memory;
}

void sim_block_finish(struct sim_block *b)
{
	for (struct sim_shared *s = b->shared, *next; s; s = next) {
		next = s->next;
		sim_delete(s);
	}
	b->shared = nullptr;
	sim_delete(b->posted);
	b->posted = nullptr;
	for (unsigned i = 0; i < SIM_MAX_WARPS; i++)
		warp_destroy(b->warp[i]);
}
