/* SPDX-License-Identifier: MIT */
/*
 * Calls that NCCL answers with an error, and edge cases that it does not. Every one is made alike by all ranks, does nothing on a
 * device and leaves the communicator usable, which is tried after each. Only what is safe on NCCL 2.28 too is here: no pointer is
 * followed that is not ours, and nothing waits for a rank that will not come.
 */
#include <string.h>
#include "conform.h"

enum { BAD = 99, OK = ncclSuccess, ARGUMENT = ncclInvalidArgument, USAGE = ncclInvalidUsage, ANY = -1 };

#define SUM_ARGS(count, dtype, op, comm) e->a, e->b, count, (ncclDataType_t)(dtype), (ncclRedOp_t)(op), comm, e->stream
#define MOVE_ARGS(count, dtype, comm) e->a, e->b, count, (ncclDataType_t)(dtype), comm, e->stream
#define ROOT_ARGS(count, dtype, root, comm) e->a, e->b, count, (ncclDataType_t)(dtype), root, comm, e->stream
#define PEER_ARGS(buf, count, dtype, peer) buf, count, (ncclDataType_t)(dtype), peer, e->comm, e->stream

/* X(name, what NCCL returns, collective, call) */
#define CALLS(X)                                                                                                                   \
	X(all_reduce_null_comm, ARGUMENT, ALL_REDUCE, n->AllReduce(SUM_ARGS(8, ncclFloat32, ncclSum, NULL)))                       \
	X(all_reduce_bad_dtype, ARGUMENT, ALL_REDUCE, n->AllReduce(SUM_ARGS(8, BAD, ncclSum, e->comm)))                            \
	X(all_reduce_first_unknown_dtype, ARGUMENT, ALL_REDUCE, n->AllReduce(SUM_ARGS(8, ncclNumTypes, ncclSum, e->comm)))         \
	X(all_reduce_negative_dtype, ARGUMENT, ALL_REDUCE, n->AllReduce(SUM_ARGS(8, -1, ncclSum, e->comm)))                        \
	X(all_reduce_negative_op, ARGUMENT, ALL_REDUCE, n->AllReduce(SUM_ARGS(8, ncclFloat32, -1, e->comm)))                       \
	X(all_reduce_unknown_op, ARGUMENT, ALL_REDUCE, n->AllReduce(SUM_ARGS(8, ncclFloat32, BAD, e->comm)))                       \
	X(all_reduce_empty, OK, ALL_REDUCE, n->AllReduce(SUM_ARGS(0, ncclFloat32, ncclSum, e->comm)))                              \
	X(all_reduce_empty_nulls, OK, ALL_REDUCE, n->AllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, e->comm, e->stream))           \
	X(all_reduce_empty_bad_dtype, ARGUMENT, ALL_REDUCE, n->AllReduce(SUM_ARGS(0, BAD, ncclSum, e->comm)))                      \
	X(all_reduce_empty_unknown_op, ARGUMENT, ALL_REDUCE, n->AllReduce(SUM_ARGS(0, ncclFloat32, BAD, e->comm)))                 \
	X(all_gather_null_comm, ARGUMENT, ALL_GATHER, n->AllGather(MOVE_ARGS(8, ncclFloat32, NULL)))                               \
	X(all_gather_bad_dtype, ARGUMENT, ALL_GATHER, n->AllGather(MOVE_ARGS(8, BAD, e->comm)))                                    \
	X(all_gather_empty, OK, ALL_GATHER, n->AllGather(MOVE_ARGS(0, ncclFloat32, e->comm)))                                      \
	X(reduce_scatter_null_comm, ARGUMENT, REDUCE_SCATTER, n->ReduceScatter(SUM_ARGS(8, ncclFloat32, ncclSum, NULL)))           \
	X(reduce_scatter_bad_dtype, ARGUMENT, REDUCE_SCATTER, n->ReduceScatter(SUM_ARGS(8, BAD, ncclSum, e->comm)))                \
	X(reduce_scatter_unknown_op, ARGUMENT, REDUCE_SCATTER, n->ReduceScatter(SUM_ARGS(8, ncclFloat32, BAD, e->comm)))           \
	X(broadcast_null_comm, ARGUMENT, BROADCAST, n->Broadcast(ROOT_ARGS(8, ncclFloat32, 0, NULL)))                              \
	X(broadcast_bad_dtype, ARGUMENT, BROADCAST, n->Broadcast(ROOT_ARGS(8, BAD, 0, e->comm)))                                   \
	X(broadcast_root_too_high, ARGUMENT, BROADCAST, n->Broadcast(ROOT_ARGS(8, ncclFloat32, e->nranks, e->comm)))               \
	X(broadcast_root_negative, ARGUMENT, BROADCAST, n->Broadcast(ROOT_ARGS(8, ncclFloat32, -1, e->comm)))                      \
	X(broadcast_empty_bad_root, ARGUMENT, BROADCAST, n->Broadcast(ROOT_ARGS(0, ncclFloat32, e->nranks, e->comm)))              \
	X(broadcast_empty, OK, BROADCAST, n->Broadcast(ROOT_ARGS(0, ncclFloat32, 0, e->comm)))                                     \
	X(bcast_root_too_high, ARGUMENT, BCAST, n->Bcast(e->b, 8, ncclFloat32, e->nranks, e->comm, e->stream))                     \
	X(reduce_null_comm, ARGUMENT, REDUCE, n->Reduce(e->a, e->b, 8, ncclFloat32, ncclSum, 0, NULL, e->stream))                  \
	X(reduce_root_too_high, ARGUMENT, REDUCE, n->Reduce(e->a, e->b, 8, ncclFloat32, ncclSum, e->nranks, e->comm, e->stream))   \
	X(reduce_unknown_op, ARGUMENT, REDUCE, n->Reduce(e->a, e->b, 8, ncclFloat32, (ncclRedOp_t)BAD, 0, e->comm, e->stream))     \
	X(alltoall_null_comm, ARGUMENT, ALLTOALL, n->AlltoAll(MOVE_ARGS(8, ncclFloat32, NULL)))                                    \
	X(alltoall_bad_dtype, ARGUMENT, ALLTOALL, n->AlltoAll(MOVE_ARGS(8, BAD, e->comm)))                                         \
	X(gather_root_too_high, ARGUMENT, GATHER, n->Gather(ROOT_ARGS(8, ncclFloat32, e->nranks, e->comm)))                        \
	X(gather_null_comm, ARGUMENT, GATHER, n->Gather(ROOT_ARGS(8, ncclFloat32, 0, NULL)))                                       \
	X(scatter_root_negative, ARGUMENT, SCATTER, n->Scatter(ROOT_ARGS(8, ncclFloat32, -1, e->comm)))                            \
	X(scatter_bad_dtype, ARGUMENT, SCATTER, n->Scatter(ROOT_ARGS(8, BAD, 0, e->comm)))                                         \
	X(send_null_comm, ARGUMENT, SEND, n->Send(e->a, 8, ncclFloat32, 0, NULL, e->stream))                                       \
	X(send_peer_too_high, ARGUMENT, SEND, n->Send(PEER_ARGS(e->a, 8, ncclFloat32, e->nranks)))                                 \
	X(send_peer_negative, ARGUMENT, SEND, n->Send(PEER_ARGS(e->a, 8, ncclFloat32, -1)))                                        \
	X(send_bad_dtype, ARGUMENT, SEND, n->Send(PEER_ARGS(e->a, 8, BAD, 0)))                                                     \
	X(recv_peer_too_high, ARGUMENT, RECV, n->Recv(PEER_ARGS(e->b, 8, ncclFloat32, e->nranks)))                                 \
	X(recv_bad_dtype, ARGUMENT, RECV, n->Recv(PEER_ARGS(e->b, 8, BAD, 0)))                                                     \
	X(send_to_self_alone, USAGE, SEND, n->Send(PEER_ARGS(e->a, 8, ncclFloat32, e->rank)))                                      \
	X(group_end_without_start, USAGE, NONE, n->GroupEnd ? n->GroupEnd() : ncclInvalidUsage)                                    \
	X(count_null_comm, ARGUMENT, NONE, n->CommCount ? n->CommCount(NULL, &(int){0}) : ncclInvalidArgument)                     \
	X(count_null_result, ARGUMENT, NONE, n->CommCount ? n->CommCount(e->comm, NULL) : ncclInvalidArgument)                     \
	X(rank_null_comm, ARGUMENT, NONE, n->CommUserRank ? n->CommUserRank(NULL, &(int){0}) : ncclInvalidArgument)                \
	X(device_null_comm, ARGUMENT, NONE, n->CommCuDevice ? n->CommCuDevice(NULL, &(int){0}) : ncclInvalidArgument)              \
	X(async_error_null_comm, ARGUMENT, NONE,                                                                                   \
		n->CommGetAsyncError ? n->CommGetAsyncError(NULL, &(ncclResult_t){0}) : ncclInvalidArgument)                           \
	X(version_null, ARGUMENT, NONE, n->GetVersion(NULL))                                                                       \
	X(unique_id_null, ARGUMENT, NONE, n->GetUniqueId(NULL))                                                                    \
	X(destroy_null, OK, NONE, n->CommDestroy(NULL))                                                                            \
	X(init_null_result, ARGUMENT, NONE, n->CommInitRank(NULL, 1, (ncclUniqueId){0}, 0))                                        \
	X(init_no_ranks, ARGUMENT, NONE, init(e, 0, 0))                                                                            \
	X(init_rank_too_high, ARGUMENT, NONE, init(e, 2, 2))                                                                       \
	X(init_rank_negative, ARGUMENT, NONE, init(e, 2, -1))                                                                      \
	X(op_destroy_builtin, ARGUMENT, NONE, n->RedOpDestroy ? n->RedOpDestroy(ncclSum, e->comm) : ncclInvalidArgument)           \
	X(op_destroy_unknown, ARGUMENT, NONE, n->RedOpDestroy ? n->RedOpDestroy((ncclRedOp_t)BAD, e->comm) : ncclInvalidArgument)  \
	X(op_create_null_comm, ARGUMENT, NONE, op_create(e, ncclFloat32, NULL))                                                    \
	X(op_create_bad_dtype, ANY, NONE, op_create(e, BAD, e->comm))                                                              \
	X(op_of_another_dtype, ARGUMENT, ALL_REDUCE, op_misuse(e, ncclFloat16, false))                                             \
	X(op_after_destroy, ARGUMENT, ALL_REDUCE, op_misuse(e, ncclFloat32, true))                                                 \
	X(group_error_returned_at_end, ARGUMENT, ALL_REDUCE, group_error(e, 1))                                                    \
	X(group_error_nested_returned_at_end, ARGUMENT, ALL_REDUCE, group_error(e, 2))                                             \
	X(group_drops_all_after_error, OK, ALL_REDUCE, group_drops(e))                                                             \
	X(group_usable_after_error, OK, ALL_REDUCE, group_again(e))                                                                \
	X(group_empty, OK, NONE, group_empty(e))                                                                                   \
	X(error_string_unknown, OK, NONE, n->GetErrorString((ncclResult_t)BAD) ? ncclSuccess : ncclInternalError)

