/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * Standalone: one allgather among ranks that share an id, but do not know whether the others have come yet. It has its
 * own connections. So it works whatever state the ranks' communicators are in, and leaves these alone. Over several
 * hosts one rank is the root, at an address that all ranks know: from the parent's table, or from the id with which it
 * grows.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/id.h"
#include "transport/rendezvous/host_table.h"

/* Where the ranks of a group over several hosts come together. */
struct shunt_group_root {
	struct shunt_host_address at; /* of no family: the group is of one host */
	int fd;                       /* the root's socket there; -1 for the other ranks */
	int member;                   /* the root, for the log; -1: not known */
};

struct shunt_bootstrap_group {
	struct shunt_id id;   /* for this allgather only */
	int member, nmembers; /* as in shunt_comm_desc */
	int rank, nranks;
	const int *members; /* by rank; NULL: rank i is member i */
	bool of_parent;     /* for the log: members are the parent's ranks */
	const atomic_int *cancel;
	struct shunt_group_root root; /* its socket stays the caller's */
};

/*
 * Waits for all ranks; `all` gets nranks x bytes in rank order (bytes 0: unchanged). No rank's call returns before all
 * ranks have come. *hosts_p, which the caller destroys, gets the hosts of these ranks, with sockets for their
 * communicator, or NULL where the group is of one host. 0; -ETIMEDOUT after SHUNT_TIMEOUT, -ECANCELED, -EOWNERDEAD,
 * -EINVAL (the ranks disagree on ranks or members). Errors other than -ECANCELED are logged, in one line with the
 * cause.
 */
int shunt_bootstrap_allgather(const struct shunt_bootstrap_group *bootstrap_group, const void *mine, size_t bytes,
    void *all, struct shunt_hosts **hosts_p);
