/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_RENDEZVOUS_PRIV_H
#define SHUNT_TRANSPORT_RENDEZVOUS_PRIV_H
/* Shared by the files of a rendezvous: rendezvous.c has the object, each other file one of its functions. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "transport/rendezvous/rendezvous.h"

struct shunt_rendezvous {
	struct shunt_id id;
	int member;
	int listen_fd;
	int rank, nranks;
	bool is_root, joined, count_mismatch, is_leader;
	int err; /* the first error; sticky */
	uint32_t round;
	int root_fd;   /* member: to the root */
	int *peer_fds; /* root: connection of each rank, -1 for our own */
};

static inline void rdzv_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Ends the connection even if a forked child still holds a copy of the descriptor. */
static inline void rdzv_close_socket(int *fd)
{
	if (*fd >= 0)
		shutdown(*fd, SHUT_RDWR);
	rdzv_close_fd(fd);
}

/* Status that the peers get for our error: to them a cancelled member is one that gave up. */
static inline int rdzv_peer_error(int err)
{
	return err == -ECANCELED ? -EOWNERDEAD : err;
}

/* ---- sockets (socket.c) */

/* Binds the socket of a member and listens. 0; -EADDRINUSE: bound already; another -errno. */
int shunt_rendezvous_listen(const struct shunt_id *id, int member, int *fd_p);
/*
 * Connects to a member. 0: it is present, and *fd_p is the connection, or -1 if its backlog is full. -ECONNREFUSED: it
 * is not present. Or another -errno.
 */
int shunt_rendezvous_probe(const struct shunt_rendezvous *rdzv, int member, int *fd_p);
/*
 * True if the process at the other end of fd has the uid that we had when we made our socket or, with now, our uid of
 * now. Processes may change their uid, sooner or later than others, but all must find the same sockets valid.
 */
bool shunt_rendezvous_same_user(const struct shunt_rendezvous *rdzv, int fd, bool now);

/*
 * shunt_io_poll on our sockets (liveness.c). It also notices within 100 ms that the process at the other end has died
 * while a forked child still holds the connection, and shuts that connection down. *next_check: 0 before the first call
 * of a wait; kept by this function.
 */
int shunt_rendezvous_poll(
    struct pollfd *fds, nfds_t n, int64_t *next_check, int64_t deadline, const atomic_int *cancel);

/* ---- waiting (wait.c) */

struct rdzv_wait_log {
	int64_t next_log, step;
};

struct rdzv_wait_log shunt_rendezvous_wait_log(void);
/* Logs after 30 s, and then ever more rarely, the peers that are still awaited. what: follows "waiting for". */
void shunt_rendezvous_log_waiting(struct rdzv_wait_log *p, const char *what);
/* Deadline for the members to come. The root's is earlier: it knows the missing ranks and reports them. */
int64_t shunt_rendezvous_join_deadline(bool is_root);

/* ---- a join */

/*
 * Counts the members that are present (count.c). Errors: -ENOENT (with *missing_p) and -EINVAL as
 * shunt_rendezvous_join, or another -errno. 0: *root_p is the root's member index. If that is another member,
 * rdzv->root_fd is the connection to it. If it is ours, watch[member] is a connection in each member's backlog, or
 * RDZV_WATCH_LATER. The caller sets watch[] to -1 before, and closes its descriptors in any case.
 */
int shunt_rendezvous_count(
    struct shunt_rendezvous *rdzv, int nmembers, int *watch, const atomic_int *cancel, int *root_p, int *missing_p);
#define RDZV_WATCH_LATER (-2) /* the member is present, but its backlog is full at the moment */

/* The root's side (root.c): until all have come, or an error. All members that have come get the outcome. */
int shunt_rendezvous_root_join(struct shunt_rendezvous *rdzv, int nmembers, int *watch, const atomic_int *cancel);
/* A member's side (member.c): until the root has sent the outcome. */
int shunt_rendezvous_member_join(
    struct shunt_rendezvous *rdzv, int nmembers, int root_member, const atomic_int *cancel);

/* ---- messages with descriptors (message.c) */

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
int shunt_rendezvous_recv_read(struct rdzv_recv *in);
/* Reads exactly `bytes` into buf. */
int shunt_rendezvous_recv_fill(
    struct rdzv_recv *in, void *buf, size_t bytes, int64_t deadline, const atomic_int *cancel);
/* Closes the descriptors that are still in `in`. */
void shunt_rendezvous_recv_close(struct rdzv_recv *in);
/* Sends head with the descriptors attached to its first byte, then body. */
int shunt_rendezvous_send(int fd, const void *head, size_t head_bytes, const int *fds, int nfds, const void *body,
    size_t body_bytes, int64_t deadline, const atomic_int *cancel);

/* ---- a round (allgather.c) */

/* Arguments of shunt_rendezvous_allgather. */
struct rdzv_round {
	const void *mine;
	size_t bytes;
	void *all;
	int fd, *fds;
	int64_t deadline;
	const atomic_int *cancel;
};

int shunt_rendezvous_root_allgather(struct shunt_rendezvous *rdzv, const struct rdzv_round *round);
int shunt_rendezvous_member_allgather(struct shunt_rendezvous *rdzv, const struct rdzv_round *round);
#endif