static ncclResult_t init(const struct conform_wrong_env *e, int nranks, int rank)
{
	ncclComm_t comm = NULL;
	ncclUniqueId id;
	ncclResult_t result = e->nccl->GetUniqueId(&id);

	return result ? ncclInternalError : e->nccl->CommInitRank(&comm, nranks, id, rank);
}

static ncclResult_t op_create(const struct conform_wrong_env *e, int dtype, ncclComm_t comm)
{
	float scalar = 2;
	ncclRedOp_t op;

	if (!e->nccl->RedOpCreatePreMulSum)
		return ncclInvalidArgument;
	return e->nccl->RedOpCreatePreMulSum(&op, &scalar, (ncclDataType_t)dtype, ncclScalarHostImmediate, comm);
}

/* A call with an operator made for float32. */
static ncclResult_t op_misuse(const struct conform_wrong_env *e, ncclDataType_t dtype, bool destroyed)
{
	const struct bench_nccl *n = e->nccl;
	ncclResult_t result;
	float scalar = 2;
	ncclRedOp_t op;

	if (!n->RedOpCreatePreMulSum || !n->RedOpDestroy)
		return ncclInvalidArgument;
	if (n->RedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, e->comm) ||
		(destroyed && n->RedOpDestroy(op, e->comm)))
		return ncclInternalError;
	result = n->AllReduce(SUM_ARGS(8, dtype, op, e->comm));
	return !destroyed && n->RedOpDestroy(op, e->comm) ? ncclInternalError : result;
}

