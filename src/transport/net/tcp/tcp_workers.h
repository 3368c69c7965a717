/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Threads that carry bytes between memory and sockets for a device of the provider "tcp". One thread copies some 5 GB/s
 * in both directions together, which is less than a network gives.
 *
 * A job is one socket's next read or write. The device's own thread prepares it, submits it, and takes it when it is
 * done; all state of sockets stays with that thread. Jobs never wait: a socket that has no room ends its job.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

#define TCP_MAX_WORKERS 16

struct tcp_workers;

struct tcp_job {
	/* filled by the submitter */
	int fd;
	bool writes;
	int n;
	struct iovec iov[2];
	/* the outcome */
	size_t bytes; /* that were carried */
	/*
	 * Errno after these bytes; EAGAIN: no room, or nothing to read; 0: all bytes were carried, or the end was read
	 */
	int err;
	_Atomic int state;
};

/* How many threads SHUNT_SOCKET_THREADS asks for. */
unsigned shunt_tcp_workers_wanted(void);
/* Starts n threads, 1 to TCP_MAX_WORKERS. 0 or -errno. */
int shunt_tcp_workers_start(unsigned n, struct tcp_workers **workers_p);
/* To be called when no job is under way. NULL is allowed. */
void shunt_tcp_workers_stop(struct tcp_workers *workers);
/* False: too many jobs are under way. The job, and the memory of its iov, stay valid until the job is taken. */
bool shunt_tcp_workers_submit(struct tcp_workers *workers, struct tcp_job *job);
/* Does a job that no thread has begun. False: there is no such job. */
bool shunt_tcp_workers_help(struct tcp_workers *workers);
/* True: the job was submitted, and not taken. */
bool shunt_tcp_job_is_out(const struct tcp_job *job);
/* True: the job is done, and belongs to the caller again. */
bool shunt_tcp_job_take(struct tcp_job *job);
/* Takes the job back, done or not: afterwards no thread touches its memory. */
void shunt_tcp_job_cancel(struct tcp_workers *workers, struct tcp_job *job);
