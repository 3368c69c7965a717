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

/* Of a version that nobody knows yet. */
__attribute__((visibility("default"))) ncclResult_t ncclOfALaterVersion(void);

ncclResult_t ncclOfALaterVersion(void)
{
	return ncclSuccess;
}
