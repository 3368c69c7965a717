/* SPDX-License-Identifier: MIT */
#ifndef TESTS_PLAN_EXEC_FLEET_H
#define TESTS_PLAN_EXEC_FLEET_H
/*
 * Ranks 0 ... n-1 on devices of the sim in one process, and plans that run on them. A check fills random inputs whose
 * results are exact in any order of operations, launches a plan several times back to back on every rank, spoils each
 * launch's buffers as soon as its own rank is done with it, and compares every rank's output with the reference.
 */
#include <pthread.h>
#include "gpu/gpu_ops.h"
#include "kernels/kargs.h"
#include "plan/run.h"

#define FLEET_MAX 16

struct fleet;
struct fleet_rank {
	struct fleet *fleet;
	int rank, device;
	void *stream;
	void *ctrl, *words_dev;
	struct shunt_words *words;
	struct shunt_plan_exec *exec;
};

struct fleet {
	int n;
	struct fleet_rank rank[FLEET_MAX];
	/* Of the gather. */
	pthread_barrier_t barrier;
	const void *mine[FLEET_MAX];
	int fd[FLEET_MAX];
	int sabotage; /* the next rounds fail with this */
};

struct fleet_options {
	bool mapped; /* peers map the memory, as if they were processes; TSan then cannot know it for the same */
	enum shunt_plan_wire wire;
	unsigned max_blocks;
	const struct shunt_gpu_ops *last; /* the last rank's; NULL: as all */
};

void fleet_start(struct fleet *f, int n);
void fleet_stop(struct fleet *f);
/* An exec of the plan on every rank; expects it to be possible. */
void fleet_create(struct fleet *f, struct shunt_plan *plan, const struct fleet_options *options);
void fleet_destroy(struct fleet *f);
/* shunt_plan_exec_prepare by all ranks at once; they must agree. */
int fleet_prepare(struct fleet *f, uint64_t message_bytes);
/* Expects no rank to have given up. */
void fleet_wait(struct fleet *f, const char *what);

struct fleet_job {
	enum shunt_dtype dtype;
	enum shunt_redop op; /* what the plan and the call amount to */
	uint64_t count;      /* elements, as NCCL counts */
	bool in_place;
	int skew;    /* elements by which the buffers are off a multiple of 16 bytes */
	int times;   /* launches back to back, each with buffers of its own */
	bool graph;  /* the launches are captured, and replayed `times` times each with new inputs */
	bool direct; /* as if all buffers lay in windows */
};

/* One check with the plan that the fleet holds. */
void fleet_check(struct fleet *f, const struct fleet_job *job, uint64_t seed);
struct shunt_plan *fleet_load(const char *path, int *nranks_p);
/* The same of a text with every `from` replaced by `to` (NULL: nothing). */
struct shunt_plan *fleet_load_text(const char *name, const char *text, const char *from, const char *to);
char *fleet_read(const char *path);
#endif
