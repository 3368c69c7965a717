/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Ranks 0 ... n-1 on devices of the sim in one process, and plans that run on them. A check fills random inputs whose
 * results are exact in any order of operations, launches a plan several times back to back on every rank, spoils each
 * launch's buffers as soon as its own rank is done with it, and compares every rank's output with the reference.
 */
#include <pthread.h>
#include "device/gpu_ops.h"
#include "kernels/kargs.h"
#include "plan/exec/exec.h"

#define EXEC_RANKS_MAX 16

struct exec_ranks;
struct exec_rank {
	struct exec_ranks *exec_ranks;
	int rank, device;
	void *stream;
	void *ctrl, *words_dev;
	struct shunt_host_ctrl *words;
	struct shunt_plan_exec *exec;
	const struct shunt_gpu_ops *gpu; /* of the exec */
	struct shunt_ranks ranks;
};

struct exec_ranks {
	int n;
	struct exec_rank rank[EXEC_RANKS_MAX];
};

struct exec_options {
	bool mapped; /* peers map the memory, as if they were processes; TSan then cannot know it for the same */
	enum shunt_plan_ll_format ll_format;
	unsigned max_blocks;
	const struct shunt_gpu_ops *last; /* the last rank's; NULL: as all */
};

void exec_ranks_start(struct exec_ranks *f, int n);
void exec_ranks_stop(struct exec_ranks *f);
/* An exec of the plan on every rank; expects it to be possible. */
void exec_ranks_create(struct exec_ranks *f, struct shunt_plan *plan, const struct exec_options *options);
void exec_ranks_destroy(struct exec_ranks *f);
/* shunt_plan_exec_prepare by all ranks at once; they must agree. */
int exec_ranks_prepare(struct exec_ranks *f, uint64_t message_bytes);
/* Launches a call of one rank, as a communicator does. 0, or the exec's error. */
int exec_rank_launch(const struct exec_rank *r, const struct shunt_plan_call *call);
/* All rounds of all ranks fail with -EINVAL from now on. */
void exec_ranks_break(struct exec_ranks *f);
/* Expects no rank to have given up. */
void exec_ranks_wait(struct exec_ranks *f, const char *what);

struct exec_job {
	enum shunt_dtype dtype;
	enum shunt_redop op; /* what the plan and the call amount to */
	uint64_t count;      /* elements, as NCCL counts */
	bool in_place;
	int skew;    /* elements by which the buffers are off a multiple of 16 bytes */
	int times;   /* launches back to back, each with buffers of its own */
	bool graph;  /* the launches are captured, and replayed `times` times each with new inputs */
	bool direct; /* as if all buffers lay in windows */
	/* NULL: the test fails if a rank gives up or has a wrong value; else becomes true then, and the ranks must be
	 * stopped */
	bool *wrong_p;
};

/* One check with the plan that the ranks have. */
void exec_ranks_check(struct exec_ranks *f, const struct exec_job *job, uint64_t seed);
struct shunt_plan *exec_load(const char *path, int *nranks_p);
/* The same of a text with every `from` replaced by `to` (NULL: nothing). */
struct shunt_plan *exec_load_text(const char *name, const char *text, const char *from, const char *to);
char *exec_read(const char *path);
