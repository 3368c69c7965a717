/* SPDX-License-Identifier: MIT */
#pragma once
/* The object that rendezvous.h hands out, for the files of this folder and their tests. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/inet/socket.h"
#include "base/log.h"
#include "transport/rendezvous/host_table.h"
#include "transport/rendezvous/rendezvous.h"
#include "transport/rendezvous/wire/lobby.h"
#include "transport/rendezvous/wire/wire.h"

#define RDZV_WHY_BYTES 512
/* A root that is no rank; no message says which rank's process it is. */
#define RDZV_ID_MAKER "the process that made the unique id (rank 0 in most programs)"

/* The members that a rendezvous connects. */
enum rdzv_level {
	RDZV_ALL_RANKS,  /* all ranks */
	RDZV_HOST_RANKS, /* the ranks of this host, whose root is a rank of `uplink` */
	RDZV_UPLINK,     /* over TCP, the roots of all hosts: its ranks are hosts */
};

struct shunt_rendezvous {
	enum rdzv_level level;
	struct rdzv_lobby lobby; /* the socket that we listen on; its fd is -1 for a member of a star */
	struct shunt_id id;      /* of a communicator */
	int member;
	int rank, nranks;
	bool is_root, joined, count_mismatch, is_leader;
	int err; /* the first error; sticky */
	uint32_t round;
	int root_fd;   /* member: to the root */
	int root;      /* after a join: the root's rank; -1: the root is no rank, or is this rank */
	int *peer_fds; /* root: connection of each rank, -1 for our own */
	/* Over TCP: keys of the connections, of the ranks for a root, else one; NULL over Unix sockets. */
	uint8_t (*session)[RDZV_SECRET];
	struct shunt_rendezvous_row *rows;
	/* Of both levels over several hosts, else NULL. RDZV_HOST_RANKS owns it. */
	struct shunt_hosts *hosts;
	struct shunt_rendezvous *uplink; /* of RDZV_HOST_RANKS, which owns it; else NULL */
	int culprit;                     /* of a round that failed: the rank that made it fail; -1: not known */
	char why[RDZV_WHY_BYTES];        /* the first cause of a failure, "" if none is known */
};

/* The first error; 0 is allowed. */
void rdzv_set_error(struct shunt_rendezvous *rdzv, int err);
/* Keeps the cause of a failure, unless there is one: what follows from the first cause is none. */
void rdzv_because(struct shunt_rendezvous *rdzv, const char *fmt, ...) SHUNT_LOG_PRINTF(2, 3);

/* Ranks whose bytes a round has. */
static inline int rdzv_total(const struct shunt_rendezvous *rdzv)
{
	return rdzv->level == RDZV_HOST_RANKS ? rdzv->hosts->nranks : rdzv->nranks;
}

/* All ranks, those of other hosts included. */
static inline int rdzv_all(const struct shunt_rendezvous *rdzv)
{
	return rdzv->hosts ? rdzv->hosts->nranks : rdzv->nranks;
}

/* The rank that has this number on our host. */
int rdzv_global_rank(const struct shunt_rendezvous *rdzv, int local);
/* The same, or, of an uplink, the rank that speaks for this host. */
int rdzv_speaker(const struct shunt_rendezvous *rdzv, int rank);
/* The same of ourselves; -1: a root that is no rank. */
static inline int rdzv_own(const struct shunt_rendezvous *rdzv)
{
	return rdzv->rank < 0 ? -1 : rdzv_speaker(rdzv, rdzv->rank);
}
/* For the log: "rank 3", "rank 3 on node1 (10.0.0.1)", or, of an uplink, "host node1 (10.0.0.1)". */
void rdzv_show_rank(const struct shunt_rendezvous *rdzv, int rank, char *text, size_t bytes);

/*
 * For the log: "missing: 2 3", those of n ranks that were not seen, by the numbers of their members; cut where text is
 * full. members: NULL if ranks are members.
 */
void rdzv_show_missing(const struct shunt_members *members, const bool *seen, int n, char *text, size_t bytes);

/* Status that the peers get for our error: to them a cancelled member is one that gave up. */
static inline int rdzv_peer_error(int err)
{
	return err == -ECANCELED ? -EOWNERDEAD : err;
}

/* An empty object that listens nowhere. NULL: no memory. */
struct shunt_rendezvous *rdzv_create(const struct shunt_socket_kind *kind, struct rdzv_key key);
/* After an error, or at the end: of both levels. */
void rdzv_close_connections(struct shunt_rendezvous *rdzv);
