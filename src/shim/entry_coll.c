/* SPDX-License-Identifier: MIT */
/* The collectives. All-reduce may be ours; the others go to the real NCCL and are counted. */
#include <errno.h>
#include <stdlib.h>
#include "core/log.h"
#include "shim/group.h"
#include "shim/pending.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/standalone.h"

/* Can the call be described? False: its type or operator is none that NCCL or the communicator knows. */
static bool describe_op(struct shunt_entry *e, ncclDataType_t dtype, ncclRedOp_t op, struct shunt_coll *c)
{
	struct shunt_user_op user;

	if ((unsigned)dtype >= SHUNT_NDTYPES || (int)op < 0)
		return false;
	c->dtype = (enum shunt_dtype)dtype;
	c->redop = (enum shunt_redop)op;
	if (op < ncclNumOps)
		return true;
	if (!shunt_entry_op_find(e, op, &user) || user.dtype != dtype)
		return false;
	c->redop = SHUNT_PREMUL;
	c->scalar = user.scalar;
	c->scalar_on_device = user.on_device;
	return true;
}

/* An error that we find ourselves, in both modes. */
static ncclResult_t refuse(const char *why)
{
	shunt_warn("ncclAllReduce: %s", why);
	return shunt_group_result(shunt_to_nccl(-EINVAL));
}

static ncclResult_t all_reduce_overlay(const struct shunt_coll *call, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm)
{
	struct shunt_entry *e = shunt_entry_find(comm);
	struct shunt_coll c = *call;
	enum shunt_why why = SHUNT_WHY_COMM;
	int err;

	/* Whatever we do not understand is the real NCCL's to judge, with its own code. */
	if (!e)
		return real_AllReduce(c.send, c.recv, c.count, dtype, op, comm, c.stream);
	if (!describe_op(e, dtype, op, &c) || atomic_load(&e->off) || !shunt_attach_ready(e, comm))
		goto forward;
	if (!c.count) {
		shunt_entry_put(e);
		return ncclSuccess;
	}
	if (!c.send || !c.recv) {
		shunt_entry_put(e);
		return refuse("a buffer is NULL");
	}
	if (shunt_group_open()) {
		if (shunt_comm_path(e->comm, &c, &why))
			return shunt_group_record(&(struct shunt_call){.entry = e, .comm = comm, .op = op, .coll = c});
		shunt_comm_count_forward(e->comm, c.kind, c.count * shunt_dtype_bytes[c.dtype], why);
		goto forward;
	}
	err = shunt_comm_run(e->comm, &c);
	if (err != -EOPNOTSUPP) {
		shunt_entry_put(e);
		return shunt_to_nccl(err);
	}
forward:
	shunt_entry_put(e); /* not held in the real call, which may last until another thread aborts the communicator */
	return real_AllReduce(c.send, c.recv, c.count, dtype, op, comm, c.stream);
}

static ncclResult_t all_reduce_alone(const struct shunt_coll *call, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm)
{
	struct shunt_coll c = *call;
	enum shunt_why why;
	ncclResult_t result;
	struct shunt_entry *e = shunt_alone_find(comm, "ncclAllReduce", &result);
	int err;

	if (!e)
		return shunt_group_result(result);
	if (!describe_op(e, dtype, op, &c)) {
		result = refuse("unknown data type or operator, or an operator of another data type");
	} else if (atomic_load(&e->off)) {
		shunt_warn("ncclAllReduce: the communicator is finalized or revoked");
		result = shunt_group_result(shunt_to_nccl(-EBUSY));
	} else if (!c.count) {
		result = ncclSuccess;
	} else if (!c.send || !c.recv) {
		result = refuse("a buffer is NULL");
	} else if (!shunt_comm_path(e->comm, &c, &why)) {
		result = shunt_group_result(shunt_alone_declined(e, &c)); /* a single rank does not wait for the group's end */
	} else if (shunt_group_open()) {
		return shunt_group_record(&(struct shunt_call){.entry = e, .comm = comm, .op = op, .coll = c});
	} else {
		err = shunt_comm_run(e->comm, &c);
		result = err == -EOPNOTSUPP ? shunt_alone_declined(e, &c) : shunt_to_nccl(err);
	}
	shunt_entry_put(e);
	return result;
}

ncclResult_t pncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,
	cudaStream_t stream)
{
	struct shunt_coll c = {.kind = SHUNT_ALLREDUCE, .send = send, .recv = recv, .count = count, .stream = stream};

	switch (shunt_mode()) {
	case SHUNT_OVERLAY:
		return all_reduce_overlay(&c, dtype, op, comm);
	case SHUNT_STANDALONE:
		return all_reduce_alone(&c, dtype, op, comm);
	default:
		return real_AllReduce(send, recv, count, dtype, op, comm, stream);
	}
}
SHUNT_TWIN(AllReduce);

