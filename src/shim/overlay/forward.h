/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_OVERLAY_FORWARD_H
#define SHUNT_SHIM_OVERLAY_FORWARD_H
#include "algos/algo.h"
#include "shim/handles.h"

/* A collective as the program called it. dtype and op are the program's values, in case the call is forwarded. */
struct shunt_coll_call {
	struct shunt_entry *entry;
	ncclComm_t comm;
	ncclDataType_t dtype;
	ncclRedOp_t op;
	struct shunt_coll coll;
	bool bcast;                            /* ncclBcast, not ncclBroadcast */
	bool has_config;                       /* ncclXConfig, with a configuration */
	bool only_hints;                       /* ... that has only limits and tags */
	ncclCollConfig_t config;               /* the part that this version knows */
	const ncclCollConfig_t *caller_config; /* the program's own, until its call returns; then NULL */
	struct shunt_decision decision;        /* of shunt_comm_decide */
	bool real;   /* the real NCCL's, recorded in a group only for the order; entry may be NULL */
	bool forked; /* its communicator's calls run at the same time as the real NCCL's part of the group */
	bool done;
};

/*
 * Makes the same call of the real NCCL; its result. NCCL before 2.31 gets the call without a configuration of only
 * hints.
 */
ncclResult_t shunt_forward(const struct shunt_coll_call *call);
#endif
