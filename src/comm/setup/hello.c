/* SPDX-License-Identifier: MIT */
#include "comm/setup/hello.h"
#include <stdio.h>
#include <unistd.h>
#include "algos/select/tuning.h"
#include "base/config.h"
#include "base/os.h"
#include "comm/core/communicator.h"
#include "comm/setup/plan_set.h"
#include "comm/setup/plugin_set.h"
#include "comm/setup/tunings.h"
#include "kernels/set.h"

void shunt_hello_fill(struct shunt_comm *comm, struct shunt_hello *h)
{
	int err;

	memset(h, 0, sizeof(*h));
	h->protocol = shunt_setup_protocol;
	h->vote.ok = 1;
	snprintf(h->version, sizeof(h->version), "%s", SHUNT_VERSION);
	h->fingerprint = shunt_config_fingerprint() ^ shunt_tuning_islands_hash(shunt_tuning_builtin_hash());
	h->process = shunt_process_token();
	h->pid = (int32_t)getpid();
	h->plans = shunt_comm_plan_set_acquire(comm);
	h->plugins = shunt_comm_plugins_acquire(comm);
	h->max_ctas = comm->sel_key.max_ctas;
	h->takes_all = comm->sel_key.takes_all;
	h->no_sms = comm->no_sms;
	h->few_ctas = comm->few_ctas;
	comm->gpu = shunt_gpu();
	if (comm->own.refusal[0])
		shunt_vote_refuse(&h->vote, "%s", comm->own.refusal);
	else if (!comm->gpu)
		shunt_vote_refuse(&h->vote, "no device layer");
	else if (comm->device < 0)
		shunt_vote_refuse(&h->vote, "its device is not known");
	else if ((err = comm->gpu->device_info(comm->device, &h->gpu)))
		shunt_vote_refuse(&h->vote, "device %d cannot be asked: %s", comm->device, strerror(-err));
	else
		shunt_tunings_hash(comm, &h->gpu, h->tuning);
	h->net = shunt_comm_net_usable(comm);
	h->tma = h->gpu.tma && shunt_config()->tma;
	h->nvls = shunt_nvls_of_rank(&h->gpu, &comm->nccl, shunt_nccl_env()->nvls_enable);
}

bool shunt_hellos_fit(const struct shunt_hello *h, int n, char *reason, size_t bytes)
{
	for (int r = 0; r < n; r++) {
		if (h[r].protocol != h[0].protocol || strncmp(h[r].version, h[0].version, sizeof(h[r].version))) {
			snprintf(reason, bytes,
			    "rank %d has Shunt %.15s (set-up protocol %08x), rank 0 has %.15s (%08x)", r, h[r].version,
			    h[r].protocol, h[0].version, h[0].protocol);
			return false;
		}
		if (!h[r].vote.ok) {
			snprintf(reason, bytes, "rank %d: %.95s", r, h[r].vote.reason);
			return false;
		}
		if (h[r].fingerprint != h[0].fingerprint) {
			snprintf(reason, bytes,
			    "rank %d has other SHUNT_ or NCCL_ settings than rank 0 (compare `shunt info -c` on both)",
			    r);
			return false;
		}
		if (h[r].takes_all != h[0].takes_all) {
			snprintf(reason, bytes, "rank %d has %s real NCCL, rank 0 has %s", r,
			    h[r].takes_all ? "no" : "a", h[0].takes_all ? "none" : "one");
			return false;
		}
		if (h[r].gpu.sim != h[0].gpu.sim) {
			snprintf(reason, bytes, "rank %d is on the %s, rank 0 is not", r, h[r].gpu.sim ? "sim" : "GPU");
			return false;
		}
	}
	return true;
}
