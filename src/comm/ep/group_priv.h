/* SPDX-License-Identifier: MIT */
#pragma once
/* struct shunt_ep_group, for the files of this folder. */
#include "algos/ep/room.h"
#include "comm/core/communicator.h"
#include "comm/ep/group.h"
#include "comm/ep/under_way.h"
#include "kernels/ep.h"

struct shunt_ep_group {
	struct shunt_comm *comm;
	struct shunt_ep_room room;
	struct shunt_ep_hosts hosts; /* room.hosts */
	/* With the communicator's lock. */
	struct shunt_ep_under_way under_way[SHUNT_EP_KINDS];
	uint64_t tickets; /* handed out, of notifies */
	/* Tickets whose counts were not asked for, by ticket. number 0: free. */
	struct {
		uint64_t number;
		size_t experts; /* of this rank */
	} open[SHUNT_EP_TICKETS];
};

/* The group's control words on this rank's device. */
static inline struct shunt_ep_ctrl *shunt_ep_group_ctrl(const struct shunt_ep_group *g)
{
	return (struct shunt_ep_ctrl *)((char *)g->comm->mem[shunt_comm_local_rank(g->comm)].ptr + SHUNT_EP_CTRL_AT);
}

/* The word in which a kernel tells the host that it has masked this ordinal. */
uint64_t *shunt_ep_group_told(const struct shunt_ep_group *g, unsigned ordinal);

/*
 * Called first in every call, after what can be refused without the group: takes the communicator's lock unless the
 * group is broken. 0, or the error. The log names ranks that kernels have masked since the last call.
 */
int shunt_ep_group_enter(struct shunt_ep_group *g);
void shunt_ep_group_leave(struct shunt_ep_group *g);
/* Logs why a call is refused; returns err. */
int shunt_ep_group_refuse(const struct shunt_ep_group *g, const char *call, int err, const struct shunt_ep_why *why);
/* Launches work, with the lock. As shunt_comm_run_work, in the errors of shunt/ep.h. */
int shunt_ep_group_run(struct shunt_ep_group *g, const struct shunt_comm_call *call, struct shunt_work *work);
