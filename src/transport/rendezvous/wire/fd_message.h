/* SPDX-License-Identifier: MIT */
#pragma once
/* Messages with descriptors, sent and received piece by piece. */
#include <stdatomic.h>
#include <stddef.h>
#include "transport/rendezvous/wire/row.h"

#define RDZV_MAX_FDS SHUNT_RENDEZVOUS_MAX_RANKS

/* Incoming bytes of one peer, and the descriptors that came with them. */
struct rdzv_recv {
	int fd;
	char *buf;
	size_t received, expected;
	int fds[RDZV_MAX_FDS];
	int nfds, max_fds;
};

/*
 * Reads the bytes that are available: 0 (perhaps none or not all), -EOWNERDEAD, -EPROTO (unexpected descriptors),
 * -EMFILE (the kernel dropped descriptors), or another -errno.
 */
int rdzv_recv_read(struct rdzv_recv *in);
/* Reads exactly `bytes` into buf. */
int rdzv_recv_fill(struct rdzv_recv *in, void *buf, size_t bytes, int64_t deadline, const atomic_int *cancel);
/* Closes the descriptors that are still in `in`. */
void rdzv_recv_close(struct rdzv_recv *in);

/* Outgoing: head, with the descriptors attached to its first byte, then body. */
struct rdzv_send {
	const void *head;
	size_t head_bytes;
	const int *fds;
	int nfds;
	const void *body;
	size_t body_bytes;
};

int rdzv_send_all(int fd, const struct rdzv_send *out, int64_t deadline, const atomic_int *cancel);
