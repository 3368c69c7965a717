/* SPDX-License-Identifier: MIT */
#include "shim/real/forward.h"
#include "shim/real/real.h"

ncclResult_t shunt_forward(const struct shunt_coll_call *call)
{
	const struct shunt_coll *c = &call->coll;
	const ncclCollConfig_t *config = call->caller_config ? call->caller_config : &call->config;
	const void *send = c->send;
	void *recv = c->recv;
	size_t count = c->count;
	ncclDataType_t dtype = call->dtype;
	ncclRedOp_t op = call->op;
	int root = c->root;
	ncclComm_t comm = call->comm;
	cudaStream_t stream = c->stream;
	bool configured = call->config_kind == SHUNT_CONFIG_ANY ||
	    (call->config_kind == SHUNT_CONFIG_HINTS && shunt_real_symbol("ncclAllReduceConfig"));

	if (call->bcast)
		return real_Bcast(recv, count, dtype, root, comm, stream);
	switch (c->kind) {
#define FORWARD(id, name, long_name, function, ranks, sends, recvs, operator, ...) \
	case SHUNT_##id: \
		SHUNT_IF_CONFIG( \
		    ranks, if (configured) return real_##function##Config(SHUNT_COLL_ARGS(ranks, operator), config);) \
		return real_##function(SHUNT_COLL_ARGS(ranks, operator));
		SHUNT_COLLECTIVE_LIST(FORWARD)
#undef FORWARD
	default:
		return ncclInternalError;
	}
}