static void count_forward(enum shunt_kind kind, size_t count, ncclDataType_t dtype, ncclComm_t comm)
{
	struct shunt_entry *e;

	if (shunt_mode() != SHUNT_OVERLAY || (unsigned)dtype >= SHUNT_NDTYPES)
		return;
	e = shunt_entry_find(comm);
	if (!e)
		return;
	shunt_comm_count_forward(e->comm, kind, count * shunt_dtype_bytes[dtype], SHUNT_WHY_KIND);
	shunt_entry_put(e);
}

/* A collective that is only forwarded: ncclX, and ncclXConfig which with no configuration is the same. */
#define FORWARD(name, kind, params, args, params_config, args_config)                                      \
	ncclResult_t pnccl##name params                                                                    \
	{                                                                                                  \
		count_forward(kind, count, dtype, comm);                                                   \
		return real_##name args;                                                                   \
	}                                                                                                  \
	SHUNT_TWIN(name);                                                                                  \
	ncclResult_t pnccl##name##Config params_config                                                     \
	{                                                                                                  \
		count_forward(kind, count, dtype, comm);                                                   \
		return config ? real_##name##Config args_config : real_##name args;                        \
	}                                                                                                  \
	SHUNT_TWIN(name##Config)

#define COMMON const void *send, void *recv, size_t count, ncclDataType_t dtype
#define TAIL ncclComm_t comm, cudaStream_t stream
#define CONFIG const ncclCollConfig_t *config

FORWARD(Reduce, SHUNT_REDUCE, (COMMON, ncclRedOp_t op, int root, TAIL), (send, recv, count, dtype, op, root, comm, stream),
	(COMMON, ncclRedOp_t op, int root, TAIL, CONFIG), (send, recv, count, dtype, op, root, comm, stream, config));
FORWARD(Broadcast, SHUNT_BROADCAST, (COMMON, int root, TAIL), (send, recv, count, dtype, root, comm, stream),
	(COMMON, int root, TAIL, CONFIG), (send, recv, count, dtype, root, comm, stream, config));
FORWARD(ReduceScatter, SHUNT_REDUCESCATTER, (COMMON, ncclRedOp_t op, TAIL), (send, recv, count, dtype, op, comm, stream),
	(COMMON, ncclRedOp_t op, TAIL, CONFIG), (send, recv, count, dtype, op, comm, stream, config));
FORWARD(AllGather, SHUNT_ALLGATHER, (COMMON, TAIL), (send, recv, count, dtype, comm, stream),
	(COMMON, TAIL, CONFIG), (send, recv, count, dtype, comm, stream, config));
FORWARD(AlltoAll, SHUNT_ALLTOALL, (COMMON, TAIL), (send, recv, count, dtype, comm, stream),
	(COMMON, TAIL, CONFIG), (send, recv, count, dtype, comm, stream, config));
FORWARD(Gather, SHUNT_GATHER, (COMMON, int root, TAIL), (send, recv, count, dtype, root, comm, stream),
	(COMMON, int root, TAIL, CONFIG), (send, recv, count, dtype, root, comm, stream, config));
FORWARD(Scatter, SHUNT_SCATTER, (COMMON, int root, TAIL), (send, recv, count, dtype, root, comm, stream),
	(COMMON, int root, TAIL, CONFIG), (send, recv, count, dtype, root, comm, stream, config));

ncclResult_t pncclAllReduceConfig(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op, ncclComm_t comm,
	cudaStream_t stream, const ncclCollConfig_t *config)
{
	if (!config)
		return pncclAllReduce(send, recv, count, dtype, op, comm, stream);
	count_forward(SHUNT_ALLREDUCE, count, dtype, comm);
	return real_AllReduceConfig(send, recv, count, dtype, op, comm, stream, config);
}
SHUNT_TWIN(AllReduceConfig);

ncclResult_t pncclBcast(void *buff, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream)
{
	count_forward(SHUNT_BROADCAST, count, dtype, comm);
	return real_Bcast(buff, count, dtype, root, comm, stream);
}
SHUNT_TWIN(Bcast);

ncclResult_t pncclSend(const void *send, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream)
{
	count_forward(SHUNT_SEND, count, dtype, comm);
	return real_Send(send, count, dtype, peer, comm, stream);
}
SHUNT_TWIN(Send);

ncclResult_t pncclRecv(void *recv, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream)
{
	count_forward(SHUNT_RECV, count, dtype, comm);
	return real_Recv(recv, count, dtype, peer, comm, stream);
}
SHUNT_TWIN(Recv);
