/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_SETUP_LOCATE_H
#define SHUNT_COMM_SETUP_LOCATE_H
/*
 * Overlay: on which hosts a communicator's ranks are, and how the hosts' roots find each other, from the directory of
 * hosts. shunt_comm_locate_locked is in core/communicator.h.
 */
#include <stddef.h>

struct shunt_comm;
struct shunt_hosts;

/* Before the rendezvous: the hosts' roots learn each other's addresses. rank: this one's. 0 or -errno (logged). */
int shunt_comm_find_roots(struct shunt_comm *comm, struct shunt_hosts *hosts, int rank);
/* After it: of a child the directory knows the parent's ranks, in whose order they have joined. A round. */
int shunt_comm_renumber(struct shunt_comm *comm);
/* Says of this rank, or of this one of the parent, that it is missing. */
void shunt_comm_name_missing(const struct shunt_comm *comm, int missing, char *reason, size_t bytes);
#endif
