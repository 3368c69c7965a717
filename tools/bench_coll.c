/* SPDX-License-Identifier: MIT */
/* The collectives that can be measured. */
#include "bench.h"

static double all_reduce_bus_factor(int nranks)
{
	return 2.0 * (nranks - 1) / nranks;
}

static ncclResult_t all_reduce_call(const struct bench_nccl *nccl, const void *send, void *recv, size_t count, ncclDataType_t dtype,
	ncclRedOp_t redop, ncclComm_t comm, void *stream)
{
	return nccl->AllReduce(send, recv, count, dtype, redop, comm, stream);
}

const struct bench_coll bench_colls[] = {
	{ .name = "all_reduce", .op = "allreduce", .reduces = true, .bus_factor = all_reduce_bus_factor, .call = all_reduce_call },
	{ 0 },
};
