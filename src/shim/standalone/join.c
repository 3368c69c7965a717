/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "transport/rendezvous/bootstrap.h"
#include "transport/rendezvous/host_table.h"
#include "base/config.h"
#include "base/log.h"
#include "kernels/set.h"
#include "shim/standalone/task.h"
#include "shim/nccl/result.h"
#include "shim/standalone/lookup.h"
#include "shim/standalone/standalone.h"
#include "shim/calls/thread.h"
#include "shunt/shunt.h"

/* The task of joining a new communicator. */
struct init {
	struct shunt_task task;
	ncclComm_t *newcomm;
	ncclUniqueId id;
	ncclUniqueId unused_id; /* if has_unused_id: another id, which no rank uses */
	bool has_unused_id;
	int rank, nranks;
};

ncclResult_t shunt_standalone_GetUniqueId(ncclUniqueId *id)
{
	if (!id)
		return shunt_standalone_refuse("ncclGetUniqueId", "the pointer is NULL");
	return shunt_to_nccl(shunt_bootstrap_new_id((uint8_t *)id->internal));
}

/* Logs one line per process, on rank 0 of the first communicator. */
static void banner(int rank, int device)
{
	const struct shunt_gpu_ops *gpu = shunt_gpu();
	static atomic_bool logged;
	struct shunt_gpu_info info;

	if (rank || atomic_exchange(&logged, true))
		return;
	if (device >= 0 && gpu && !gpu->device_info(device, &info))
		shunt_banner("Shunt %s | no real NCCL | device %s: %s", shunt_version(), gpu->name, info.name);
	else
		shunt_banner("Shunt %s | no real NCCL", shunt_version());
}

/*
 * The unique id is that of other communicators, too: this one gets an id, and a socket, of its own, which the ranks
 * know when they have joined. After that they wait for each other once more, until every one has its socket.
 */
static int take_own_id(struct init *w, const struct shunt_id *join, struct shunt_hosts **hosts_p)
{
	struct shunt_entry *e = w->task.entry;
	struct shunt_hosts *joined = *hosts_p;
	struct shunt_bootstrap_group group = { .member = w->rank,
		.nmembers = w->nranks,
		.rank = w->rank,
		.nranks = w->nranks,
		.cancel = &e->life.cancel,
		.root.fd = -1 };
	int err;

	if (joined)
		group.root.at = joined->rank[0].group;
	if (joined && w->rank == 0)
		group.root.fd = joined->group_fd;
	e->id = shunt_id_derive(join, sizeof(*join), "own", 0, 0);
	group.id = shunt_id_derive(&e->id, sizeof(e->id), "sockets", 0, 0);
	*hosts_p = NULL;
	err = shunt_comm_set_id(e->comm, &e->id);
	if (!err)
		err = shunt_bootstrap_allgather(&group, NULL, 0, NULL, hosts_p);
	shunt_hosts_destroy(joined);
	return err;
}

static ncclResult_t init_run(struct shunt_task *task)
{
	struct init *w = (struct init *)task;
	const atomic_int *cancel = &task->entry->life.cancel;
	struct shunt_hosts *hosts, *none;
	struct shunt_id join;
	int err = shunt_bootstrap_join((const uint8_t *)w->id.internal, w->rank, w->nranks, cancel, &hosts, &join);

	/* The root of the unused id would wait for an hour. */
	if (!err && w->has_unused_id)
		shunt_bootstrap_join((const uint8_t *)w->unused_id.internal, 0, 1, cancel, &none, NULL);
	if (!err && shunt_bootstrap_id_is_shared((const uint8_t *)w->id.internal))
		err = take_own_id(w, &join, &hosts);
	if (!err)
		err = shunt_comm_set_hosts(task->entry->comm, hosts);
	return shunt_to_nccl(err);
}

static ncclResult_t init_finish(struct shunt_task *task, ncclResult_t result)
{
	struct init *w = (struct init *)task;

	if (result == ncclSuccess)
		banner(w->rank, shunt_comm_device(task->entry->comm));
	else
		shunt_task_fail_new(task, w->newcomm, result);
	return result;
}

static ncclResult_t current_device(int *device_p)
{
	const struct shunt_gpu_ops *gpu = shunt_gpu();

	return gpu ? shunt_to_nccl(gpu->device_get(device_p)) : shunt_to_nccl(-ENODEV);
}

/* A call that creates one rank's communicator. */
struct init_call {
	const char *what; /* the function's name, for the log */
	ncclComm_t *newcomm;
	const ncclUniqueId *ids; /* the ranks use the first one */
	int nids, rank, nranks;
	const ncclConfig_t *config;
};

/* False: the call can be made, with this configuration. */
static bool refuse_init(const struct init_call *call, struct shunt_comm_config *config, ncclResult_t *result_p)
{
	char reason[128];

	if (!call->newcomm) {
		*result_p = shunt_standalone_refuse(call->what, "the place for the communicator is NULL");
		return true;
	}
	*call->newcomm = NULL;
	if (call->nranks < 1 || call->rank < 0 || call->rank >= call->nranks)
		snprintf(reason, sizeof(reason), "rank %d of %d is out of range", call->rank, call->nranks);
	else if (!call->ids || call->nids < 1 || call->nids > call->nranks)
		snprintf(reason, sizeof(reason),
		    "%d unique ids for %d ranks; it takes at least one, and at most one per rank",
		    call->ids ? call->nids : 0, call->nranks);
	else if (!shunt_comm_config_read(call->config, NULL, config, reason, sizeof(reason)))
		return false;
	*result_p = shunt_standalone_refuse(call->what, reason);
	return true;
}

