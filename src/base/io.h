/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Waiting on sockets with a deadline and a cancel flag. Sockets must be non-blocking. A deadline is a value of
 * shunt_now_ms(), SHUNT_NEVER for none. cancel may be NULL; another thread's store of nonzero is noticed within 50 ms.
 */
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define SHUNT_NEVER INT64_MAX

int64_t shunt_now_ms(void); /* monotonic */
int64_t shunt_now_ns(void); /* the same clock */
/* now + ms; SHUNT_NEVER for ms <= 0. */
int64_t shunt_deadline_ms(int64_t ms);

/* Number of ready entries (at least 1), -ETIMEDOUT, -ECANCELED or another -errno. n may be 0: sleeps. */
int shunt_io_poll(struct pollfd *fds, nfds_t n, int64_t deadline, const atomic_int *cancel);
/* Writes exactly `bytes`. 0; -EOWNERDEAD: the other side is gone; other errors as shunt_io_poll. */
int shunt_io_write(int fd, const void *buf, size_t bytes, int64_t deadline, const atomic_int *cancel);
/* Closes all descriptors that are not negative. */
void shunt_io_close_all(const int *fds, int n);
/* Converts a socket's errno (positive) to -errno. All that mean "the other side is gone" become -EOWNERDEAD. */
int shunt_io_error(int err);
