/* SPDX-License-Identifier: MIT */
#include "base/log.h"
#include "comm/gpu.h"
#include "shim/overlay/attach.h"
#include "shim/nccl/real.h"

static void warn_no_launch_order(void)
{
	static atomic_bool logged;

	if (!atomic_exchange(&logged, true))
		shunt_warn("NCCL_LAUNCH_ORDER_IMPLICIT, or launchOrderImplicit, does nothing without a real NCCL: use "
		           "communicators in the same order on all ranks");
}

struct shunt_entry *shunt_attach(const struct shunt_comm_desc *desc, const struct shunt_comm_config *config)
{
	struct shunt_comm_desc d = *desc;
	struct shunt_comm *comm;
	struct shunt_entry *e;
	int err;

	d.max_ctas = config->max_ctas;
	d.no_sms = config->no_sms;
	d.no_clusters = config->no_clusters;
	if (config->in_order && d.standalone)
		warn_no_launch_order();
	else if (config->in_order && !d.forward_reason)
		d.forward_reason = "NCCL_LAUNCH_ORDER_IMPLICIT, or launchOrderImplicit in its configuration, has NCCL "
		                   "put the launches of all communicators in order";
	err = shunt_comm_create(&d, &comm);
	if (err && !d.forward_reason && !d.standalone) {
		d.forward_reason = "its socket could not be made on this rank";
		err = shunt_comm_create(&d, &comm);
	}
	if (err)
		return NULL;
	e = shunt_entry_create(comm);
	if (!e)
		return NULL;
	e->id = desc->id;
	e->forward_reason = desc->forward_reason;
	e->config = *config;
	if (config->name[0])
		shunt_info(
		    SHUNT_LOG_INIT, "communicator %s is the program's %s", shunt_id_text(d.id.b).s, config->name);
	atomic_store(&e->ready, d.rank >= 0 && d.nranks > 0 && d.device >= 0);
	return e;
}

bool shunt_attach_ready(struct shunt_entry *e, ncclComm_t comm)
{
	int rank, nranks, device;

	if (atomic_load_explicit(&e->ready, memory_order_acquire))
		return true;
	pthread_mutex_lock(&e->lock);
	if (!atomic_load(&e->ready) && !real_CommUserRank(comm, &rank) && !real_CommCount(comm, &nranks) &&
	    !real_CommCuDevice(comm, &device)) {
		shunt_comm_set_rank(e->comm, rank, nranks, device);
		atomic_store_explicit(&e->ready, true, memory_order_release);
	}
	pthread_mutex_unlock(&e->lock);
	return atomic_load(&e->ready);
}

void shunt_attach_refresh(ncclComm_t comm)
{
	struct shunt_entry *e = shunt_entry_get(comm);

	if (e)
		shunt_attach_ready(e, comm);
	shunt_entry_put(e);
}

void shunt_attach_banner(int rank, int device)
{
	static atomic_bool logged;
	struct shunt_gpu_info info;
	int version = 0;

	if (rank || atomic_exchange(&logged, true))
		return;
	if (shunt_mode() == SHUNT_OVERLAY) {
		real_GetVersion(&version);
		shunt_banner("Shunt %s | real NCCL %d.%d.%d (%s)", shunt_version(), version / 10000,
		    version / 100 % 100, version % 100, shunt_real_nccl_path());
	} else if (device >= 0 && shunt_gpu() && !shunt_gpu()->device_info(device, &info)) {
		shunt_banner("Shunt %s | no real NCCL | device %s: %s", shunt_version(), shunt_gpu()->name, info.name);
	} else {
		shunt_banner("Shunt %s | no real NCCL", shunt_version());
	}
}
