/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_RENDEZVOUS_RENDEZVOUS_H
#define SHUNT_TRANSPORT_RENDEZVOUS_RENDEZVOUS_H
/*
 * How the ranks of one host find each other and pass descriptors.
 *
 * Each possible member has an index. bind makes an abstract Unix socket whose name is a keyed hash of (id, member); it
 * leaves nothing behind when a process dies. Creating a communicator is collective: once it is done every member that
 * runs Shunt on this host (in this network namespace) has its socket, so that a refused connection in join means "not
 * here", at once and alike on all ranks.
 *
 * The id is a secret of the job. Every connection proves knowledge of it with a keyed hash of a fresh nonce, in both
 * directions, and must come from our own uid; anything else is dropped without disturbing the ranks.
 *
 * join connects the ranks as a star around the lowest member that is present. A member that does not come to join does
 * not disturb as long as its socket exists; when that vanishes it is dead.
 *
 * One thread uses a rendezvous at a time; *cancel may be set by any other, and is noticed within 50 ms. cancel may be
 * NULL. Ranks may be threads of one process or processes. After a failed join or allgather the rendezvous can only be
 * destroyed; later calls return the same error. All descriptors are close-on-exec.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/id.h"

struct shunt_rendezvous;

#define SHUNT_RENDEZVOUS_MAX_RANKS 128         /* so that all descriptors of a round fit one message */
#define SHUNT_RENDEZVOUS_MAX_BYTES (64u << 20) /* of one allgather's result */

/* 0; -EADDRINUSE if this member index of this id is bound already; another -errno. Cheap: one socket. */
int shunt_rendezvous_bind(const struct shunt_id *id, int member, struct shunt_rendezvous **rdzv_p);

/*
 * Exactly nranks of the nmembers members must be there. Waits for the members as long as they live, but no longer than
 * SHUNT_TIMEOUT; after 30 s one log line names the ranks that are still awaited. nranks 1 needs no peer. 0 the star
 * stands; allgather may be called -ENOENT      fewer members: *missing_p = the lowest member that is not there (-1 in
 * all other cases; missing_p may be NULL). -EINVAL      more members than nranks (after these two our socket stays, so
 * that the peers count the same), or ranks or members collide, are out of range, or nranks differ -EOWNERDEAD  a member
 * died or gave up -ETIMEDOUT   a member that lives did not come within SHUNT_TIMEOUT (logged, with the ranks' names)
 *   -ECANCELED   *cancel
 *   -EPROTO      a member speaks another protocol
 */
int shunt_rendezvous_join(
    struct shunt_rendezvous *rdzv, int nmembers, int rank, int nranks, const atomic_int *cancel, int *missing_p);

/*
 * Before a join, where nothing says that the members have made their sockets: waits until nranks of the members are
 * there. 0; -ETIMEDOUT after timeout_ms (<= 0: no limit), -ECANCELED, or another -errno. Leave the join to follow on
 * every member.
 */
int shunt_rendezvous_await(
    struct shunt_rendezvous *rdzv, int nmembers, int nranks, int64_t timeout_ms, const atomic_int *cancel);

/*
 * After a join that found too few: are we the lowest of those who are here, and not the only one? So one of them can
 * speak for all.
 */
bool shunt_rendezvous_is_leader(const struct shunt_rendezvous *rdzv);

/*
 * Every rank contributes the same number of bytes (0 is allowed) and at most one descriptor. all gets nranks x bytes in
 * rank order; fds[r] a new descriptor of the caller's, -1 where that rank gave none and for our own rank. fds NULL: no
 * descriptors travel in this round, and fd must be -1; all ranks must agree on that. timeout_ms <= 0: no limit. fd
 * stays the caller's. A rank that lacks the memory for a round comes to it with 0 bytes and no fds, which ends it on
 * all ranks. 0; -EINVAL (bytes or use of fds differ), -ENOMEM (a rank lacks memory), -ETIMEDOUT, -EOWNERDEAD,
 * -ECANCELED, -EPROTO, -EMFILE (the kernel refused the descriptors). On an error nothing is in fds. One rank's error
 * ends the round on all ranks, except where it happens to one of them after the rest had their result; the next round
 * fails then.
 */
int shunt_rendezvous_allgather(struct shunt_rendezvous *rdzv, const void *mine, size_t bytes, void *all, int fd,
    int *fds, int64_t timeout_ms, const atomic_int *cancel);

/* Readable when a member connects; the rendezvous's own, -1 after the join. */
int shunt_rendezvous_fd(const struct shunt_rendezvous *rdzv);

/* NULL is allowed. */
void shunt_rendezvous_destroy(struct shunt_rendezvous *rdzv);
#endif
