/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The OS threads that run a stream's launches: one per block, all at once, kept for the next launch. A pool belongs
 * to one stream: a thread that served two streams would order their kernels for ThreadSanitizer.
 */
#include <pthread.h>
#include "device/sim/block.h"
#include "device/sim/sync.h"

struct sim_worker {
	struct sim_block block;
	struct sim_pool *pool;
	unsigned bid;
	uint32_t go;      /* counts launches; futex */
	pthread_t thread; /* unused in worker 0, which is the thread that calls run */
};

struct sim_pool {
	struct sim_lock lock; /* for growth */
	unsigned count;
	struct sim_worker *worker[SIM_MAX_BLOCKS];
	const struct sim_launch *launch;
	struct sim_tsan_edges tsan_edges;
	uint32_t left;   /* blocks that still run; futex */
	uint32_t blocks; /* of the launch */
	uint32_t absent; /* blocks that have not begun */
	int err;
	bool stop;
};

/* Creates the threads and fibers for a launch of this shape. Any thread, also while a launch runs. -ENOMEM, -EAGAIN. */
int sim_pool_reserve(struct sim_pool *t, unsigned blocks, unsigned threads);
/* Runs a launch to its end. By the stream's thread. */
int sim_pool_run(struct sim_pool *t, const struct sim_launch *launch);
/* Is a launch under way, all of whose blocks have ended or poll in vain? Any thread. */
bool sim_pool_stuck(const struct sim_pool *t);
void sim_pool_finish(struct sim_pool *t);
/* pthread_create with all signals blocked: the program's handlers must not run on these threads. 0 or -errno. */
int sim_thread_create(pthread_t *thread_p, void *(*main)(void *), void *arg);
