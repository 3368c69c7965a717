/* SPDX-License-Identifier: MIT */
#pragma once
/* One round of a rendezvous; shunt_rendezvous_allgather() is in rendezvous.h. */
#include <stdatomic.h>
#include <stddef.h>
#include "transport/rendezvous/object.h"

/* Arguments of shunt_rendezvous_allgather. */
struct rdzv_round {
	const void *mine;
	size_t bytes;
	void *all;
	int fd, *fds;
	int64_t deadline, timeout_ms;
	const atomic_int *cancel;
	int status, culprit; /* of an uplink: our host has failed, and tells the others */
};

int rdzv_root_allgather(struct shunt_rendezvous *rdzv, const struct rdzv_round *round);
int rdzv_member_allgather(struct shunt_rendezvous *rdzv, const struct rdzv_round *round);
