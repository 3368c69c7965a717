/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_MEET_PRIV_H
#define SHUNT_TRANSPORT_MEET_PRIV_H
/* What the files of a meet share: meet.c has the object, each of the others one thing that it does. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "transport/meet.h"

struct shunt_meet {
	struct shunt_id id;
	int slot;
	int listen_fd;
	int rank, nranks;
	bool hub, joined, miscounted, leads;
	int err; /* sticky */
	uint32_t round;
	int hub_fd; /* spoke: to the hub */
	int *fd_of; /* hub: connection of each rank, -1 for our own */
};

static inline void meet_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Also ends the connection where a forked child still holds a copy of the descriptor. */
static inline void meet_close_socket(int *fd)
{
	if (*fd >= 0)
		shutdown(*fd, SHUT_RDWR);
	meet_close_fd(fd);
}

/* What the peers are told of our error: to them, our being cancelled is a member that gave up. */
static inline int meet_tell(int err)
{
	return err == -ECANCELED ? -EOWNERDEAD : err;
}

/* ---- sockets (meet_socket.c) */

/* The socket of a slot; nobody else has it. */
int shunt_meet_listen(const struct shunt_id *id, int slot, int *fd_p);
/*
 * Connects to a slot. 0 and *fd_p = the connection, or -1 if its backlog is full (it is there, though); -ECONNREFUSED:
 * not there.
 */
int shunt_meet_probe(const struct shunt_meet *meet, int slot, int *fd_p);
/*
 * Is who is at the other end the user that we were when we made our socket, or, with now, that we are? A member may
 * have become another user since, sooner or later than others: whether its socket counts must be the same for all.
 */
bool shunt_meet_same_user(const struct shunt_meet *meet, int fd, bool now);

/*
 * meet_life.c: shunt_io_poll on sockets of ours, which also notices within 100 ms that the process at the other end of
 * one has died when a forked child of it still holds the connection, and then ends that. *look: 0 before the first call
 * of a wait, then its own.
 */
int shunt_meet_poll(struct pollfd *fds, nfds_t n, int64_t *look, int64_t deadline, const atomic_int *cancel);

/* ---- patience (meet_patience.c) */

struct meet_patience {
	int64_t next_log, step;
};

struct meet_patience shunt_meet_patience(void);
/* Says at 30 s, and then ever more rarely, who is still awaited. what: completes "waiting for". */
void shunt_meet_still_waiting(struct meet_patience *p, const char *what);
/* For the members to come. The hub speaks first: it knows who is missing. */
int64_t shunt_meet_join_deadline(bool hub);

/* ---- a join */

/*
 * meet_members.c: counts the members. -ENOENT, -EINVAL as shunt_meet_join. 0: *hub_p is the hub's slot. If it is
 * another one than ours, meet->hub_fd is the connection to it. If it is ours, watch[slot] is one in each member's
 * backlog, or MEET_WATCH_LATER. watch: -1 for each slot before; afterwards to be closed in any case.
 */
int shunt_meet_count(
    struct shunt_meet *meet, int nslots, int *watch, const atomic_int *cancel, int *hub_p, int *missing_p);
#define MEET_WATCH_LATER (-2) /* that member is there, but its backlog is full at the moment */

/* meet_hub.c: until all have come, or it fails; all who came are told the outcome. */
int shunt_meet_hub_join(struct shunt_meet *meet, int nslots, int *watch, const atomic_int *cancel);
/* meet_spoke.c: until the hub has told the outcome. */
int shunt_meet_spoke_join(struct shunt_meet *meet, int nslots, int hub_slot, const atomic_int *cancel);

/* ---- messages with descriptors (meet_message.c) */

#define MEET_MAX_FDS SHUNT_MEET_MAX_RANKS

/* Incoming bytes of one peer, with the descriptors that came along. */
struct meet_inbox {
	int fd;
	char *buf;
	size_t got, want;
	int fds[MEET_MAX_FDS];
	int nfds, max_fds;
};

/* Takes what is there: 0 (perhaps nothing or not all), -EOWNERDEAD, -EPROTO (descriptors that nobody announced). */
int shunt_meet_inbox_read(struct meet_inbox *in);
/* Fills it up to so many bytes. */
int shunt_meet_inbox_fill(struct meet_inbox *in, void *buf, size_t bytes, int64_t deadline, const atomic_int *cancel);
/* Closes the descriptors that nobody has taken. */
void shunt_meet_inbox_close(struct meet_inbox *in);
/* Sends head with the descriptors attached to its first byte, then body. */
int shunt_meet_send(int fd, const void *head, size_t head_bytes, const int *fds, int nfds, const void *body,
    size_t body_bytes, int64_t deadline, const atomic_int *cancel);

/* ---- a round (meet_gather.c) */

/* What shunt_meet_gather was called with. */
struct meet_round {
	const void *mine;
	size_t bytes;
	void *all;
	int fd, *fds;
	int64_t deadline;
	const atomic_int *cancel;
};

int shunt_meet_hub_gather(struct shunt_meet *meet, const struct meet_round *round);
int shunt_meet_spoke_gather(struct shunt_meet *meet, const struct meet_round *round);
#endif
