/* SPDX-License-Identifier: MIT */
/*
 * Calls that NCCL answers with an error, and edge cases that it accepts. All ranks make the same calls. Such a call
 * does nothing on a device and leaves the communicator usable, which is checked after each. Every call is safe on NCCL
 * 2.28, too: it follows no foreign pointer and waits for no missing rank.
 */
#include <stdlib.h>
#include <string.h>
#include "tools/common/nccl_config.h"
#include "tools/conform/conform.h"
#include "base/config.h"

enum { BAD = 99, OK = ncclSuccess, ARGUMENT = ncclInvalidArgument, USAGE = ncclInvalidUsage, ANY = -1 };

#define SUM_ARGS(count, dtype, op, comm) e->a, e->b, count, (ncclDataType_t)(dtype), (ncclRedOp_t)(op), comm, e->stream
#define MOVE_ARGS(count, dtype, comm) e->a, e->b, count, (ncclDataType_t)(dtype), comm, e->stream
#define ROOT_ARGS(count, dtype, root, comm) e->a, e->b, count, (ncclDataType_t)(dtype), root, comm, e->stream
/* Makes the call only if the library has the function. */
#define HAS(name, call) (n->name ? (call) : lacks_set(e, "nccl" #name))
#define PEER_ARGS(buf, count, dtype, peer) buf, count, (ncclDataType_t)(dtype), peer, e->comm, e->stream