static ncclResult_t init_comm(const struct init_call *call)
{
	struct shunt_comm_desc desc = { .member = call->rank,
		.nmembers = call->nranks,
		.rank = call->rank,
		.nranks = call->nranks,
		.may_span = true };
	const ncclUniqueId *ids = call->ids;
	struct shunt_comm_config c;
	struct init *w;
	ncclResult_t result;

	if (refuse_init(call, &c, &result))
		return result;
	result = current_device(&desc.device);
	if (result != ncclSuccess)
		return shunt_group_result(result);

	w = calloc(1, sizeof(*w));
	if (!w)
		return shunt_group_result(shunt_to_nccl(-ENOMEM));
	desc.id = shunt_id_derive(ids->internal, sizeof(ids->internal), "init", 0, 0);
	desc.id_is_shared = shunt_bootstrap_id_is_shared((const uint8_t *)ids->internal);
	w->task.entry = shunt_standalone_new(&desc, &c);
	if (!w->task.entry) {
		free(w);
		return shunt_group_result(ncclSystemError); /* the cause was logged */
	}
	w->task.run = init_run;
	w->task.phase = "creation";
	w->task.finish = init_finish;
	w->newcomm = call->newcomm;
	w->id = *ids;
	/* With NCCL_COMM_ID all ids are equal. */
	w->has_unused_id = call->rank > 0 && call->rank < call->nids && memcmp(&ids[call->rank], ids, sizeof(*ids));
	if (w->has_unused_id)
		w->unused_id = ids[call->rank];
	w->rank = call->rank;
	w->nranks = call->nranks;
	return shunt_task_start_new(&w->task, call->newcomm);
}

ncclResult_t shunt_standalone_CommInitRank(ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank)
{
	return init_comm(&(struct init_call){
	    .what = "ncclCommInitRank", .newcomm = newcomm, .ids = &id, .nids = 1, .rank = rank, .nranks = nranks });
}

ncclResult_t shunt_standalone_CommInitRankConfig(
    ncclComm_t *newcomm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	return init_comm(&(struct init_call){ .what = "ncclCommInitRankConfig",
	    .newcomm = newcomm,
	    .ids = &id,
	    .nids = 1,
	    .rank = rank,
	    .nranks = nranks,
	    .config = config });
}

ncclResult_t shunt_standalone_CommInitRankScalable(
    ncclComm_t *newcomm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config)
{
	return init_comm(&(struct init_call){ .what = "ncclCommInitRankScalable",
	    .newcomm = newcomm,
	    .ids = ids,
	    .nids = nids,
	    .rank = rank,
	    .nranks = nranks,
	    .config = config });
}

static ncclResult_t check_devices(const struct shunt_gpu_ops *gpu, int ndev, const int *devlist)
{
	int devices, err = gpu->device_count(&devices);

	if (err)
		return shunt_to_nccl(err);
	for (int i = 0; i < ndev; i++) {
		int device = devlist ? devlist[i] : i;
		if (device < 0 || device >= devices) {
			shunt_warn("ncclCommInitAll: there is no device %d, there are %d", device, devices);
			return shunt_to_nccl(-EINVAL);
		}
		for (int k = 0; k < i && devlist; k++)
			if (devlist[k] == device && !shunt_config()->multi_rank_gpu) {
				shunt_warn(
				    "ncclCommInitAll: device %d is named twice, which SHUNT_MULTI_RANK_GPU=1 permits",
				    device);
				return shunt_to_nccl(-EBUSY);
			}
	}
	return ncclSuccess;
}

ncclResult_t shunt_standalone_CommInitAll(ncclComm_t *comms, int ndev, const int *devlist)
{
	const struct shunt_gpu_ops *gpu = shunt_gpu();
	struct shunt_comm_config config;
	struct shunt_entry **entries;
	uint8_t secret[32];
	ncclResult_t result;
	char reason[128];
	int err = 0;

	if (!comms || ndev < 1)
		return shunt_standalone_refuse("ncclCommInitAll", "no communicators are asked for");
	if (!gpu)
		return shunt_to_nccl(-ENODEV);
	result = check_devices(gpu, ndev, devlist);
	if (result != ncclSuccess)
		return result;
	if (getrandom(secret, sizeof(secret), 0) != sizeof(secret))
		return shunt_to_nccl(-EAGAIN);
	shunt_comm_config_read(NULL, NULL, &config, reason, sizeof(reason));

	/*
	 * All ranks are in this process, so they need not agree on anything: the communicator exists once every entry
	 * does.
	 */
	entries = calloc(ndev, sizeof(*entries));
	if (!entries)
		return shunt_to_nccl(-ENOMEM);
	for (int i = 0; i < ndev && !err; i++) {
		struct shunt_comm_desc desc = { .id = shunt_id_derive(secret, sizeof(secret), "all", 0, 0),
			.member = i,
			.nmembers = ndev,
			.rank = i,
			.nranks = ndev,
			.device = devlist ? devlist[i] : i };
		entries[i] = shunt_standalone_new(&desc, &config);
		if (!entries[i])
			err = -ENOMEM;
	}
	for (int i = 0; i < ndev && !err; i++) {
		ncclComm_t handle = shunt_standalone_handle(entries[i]);
		err = shunt_entry_publish(entries[i], handle);
		entries[i] = NULL;
		comms[i] = handle;
		for (int k = 0; err && k < i; k++) {
			shunt_entry_put(shunt_entry_remove(comms[k]));
			comms[k] = NULL;
		}
	}
	for (int i = 0; i < ndev; i++)
		shunt_entry_put(entries[i]);
	free(entries);
	if (!err)
		banner(0, devlist ? devlist[0] : 0);
	return shunt_to_nccl(err);
}
