/* SPDX-License-Identifier: MIT */
#include "shim/jobs.h"
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include "core/thread.h"
#include "shim/result.h"

struct lane {
	struct shunt_job *first;
	pthread_t thread;
	bool started;
};

/* In order; stops at the first error. */
static void *lane_thread(void *arg)
{
	struct lane *lane = arg;
	ncclResult_t result = ncclSuccess;

	for (struct shunt_job *job = lane->first; job; job = job->next)
		if (job->lane == lane->first->lane) {
			if (result == ncclSuccess)
				result = job->run(job);
			job->result = result;
		}
	return NULL;
}

static ncclResult_t run_lanes(struct shunt_job *jobs)
{
	ncclResult_t result = ncclSuccess;
	struct shunt_job *job;
	struct lane *lanes;
	size_t n = 0, max = 0;

	for (job = jobs; job; job = job->next)
		max++;
	lanes = calloc(max, sizeof(*lanes));
	if (!lanes)
		return shunt_to_nccl(-ENOMEM);
	for (job = jobs; job; job = job->next) {
		size_t k = 0;

		while (k < n && lanes[k].first->lane != job->lane)
			k++;
		if (k == n)
			lanes[n++].first = job;
	}
	for (size_t k = 0; k < n; k++)
		lanes[k].started = !shunt_thread_start(&lanes[k].thread, 0, lane_thread, &lanes[k]);
	for (size_t k = 0; k < n; k++) {
		if (lanes[k].started)
			pthread_join(lanes[k].thread, NULL);
		else
			lane_thread(&lanes[k]);
	}
	free(lanes);
	for (job = jobs; job && result == ncclSuccess; job = job->next)
		result = job->result;
	return result;
}

ncclResult_t shunt_jobs_run(struct shunt_job *jobs, ncclResult_t error)
{
	ncclResult_t result = error || !jobs ? error : run_lanes(jobs);
	struct shunt_job *next;

	for (; jobs; jobs = next) {
		next = jobs->next;
		jobs->finish(jobs, result);
	}
	return result;
}
