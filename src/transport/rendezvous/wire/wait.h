/* SPDX-License-Identifier: MIT */
#pragma once
/* Waiting for peers (liveness.c), the deadlines of such waits, and log lines during a wait (wait.c). */
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * shunt_io_poll on our sockets. It also notices within 100 ms that the process at the other end has died
 * while a child still holds the connection (base/fd.h), and shuts that connection down; over TCP it cannot.
 * *next_check: 0 before the first call of a wait; kept by this function.
 */
int rdzv_poll(struct pollfd *fds, nfds_t n, int64_t *next_check, int64_t deadline, const atomic_int *cancel);

struct rdzv_wait_log {
	int64_t next_log, step;
};

struct rdzv_wait_log rdzv_wait_log_begin(void);
/* True after 30 s, and then in longer and longer intervals: it is time to log what the wait is for. */
bool rdzv_wait_log_due(struct rdzv_wait_log *p);
/* Logs when it is due. what: follows "waiting for". */
void rdzv_wait_log_say(struct rdzv_wait_log *p, const char *what);
/*
 * When a member gives up waiting for the outcome. The root gives up after timeout_ms, knows the missing ranks, and
 * reports them; a member waits longer, and only then takes the root for dead.
 */
int64_t rdzv_member_deadline(int64_t timeout_ms);
