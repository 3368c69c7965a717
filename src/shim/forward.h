/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_SHIM_FORWARD_H
#define SHUNT_SHIM_FORWARD_H
#include "shim/handles.h"

/* A collective as the program called it. dtype and op are the program's values, for the case that the call is forwarded in the end. */
struct shunt_call {
	struct shunt_entry *entry;
	ncclComm_t comm;
	ncclDataType_t dtype;
	ncclRedOp_t op;
	struct shunt_coll coll;
	bool bcast;          /* ncclBcast, not ncclBroadcast */
	bool has_config;     /* ncclXConfig, with a configuration */
	ncclCollConfig_t config;
	bool done;
};

/* The same call of the real NCCL, with its result. */
ncclResult_t shunt_forward(const struct shunt_call *call);
#endif
