/* SPDX-License-Identifier: MIT */
#pragma once
/* A member's side of a join, and its calls of a root over TCP (root_call.c). */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "transport/rendezvous/object.h"

struct rdzv_ask {
	const struct rdzv_key *key;
	const char *what;
	int member, nmembers, rank, nranks;
	int64_t challenge_deadline, deadline; /* for the first message, and for the outcome */
	/* The peer whose first message this side waits for, in the log; NULL: not logged */
	const char *root;
	const atomic_int *cancel;
	const char *who;               /* the root, in the log; NULL: "the root" */
	struct shunt_rendezvous *rdzv; /* gets the cause of a failure; NULL: a line of log has it */
	bool calls_again;             /* the caller tries again: only answers of a root that knows the key are logged */
	bool said_hello;              /* set once the root may have got a hello, in the last call */
	uint32_t caller;              /* 0 at first */
	bool answered;                /* set once the root has proved itself */
	bool told;                    /* set once it has told the outcome */
	uint8_t session[RDZV_SECRET]; /* of a join that succeeded */
};

/*
 * Proves our knowledge of the key to the root at the other end of fd, and waits for the outcome. 0: *rows_p, which the
 * caller frees, has nranks rows. The root's error, -EPROTO (no root of ours), -ETIMEDOUT, -EOWNERDEAD: with a cause,
 * unless the connection ended before the challenge. -EAGAIN: the root's lobby dropped us, or the connection broke after
 * our hello; to be tried again. If the connection breaks before the hello: -ECONNRESET, or the network's error.
 */
int rdzv_member_join(int fd, struct rdzv_ask *ask, struct shunt_rendezvous_row **rows_p);

/*
 * Calls a root at this address, and joins. Tries again until the ask's deadline, or until the root's host has not been
 * reached for SHUNT_SETUP_TIMEOUT. On success rdzv has the connection, its key and the rows. Errors: those of
 * shunt_socket_connect and of rdzv_member_join.
 */
int rdzv_call_root(struct shunt_rendezvous *rdzv, const struct shunt_netaddr *addr, struct rdzv_ask *ask);

/* Keeps the key of a connection over TCP to the root. 0 or -ENOMEM. */
static inline int rdzv_keep_session(struct shunt_rendezvous *rdzv, const struct rdzv_ask *ask)
{
	rdzv->session = malloc(sizeof(*rdzv->session));
	if (!rdzv->session)
		return -ENOMEM;
	memcpy(rdzv->session[0], ask->session, sizeof(ask->session));
	return 0;
}
