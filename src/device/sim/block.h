/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * One block of a launch on one OS thread: a fiber per thread of the block, warps of 32, their barriers, and
 * scheduling. Fibers and stacks are created once and kept from launch to launch.
 */
#include "device/sim/fiber.h"
#include "device/kernel_set.h"
#include "device/sim/gpu_sim.h"

/* Rounds of polls in vain after which a block cannot go on by itself: it has looked at everything by then. */
enum { SIM_STUCK_ROUNDS = 32 };
enum { SIM_LANES = 32, SIM_MAX_WARPS = 32, SIM_MAX_THREADS = 512, SIM_MAX_BLOCKS = 1024 };

struct sim_completion;
struct sim_launch {
	shunt_sim_kernel *fn;
	int device;
	unsigned blocks, threads;
	void *args; /* owned by the launch */
	/* Called once, when all blocks have begun, by the thread of the last one; NULL: nothing is. */
	void (*begun)(struct sim_completion *launched);
	struct sim_completion *launched; /* for begun */
};

/*
 * ThreadSanitizer's tokens for the order between a launch and the work before and after it. Only their addresses
 * matter.
 */
struct sim_tsan_edges {
	char start, end;
};

struct sim_warp {
	uint32_t live, ready;            /* lanes that have not returned; lanes that can run */
	uint32_t waiting, block_waiting; /* in the warp's barrier; in the block's */
	uint32_t generation, ballot, ballots[2];
	char order[2]; /* tokens, by the generation's parity: a lane that is ahead must not pass on its later clock */
	uint32_t value[2][SIM_LANES]; /* of an exchange, by the same parity */
	char *stacks;
	struct sim_fiber lane[SIM_LANES];
};

struct sim_block {
	struct shunt_sim_self self; /* the kernels' view; must be first */
	const struct sim_launch *launch;
	struct sim_tsan_edges *tsan_edges;
	unsigned warps; /* of this launch */
	struct sim_warp *warp[SIM_MAX_WARPS];
	unsigned live, arrived; /* lanes of all warps; in the block's barrier */
	uint32_t generation;
	char order[2], start_order;
	bool has_polled, progressed; /* since the last round: a fiber polled in vain; a fiber made progress */
	bool deadlocked;
	unsigned idle_rounds; /* rounds of polls in vain, one behind the other; atomic. SIM_STUCK_ROUNDS: ended */
	unsigned polls;
	uint64_t seed, random; /* of the jitter */
	struct sim_fiber main, *prev;
	struct sim_posted *posted; /* stores under way (sim_link.cc); NULL: never any */
	struct sim_shared *shared; /* shared memory of kernels; kept from launch to launch */
};

/*
 * Creates fibers for up to `threads` threads; grows only. Not while the same fibers are being created or the block is
 * stuck. -ENOMEM.
 */
int sim_block_reserve(struct sim_block *b, unsigned threads);
/*
 * Runs block `bid` on the calling thread. -EDEADLK: its threads wait in different barriers. -EFAULT: a kernel overran
 * its stack.
 */
int sim_block_run(
    struct sim_block *b, const struct sim_launch *launch, unsigned bid, struct sim_tsan_edges *tsan_edges);
static inline void sim_block_set_idle(struct sim_block *b, unsigned rounds)
{
	__atomic_store_n(&b->idle_rounds, rounds, __ATOMIC_RELEASE);
}
void sim_block_finish(struct sim_block *b);
/* The block whose fiber runs on this thread. */
static inline struct sim_block *sim_this_block(void) { return (struct sim_block *)shunt_sim_self; }
/* A number of 44 bits; state is not 0. */
static inline uint64_t sim_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state >> 20;
}
/* Sleeps for a random time if jitter is set. */
void sim_block_jitter(struct sim_block *b);