static bool has_groups(const struct conform_wrong_env *e)
{
	return e->nccl->GroupStart && e->nccl->GroupEnd;
}

static ncclResult_t group_error(const struct conform_wrong_env *e, int depth)
{
	const struct bench_nccl *n = e->nccl;
	ncclResult_t result = ncclSuccess;

	if (!has_groups(e))
		return ncclInvalidArgument;
	for (int i = 0; i < depth; i++)
		if (n->GroupStart())
			return ncclInternalError;
	if (n->AllReduce(SUM_ARGS(8, BAD, ncclSum, e->comm)) != ncclInvalidArgument)
		result = ncclInternalError;
	for (int i = 1; i < depth; i++)
		if (n->GroupEnd()) /* only the outermost End says it */
			result = ncclInternalError;
	ncclResult_t end = n->GroupEnd();
	return result ? result : end;
}

/* The good calls beside a bad one are not done: nothing may be written. */
static ncclResult_t group_drops(const struct conform_wrong_env *e)
{
	const struct bench_nccl *n = e->nccl;
	ncclResult_t end;

	if (!has_groups(e))
		return ncclSuccess;
	if (n->GroupStart())
		return ncclInternalError;
	n->AllReduce(SUM_ARGS(8, ncclFloat32, ncclSum, e->comm));
	n->AllReduce(SUM_ARGS(8, BAD, ncclSum, e->comm));
	end = n->GroupEnd();
	return end == ncclInvalidArgument ? ncclSuccess : ncclInternalError;
}

static ncclResult_t group_again(const struct conform_wrong_env *e)
{
	const struct bench_nccl *n = e->nccl;
	ncclResult_t result;

	if (!has_groups(e))
		return ncclSuccess;
	if (group_error(e, 1) != ncclInvalidArgument || n->GroupStart())
		return ncclInternalError;
	result = n->AllReduce(SUM_ARGS(8, ncclFloat32, ncclSum, e->comm));
	return n->GroupEnd() ? ncclInternalError : result;
}

static ncclResult_t group_empty(const struct conform_wrong_env *e)
{
	if (!has_groups(e))
		return ncclSuccess;
	return e->nccl->GroupStart() ? ncclInternalError : e->nccl->GroupEnd();
}

enum { BENCH_COLL_NONE = -1 };

#define FUNCTION(name, want, coll, call)                                     \
	static ncclResult_t name##_run(const struct conform_wrong_env *e)    \
	{                                                                    \
		const struct bench_nccl *n = e->nccl;                        \
		(void)n;                                                     \
		return call;                                                 \
	}
#define ROW(name, want, coll, call) { #name, want, BENCH_COLL_##coll, name##_run },

CALLS(FUNCTION)

const struct conform_wrong conform_wrongs[] = { CALLS(ROW) { 0 } };
