/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_BOOTSTRAP_GROUP_H
#define SHUNT_TRANSPORT_BOOTSTRAP_GROUP_H
/*
 * Standalone: one exchange among ranks that all know an id, and nothing of whether the others have come yet. It has
 * sockets of its own, for this one time, so it works whatever state the ranks' communicators are in, and leaves these
 * alone.
 */
#include <stdatomic.h>
#include <stddef.h>
#include "base/id.h"

struct shunt_bootstrap_group {
	struct shunt_id id;   /* for this time only */
	int member, nmembers; /* as in shunt_comm_desc */
	int rank, nranks;
	const atomic_int *cancel;
};

/*
 * Waits for all ranks, and gives nranks x bytes in rank order (bytes 0: all stays as it is). Before anybody's call
 * returns, all have come. 0; -ETIMEDOUT after SHUNT_TIMEOUT, -ECANCELED, -EOWNERDEAD, -EINVAL (the ranks do not agree
 * on who they are): logged.
 */
int shunt_bootstrap_allgather(
    const struct shunt_bootstrap_group *bootstrap_group, const void *mine, size_t bytes, void *all);
#endif