/* X(name, NCCL's result, collective, call) */
#define CALLS(X) \
	X(all_reduce_null_comm, ARGUMENT, ALLREDUCE, n->AllReduce(SUM_ARGS(8, ncclFloat32, ncclSum, NULL))) \
	X(all_reduce_bad_dtype, ARGUMENT, ALLREDUCE, n->AllReduce(SUM_ARGS(8, BAD, ncclSum, e->comm))) \
	X(all_reduce_first_unknown_dtype, ARGUMENT, ALLREDUCE, \
	    n->AllReduce(SUM_ARGS(8, ncclNumTypes, ncclSum, e->comm))) \
	X(all_reduce_negative_dtype, ARGUMENT, ALLREDUCE, n->AllReduce(SUM_ARGS(8, -1, ncclSum, e->comm))) \
	X(all_reduce_negative_op, ARGUMENT, ALLREDUCE, n->AllReduce(SUM_ARGS(8, ncclFloat32, -1, e->comm))) \
	X(all_reduce_unknown_op, ARGUMENT, ALLREDUCE, n->AllReduce(SUM_ARGS(8, ncclFloat32, BAD, e->comm))) \
	X(all_reduce_empty, OK, ALLREDUCE, n->AllReduce(SUM_ARGS(0, ncclFloat32, ncclSum, e->comm))) \
	X(all_reduce_empty_nulls, OK, ALLREDUCE, \
	    n->AllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, e->comm, e->stream)) \
	X(all_reduce_empty_bad_dtype, ARGUMENT, ALLREDUCE, n->AllReduce(SUM_ARGS(0, BAD, ncclSum, e->comm))) \
	X(all_reduce_empty_unknown_op, ARGUMENT, ALLREDUCE, n->AllReduce(SUM_ARGS(0, ncclFloat32, BAD, e->comm))) \
	X(all_gather_null_comm, ARGUMENT, ALLGATHER, n->AllGather(MOVE_ARGS(8, ncclFloat32, NULL))) \
	X(all_gather_bad_dtype, ARGUMENT, ALLGATHER, n->AllGather(MOVE_ARGS(8, BAD, e->comm))) \
	X(all_gather_empty, OK, ALLGATHER, n->AllGather(MOVE_ARGS(0, ncclFloat32, e->comm))) \
	X(reduce_scatter_null_comm, ARGUMENT, REDUCESCATTER, \
	    n->ReduceScatter(SUM_ARGS(8, ncclFloat32, ncclSum, NULL))) \
	X(reduce_scatter_bad_dtype, ARGUMENT, REDUCESCATTER, n->ReduceScatter(SUM_ARGS(8, BAD, ncclSum, e->comm))) \
	X(reduce_scatter_unknown_op, ARGUMENT, REDUCESCATTER, \
	    n->ReduceScatter(SUM_ARGS(8, ncclFloat32, BAD, e->comm))) \
	X(broadcast_null_comm, ARGUMENT, BROADCAST, n->Broadcast(ROOT_ARGS(8, ncclFloat32, 0, NULL))) \
	X(broadcast_bad_dtype, ARGUMENT, BROADCAST, n->Broadcast(ROOT_ARGS(8, BAD, 0, e->comm))) \
	X(broadcast_root_too_high, ARGUMENT, BROADCAST, n->Broadcast(ROOT_ARGS(8, ncclFloat32, e->nranks, e->comm))) \
	X(broadcast_root_negative, ARGUMENT, BROADCAST, n->Broadcast(ROOT_ARGS(8, ncclFloat32, -1, e->comm))) \
	X(broadcast_empty_bad_root, ARGUMENT, BROADCAST, n->Broadcast(ROOT_ARGS(0, ncclFloat32, e->nranks, e->comm))) \
	X(broadcast_empty, OK, BROADCAST, n->Broadcast(ROOT_ARGS(0, ncclFloat32, 0, e->comm))) \
	X(bcast_root_too_high, ARGUMENT, BCAST, n->Bcast(e->b, 8, ncclFloat32, e->nranks, e->comm, e->stream)) \
	X(reduce_null_comm, ARGUMENT, REDUCE, n->Reduce(e->a, e->b, 8, ncclFloat32, ncclSum, 0, NULL, e->stream)) \
	X(reduce_root_too_high, ARGUMENT, REDUCE, \
	    n->Reduce(e->a, e->b, 8, ncclFloat32, ncclSum, e->nranks, e->comm, e->stream)) \
	X(reduce_unknown_op, ARGUMENT, REDUCE, \
	    n->Reduce(e->a, e->b, 8, ncclFloat32, (ncclRedOp_t)BAD, 0, e->comm, e->stream)) \
	X(alltoall_null_comm, ARGUMENT, ALLTOALL, n->AlltoAll(MOVE_ARGS(8, ncclFloat32, NULL))) \
	X(alltoall_bad_dtype, ARGUMENT, ALLTOALL, n->AlltoAll(MOVE_ARGS(8, BAD, e->comm))) \
	X(gather_root_too_high, ARGUMENT, GATHER, n->Gather(ROOT_ARGS(8, ncclFloat32, e->nranks, e->comm))) \
	X(gather_null_comm, ARGUMENT, GATHER, n->Gather(ROOT_ARGS(8, ncclFloat32, 0, NULL))) \
	X(scatter_root_negative, ARGUMENT, SCATTER, n->Scatter(ROOT_ARGS(8, ncclFloat32, -1, e->comm))) \
	X(scatter_bad_dtype, ARGUMENT, SCATTER, n->Scatter(ROOT_ARGS(8, BAD, 0, e->comm))) \
	X(send_null_comm, ARGUMENT, SEND, n->Send(e->a, 8, ncclFloat32, 0, NULL, e->stream)) \
	X(send_peer_too_high, ARGUMENT, SEND, n->Send(PEER_ARGS(e->a, 8, ncclFloat32, e->nranks))) \
	X(send_peer_negative, ARGUMENT, SEND, n->Send(PEER_ARGS(e->a, 8, ncclFloat32, -1))) \
	X(send_bad_dtype, ARGUMENT, SEND, n->Send(PEER_ARGS(e->a, 8, BAD, 0))) \
	X(recv_peer_too_high, ARGUMENT, RECV, n->Recv(PEER_ARGS(e->b, 8, ncclFloat32, e->nranks))) \
	X(recv_bad_dtype, ARGUMENT, RECV, n->Recv(PEER_ARGS(e->b, 8, BAD, 0))) \
	X(send_to_self_alone, USAGE, SEND, n->Send(PEER_ARGS(e->a, 8, ncclFloat32, e->rank))) \
	X(send_negative_dtype, ARGUMENT, SEND, n->Send(PEER_ARGS(e->a, 8, -1, 0))) \
	X(send_empty_bad_dtype, ARGUMENT, SEND, n->Send(PEER_ARGS(e->a, 0, BAD, 0))) \
	X(send_empty_peer_negative, ARGUMENT, SEND, n->Send(PEER_ARGS(e->a, 0, ncclFloat32, -1))) \
	X(recv_null_comm, ARGUMENT, RECV, n->Recv(e->b, 8, ncclFloat32, 0, NULL, e->stream)) \
	X(recv_peer_negative, ARGUMENT, RECV, n->Recv(PEER_ARGS(e->b, 8, ncclFloat32, -1))) \
	X(recv_empty_peer_too_high, ARGUMENT, RECV, n->Recv(PEER_ARGS(e->b, 0, ncclFloat32, e->nranks))) \
	X(recv_from_self_alone, USAGE, RECV, n->Recv(PEER_ARGS(e->b, 8, ncclFloat32, e->rank))) \
	X(group_send_to_self_alone, USAGE, SEND, self_messages(e, 1, 0, 8)) \
	X(group_recv_from_self_alone, USAGE, RECV, self_messages(e, 0, 1, 8)) \
	X(group_two_sends_to_self_for_one_recv, USAGE, SEND, self_messages(e, 2, 1, 8)) \
	X(group_to_self_of_another_size, ANY, SEND, self_messages(e, 1, 1, 7)) \
	X(group_message_error_drops_all, OK, SEND, wrong_message_group(e, 1)) \
	X(group_message_error_nested_drops_all, OK, SEND, wrong_message_group(e, 3)) \
	X(simulate_without_start, USAGE, NONE, \
	    HAS(GroupSimulateEnd, n->GroupSimulateEnd(&(ncclSimInfo_t){ SIM_INFO }))) \
	X(simulate_empty, OK, NONE, group_simulate(e, SHUNT_NCCL_SIM_MAGIC, ncclFloat32)) \
	X(simulate_bad_magic, ARGUMENT, NONE, group_simulate(e, 1, ncclFloat32)) \
	X(simulate_error_inside, ARGUMENT, ALLREDUCE, group_simulate(e, SHUNT_NCCL_SIM_MAGIC, BAD)) \
	X(finalize_null, OK, NONE, HAS(CommFinalize, n->CommFinalize(NULL))) \
	X(split_null_comm, ARGUMENT, NONE, HAS(CommSplit, n->CommSplit(NULL, 0, 0, &(ncclComm_t){ 0 }, NULL))) \
	X(split_null_result, ARGUMENT, NONE, HAS(CommSplit, n->CommSplit(e->comm, 0, 0, NULL, NULL))) \
	X(init_config_null_result, ARGUMENT, NONE, init_config(e, true, SHUNT_NCCL_CONFIG_MAGIC, 1)) \
	X(init_config_bad_magic, ARGUMENT, NONE, init_config(e, false, 1, 1)) \
	X(init_config_bad_blocking, ARGUMENT, NONE, init_config(e, false, SHUNT_NCCL_CONFIG_MAGIC, 7)) \
	X(init_all_null_result, ARGUMENT, NONE, HAS(CommInitAll, n->CommInitAll(NULL, 1, NULL))) \
	X(init_all_negative, ARGUMENT, NONE, HAS(CommInitAll, n->CommInitAll((ncclComm_t[1]){ 0 }, -1, NULL))) \
	X(init_all_device_twice, USAGE, NONE, \
	    shunt_config()->multi_rank_gpu ? \
	        lacks_set(e, "GPUs of one rank each (SHUNT_MULTI_RANK_GPU)") : \
	        HAS(CommInitAll, n->CommInitAll((ncclComm_t[2]){ 0 }, 2, (int[]){ e->device, e->device }))) \
	X(init_all_no_such_device, ANY, NONE, \
	    HAS(CommInitAll, n->CommInitAll((ncclComm_t[1]){ 0 }, 1, (int[]){ 999 }))) \
	X(op_destroy_null_comm, ARGUMENT, NONE, HAS(RedOpDestroy, n->RedOpDestroy((ncclRedOp_t)BAD, NULL))) \
	X(config_null_comm, ARGUMENT, ALLREDUCE, \
	    HAS(AllReduceConfig, n->AllReduceConfig(SUM_ARGS(8, ncclFloat32, ncclSum, NULL), NULL))) \
	X(config_bad_dtype, ARGUMENT, ALLREDUCE, \
	    HAS(AllReduceConfig, n->AllReduceConfig(SUM_ARGS(8, BAD, ncclSum, e->comm), NULL))) \
	X(config_root_too_high, ARGUMENT, REDUCE, \
	    HAS(ReduceConfig, \
	        n->ReduceConfig(e->a, e->b, 8, ncclFloat32, ncclSum, e->nranks, e->comm, e->stream, NULL))) \
	X(group_end_without_start, USAGE, NONE, HAS(GroupEnd, n->GroupEnd())) \
	X(count_null_comm, ARGUMENT, NONE, HAS(CommCount, n->CommCount(NULL, &(int){ 0 }))) \
	X(count_null_result, ARGUMENT, NONE, HAS(CommCount, n->CommCount(e->comm, NULL))) \
	X(rank_null_comm, ARGUMENT, NONE, HAS(CommUserRank, n->CommUserRank(NULL, &(int){ 0 }))) \
	X(device_null_comm, ARGUMENT, NONE, HAS(CommCuDevice, n->CommCuDevice(NULL, &(int){ 0 }))) \
	X(async_error_null_comm, ARGUMENT, NONE, \
	    HAS(CommGetAsyncError, n->CommGetAsyncError(NULL, &(ncclResult_t){ 0 }))) \
	X(version_null, ARGUMENT, NONE, n->GetVersion(NULL)) \
	X(unique_id_null, ARGUMENT, NONE, n->GetUniqueId(NULL)) \
	X(destroy_null, OK, NONE, n->CommDestroy(NULL)) \
	X(init_null_result, ARGUMENT, NONE, n->CommInitRank(NULL, 1, (ncclUniqueId){ 0 }, 0)) \
	X(init_no_ranks, ARGUMENT, NONE, comm_init(e, 0, 0)) \
	X(init_rank_too_high, ARGUMENT, NONE, comm_init(e, 2, 2)) \
	X(init_rank_negative, ARGUMENT, NONE, comm_init(e, 2, -1)) \
	X(op_destroy_builtin, ARGUMENT, NONE, HAS(RedOpDestroy, n->RedOpDestroy(ncclSum, e->comm))) \
	X(op_destroy_unknown, ARGUMENT, NONE, HAS(RedOpDestroy, n->RedOpDestroy((ncclRedOp_t)BAD, e->comm))) \
	X(op_create_null_comm, ARGUMENT, NONE, redop_create(e, ncclFloat32, NULL)) \
	X(op_create_bad_dtype, ANY, NONE, redop_create(e, BAD, e->comm)) \
	X(op_of_another_dtype, ARGUMENT, ALLREDUCE, redop_misuse(e, ncclFloat16, false)) \
	X(op_after_destroy, ARGUMENT, ALLREDUCE, redop_misuse(e, ncclFloat32, true)) \
	X(group_error_returned_at_end, ARGUMENT, ALLREDUCE, group_error(e, 1)) \
	X(group_error_nested_returned_at_end, ARGUMENT, ALLREDUCE, group_error(e, 2)) \
	X(group_drops_all_after_error, OK, ALLREDUCE, wrong_call_group(e)) \
	X(group_usable_after_error, OK, ALLREDUCE, group_again(e)) \
	X(group_empty, OK, NONE, group_empty(e)) \
	X(error_string_unknown, OK, NONE, n->GetErrorString((ncclResult_t)BAD) ? ncclSuccess : ncclInternalError)

