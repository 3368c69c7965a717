/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Rendezvous of ranks, and rounds of bytes and descriptors among them.
 *
 * One protocol (wire/wire.h) serves three: the set-up of a communicator, over Unix sockets (here); the ranks of a new
 * communicator that know a unique id, over TCP (bootstrap.h); and ranks that a tool has started, over TCP (star.h).
 * They share the proof, the crowd of connections without one (wire/lobby.h), the root's and the member's part, the
 * table that all get, and the rounds.
 *
 * The set-up: each possible member has an index. bind makes an abstract Unix socket whose name is a keyed hash of (id,
 * member); nothing is left of it when a process dies. The creation of a communicator is collective. Once it is done,
 * every member that runs Shunt on this host (in this network namespace) has its socket. So a refused connection in join
 * means "not present", at once and alike on all ranks.
 *
 * The id is a secret of the job. Both sides of every connection prove knowledge of it by a keyed hash of a fresh nonce,
 * and the peer must have our own uid, which is checked before any message. Any other connection is dropped without
 * disturbing the ranks. Nothing begins for a connection that has not proved itself.
 *
 * join connects the ranks as a star around the root, which is the lowest member that is present. The ranks wait for a
 * member that has not come as long as its socket exists; a member without its socket is dead.
 *
 * One thread uses a rendezvous at a time. Any other thread may set *cancel, which is noticed within 50 ms; cancel may
 * be NULL. Ranks may be threads of one process or processes. After a failed join or allgather the rendezvous can only
 * be destroyed; later calls return the same error. All descriptors are close-on-exec.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/id.h"
#include "transport/rendezvous/wire/row.h"

struct shunt_rendezvous;
struct shunt_hosts;

/* Which members are to come, where these are not simply the ranks. */
struct shunt_members {
	int n;
	const int *member; /* the member that each rank is; NULL: the one of its number */
	const char *whose; /* for the log, behind members' numbers: " (of the parent)", or "" */
};

#define SHUNT_RENDEZVOUS_MAX_BYTES (64u << 20) /* of one allgather's result */

/* 0; -EADDRINUSE if this member index of this id is bound already; another -errno. Cheap: one socket. */
int shunt_rendezvous_bind(const struct shunt_id *id, int member, struct shunt_rendezvous **rdzv_p);

/*
 * Connects nranks ranks. Exactly nranks of the nmembers members must be present. Waits for them as long as they live,
 * at most SHUNT_TIMEOUT; after 30 s one log line names the ranks that have not come. nranks 1 needs no peer.
 *   0            the star is complete; allgather may be called
 *   -ENOENT      fewer members: *missing_p is the lowest member that is not present (-1 in all other cases;
 *                missing_p may be NULL)
 *   -EINVAL      more members than nranks; or ranks or members collide or are out of range, or nranks differ
 *   -EOWNERDEAD  a member died or gave up
 *   -ETIMEDOUT   a live member did not come within SHUNT_TIMEOUT
 *   -ECANCELED   *cancel
 *   -EPROTO      a member speaks another protocol
 * After a wrong number of members our socket stays, so that the peers count the same.
 */
int shunt_rendezvous_join(
    struct shunt_rendezvous *rdzv, int nmembers, int rank, int nranks, const atomic_int *cancel, int *missing_p);

/*
 * Before a join: the ranks are on several hosts. Members, and descriptors of rounds, are those of the rank's own host;
 * ranks and bytes are those of all hosts. Takes hosts over, also on an error. 0 or -ENOMEM.
 */
int shunt_rendezvous_set_hosts(struct shunt_rendezvous *rdzv, struct shunt_hosts *hosts, int rank);
/* The hosts that were set, or NULL. hosts_of: for a caller that completes them before a join. */
const struct shunt_hosts *shunt_rendezvous_hosts(const struct shunt_rendezvous *rdzv);
struct shunt_hosts *shunt_rendezvous_hosts_of(struct shunt_rendezvous *rdzv);

/*
 * After a join in which member indices stood for ranks: rank_of[i] is the rank of the member that joined as i. From
 * then on these ranks hold, also in the hosts. 0, or -EINVAL: two members have the same rank (logged).
 */
int shunt_rendezvous_renumber(struct shunt_rendezvous *rdzv, const int32_t *rank_of);

/*
 * Waits until these members are present. For use before a join, if nothing else says that the members have made
 * their sockets. 0; -ETIMEDOUT after timeout_ms (<= 0: no limit), -ECANCELED, or another -errno. Every member must then
 * call join.
 */
