/* SPDX-License-Identifier: MIT */
#pragma once
/* A call of a collective or a message. */
#include "algos/algo.h"
#include "shim/calls/call_state.h"
#include "shim/handles/handles.h"

/* Of a call's own configuration (ncclXConfig). */
enum shunt_call_config {
	SHUNT_CONFIG_NONE,
	SHUNT_CONFIG_ANY,   /* not looked at yet, or with more than Shunt knows */
	SHUNT_CONFIG_HINTS, /* only limits, tags and the policy of blocks */
};

/* A collective as the program called it. dtype and op are the program's values, in case the call is forwarded. */
struct shunt_coll_call {
	struct shunt_entry *entry; /* NULL: the call is the real NCCL's, for a communicator that Shunt does not know */
	ncclComm_t comm;
	ncclDataType_t dtype;
	ncclRedOp_t op;
	struct shunt_coll coll;
	bool bcast; /* ncclBcast, not ncclBroadcast */
	enum shunt_call_config config_kind;
	ncclCollConfig_t config;               /* the part that this version knows */
	const ncclCollConfig_t *caller_config; /* the program's own, until its call returns; then NULL */
	char *selection;                       /* in a group: the names of algorithms in config, allocated; or NULL */
	struct shunt_decision decision;        /* of shunt_comm_decide */
	enum shunt_call_state state;           /* in a group */
};