#define SIM_INFO sizeof(ncclSimInfo_t), SHUNT_NCCL_SIM_MAGIC, 22200, NCCL_UNDEF_FLOAT

static ncclResult_t lacks_set(const struct conform_invalid_env *e, const char *name)
{
	*e->lacks_p = name;
	return ncclSuccess;
}

static ncclResult_t comm_init(const struct conform_invalid_env *e, int nranks, int rank)
{
	ncclComm_t comm = NULL;
	ncclUniqueId id;
	ncclResult_t result = e->nccl->GetUniqueId(&id);

	return result ? ncclInternalError : e->nccl->CommInitRank(&comm, nranks, id, rank);
}

static ncclResult_t redop_create(const struct conform_invalid_env *e, int dtype, ncclComm_t comm)
{
	float scalar = 2;
	ncclRedOp_t op;

	if (!e->nccl->RedOpCreatePreMulSum)
		return lacks_set(e, "ncclRedOpCreatePreMulSum");
	return e->nccl->RedOpCreatePreMulSum(&op, &scalar, (ncclDataType_t)dtype, ncclScalarHostImmediate, comm);
}

/* A call with an operator that was created for float32. */
static ncclResult_t redop_misuse(const struct conform_invalid_env *e, ncclDataType_t dtype, bool destroyed)
{
	const struct bench_nccl *n = e->nccl;
	ncclResult_t result;
	float scalar = 2;
	ncclRedOp_t op;

	if (!n->RedOpCreatePreMulSum || !n->RedOpDestroy)
		return lacks_set(e, "ncclRedOpCreatePreMulSum");
	if (n->RedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, e->comm) ||
	    (destroyed && n->RedOpDestroy(op, e->comm)))
		return ncclInternalError;
	result = n->AllReduce(SUM_ARGS(8, dtype, op, e->comm));
	return !destroyed && n->RedOpDestroy(op, e->comm) ? ncclInternalError : result;
}

