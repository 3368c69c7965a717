/* SPDX-License-Identifier: MIT */
/* The same library as of a version with configurations of single calls; notes what arrives of them. */
#include "tests/support/fake_nccl/fake_nccl.c" /* NOLINT(bugprone-suspicious-include): all of it and more */

ncclResult_t ncclAllReduceConfig(const void *send, void *recv, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
    ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
	const unsigned char *bytes = (const unsigned char *)config;
	unsigned later = 0;

	for (size_t i = sizeof(*config); i < config->size; i++)
		later += bytes[i];
	log_call("config of %zu, later %u, option %d", config->size, later, config->ext ? config->ext->value.i : -1);
	if (config->algSelection)
		log_call(", selection %s, forced %d", config->algSelection, config->forceAlgSelection);
	log_call("\n");
	return collective((struct fake_call){ "AllReduce", send, recv, count, dtype, op, 0, comm, stream });
}

static unsigned no_multimem;

void fake_nccl_no_multimem(unsigned ranks)
{
	no_multimem = ranks;
}

/* As in 2.29.2. Whoever says to be newer would have the device API set up, and that is not asked for here. */
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *p)
{
	int version;

	ncclGetVersion(&version);
	if (!comm_is_alive(comm) || !p || p->size != SHUNT_NCCL_PROPERTIES_BYTES ||
	    p->magic != SHUNT_NCCL_CONFIG_MAGIC || p->version > 22903 || version < 22900)
		return ncclInvalidUsage;
	p->rank = comm->rank;
	p->nRanks = comm->nranks;
	p->cudaDev = p->nvmlDev = comm->device;
	p->deviceApiSupport = 1;
	p->multimemSupport = !(no_multimem >> comm->rank & 1);
	return ncclSuccess;
}

/* Of a version that nobody knows yet. */
__attribute__((visibility("default"))) ncclResult_t ncclOfALaterVersion(void);

ncclResult_t ncclOfALaterVersion(void)
{
	return ncclSuccess;
}
