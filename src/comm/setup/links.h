/* SPDX-License-Identifier: MIT */
#pragma once
/* What joins the ranks of a host (topology.h): each rank claims a link to each other one, and the slower claim holds.
 */
#include <stdbool.h>
#include <stddef.h>

struct shunt_comm;
struct shunt_hello;

/*
 * One round. -EOPNOTSUPP, alike on all ranks: our kernels are not right on what joins two ranks, and reason names them.
 * Another -errno: the round's error.
 */
int shunt_comm_links_agree(struct shunt_comm *comm, const struct shunt_hello *hellos, char *reason, size_t bytes);
/*
 * With the scratch of all ranks, before its first use: the self-test of links that need one, and a round if there are
 * any. 0: all are right. -EAGAIN, alike on all ranks: a pair was refused, with a line if `logs`, and the links are to
 * be agreed on again. -EOPNOTSUPP, alike: a rank's test did not end; reason names it. Another -errno: the round's
 * error.
 */
int shunt_comm_links_test(
    struct shunt_comm *comm, const struct shunt_hello *hellos, bool logs, char *reason, size_t bytes);
