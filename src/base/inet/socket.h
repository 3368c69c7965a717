/* SPDX-License-Identifier: MIT */
#pragma once
/* The two kinds of addresses that ranks find each other at. All sockets are non-blocking and close-on-exec. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include "base/fd.h"
#include "base/inet/netaddr.h"

struct shunt_socket_kind {
	const char *name;
	/* Sets a new socket's options. */
	void (*prepare)(int fd, sa_family_t family);
	/*
	 * True if the process at the other end of fd may be a rank. listen_fd: our socket, made by this process.
	 * accepted: it connected to us, else we to it.
	 */
	bool (*admits)(int listen_fd, int fd, bool accepted);
};

/* A connection over TCP breaks after so much silence of a network or a host that is gone. */
#define SHUNT_TCP_SILENCE_MS 25000
/*
 * The kernel sends again after 0.2, 0.6, 1.4, 3, 6, 12 s, which are few tries in that time where links lose much. With
 * this (since Linux 6.15, in ms) it never waits longer from one to the next.
 */
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif
#define SHUNT_TCP_AGAIN_MS 3000

/* Abstract Unix sockets: the other end must have our uid. */
extern const struct shunt_socket_kind shunt_socket_unix;
/* TCP sockets: any process may be at the other end. */
extern const struct shunt_socket_kind shunt_socket_tcp;

/* Listens at this address only, and stores the port that the kernel has chosen in addr. 0 or -errno. */
int shunt_socket_listen(const struct shunt_socket_kind *kind, struct shunt_netaddr *addr, int *fd_p);
/*
 * Connects until the deadline. 0; -ECONNREFUSED: nobody listens there, or the listener cannot be a rank; -EAGAIN: the
 * backlog of a Unix socket is full; another -errno.
 */
int shunt_socket_connect(const struct shunt_socket_kind *kind, const struct shunt_netaddr *addr, int listen_fd,
    int64_t deadline, const atomic_int *cancel, int *fd_p);

/* Begins to connect: *fd_p connects by itself, or has an error to read. 0 or -errno, -ECONNREFUSED as above. */
int shunt_socket_connect_begin(const struct shunt_socket_kind *kind, const struct shunt_netaddr *addr, int *fd_p);
/* True: the socket that connect_begin made is connected. */
bool shunt_socket_is_connected(int fd);

/* Ends the connection even if a forked child still holds a copy of the descriptor. */
static inline void shunt_close_socket(int *fd)
{
	if (*fd >= 0 && shunt_fd_is_ours(*fd))
		shutdown(*fd, SHUT_RDWR);
	shunt_close_fd(fd);
}