static bool has_groups(const struct conform_invalid_env *e)
{
	return e->nccl->GroupStart && e->nccl->GroupEnd;
}

static ncclResult_t group_error(const struct conform_invalid_env *e, int depth)
{
	const struct bench_nccl *n = e->nccl;
	ncclResult_t result = ncclSuccess;

	if (!has_groups(e))
		return lacks_set(e, "ncclGroupStart");
	for (int i = 0; i < depth; i++)
		if (n->GroupStart())
			return ncclInternalError;
	if (n->AllReduce(SUM_ARGS(8, BAD, ncclSum, e->comm)) != ncclInvalidArgument)
		result = ncclInternalError;
	for (int i = 1; i < depth; i++)
		if (n->GroupEnd()) /* only the outermost End returns the error */
			result = ncclInternalError;
	ncclResult_t end = n->GroupEnd();
	return result ? result : end;
}

/* Writes a pattern to the buffers, or checks that it is still there. */
static bool buffers_untouched(const struct conform_invalid_env *e, bool prepare)
{
	unsigned char now[CONFORM_INVALID_BYTES], pattern[CONFORM_INVALID_BYTES];

	memset(pattern, CONFORM_POISON, sizeof(pattern));
	if (prepare)
		return !e->lib->memcpy(e->b, pattern, sizeof(pattern));
	return !e->lib->stream_synchronize(e->stream) && !e->lib->memcpy(now, e->b, sizeof(now)) &&
	    !memcmp(now, pattern, sizeof(now));
}

