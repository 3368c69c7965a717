/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_RENDEZVOUS_PRIV_H
#define SHUNT_TRANSPORT_RENDEZVOUS_PRIV_H
/* Shared by the files of a rendezvous: rendezvous.c has the object, each other file one of its functions. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/inet/netaddr.h"
#include "transport/rendezvous/hosts.h"
#include "transport/rendezvous/lobby.h"
#include "transport/rendezvous/rendezvous.h"
#include "transport/rendezvous/wire.h"

struct shunt_rendezvous {
	struct rdzv_lobby lobby; /* the socket that we listen on; its fd is -1 for a member of a star */
	struct shunt_id id;      /* of a communicator */
	int member;
	int rank, nranks;
	bool is_root, joined, count_mismatch, is_leader;
	int err; /* the first error; sticky */
	uint32_t round;
	int root_fd;   /* member: to the root */
	int root;      /* after a join: its rank; -1: it is none, or this rank is it */
	int *peer_fds; /* root: connection of each rank, -1 for our own */
	/* Over TCP: keys of the connections, of the ranks for a root, else one; NULL over Unix sockets. */
	uint8_t (*session)[RDZV_SECRET];
	struct shunt_rendezvous_row *rows;
	/*
	 * Over several hosts: rank and nranks are those of this host, whose root is a rank of `uplink`, a rendezvous
	 * over TCP with a rank for each host. There hosts is set, too, and uplink is NULL.
	 */
	struct shunt_hosts *hosts; /* NULL: one host. The rendezvous of the host owns it */
	struct shunt_rendezvous *uplink;
	int culprit; /* of a round that failed: the rank that made it fail; -1: not known */
};

static inline bool rdzv_is_uplink(const struct shunt_rendezvous *rdzv)
{
	return rdzv->hosts && !rdzv->uplink;
}

/* Ranks whose bytes a round has. */
static inline int rdzv_total(const struct shunt_rendezvous *rdzv)
{
	return rdzv->uplink ? rdzv->hosts->nranks : rdzv->nranks;
}

/* The rank that has this number on our host. */
int shunt_rendezvous_global(const struct shunt_rendezvous *rdzv, int local);
/* For the log: "rank 3", "rank 3 on node1 (10.0.0.1)", or, of an uplink, "host node1 (10.0.0.1)". */
void shunt_rendezvous_name(const struct shunt_rendezvous *rdzv, int rank, char *text, size_t bytes);

/* Status that the peers get for our error: to them a cancelled member is one that gave up. */
static inline int rdzv_peer_error(int err)
{
	return err == -ECANCELED ? -EOWNERDEAD : err;
}

/* Where a member of a communicator listens, among the abstract Unix sockets (address.c). */
void shunt_rendezvous_unix_address(const struct shunt_id *id, int member, struct shunt_netaddr *addr);

/* An empty object that listens nowhere. NULL: no memory. */
struct shunt_rendezvous *shunt_rendezvous_create(const struct shunt_socket_kind *kind, struct rdzv_key key);
/* After an error, or at the end: of both levels. */
void shunt_rendezvous_close_connections(struct shunt_rendezvous *rdzv);

/* Where the root of a host listens. */
struct shunt_netaddr shunt_rendezvous_uplink_address(const struct shunt_rendezvous *uplink, int host);

/*
 * Connects to a member. 0: it is present, and *fd_p is the connection, or -1 if its backlog is full. -ECONNREFUSED: it
 * is not present. Or another -errno. Of an uplink, a member is the root of another host, and *fd_p may still be
 * connecting.
 */
int shunt_rendezvous_probe(const struct shunt_rendezvous *rdzv, int member, int *fd_p);

/*
 * shunt_io_poll on our sockets (liveness.c). It also notices within 100 ms that the process at the other end has died
 * while a forked child still holds the connection, and shuts that connection down; over TCP it cannot. *next_check: 0
 * before the first call of a wait; kept by this function.
 */
int shunt_rendezvous_poll(
    struct pollfd *fds, nfds_t n, int64_t *next_check, int64_t deadline, const atomic_int *cancel);

/* ---- waiting (wait.c) */

