/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * The root's side of a join. A root takes in ranks until all have come or an error is certain, and tells all of them
 * the outcome. It is a rank itself, or a server for ranks that know its address.
 */
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "transport/rendezvous/object.h"
#include "transport/rendezvous/wire/lobby.h"
#include "transport/rendezvous/wire/wait.h"

#define RDZV_WATCH_LATER (-2) /* the member is present, but its backlog is full at the moment */

struct rdzv_peer {
	int fd;          /* -1: none */
	bool seen;       /* the rank has come, though its connection may have broken since */
	uint32_t caller; /* of its hello */
	uint64_t turn;   /* of its connection in the lobby */
	uint8_t nonce[RDZV_NONCE];
	uint8_t session[RDZV_SECRET];
	struct shunt_rendezvous_row row;
};

/* A member that the root calls over TCP, to wake it and to notice its end. */
struct rdzv_called {
	int64_t end;   /* when a member that no call has reached is given up */
	int64_t again; /* when the next call is due, unless this one has reached the member */
	bool heard;    /* the member has said something on this call */
};

struct rdzv_root {
	/* Set by the caller. */
	struct rdzv_lobby *lobby;
	const char *limit;                   /* for the log: the name of timeout_ms */
	const struct shunt_members *members; /* for the log; NULL: members are ranks */
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
	bool said_limit; /* a server has said why the ranks have to wait */
	int64_t next_check;
};
#define RDZV_OPEN 1

/* Fills the root's own fields. 0 or -errno (the caller then calls finish). */
int rdzv_root_init(struct rdzv_root *root);
void rdzv_root_finish(struct rdzv_root *root); /* closes the connections that are still the root's */
/* Waits for an event, a second at most, and handles it. Sets status when the outcome is certain. */
void rdzv_root_step(struct rdzv_root *root);
/* Ends the gathering with an error, unless it has ended. */
__attribute__((format(printf, 3, 4))) void rdzv_root_fail(struct rdzv_root *root, int status, const char *fmt, ...);
/*
 * Sends the outcome to all ranks that have come, those of our own process last: when the first of these returns, the
 * program may end, and the root with it. Closes their connections unless `keeps`.
 */
void rdzv_root_answer_all(struct rdzv_root *root, bool keeps);
/* Steps until the outcome is certain: status. */
void rdzv_root_gather(struct rdzv_root *root);
/*
 * Then answers, and ends the root. On success rdzv has the connections, their keys and the table, else the cause.
 * Returns the outcome.
 */
int rdzv_root_conclude(struct rdzv_root *root, struct shunt_rendezvous *rdzv);
/* Both. */
int rdzv_root_run(struct rdzv_root *root, struct shunt_rendezvous *rdzv);
/* Gives the connections, their keys and the table to rdzv. 0 or -ENOMEM. */
int rdzv_root_hand_over(struct rdzv_root *root, struct shunt_rendezvous *rdzv);
