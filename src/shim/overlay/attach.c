/* SPDX-License-Identifier: MIT */
#include <string.h>
#include "base/log.h"
#include "shim/overlay/attach.h"
#include "shim/real/real.h"
#include "shim/calls/thread.h"
#include "shunt/shunt.h"

struct shunt_entry *shunt_overlay_attach(const struct shunt_comm_desc *desc, const struct shunt_comm_config *config)
{
	struct shunt_comm_desc d = *desc;
	struct shunt_entry *e;

	d.nccl_version = shunt_real_version();
	if (config->in_order && !d.forward_reason)
		d.forward_reason = "NCCL_LAUNCH_ORDER_IMPLICIT, or launchOrderImplicit in its configuration, has NCCL "
		                   "put the launches of all communicators in order";
	e = shunt_entry_create(&d, config, NULL);
	if (!e && !d.forward_reason) {
		d.forward_reason = "its socket could not be made on this rank";
		e = shunt_entry_create(&d, config, NULL);
	}
	if (e)
		e->forward_reason = desc->forward_reason; /* only this one is the same on all ranks */
	return e;
}

/*
 * True: NCCL, from 2.29 on, says that it uses no NVLink multicast on the communicator. It is asked as by a program for
 * 2.29.2: for later ones it also sets up its device API, which costs address space. An error is no answer.
 */
static bool nccl_denies_nvls(ncclComm_t comm)
{
	union {
		ncclCommProperties_t p;
		char room[256]; /* whatever version of NCCL fills it in */
	} u = { .p = { .size = SHUNT_NCCL_PROPERTIES_BYTES,
		    .magic = SHUNT_NCCL_CONFIG_MAGIC,
		    .version = SHUNT_NCCL_PROPERTIES_VERSION } };
	ncclResult_t (*query)(ncclComm_t, void *) = NULL;
	void *symbol = shunt_real_symbol("ncclCommQueryProperties");
	ncclResult_t result;

	if (!symbol || shunt_real_version() < SHUNT_NCCL_PROPERTIES_VERSION)
		return false;
	memcpy(&query, &symbol, sizeof(query));
	shunt_thread()->inside++;
	result = query(comm, &u);
	shunt_thread()->inside--;
	return result == ncclSuccess && !u.p.multimemSupport;
}

void shunt_attach_ask_nvls(struct shunt_entry *e, ncclComm_t comm)
{
	if (nccl_denies_nvls(comm))
		shunt_comm_deny_nvls(e->comm);
}

bool shunt_attach_ready(struct shunt_entry *e, ncclComm_t comm)
{
	int rank, nranks, device;

	if (shunt_life_is_located(&e->life))
		return true;
	shunt_mutex_lock(&e->lock);
	if (!shunt_life_is_located(&e->life) && !real_CommUserRank(comm, &rank) && !real_CommCount(comm, &nranks) &&
	    !real_CommCuDevice(comm, &device)) {
		shunt_attach_ask_nvls(e, comm);
		shunt_comm_set_rank(e->comm, rank, nranks, device);
		shunt_life_locate(&e->life);
	}
	shunt_mutex_unlock(&e->lock);
	return shunt_life_is_located(&e->life);
}

bool shunt_attach_in_progress(ncclComm_t comm)
{
	struct shunt_entry *e = shunt_entry_get(comm);
	ncclResult_t state = ncclSuccess;
	bool is_nonblocking = e && !e->config.blocking;

	shunt_entry_put(e);
	return is_nonblocking && real_CommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress;
}

bool shunt_attach_not_ready(ncclComm_t comm, const char *what)
{
	if (!shunt_attach_in_progress(comm))
		return false;
	shunt_warn("%s: " SHUNT_NOT_READY, what);
	return true;
}

void shunt_attach_refresh(ncclComm_t comm)
{
	struct shunt_entry *e = shunt_entry_get(comm);

	if (e)
		shunt_attach_ready(e, comm);
	shunt_entry_put(e);
}

void shunt_overlay_banner(int rank)
{
	static atomic_bool logged;
	int version = 0;

	if (rank || atomic_exchange(&logged, true))
		return;
	real_GetVersion(&version);
	shunt_banner("Shunt %s | real NCCL %d.%d.%d (%s)", shunt_version(), version / 10000, version / 100 % 100,
	    version % 100, shunt_real_nccl_path());
}
