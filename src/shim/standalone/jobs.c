/* SPDX-License-Identifier: MIT */
#include "shim/standalone/jobs.h"
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include "base/os.h"
#include "shim/nccl/result.h"

struct queue {
	struct shunt_job *first;
	pthread_t thread;
	bool started;
};

/* Runs the queue's jobs in order, up to the first error. */
static void *queue_thread(void *arg)
{
	struct queue *queue = arg;
	ncclResult_t result = ncclSuccess;

	for (struct shunt_job *job = queue->first; job; job = job->next)
		if (job->queue == queue->first->queue) {
			if (result == ncclSuccess)
				result = job->run(job);
			job->result = result;
		}
	return NULL;
}

static ncclResult_t run_queues(struct shunt_job *jobs)
{
	ncclResult_t result = ncclSuccess;
	struct shunt_job *job;
	struct queue *queues;
	size_t n = 0, max = 0;

	for (job = jobs; job; job = job->next)
		max++;
	queues = calloc(max, sizeof(*queues));
	if (!queues)
		return shunt_to_nccl(-ENOMEM);
	for (job = jobs; job; job = job->next) {
		size_t k = 0;

		while (k < n && queues[k].first->queue != job->queue)
			k++;
		if (k == n)
			queues[n++].first = job;
	}
	for (size_t k = 0; k < n; k++)
		queues[k].started = !shunt_thread_start(&queues[k].thread, 0, queue_thread, &queues[k]);
	for (size_t k = 0; k < n; k++) {
		if (queues[k].started)
			pthread_join(queues[k].thread, NULL);
		else
			queue_thread(&queues[k]);
	}
	free(queues);
	for (job = jobs; job && result == ncclSuccess; job = job->next)
		result = job->result;
	return result;
}

ncclResult_t shunt_jobs_run(struct shunt_job *jobs, ncclResult_t error)
{
	ncclResult_t result = error || !jobs ? error : run_queues(jobs);
	struct shunt_job *next;

	for (; jobs; jobs = next) {
		next = jobs->next;
		jobs->finish(jobs, result);
	}
	return result;
}
