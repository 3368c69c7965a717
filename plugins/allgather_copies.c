/* SPDX-License-Identifier: MIT */
/*
 * An all-gather as a plug-in without a kernel of its own: copies, which the copy engines of a GPU do, between barriers
 * of Shunt's. docs/plugins.md explains each part of it.
 */
#include "shunt/plugin.h"

#define MOST (8u << 20) /* bytes of a part */

/* Every rank puts its part into all ranks' scratch, each at the same place, and takes all parts out of its own. */
static int enqueue(void *arg, const struct shunt_plugin_call *call, void *stream)
{
	const struct shunt_plugin_host *host = call->host;
	int err = host->barrier(call, stream); /* all have taken the parts of the call before */

	(void)arg;
	for (uint32_t r = 0; r < call->nranks && !err; r++)
		err = host->copy(call, call->scratch[r] + call->rank * call->bytes, call->send, call->bytes, stream);
	if (!err)
		err = host->barrier(call, stream);
	return err ? err : host->copy(call, call->recv, call->scratch[call->rank], call->nranks * call->bytes, stream);
}

static const struct shunt_plugin plugin = {
	.size = sizeof(plugin),
	.abi = SHUNT_PLUGIN_ABI,
	.name = "allgather_copies",
	.doc = "an example: copies between barriers",
	.collectives = "allgather",
	.dtypes = (1u << 12) - 1, /* all of NCCL's: bytes are bytes */
	.max_bytes = MOST,
	.scratch_bytes = (uint64_t)SHUNT_PLUGIN_RANKS * MOST,
	.min_ranks = 2,
	.max_ranks = SHUNT_PLUGIN_RANKS,
	.enqueue = enqueue,
	.identity = 1, /* another number where enqueue changes */
};

SHUNT_API const struct shunt_plugin *const shunt_plugins_1[] = { &plugin, 0 };
