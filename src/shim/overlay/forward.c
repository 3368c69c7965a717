/* SPDX-License-Identifier: MIT */
#include "shim/overlay/forward.h"
#include "shim/nccl/real.h"
#include "shim/nccl/result.h"

static ncclResult_t forward_plain(const struct shunt_coll_call *call)
{
	const struct shunt_coll *c = &call->coll;
	ncclDataType_t dtype = call->dtype;
	ncclRedOp_t op = call->op;
	ncclComm_t comm = call->comm;

	switch (c->kind) {
	case SHUNT_ALLREDUCE:
		return real_AllReduce(c->send, c->recv, c->count, dtype, op, comm, c->stream);
	case SHUNT_REDUCE:
		return real_Reduce(c->send, c->recv, c->count, dtype, op, c->root, comm, c->stream);
	case SHUNT_BROADCAST:
		if (call->bcast)
			return real_Bcast(c->recv, c->count, dtype, c->root, comm, c->stream);
		return real_Broadcast(c->send, c->recv, c->count, dtype, c->root, comm, c->stream);
	case SHUNT_ALLGATHER:
		return real_AllGather(c->send, c->recv, c->count, dtype, comm, c->stream);
	case SHUNT_REDUCESCATTER:
		return real_ReduceScatter(c->send, c->recv, c->count, dtype, op, comm, c->stream);
	case SHUNT_ALLTOALL:
		return real_AlltoAll(c->send, c->recv, c->count, dtype, comm, c->stream);
	case SHUNT_GATHER:
		return real_Gather(c->send, c->recv, c->count, dtype, c->root, comm, c->stream);
	case SHUNT_SCATTER:
		return real_Scatter(c->send, c->recv, c->count, dtype, c->root, comm, c->stream);
	case SHUNT_SEND:
		return real_Send(c->send, c->count, dtype, c->root, comm, c->stream);
	case SHUNT_RECV:
		return real_Recv(c->recv, c->count, dtype, c->root, comm, c->stream);
	default:
		return ncclInternalError;
	}
}

static ncclResult_t forward_with_config(const struct shunt_coll_call *call)
{
	const struct shunt_coll *c = &call->coll;
	const ncclCollConfig_t *config = call->caller_config ? call->caller_config : &call->config;
	ncclDataType_t dtype = call->dtype;
	ncclRedOp_t op = call->op;
	ncclComm_t comm = call->comm;

	switch (c->kind) {
	case SHUNT_ALLREDUCE:
		return real_AllReduceConfig(c->send, c->recv, c->count, dtype, op, comm, c->stream, config);
	case SHUNT_REDUCE:
		return real_ReduceConfig(c->send, c->recv, c->count, dtype, op, c->root, comm, c->stream, config);
	case SHUNT_BROADCAST:
		return real_BroadcastConfig(c->send, c->recv, c->count, dtype, c->root, comm, c->stream, config);
	case SHUNT_ALLGATHER:
		return real_AllGatherConfig(c->send, c->recv, c->count, dtype, comm, c->stream, config);
	case SHUNT_REDUCESCATTER:
		return real_ReduceScatterConfig(c->send, c->recv, c->count, dtype, op, comm, c->stream, config);
	case SHUNT_ALLTOALL:
		return real_AlltoAllConfig(c->send, c->recv, c->count, dtype, comm, c->stream, config);
	case SHUNT_GATHER:
		return real_GatherConfig(c->send, c->recv, c->count, dtype, c->root, comm, c->stream, config);
	case SHUNT_SCATTER:
		return real_ScatterConfig(c->send, c->recv, c->count, dtype, c->root, comm, c->stream, config);
	default:
		return ncclInternalError;
	}
}

ncclResult_t shunt_forward(const struct shunt_coll_call *call)
{
	return call->has_config && !(call->only_hints && !shunt_real_symbol("ncclAllReduceConfig")) ?
	    forward_with_config(call) :
	    forward_plain(call);
}
