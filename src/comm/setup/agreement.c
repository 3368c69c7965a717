/* SPDX-License-Identifier: MIT */
#include "comm/setup/agreement.h"
#include <stdatomic.h>
#include "base/config.h"
#include "base/log.h"
#include "comm/core/communicator.h"
#include "comm/setup/hello.h"
#include "comm/setup/tunings.h"

/*
 * Limits launches where ranks share a GPU. Their kernels wait for each other, so all of them must find room at once,
 * together with those of a second communicator of the same ranks.
 */
static void limit_shared_gpus(struct shunt_comm *comm, const struct shunt_hello *h)
{
	for (int r = 0; r < comm->nranks; r++) {
		unsigned sharing = 1;

		for (int peer = 0; peer < comm->nranks; peer++)
			sharing += peer != r && shunt_hello_same_gpu(&h[r], &h[peer]);
		if (sharing > 1)
			comm->sel_key.max_ctas = shunt_limit_min(
			    comm->sel_key.max_ctas, (int)shunt_grid_coresident_blocks(h[r].gpu.sms, 2 * sharing));
	}
}

/* Whether NCCL uses NVLink multicast: not where one rank knows of an obstacle. */
static void agree_on_nvls(struct shunt_comm *comm, const struct shunt_hello *h)
{
	enum shunt_nvls why = SHUNT_NVLS_POSSIBLE;
	static atomic_bool warned;
	int rank = 0;

	for (int r = 0; r < comm->nranks && !why; rank = r++) {
		why = (enum shunt_nvls)h[r].nvls;
		for (int peer = 0; peer < r && !why; peer++)
			if (shunt_hello_same_gpu(&h[r], &h[peer]))
				why = SHUNT_NVLS_SHARED;
	}
	comm->sel_key.nvls = !why;
	if (comm->rank || comm->sel_key.takes_all)
		return;
	if (why && shunt_nccl_env()->nvls_enable == 1 && !atomic_exchange(&warned, true))
		shunt_warn(
		    "NCCL_NVLS_ENABLE=1 asks for NVLink multicast, which a communicator of %d ranks cannot have (rank "
		    "%d: %s): calls in windows are chosen as without it",
		    comm->nranks, rank, shunt_nvls_name(why));
	else
		shunt_info(SHUNT_LOG_INIT, "communicator of %d ranks: NCCL's NVLink multicast: %s%s", comm->nranks,
		    why ? "no: " : "yes", shunt_nvls_name(why));
}

void shunt_comm_agree_on_link(struct shunt_comm *comm, const struct shunt_hello *h)
{
	struct shunt_sel_key *key = &comm->sel_key;
	uint64_t most = shunt_config()->shared_bytes;

	if (comm->topology.within <= SHUNT_LINK_NVLINK)
		return;
	key->staged = true;
	shunt_tunings_agree_on_link(comm, h);
	key->ce_shared = key->no_sms && comm->topology.within == SHUNT_LINK_SHARED &&
	    (!most || SHUNT_SEGMENT_BYTES(comm->nranks) + 2 * SHUNT_COPY_BYTES(key->sim) <= most);
	if (key->sms > 2 * (SHUNT_STAGED_BLOCKS + 1)) /* for two launches of the blocks that there are channels for */
		key->sms = 2 * (SHUNT_STAGED_BLOCKS + 1);
}

void shunt_comm_agree(struct shunt_comm *comm, const struct shunt_hello *h)
{
	struct shunt_sel_key *sel_key = &comm->sel_key;

	sel_key->no_sms = sel_key->few_ctas = sel_key->tma = true;
	sel_key->cc = h[0].gpu.cc;
	for (int r = 0; r < comm->nranks; r++) {
		sel_key->cc = h[r].gpu.cc < sel_key->cc ? h[r].gpu.cc : sel_key->cc;
		sel_key->max_ctas = shunt_limit_min(sel_key->max_ctas, h[r].max_ctas);
		sel_key->sms = (uint32_t)shunt_limit_min((int)sel_key->sms, h[r].gpu.sim ? 0 : (int)h[r].gpu.sms);
		sel_key->no_sms &= h[r].no_sms != 0;
		sel_key->few_ctas &= h[r].few_ctas != 0;
		sel_key->tma &= h[r].tma != 0;
	}
	limit_shared_gpus(comm, h);
	sel_key->sim = h[0].gpu.sim;
	agree_on_nvls(comm, h);
	shunt_tunings_agree(comm, h);
	if (shunt_comm_spans_hosts(comm))
		shunt_comm_net_agree(comm, h);
}
