/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Threads that carry bytes between memory and the data sockets of a device of the provider "tcp". One thread copies
 * some 5 GB/s in both directions together, which is less than a network gives.
 *
 * A thread waits for its sockets by an epoll of its own, so that bytes which come wake it, and no other thread stands
 * between. A socket stays with its thread, which holds a lock whenever it is at work on its sockets.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TCP_MAX_WORKERS 16

struct tcp_workers;

/* A socket, as threads see it. */
struct tcp_load {
	uint32_t edges;                      /* that epoll has told since it was last carried */
	_Atomic(struct tcp_worker *) worker; /* NULL: no thread of these has it */
	struct tcp_load *next;               /* of the thread's */
};

/* How many threads SHUNT_SOCKET_THREADS asks for. */
unsigned shunt_tcp_workers_wanted(void);
/*
 * Starts n threads, 1 to TCP_MAX_WORKERS. carry: goes on with a socket without waiting; true: it did something. 0 or
 * -errno.
 */
int shunt_tcp_workers_start(unsigned n, bool (*carry)(struct tcp_load *load), struct tcp_workers **workers_p);
/* Ends the threads; nothing carries their sockets then. NULL is allowed. */
void shunt_tcp_workers_halt(struct tcp_workers *workers);
/* To be called when no thread has a socket. NULL is allowed. */
void shunt_tcp_workers_stop(struct tcp_workers *workers);
/* Gives the socket to a thread: they take turns. 0 or -errno. */
int shunt_tcp_load_give(struct tcp_workers *workers, struct tcp_load *load, int fd);
/* Takes it back: afterwards no thread touches it. */
void shunt_tcp_load_take(struct tcp_load *load, int fd);
/* Keeps its thread, if it has one, from its sockets until unlock. */
void shunt_tcp_load_lock(struct tcp_load *load);
void shunt_tcp_load_unlock(struct tcp_load *load);
/* There may be something to do that no edge tells of. */
void shunt_tcp_load_wake(struct tcp_load *load);
