/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_DEVICE_SIM_POOL_H
#define SHUNT_DEVICE_SIM_POOL_H
/*
 * The OS threads that run a stream's launches: one per block, all at once, kept for the next launch. A pool belongs to
 * one stream: a thread that served two would order their kernels for ThreadSanitizer.
 */
#include <pthread.h>
#include "device/sim/block.h"
#include "device/sim/sync.h"

struct sim_worker {
	struct sim_block block;
	struct sim_pool *pool;
	unsigned bid;
	uint32_t go;      /* counts launches; a futex */
	pthread_t thread; /* not of member 0: that is the thread which calls run */
};

struct sim_pool {
	struct sim_lock lock; /* of growing */
	unsigned count;
	struct sim_worker *worker[SIM_MAX_BLOCKS];
	const struct sim_launch *launch;
	struct sim_tsan_edges tsan_edges;
	uint32_t left; /* blocks that still run; a futex */
	int err;
	bool stop;
};

/* Starts what a launch of this shape needs; any thread, also while a launch runs. -ENOMEM, -EAGAIN. */
int sim_pool_reserve(struct sim_pool *t, unsigned blocks, unsigned threads);
/* Runs a launch to its end; the stream's thread. */
int sim_pool_run(struct sim_pool *t, const struct sim_launch *launch);
void sim_pool_finish(struct sim_pool *t);
/* pthread_create with all signals blocked: the program's handlers have no business on these threads. 0 or -errno. */
int sim_thread_create(pthread_t *thread_p, void *(*main)(void *), void *arg);
#endif