struct rdzv_wait_log {
	int64_t next_log, step;
};

struct rdzv_wait_log shunt_rendezvous_wait_log(void);
/* True after 30 s, and then ever more rarely: it is time to say what is still awaited. */
bool shunt_rendezvous_wait_log_due(struct rdzv_wait_log *p);
/* Logs when it is due. what: follows "waiting for". */
void shunt_rendezvous_log_waiting(struct rdzv_wait_log *p, const char *what);
/*
 * When a member gives up waiting for the outcome. The root gives up after timeout_ms, knows the missing ranks, and
 * reports them; a member waits longer, and only then takes the root for dead.
 */
int64_t shunt_rendezvous_member_deadline(int64_t timeout_ms);

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

/*
 * The root's side (root.c). A root takes in ranks until all have come or an error is certain, and tells all of them the
 * outcome. It is a rank itself, or a server for ranks that know its address.
 */
struct rdzv_peer {
	int fd;          /* -1: none */
	bool seen;       /* has ever come */
	uint32_t caller; /* of its hello */
	uint64_t turn;   /* of its connection in the lobby */
	uint8_t nonce[RDZV_NONCE];
	uint8_t session[RDZV_SECRET];
	struct shunt_rendezvous_row row;
};

/* A member that is called over TCP, so that it is woken, and its end noticed. */
struct rdzv_called {
	int64_t end;   /* who cannot be reached until then is given up */
	int64_t again; /* not before: another call, as this one has led nowhere */
	bool heard;    /* it has said something */
};

struct rdzv_root {
	/* Set by the caller. */
	struct rdzv_lobby *lobby;
	const char *what, *limit;            /* for the log: what is joined, and the name of timeout_ms */
	int rank, member;                    /* our own; -1: a server */
	int nranks, nmembers;                /* 0: as the first hello says */
	int *watch;                          /* per member: a connection to it, which breaks when it dies; -1 none, or
	                                        RDZV_WATCH_LATER; NULL: nobody is watched */
	const struct shunt_rendezvous *rdzv; /* of the watched members, and for names; NULL: none */
	int64_t timeout_ms;                  /* from the first rank on */
	const atomic_int *cancel;
	/* The root's own. */
	int first;                  /* rank that said nranks; -1: none yet */
	struct rdzv_peer *peer;     /* per rank */
	bool *present;              /* per member */
	struct rdzv_called *called; /* per member; NULL if nobody is watched */
	struct pollfd *pfds;
	int arrived, answered;
	int status;                  /* RDZV_OPEN, then the outcome, 0 or -errno */
	char text[168];              /* why */
	int64_t last_event, started; /* started: when the first rank came */
	struct rdzv_wait_log wait_log;
	int64_t next_check;
};
#define RDZV_OPEN 1

/* Fills the root's own fields. 0 or -errno (the caller then calls finish). */
int shunt_rendezvous_root_init(struct rdzv_root *root);
void shunt_rendezvous_root_finish(struct rdzv_root *root); /* closes the connections that are still the root's */
/* Waits for an event, a second at most, and handles it. Sets status when the outcome is certain. */
void shunt_rendezvous_root_step(struct rdzv_root *root);
/* Ends the gathering with an error, unless it has ended. */
__attribute__((format(printf, 3, 4))) void shunt_rendezvous_root_fail(
    struct rdzv_root *root, int status, const char *fmt, ...);
/*
 * Sends the outcome to all ranks that have come, those of our own process last: when the first of these returns, the
 * program may end, and the root with it. Closes their connections unless `keeps`.
 */
void shunt_rendezvous_root_answer_all(struct rdzv_root *root, bool keeps);
/* Steps until the outcome is certain: status. */
void shunt_rendezvous_root_gather(struct rdzv_root *root);
/* Then answers, and ends the root. On success rdzv has the connections, their keys and the table. Returns the outcome.
 */
int shunt_rendezvous_root_conclude(struct rdzv_root *root, struct shunt_rendezvous *rdzv);
/* Both. */
int shunt_rendezvous_root_run(struct rdzv_root *root, struct shunt_rendezvous *rdzv);
/* Gives the connections, their keys and the table to rdzv. 0 or -ENOMEM. */
int shunt_rendezvous_root_hand_over(struct rdzv_root *root, struct shunt_rendezvous *rdzv);

