/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_NET_TCP_TCP_WORKERS_H
#define SHUNT_TRANSPORT_NET_TCP_TCP_WORKERS_H
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
	/* filled by who submits it */
	int fd;
	bool writes;
	int n;
	struct iovec iov[2];
	/* what came of it */
	size_t bytes; /* that were carried */
	int err;      /* errno after them; EAGAIN: no room, or nothing there; 0: all of it, or the end of a read */
	_Atomic int state;
};

/* How many threads SHUNT_SOCKET_THREADS asks for. */
unsigned shunt_tcp_workers_wanted(void);
/* Starts n threads, 1 to TCP_MAX_WORKERS. 0 or -errno. */
int shunt_tcp_workers_start(unsigned n, struct tcp_workers **workers_p);
/* No job is under way. NULL is allowed. */
void shunt_tcp_workers_stop(struct tcp_workers *workers);
/* False: too many are under way. The job, and what its iov points to, stay where they are until it is taken. */
bool shunt_tcp_workers_submit(struct tcp_workers *workers, struct tcp_job *job);
/* Does a job that no thread has begun. False: there is none. */
bool shunt_tcp_workers_help(struct tcp_workers *workers);
/* True: it was submitted, and not taken. */
bool shunt_tcp_job_is_out(const struct tcp_job *job);
/* True: it was done, and is the caller's again. */
bool shunt_tcp_job_take(struct tcp_job *job);
/* Takes it back, done or not: nobody touches its memory any more. */
void shunt_tcp_job_cancel(struct tcp_workers *workers, struct tcp_job *job);
#endif