/* Valid calls in a group with an invalid one are not done: the buffers stay the same. */
static ncclResult_t wrong_call_group(const struct conform_invalid_env *e)
{
	const struct bench_nccl *n = e->nccl;
	ncclResult_t end;

	if (!has_groups(e))
		return lacks_set(e, "ncclGroupStart");
	if (!buffers_untouched(e, true) || n->GroupStart())
		return ncclInternalError;
	n->AllReduce(SUM_ARGS(8, ncclFloat32, ncclSum, e->comm));
	n->AllReduce(SUM_ARGS(8, BAD, ncclSum, e->comm));
	n->AllReduce(SUM_ARGS(800, ncclFloat32, ncclSum, e->comm));
	end = n->GroupEnd();
	return end == ncclInvalidArgument && buffers_untouched(e, false) ? ncclSuccess : ncclInternalError;
}

/* Messages of a rank to itself in one group: sends of 8 elements, receives of `count`. */
static ncclResult_t self_messages(const struct conform_invalid_env *e, int sends, int recvs, size_t count)
{
	const struct bench_nccl *n = e->nccl;

	if (!has_groups(e))
		return lacks_set(e, "ncclGroupStart");
	if (n->GroupStart())
		return ncclInternalError;
	for (int i = 0; i < sends; i++)
		n->Send(PEER_ARGS(e->a, 8, ncclFloat32, e->rank));
	for (int i = 0; i < recvs; i++)
		n->Recv(PEER_ARGS(e->b, count, ncclFloat32, e->rank));
	return n->GroupEnd();
}