int shunt_rendezvous_await(
    struct shunt_rendezvous *rdzv, const struct shunt_members *members, int64_t timeout_ms, const atomic_int *cancel);

/*
 * Before a join: how many members have their sockets on this host, our own included. *missing_p: the lowest member
 * without a socket, or -1. A negative errno: the sockets cannot be looked for. Does not wait.
 */
int shunt_rendezvous_present(struct shunt_rendezvous *rdzv, int nmembers, int *missing_p);

/*
 * After a join, or a look, that found too few members: true on the lowest member that is present, unless it is alone.
 * So one member can speak for all.
 */
bool shunt_rendezvous_is_leader(const struct shunt_rendezvous *rdzv);

/*
 * For the log: why a join, an await or a round failed with err, as a clause that names the rank that did not come, died
 * or disagreed, if this rank can know it. A rendezvous logs no error itself: its caller does, in one line that says
 * what failed. An error that the rendezvous did not return, or NULL: the error's own text.
 */
const char *shunt_rendezvous_why(const struct shunt_rendezvous *rdzv, int err);

/* The ranks of a rendezvous, and how long they wait for each other in a round. */
struct shunt_ranks {
	struct shunt_rendezvous *rendezvous; /* after a join; not used for a rank that is alone */
	int rank, nranks;
	int64_t timeout_ms; /* of a round; <= 0: no limit */
	const atomic_int *cancel;
};

/*
 * A round. Every rank contributes the same number of bytes (0 is allowed) and at most one descriptor.
 *   all  gets nranks x bytes in rank order
 *   fd   the descriptor, which stays the caller's; -1: none
 *   fds  fds[r] is a new descriptor, which the caller owns; -1 for ranks that gave none and for our own rank.
 *        NULL: the round has no descriptors, and fd must be -1; all ranks must agree on that
 * Errors: -EINVAL (bytes or use of fds differ), -ENOMEM (a rank lacks memory), -ETIMEDOUT, -EOWNERDEAD, -ECANCELED,
 * -EPROTO, -EMFILE (the kernel refused the descriptors). On an error fds has no descriptors. One rank's error ends the
 * round on all ranks, unless the other ranks already have their result: then their next round fails. The root ends a
 * round after timeout_ms, and tells all ranks who is missing. The others wait for its word as long again, at most
 * SHUNT_SETUP_TIMEOUT for each level of hosts; only then the root itself is missing.
 */
int shunt_rendezvous_allgather(
    const struct shunt_ranks *ranks, const void *mine, size_t bytes, void *all, int fd, int *fds);
/*
 * For a rank that lacks the memory for the next round: ends that round on all ranks, which would otherwise wait for
 * this rank until their deadline. Always -ENOMEM.
 */
int shunt_rendezvous_lacks_memory(const struct shunt_ranks *ranks);
/* True: rounds pass descriptors, as they do only inside a host. The same on all ranks. */
bool shunt_rendezvous_passes_fds(const struct shunt_ranks *ranks);

/*
 * Between two rounds, for a caller that waits for something else. True: a connected rank has closed its connection, so
 * the next round will fail. NULL is allowed.
 */
bool shunt_rendezvous_lost(const struct shunt_rendezvous *rdzv);

/* nranks rows after a join, which the rendezvous owns; else NULL. */
const struct shunt_rendezvous_row *shunt_rendezvous_rows(const struct shunt_rendezvous *rdzv);

/*
 * A descriptor that is readable while a connection waits for an answer. The rendezvous owns it; -1 if the system has no
 * descriptor left.
 */
int shunt_rendezvous_fd(const struct shunt_rendezvous *rdzv);
/*
 * Before a join, and without waiting: drops connections of other users, challenges all other connections, and reads
 * their messages. True: a member has proved itself, so the ranks are joining. Its connection is kept for our own join.
 */
bool shunt_rendezvous_answer(struct shunt_rendezvous *rdzv);

/* The Unix socket of a member. The rendezvous owns it. */
int shunt_rendezvous_socket(const struct shunt_rendezvous *rdzv);

/* Before a join: this rank does not come. Ranks that wait for it, or will, are told as by the end of its process. */
void shunt_rendezvous_give_up(struct shunt_rendezvous *rdzv);
/* After a join: nobody looks for this member's socket any more, which closes, and the descriptor of _fd(). */
void shunt_rendezvous_close(struct shunt_rendezvous *rdzv);
/* NULL is allowed. */
void shunt_rendezvous_destroy(struct shunt_rendezvous *rdzv);
