/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Standalone's bootstrap: a rendezvous of all ranks of a new communicator over TCP.
 *
 * The unique id has an address and a secret. A thread of the process that made the id (the server, a root that is no
 * rank) listens at the address until every rank has come. It checks that the ranks agree and tells all of them the same
 * outcome. Proof, table and deadlines are those of every rendezvous (rendezvous.h). When strangers take all places,
 * ranks call again until they get through, at most SHUNT_TIMEOUT.
 *
 * NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY select the address. With NCCL_COMM_ID=host:port every process derives the
 * same id from the variable, and rank 0's process listens there when it joins. Such an id may be used again when its
 * communicator is complete. It admits every process that knows the variable.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/id.h"
#include "transport/rendezvous/wire/row.h"

struct shunt_hosts;

#define SHUNT_BOOTSTRAP_MAX_RANKS 1024

/*
 * Makes an id and, except for NCCL_COMM_ID, starts its server (a detached thread with all signals blocked). 0 or -errno
 * (logged).
 */
int shunt_bootstrap_new_id(uint8_t id[SHUNT_BOOTSTRAP_ID_BYTES]);

/*
 * Waits until all ranks have come, at most SHUNT_TIMEOUT after the first. After 30 s every waiting rank logs the
 * missing ranks. *hosts_p, which the caller destroys, gets the hosts if they are several, else NULL. *own_p (own_p may
 * be NULL) gets an id of this join alone, alike on all ranks, also where the unique id is that of other joins, too.
 * Returns the same on all ranks, with the cause logged:
 *   0              all ranks have come
 *   -EINVAL        not an id of Shunt, rank out of range, or the ranks disagree on nranks
 *   -EEXIST        the id was used already (or the process that made it has ended), or two ranks have the same number
 *   -EHOSTUNREACH  the host where the id was made cannot be reached
 *   -EPROTO        another version of Shunt, or another program, listens at the address
 *   -EOWNERDEAD    a rank or the root died before all ranks had come
 *   -ETIMEDOUT     no answer, or not all ranks came in time: the text names the missing ones
 *   -ECANCELED     *cancel (may be NULL) became nonzero; the other ranks get -EOWNERDEAD
 */
int shunt_bootstrap_join(const uint8_t id[SHUNT_BOOTSTRAP_ID_BYTES], int rank, int nranks, const atomic_int *cancel,
    struct shunt_hosts **hosts_p, struct shunt_id *own_p);
/* True: the unique id is NCCL_COMM_ID's, which all communicators of a job share. */
bool shunt_bootstrap_id_is_shared(const uint8_t id[SHUNT_BOOTSTRAP_ID_BYTES]);