/*
 * The root of a host joins those of the other hosts (uplink.c). *cancel, and errors, are those of a join; text gets the
 * reason.
 */
int shunt_rendezvous_uplink_join(struct shunt_rendezvous *uplink, const atomic_int *cancel, char *text, size_t bytes);

/* A member's side (member.c). */
struct rdzv_ask {
	const struct rdzv_key *key;
	const char *what;
	int member, nmembers, rank, nranks;
	int64_t challenge_deadline, deadline; /* for the first message, and for the outcome */
	const char *root;                     /* what the first message waits for, for the log; NULL: not logged */
	const atomic_int *cancel;
	const char *who;              /* the root, in the log; NULL: "the root" */
	bool calls_again;             /* what is no answer of a root that knows the key is not logged */
	bool said_hello;              /* set once the root may have got one, in the last call */
	uint32_t caller;              /* 0 at first */
	bool answered;                /* set once the root has proved itself */
	uint8_t session[RDZV_SECRET]; /* of a join that succeeded */
};

/*
 * Proves our knowledge of the key to the root at the other end of fd, and waits for the outcome. 0: *rows_p, which the
 * caller frees, has nranks rows. The root's error, -EPROTO (no root of ours), -ETIMEDOUT, -EOWNERDEAD: logged, but for
 * an end of the connection before the challenge. -EAGAIN: the root had no place for us any more, or the connection
 * broke behind our hello; to be tried again. Before the hello a connection that broke is -ECONNRESET, or the error of
 * the network.
 */
int shunt_rendezvous_member_join(int fd, struct rdzv_ask *ask, struct shunt_rendezvous_row **rows_p);

/*
 * True: a call over TCP that failed so may get through the next time, as packets were lost or a network was away. Not
 * where nobody listens, or who does has ended the connection: that is final.
 */
static inline bool rdzv_may_call_again(int err)
{
	return err == -EAGAIN || err == -ETIMEDOUT || err == -ECONNRESET || err == -EHOSTUNREACH || err == -EHOSTDOWN ||
	    err == -ENETUNREACH || err == -ENETDOWN || err == -EADDRNOTAVAIL;
}

/*
 * Calls a root at this address, and joins (call.c): as often as it takes, until the ask's deadline, or until the root's
 * host has not been reached for SHUNT_SETUP_TIMEOUT. On success rdzv has the connection, its key and the rows. Errors:
 * those of shunt_socket_connect and of shunt_rendezvous_member_join.
 */
int shunt_rendezvous_call(struct shunt_rendezvous *rdzv, const struct shunt_netaddr *addr, struct rdzv_ask *ask);

/* Keeps the key of a connection over TCP to the root. 0 or -ENOMEM. */
static inline int shunt_rendezvous_keep_session(struct shunt_rendezvous *rdzv, const struct rdzv_ask *ask)
{
	rdzv->session = malloc(sizeof(*rdzv->session));
	if (!rdzv->session)
		return -ENOMEM;
	memcpy(rdzv->session[0], ask->session, sizeof(ask->session));
	return 0;
}

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

/* Outgoing: head, with the descriptors attached to its first byte, then body. */
struct rdzv_send {
	const void *head;
	size_t head_bytes;
	const int *fds;
	int nfds;
	const void *body;
	size_t body_bytes;
};

int shunt_rendezvous_send(int fd, const struct rdzv_send *out, int64_t deadline, const atomic_int *cancel);

/* ---- a round (allgather.c) */

/* Arguments of shunt_rendezvous_allgather. */
struct rdzv_round {
	const void *mine;
	size_t bytes;
	void *all;
	int fd, *fds;
	int64_t deadline;
	const atomic_int *cancel;
	int status, culprit; /* of an uplink: our host has failed, and tells the others */
};

int shunt_rendezvous_root_allgather(struct shunt_rendezvous *rdzv, const struct rdzv_round *round);
int shunt_rendezvous_member_allgather(struct shunt_rendezvous *rdzv, const struct rdzv_round *round);
#endif
