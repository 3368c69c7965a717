/* SPDX-License-Identifier: MIT */
#pragma once
/* Which members are present; the calls for others are in rendezvous.h. */
#include <stdatomic.h>
#include "transport/rendezvous/object.h"

/*
 * Counts the members that are present. Errors: -ENOENT (with *missing_p) and -EINVAL as
 * shunt_rendezvous_join, or another -errno. 0: *root_p is the root's member index. If that is another member,
 * rdzv->root_fd is the connection to it. If it is ours, watch[member] is a connection in each member's backlog, or
 * RDZV_WATCH_LATER. The caller sets watch[] to -1 before, and closes its descriptors in any case.
 */
int rdzv_count_members(
    struct shunt_rendezvous *rdzv, int nmembers, int *watch, const atomic_int *cancel, int *root_p, int *missing_p);
