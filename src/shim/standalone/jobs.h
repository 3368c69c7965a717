/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Standalone: work for the end of a group. Jobs of one queue run in order on one thread, different queues at the same
 * time.
 */
#include "shim/nccl/abi.h"

struct shunt_job {
	struct shunt_job *next;
	const void *queue;
	ncclResult_t (*run)(struct shunt_job *job); /* frees nothing */
	ncclResult_t (*finish)(struct shunt_job *job,
	    ncclResult_t result); /* with the result of all jobs: publishes or undoes, and frees the job */
	ncclResult_t result;
};

/*
 * Runs and finishes all jobs of a list. error: the group's; on an error the jobs are only finished. Returns the
 * program's result.
 */
ncclResult_t shunt_jobs_run(struct shunt_job *jobs, ncclResult_t error);
