/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * A socket that we listen on, and the connections that have not proved that they are ranks. Each gets a challenge and
 * has ten seconds for its hello. When all places are taken, the oldest connection without a proof goes and is told to
 * try again: no number of strangers keeps a rank out for long, because a rank answers at once.
 *
 * Used by one thread at a time.
 */
#include "base/inet/socket.h"
#include "transport/rendezvous/wire/wire.h"

struct rdzv_conn {
	int fd;
	bool proven;   /* the hello is complete and its sender knows the key */
	uint32_t got;  /* bytes of hello */
	uint64_t turn; /* rises with each connection */
	int64_t since;
	uint8_t nonce[RDZV_NONCE];
	struct rdzv_hello hello;
};

struct rdzv_lobby {
	const struct shunt_socket_kind *kind;
	struct rdzv_key key;
	int listen_fd;          /* -1: none, or closed */
	int event_fd;           /* an epoll of the socket and the connections; -1: none */
	struct rdzv_conn *conn; /* made for the first connection */
	int nconns;
	uint64_t turns;
};

enum { RDZV_LOBBY_PLACES = 256 };

/* Closes everything. The lobby is empty then, and listens nowhere. */
void rdzv_lobby_finish(struct rdzv_lobby *lobby);
/* Makes event_fd, if the system lets it. */
void rdzv_lobby_watch(struct rdzv_lobby *lobby);
/* event_fd becomes readable for connections of the other lobby, too. */
void rdzv_lobby_include(struct rdzv_lobby *lobby, const struct rdzv_lobby *other);
/*
 * Takes in some of the connections that wait: drops those that cannot be ranks, and challenges the others. 0, or -errno
 * (out of descriptors or memory: connections stay in the backlog).
 */
int rdzv_lobby_accept(struct rdzv_lobby *lobby);
/* Reads from connection i, and drops it if it has ended or has no proof. The last connection takes its place then. */
void rdzv_lobby_read(struct rdzv_lobby *lobby, int i);
/* Takes connection i out and hands it to the caller. The last connection takes its place. */
int rdzv_lobby_take(struct rdzv_lobby *lobby, int i);
/* Drops connections whose hello is overdue. */
void rdzv_lobby_expire(struct rdzv_lobby *lobby, int64_t now);
/* Closes all connections and frees their places; with `backlog` it closes connections in the backlog, too. */
void rdzv_lobby_clear(struct rdzv_lobby *lobby, bool backlog);
/* Closes the socket; the connections stay. */
void rdzv_lobby_close(struct rdzv_lobby *lobby);
