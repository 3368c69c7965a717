/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_BOOTSTRAP_BOOTSTRAP_H
#define SHUNT_TRANSPORT_BOOTSTRAP_BOOTSTRAP_H
/*
 * Standalone's bootstrap: a rendezvous of all ranks of a new communicator over TCP.
 *
 * The unique id names an address and carries a secret. A thread of the process that made it (the root) listens there
 * until every rank has come, has checked that they agree, and has told each the same outcome. Ranks prove knowledge of
 * the secret with a keyed hash of the root's nonce, and the root proves it in its answer; whatever else connects is
 * dropped without disturbing the ranks.
 *
 * Which address: NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY. With NCCL_COMM_ID=host:port the id follows from the
 * variable alike in every process, and the process of rank 0 listens there once it joins; such an id may be used again
 * when its communicator is complete, and keeps nobody out who knows the variable.
 */
#include <stdatomic.h>
#include <stdint.h>

#define SHUNT_BOOTSTRAP_ID_BYTES 128
#define SHUNT_BOOTSTRAP_MAX_RANKS 1024

/* Makes an id and starts its root (a detached thread with all signals blocked). 0 or -errno (logged). */
int shunt_bootstrap_new_id(uint8_t id[SHUNT_BOOTSTRAP_ID_BYTES]);

/*
 * Waits until all ranks have come, no longer than SHUNT_TIMEOUT after the first; after 30 s every waiting rank logs who
 * is missing. Returns the same on all ranks, with the cause logged: 0            all are here -EINVAL      not an id of
 * ours, rank out of range, or the ranks do not agree on nranks -EEXIST      the id was used already (or the process
 * that made it has ended), or two ranks have the same number -EXDEV       the ranks are on more than one host -EPROTO
 * another version of Shunt, or something else listens at the address -EOWNERDEAD  a rank or the root died before all
 * had come -ETIMEDOUT   no answer, or not all ranks came in time: the text names who is missing -ECANCELED   *cancel
 * (may be NULL) became nonzero; the others get -EOWNERDEAD
 */
int shunt_bootstrap_join(const uint8_t id[SHUNT_BOOTSTRAP_ID_BYTES], int rank, int nranks, const atomic_int *cancel);
#endif