/* A ring with an invalid message, in `depth` nested groups. */
static ncclResult_t wrong_message_group(const struct conform_invalid_env *e, int depth)
{
	const struct bench_nccl *n = e->nccl;
	ncclResult_t end = ncclSuccess;

	if (!has_groups(e))
		return lacks_set(e, "ncclGroupStart");
	if (!buffers_untouched(e, true))
		return ncclInternalError;
	for (int i = 0; i < depth; i++)
		if (n->GroupStart())
			return ncclInternalError;
	n->Send(PEER_ARGS(e->a, 8, ncclFloat32, (e->rank + 1) % e->nranks));
	n->Recv(PEER_ARGS(e->b, 8, ncclFloat32, e->nranks));
	n->Recv(PEER_ARGS(e->b, 8, ncclFloat32, (e->rank + e->nranks - 1) % e->nranks));
	for (int i = 0; i < depth; i++)
		end = n->GroupEnd();
	return end == ncclInvalidArgument && buffers_untouched(e, false) ? ncclSuccess : ncclInternalError;
}

/* Estimates a group of one all-reduce, or an empty group if dtype is invalid. */
static ncclResult_t group_simulate(const struct conform_invalid_env *e, unsigned magic, int dtype)
{
	const struct bench_nccl *n = e->nccl;
	ncclSimInfo_t info = { SIM_INFO };

	if (!n->GroupSimulateEnd || !has_groups(e))
		return lacks_set(e, "ncclGroupSimulateEnd");
	info.magic = magic;
	if (n->GroupStart())
		return ncclInternalError;
	if (dtype == BAD)
		n->AllReduce(SUM_ARGS(8, dtype, ncclSum, e->comm));
	return n->GroupSimulateEnd(&info);
}

static ncclResult_t init_config(const struct conform_invalid_env *e, bool null, unsigned magic, int blocking)
{
	ncclConfig_t config = nccl_config_unset();
	ncclComm_t comm = NULL;
	ncclUniqueId id;

	if (!e->nccl->CommInitRankConfig)
		return lacks_set(e, "ncclCommInitRankConfig");
	config.magic = magic;
	config.blocking = blocking;
	return e->nccl->GetUniqueId(&id) ? ncclInternalError :
	                                   e->nccl->CommInitRankConfig(null ? NULL : &comm, 1, id, 0, &config);
}

static ncclResult_t group_again(const struct conform_invalid_env *e)
{
	const struct bench_nccl *n = e->nccl;
	ncclResult_t result;

	if (!has_groups(e))
		return lacks_set(e, "ncclGroupStart");
	if (group_error(e, 1) != ncclInvalidArgument || n->GroupStart())
		return ncclInternalError;
	result = n->AllReduce(SUM_ARGS(8, ncclFloat32, ncclSum, e->comm));
	return n->GroupEnd() ? ncclInternalError : result;
}

static ncclResult_t group_empty(const struct conform_invalid_env *e)
{
	if (!has_groups(e))
		return lacks_set(e, "ncclGroupStart");
	return e->nccl->GroupStart() ? ncclInternalError : e->nccl->GroupEnd();
}

