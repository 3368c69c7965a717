/* SPDX-License-Identifier: MIT */
#include "transport/net/tcp/tcp_workers.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include "base/config.h"
#include "base/io.h"
#include "base/os.h"

#define PLACES 64
#define CPUS_A_WORKER 4 /* a host has a proxy for each of up to 8 GPUs, whose threads seldom work at the same time */
#define WORKERS_AUTO 8
#define SPIN_US 50 /* at most: they are many, and a job wakes one */

/* JOB_IDLE: whoever prepares it has it. */
enum { JOB_IDLE, JOB_QUEUED, JOB_DONE };

struct tcp_workers {
	_Atomic(struct tcp_job *) place[PLACES]; /* jobs that no thread has begun */
	atomic_uint queued;                      /* of them; may be too large for a moment */
	atomic_uint sleeping;
	atomic_bool stopping;
	sem_t wake;
	int64_t spin_ns; /* for which an idle thread looks for jobs before it sleeps */
	unsigned n;
	pthread_t id[TCP_MAX_WORKERS];
};

unsigned shunt_tcp_workers_wanted(void)
{
	int64_t n = shunt_config()->socket_threads, each_way = shunt_nccl_env()->socket_nthreads;
	unsigned spare = (unsigned)shunt_usable_cpus() / CPUS_A_WORKER;

	if (n < 0 && each_way >= 0)
		n = 2 * each_way;
	if (n < 0)
		return spare < WORKERS_AUTO ? spare : WORKERS_AUTO;
	return n < TCP_MAX_WORKERS ? (unsigned)n : TCP_MAX_WORKERS;
}

static ssize_t carry(const struct tcp_job *job)
{
	struct msghdr msg = { .msg_iov = (struct iovec *)(uintptr_t)job->iov, .msg_iovlen = (size_t)job->n };

	return job->writes ? sendmsg(job->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) : readv(job->fd, job->iov, job->n);
}

/* The job's memory behind its first `bytes`. */
static void advance(struct tcp_job *job, size_t bytes)
{
	for (int i = 0; i < job->n; i++) {
		size_t now = bytes < job->iov[i].iov_len ? bytes : job->iov[i].iov_len;

		job->iov[i].iov_base = (char *)job->iov[i].iov_base + now;
		job->iov[i].iov_len -= now;
		bytes -= now;
	}
}

static void run(struct tcp_job *job)
{
	size_t left = 0;

	job->bytes = 0;
	job->err = 0;
	for (int i = 0; i < job->n; i++)
		left += job->iov[i].iov_len;
	while (left) {
		ssize_t n = carry(job);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			job->err = n < 0 ? errno : 0;
			break;
		}
		job->bytes += (size_t)n;
		left -= (size_t)n;
		advance(job, (size_t)n);
	}
	atomic_store_explicit(&job->state, JOB_DONE, memory_order_release);
}

static struct tcp_job *next_job(struct tcp_workers *w)
{
	for (unsigned i = 0; i < PLACES && atomic_load(&w->queued); i++) {
		struct tcp_job *job = atomic_load_explicit(&w->place[i], memory_order_relaxed);

		if (job && atomic_compare_exchange_strong(&w->place[i], &job, NULL)) {
			atomic_fetch_sub(&w->queued, 1);
			return job;
		}
	}
	return NULL;
}

/* Until a job is submitted, or the threads are to stop. */
static void sleep_idle(struct tcp_workers *w)
{
	atomic_fetch_add(&w->sleeping, 1);
	/* A job that is submitted after this look finds that a thread sleeps, and wakes it. */
	while (!atomic_load(&w->queued) && !atomic_load(&w->stopping) && sem_wait(&w->wake))
		;
	atomic_fetch_sub(&w->sleeping, 1);
}

static void *worker_main(void *arg)
{
	struct tcp_workers *w = arg;
	int64_t last = shunt_now_ns();

	pthread_setname_np(pthread_self(), "shunt-socket");
	while (!atomic_load(&w->stopping)) {
		struct tcp_job *job = next_job(w);

		if (job)
			run(job);
		else if (shunt_now_ns() - last < w->spin_ns)
			continue;
		else
			sleep_idle(w);
		last = shunt_now_ns();
	}
	return NULL;
}

int shunt_tcp_workers_start(unsigned n, struct tcp_workers **workers_p)
{
	struct tcp_workers *w = calloc(1, sizeof(*w));
	int err = 0;

	if (!w)
		return -ENOMEM;
	sem_init(&w->wake, 0, 0);
	/* The proxy thread and the program need CPUs as well. */
	if ((unsigned)shunt_usable_cpus() > n + 2)
		w->spin_ns =
		    (int64_t)(shunt_config()->proxy_spin < SPIN_US ? shunt_config()->proxy_spin : SPIN_US) * 1000;
	for (w->n = 0; w->n < n && !err; w->n += !err)
		err = shunt_thread_start(&w->id[w->n], 0, worker_main, w);
	if (err) {
		shunt_tcp_workers_stop(w);
		return err;
	}
	*workers_p = w;
	return 0;
}

void shunt_tcp_workers_stop(struct tcp_workers *w)
{
	if (!w)
		return;
	atomic_store(&w->stopping, true);
	for (unsigned i = 0; i < w->n; i++)
		sem_post(&w->wake);
	for (unsigned i = 0; i < w->n; i++)
		pthread_join(w->id[i], NULL);
	sem_destroy(&w->wake);
	free(w);
}

bool shunt_tcp_workers_submit(struct tcp_workers *w, struct tcp_job *job)
{
	for (unsigned i = 0; i < PLACES; i++) {
		struct tcp_job *none = NULL;

		if (atomic_load_explicit(&w->place[i], memory_order_relaxed))
			continue;
		atomic_store_explicit(&job->state, JOB_QUEUED, memory_order_relaxed);
		/* Counted first, so that the count is never below the number of jobs. */
		atomic_fetch_add(&w->queued, 1);
		if (atomic_compare_exchange_strong(&w->place[i], &none, job)) {
			if (atomic_load(&w->sleeping))
				sem_post(&w->wake);
			return true;
		}
		atomic_fetch_sub(&w->queued, 1);
	}
	atomic_store_explicit(&job->state, JOB_IDLE, memory_order_relaxed);
	return false;
}

bool shunt_tcp_workers_help(struct tcp_workers *w)
{
	struct tcp_job *job = next_job(w);

	if (job)
		run(job);
	return job;
}

bool shunt_tcp_job_is_out(const struct tcp_job *job)
{
	return atomic_load_explicit(&job->state, memory_order_relaxed) != JOB_IDLE;
}

bool shunt_tcp_job_take(struct tcp_job *job)
{
	if (atomic_load_explicit(&job->state, memory_order_acquire) != JOB_DONE)
		return false;
	atomic_store_explicit(&job->state, JOB_IDLE, memory_order_relaxed);
	return true;
}

void shunt_tcp_job_cancel(struct tcp_workers *w, struct tcp_job *job)
{
	if (!shunt_tcp_job_is_out(job))
		return;
	for (unsigned i = 0; i < PLACES; i++) {
		struct tcp_job *mine = job;

		if (atomic_compare_exchange_strong(&w->place[i], &mine, NULL)) {
			atomic_fetch_sub(&w->queued, 1);
			atomic_store_explicit(&job->state, JOB_IDLE, memory_order_relaxed);
			return;
		}
	}
	while (!shunt_tcp_job_take(job)) /* a system call that does not wait */
		sched_yield();
}
