/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Overlay: on which hosts a communicator's ranks are, and how the hosts' roots find each other, from the directory of
 * hosts. shunt_comm_locate_locked is in core/communicator.h.
 */
#include <stddef.h>

struct shunt_comm;
struct shunt_hosts;

/*
 * Before the rendezvous: the hosts' roots get each other's addresses. rank: this rank. 0, or -errno with a reason that
 * names the root that is missing.
 */
int shunt_comm_find_roots(struct shunt_comm *comm, struct shunt_hosts *hosts, int rank, char *reason, size_t bytes);
/*
 * After the rendezvous of a child, one round: the ranks have joined in the order of the parent's ranks, which are all
 * that the directory knows; now they get the child's.
 */
int shunt_comm_renumber(struct shunt_comm *comm);
/* Writes a reason which says that this rank is missing, or this rank of the parent. */
void shunt_comm_name_missing(const struct shunt_comm *comm, int missing, char *reason, size_t bytes);
