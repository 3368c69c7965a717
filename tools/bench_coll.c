/* SPDX-License-Identifier: MIT */
/* The collectives: a row says what each side has, and what is where follows from that. */
#include <dlfcn.h>
#include <stdio.h>
#include "bench.h"

#define CALL(name, ...)                                                                         \
	static ncclResult_t name##_call(const struct bench_nccl *nccl, const struct bench_args *a) \
	{                                                                                       \
		return nccl->name(__VA_ARGS__, a->comm, a->stream);                             \
	}
CALL(AllReduce, a->send, a->recv, a->count, a->dtype, a->redop)
CALL(AllGather, a->send, a->recv, a->count, a->dtype)
CALL(ReduceScatter, a->send, a->recv, a->count, a->dtype, a->redop)
CALL(Broadcast, a->send, a->recv, a->count, a->dtype, a->root)
CALL(Bcast, a->recv, a->count, a->dtype, a->root)
CALL(Reduce, a->send, a->recv, a->count, a->dtype, a->redop, a->root)
CALL(AlltoAll, a->send, a->recv, a->count, a->dtype)
CALL(Gather, a->send, a->recv, a->count, a->dtype, a->root)
CALL(Scatter, a->send, a->recv, a->count, a->dtype, a->root)
CALL(Send, a->send, a->count, a->dtype, a->root)
CALL(Recv, a->recv, a->count, a->dtype, a->root)

/* A ring: to the next rank, from the one before. */
static ncclResult_t ring_call(const struct bench_nccl *nccl, const struct bench_args *a)
{
	ncclResult_t result = nccl->GroupStart(), end;

	if (result)
		return result;
	result = nccl->Send(a->send, a->count, a->dtype, (a->rank + 1) % a->nranks, a->comm, a->stream);
	if (!result)
		result = nccl->Recv(a->recv, a->count, a->dtype, (a->rank + a->nranks - 1) % a->nranks, a->comm, a->stream);
	end = nccl->GroupEnd();
	return result ? result : end;
}

const struct bench_coll bench_colls[BENCH_NCOLLS + 1] = {
	[BENCH_COLL_ALL_REDUCE] = { "all_reduce", "allreduce", { "AllReduce" }, AllReduce_call, .reduces = true, .in_place = true },
	[BENCH_COLL_ALL_GATHER] = { "all_gather", "allgather", { "AllGather" }, AllGather_call, .recv_many = true, .in_place = true },
	[BENCH_COLL_REDUCE_SCATTER] = { "reduce_scatter", "reducescatter", { "ReduceScatter" }, ReduceScatter_call,
		.reduces = true, .send_many = true, .in_place = true },
	[BENCH_COLL_BROADCAST] = { "broadcast", "broadcast", { "Broadcast" }, Broadcast_call,
		.rooted = true, .send_root = true, .in_place = true },
	[BENCH_COLL_REDUCE] = { "reduce", "reduce", { "Reduce" }, Reduce_call,
		.reduces = true, .rooted = true, .recv_root = true, .in_place = true },
	[BENCH_COLL_ALLTOALL] = { "alltoall", "alltoall", { "AlltoAll" }, AlltoAll_call, .send_many = true, .recv_many = true },
	[BENCH_COLL_GATHER] = { "gather", "gather", { "Gather" }, Gather_call,
		.rooted = true, .recv_many = true, .recv_root = true, .in_place = true },
	[BENCH_COLL_SCATTER] = { "scatter", "scatter", { "Scatter" }, Scatter_call,
		.rooted = true, .send_many = true, .send_root = true, .in_place = true },
	[BENCH_COLL_SENDRECV] = { "sendrecv", "send", { "Send", "Recv", "GroupStart", "GroupEnd" }, ring_call },
	[BENCH_COLL_BCAST] = { "bcast", "broadcast", { "Bcast" }, Bcast_call,
		.rooted = true, .send_root = true, .in_place = true, .part = true },
	[BENCH_COLL_SEND] = { "send", "send", { "Send" }, Send_call, .part = true },
	[BENCH_COLL_RECV] = { "recv", "recv", { "Recv" }, Recv_call, .part = true },
};

const char *bench_coll_missing(const struct bench_coll *c, const struct bench_nccl *nccl)
{
	for (int i = 0; i < 4 && c->needs[i]; i++) {
		char name[64];

		snprintf(name, sizeof(name), "nccl%s", c->needs[i]);
		if (!dlsym(nccl->handle, name))
			return c->needs[i];
	}
	return NULL;
}

double bench_coll_bus_factor(const struct bench_coll *c, int nranks)
{
	double n = nranks;

	if (c->send_many || c->recv_many)
		return (n - 1) / n;
	return c->reduces && !c->rooted ? 2 * (n - 1) / n : 1;
}

uint64_t bench_coll_count(const struct bench_coll *c, uint64_t bytes, size_t element, int nranks)
{
	uint64_t count = bytes / element;

	if (c->send_many || c->recv_many)
		return count / (uint64_t)nranks / (16 / element) * (16 / element);
	return count ? count : 1;
}

uint64_t bench_coll_send_offset(const struct bench_coll *c, uint64_t count, int rank)
{
	return c->recv_many && !c->send_many ? count * (uint64_t)rank : 0;
}

uint64_t bench_coll_recv_offset(const struct bench_coll *c, uint64_t count, int rank)
{
	return c->send_many && !c->recv_many ? count * (uint64_t)rank : 0;
}

bool bench_coll_has_send(const struct bench_coll *c, int rank, int root)
{
	return !c->send_root || rank == root;
}

bool bench_coll_has_recv(const struct bench_coll *c, int rank, int root)
{
	return !c->recv_root || rank == root;
}

void bench_coll_source(const struct bench_coll *c, int rank, int nranks, int root, int block, int *from_p, int *from_block_p)
{
	*from_block_p = c->send_many ? rank : 0;
	if (c->reduces)
		*from_p = -1;
	else if (c->recv_many)
		*from_p = block;
	else
		*from_p = c->rooted ? root : (rank + nranks - 1) % nranks;
}
