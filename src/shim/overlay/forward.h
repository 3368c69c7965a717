/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_OVERLAY_FORWARD_H
#define SHUNT_SHIM_OVERLAY_FORWARD_H
#include "algos/algo.h"
#include "shim/handles.h"

/*
 * A collective as the program called it. dtype and op are the program's values, for the case that the call is forwarded
 * in the end.
 */
struct shunt_coll_call {
	struct shunt_entry *entry;
	ncclComm_t comm;
	ncclDataType_t dtype;
	ncclRedOp_t op;
	struct shunt_coll coll;
	bool bcast;                            /* ncclBcast, not ncclBroadcast */
	bool has_config;                       /* ncclXConfig, with a configuration */
	bool only_hints;                       /* ... that asks for nothing but limits and tags */
	ncclCollConfig_t config;               /* what we know of it */
	const ncclCollConfig_t *caller_config; /* the program's own, until its call returns; then NULL */
	struct shunt_decision
	    decision; /* of shunt_comm_decide; algo NULL: something is left to be asked or done before it runs */
	bool real;    /* the real NCCL's, and kept in a group for the order's sake only; the entry may be NULL */
	bool forked;  /* its communicator's calls run beside the real NCCL's part of the group */
	bool done;
};

/* The same call of the real NCCL, with its result. One before 2.31 gets it without what is only a hint. */
ncclResult_t shunt_forward(const struct shunt_coll_call *call);
#endif
