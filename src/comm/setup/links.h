/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_COMM_SETUP_LINKS_H
#define SHUNT_COMM_SETUP_LINKS_H
/* What joins the ranks of a host (topology.h): each rank claims a link to each other one, and the slower claim holds.
 */
#include <stddef.h>

struct shunt_comm;
struct shunt_hello;

/*
 * One round. -EOPNOTSUPP, alike on all ranks: our kernels are not right on what joins two ranks, and reason names them.
 * Another -errno: the round's error.
 */
int shunt_comm_links_agree(struct shunt_comm *comm, const struct shunt_hello *hellos, char *reason, size_t bytes);
#endif
