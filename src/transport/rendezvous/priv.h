/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_RENDEZVOUS_PRIV_H
#define SHUNT_TRANSPORT_RENDEZVOUS_PRIV_H
/* What the files of a rendezvous share: rdzv.c has the object, each of the others one thing that it does. */
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
	int err; /* sticky */
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

/* Also ends the connection where a forked child still holds a copy of the descriptor. */
static inline void rdzv_close_socket(int *fd)
{
	if (*fd >= 0)
		shutdown(*fd, SHUT_RDWR);
	rdzv_close_fd(fd);
}

/* What the peers are told of our error: to them, our being cancelled is a member that gave up. */
static inline int rdzv_peer_error(int err)
{
	return err == -ECANCELED ? -EOWNERDEAD : err;
}

/* ---- sockets (rendezvous_socket.c) */

/* The socket of a member; nobody else has it. */
int shunt_rendezvous_listen(const struct shunt_id *id, int member, int *fd_p);
/*
 * Connects to a member. 0 and *fd_p = the connection, or -1 if its backlog is full (it is there, though);
 * -ECONNREFUSED: not there.
 */
int shunt_rendezvous_probe(const struct shunt_rendezvous *rdzv, int member, int *fd_p);
/*
 * Is who is at the other end the user that we were when we made our socket, or, with now, that we are? A member may
 * have become another user since, sooner or later than others: whether its socket counts must be the same for all.
 */
bool shunt_rendezvous_same_user(const struct shunt_rendezvous *rdzv, int fd, bool now);

/*
 * rendezvous_liveness.c: shunt_io_poll on sockets of ours, which also notices within 100 ms that the process at the
 * other end of one has died when a forked child of it still holds the connection, and then ends that. *next_check: 0
 * before the first call of a wait, then its own.
 */
int shunt_rendezvous_poll(
    struct pollfd *fds, nfds_t n, int64_t *next_check, int64_t deadline, const atomic_int *cancel);

/* ---- waiting (rdzv_wait_log.c) */

struct rdzv_wait_log {
	int64_t next_log, step;
};

struct rdzv_wait_log shunt_rendezvous_wait_log(void);
/* Says at 30 s, and then ever more rarely, who is still awaited. what: completes "waiting for". */
void shunt_rendezvous_log_waiting(struct rdzv_wait_log *p, const char *what);
/* For the members to come. The root speaks first: it knows who is missing. */
int64_t shunt_rendezvous_join_deadline(bool is_root);

/* ---- a join */

/*
 * rendezvous_count.c: counts the members. -ENOENT, -EINVAL as shunt_rendezvous_join. 0: *root_p is the root's member
 * index. If it is another one than ours, rdzv->root_fd is the connection to it. If it is ours, watch[member] is one in
 * each member's backlog, or RDZV_WATCH_LATER. watch: -1 for each member before; afterwards to be closed in any case.
 */
int shunt_rendezvous_count(
    struct shunt_rendezvous *rdzv, int nmembers, int *watch, const atomic_int *cancel, int *root_p, int *missing_p);
#define RDZV_WATCH_LATER (-2) /* that member is there, but its backlog is full at the moment */

/* rendezvous_root.c: until all have come, or it fails; all who came are told the outcome. */
int shunt_rendezvous_root_join(struct shunt_rendezvous *rdzv, int nmembers, int *watch, const atomic_int *cancel);
/* rendezvous_member.c: until the root has told the outcome. */
int shunt_rendezvous_member_join(
    struct shunt_rendezvous *rdzv, int nmembers, int root_member, const atomic_int *cancel);

/* ---- messages with descriptors (rendezvous_message.c) */

#define RDZV_MAX_FDS SHUNT_RENDEZVOUS_MAX_RANKS

/* Incoming bytes of one peer, with the descriptors that came along. */
struct rdzv_recv {
	int fd;
	char *buf;
	size_t received, expected;
	int fds[RDZV_MAX_FDS];
	int nfds, max_fds;
};

/* Takes what is there: 0 (perhaps nothing or not all), -EOWNERDEAD, -EPROTO (descriptors that nobody announced). */
int shunt_rendezvous_recv_read(struct rdzv_recv *in);
/* Fills it up to so many bytes. */
int shunt_rendezvous_recv_fill(
    struct rdzv_recv *in, void *buf, size_t bytes, int64_t deadline, const atomic_int *cancel);
/* Closes the descriptors that nobody has taken. */
void shunt_rendezvous_recv_close(struct rdzv_recv *in);
/* Sends head with the descriptors attached to its first byte, then body. */
int shunt_rendezvous_send(int fd, const void *head, size_t head_bytes, const int *fds, int nfds, const void *body,
    size_t body_bytes, int64_t deadline, const atomic_int *cancel);

/* ---- a round (rendezvous_allgather.c) */

/* What shunt_rendezvous_allgather was called with. */
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
