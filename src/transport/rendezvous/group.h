/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TRANSPORT_RENDEZVOUS_GROUP_H
#define SHUNT_TRANSPORT_RENDEZVOUS_GROUP_H
/*
 * Standalone: one allgather among ranks that share an id, but do not know whether the others have come yet. It has its
 * own sockets. So it works whatever state the ranks' communicators are in, and leaves these alone.
 */
#include <stdatomic.h>
#include <stddef.h>
#include "base/id.h"

struct shunt_bootstrap_group {
	struct shunt_id id;   /* for this allgather only */
	int member, nmembers; /* as in shunt_comm_desc */
	int rank, nranks;
	const atomic_int *cancel;
};

/*
 * Waits for all ranks; `all` gets nranks x bytes in rank order (bytes 0: unchanged). No rank's call returns before all
 * ranks have come. 0; -ETIMEDOUT after SHUNT_TIMEOUT, -ECANCELED, -EOWNERDEAD, -EINVAL (the ranks disagree on ranks or
 * members). Errors other than -ECANCELED are logged.
 */
int shunt_bootstrap_allgather(
    const struct shunt_bootstrap_group *bootstrap_group, const void *mine, size_t bytes, void *all);
#endif
