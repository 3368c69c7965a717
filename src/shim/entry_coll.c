/* SPDX-License-Identifier: MIT */
/* The entry points of collectives and point-to-point. */
#include <string.h>
#include "shim/mode.h"

static ncclResult_t run_in_mode(struct shunt_coll_call *call)
{
	struct shunt_thread *thread = shunt_thread();

	return shunt_mode_ops_of(thread)->coll(thread, call);
}

/* config: NULL is allowed. */
static ncclResult_t run_with_config(struct shunt_coll_call *call, const ncclCollConfig_t *config)
{
	if (config) {
		call->config_kind = SHUNT_CONFIG_ANY;
		call->caller_config = config;
		memcpy(&call->config, config,
		    config->size < sizeof(call->config) ? config->size :
		                                          sizeof(call->config)); /* an earlier version's is shorter */
	}
	return run_in_mode(call);
}

#define CALL(...) CALL_OF(__VA_ARGS__)
#define CALL_OF(id, from, to, n, type, operator, peer) \
	(struct shunt_coll_call) \
	{ \
		.comm = comm, .dtype = type, .op = operator, .coll = { \
			.kind = SHUNT_##id, \
			.root = peer, \
			.send = from, \
			.recv = to, \
			.count = n, \
			.stream = stream \
		} \
	}

/* ncclX, and ncclXConfig, which is the same if config is NULL. */
#define ENTRY(id, name, long_name, function, ranks, sends, recvs, operator, ...) \
	ncclResult_t pnccl##function(SHUNT_COLL_PARAMS(ranks, operator)) \
	{ \
		return run_in_mode(&CALL(id, SHUNT_COLL_VALUES(ranks, operator))); \
	} \
	SHUNT_WEAK_ALIAS(function); \
	SHUNT_IF_CONFIG(ranks, ENTRY_CONFIG(id, function, ranks, operator))
#define ENTRY_CONFIG(id, function, ranks, operator) \
	ncclResult_t pnccl##function##Config(SHUNT_COLL_PARAMS(ranks, operator), const ncclCollConfig_t *config) \
	{ \
		return run_with_config(&CALL(id, SHUNT_COLL_VALUES(ranks, operator)), config); \
	} \
	SHUNT_WEAK_ALIAS(function##Config);

SHUNT_COLLECTIVE_LIST(ENTRY)

/* In place; PyTorch's broadcast uses it. */
ncclResult_t pncclBcast(void *buff, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream)
{
	return run_in_mode(&(struct shunt_coll_call){ .comm = comm,
	    .dtype = dtype,
	    .op = ncclSum,
	    .bcast = true,
	    .coll = { .kind = SHUNT_BROADCAST,
	        .root = root,
	        .send = buff,
	        .recv = buff,
	        .count = count,
	        .stream = stream } });
}
SHUNT_WEAK_ALIAS(Bcast);