enum { BENCH_COLL_NONE = -1 };

#define FUNCTION(name, want, coll, call) \
	static ncclResult_t name##_run(const struct conform_invalid_env *e) \
	{ \
		const struct bench_nccl *n = e->nccl; \
		(void)n; \
		return call; \
	}
#define ROW(name, want, coll, call) { #name, want, BENCH_COLL_##coll, name##_run },

CALLS(FUNCTION)

const struct conform_invalid conform_invalid_calls[] = { CALLS(ROW){ 0 } };

void conform_invalid_add(struct conform_list *list)
{
	for (int i = 0; conform_invalid_calls[i].name; i++) {
		struct conform_case c = { .kind = CONFORM_INVALID, .row = i };

		snprintf(c.name, sizeof(c.name), "invalid.%s", conform_invalid_calls[i].name);
		conform_case_add(list, &c);
	}
}

/* Checks that the communicator still works. */
static void comm_usable_check(struct conform_rank *r, int lib, struct conform_outcome *out)
{
	const struct conform_side *s = &r->side[lib];
	int32_t one = r->rank + 1, sum = 0, want = r->nranks * (r->nranks + 1) / 2;
	ncclResult_t result;

	if (r->lib.memcpy(r->send, &one, sizeof(one))) {
		conform_outcome_set(out, CONFORM_FAIL, "%s: cannot copy to the device", s->nccl.label);
		return;
	}
	result = s->nccl.AllReduce(r->send, r->recv, 1, ncclInt32, ncclSum, s->comm[CONFORM_WORLD], r->stream[0]);
	if (result)
		conform_outcome_set(out, CONFORM_FAIL, "%s: an all-reduce afterwards returned %d: %s", s->nccl.label,
		    (int)result, s->nccl.GetErrorString(result));
	conform_rank_sync(r, lib, out);
	if (r->lib.memcpy(&sum, r->recv, sizeof(sum)) || sum != want)
		conform_outcome_set(
		    out, CONFORM_FAIL, "%s: an all-reduce afterwards gave %d, not %d", s->nccl.label, sum, want);
}

void conform_invalid_run(struct conform_rank *r, const struct conform_case *c, struct conform_outcome *out)
{
	const struct conform_invalid *w = &conform_invalid_calls[c->row];
	const char *lacks = NULL;
	int first = 0;

	for (int i = 0; i < r->o->ranks.nlibs; i++)
		if (w->coll >= 0 && r->side[i].lacks >> w->coll & 1)
			conform_outcome_set(
			    out, CONFORM_SKIP, "%s lacks %s", r->side[i].nccl.label, bench_colls[w->coll].name);
	for (int i = 0; !out->status && i < r->o->ranks.nlibs; i++) {
		const struct conform_side *s = &r->side[i];
		struct conform_invalid_env e = { &s->nccl, &r->lib, s->comm[CONFORM_WORLD], r->stream[0], r->send,
			r->recv, r->rank, r->nranks, r->device, &lacks };
		ncclResult_t result;

		conform_rank_progress(r, RANKS_CHECK, i);
		conform_quiet_begin();
		result = w->run(&e);
		conform_quiet_end(!lacks && w->want >= 0 && (int)result != w->want);
		if (lacks) {
			conform_outcome_set(out, CONFORM_SKIP, "%s lacks %s", s->nccl.label, lacks);
			return;
		}
		if (w->want >= 0 && (int)result != w->want)
			conform_outcome_set(out, CONFORM_FAIL, "%s: returned %d (%s), not %d (%s)", s->nccl.label,
			    (int)result, s->nccl.GetErrorString(result), w->want,
			    s->nccl.GetErrorString((ncclResult_t)w->want));
		if (i && (int)result != first)
			conform_outcome_set(out, CONFORM_FAIL, "%s: returned %d (%s); %s returned %d", s->nccl.label,
			    (int)result, s->nccl.GetErrorString(result), r->side[0].nccl.label, first);
		if (!i)
			first = (int)result;
		comm_usable_check(r, i, out);
	}
}
