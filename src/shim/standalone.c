/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include "core/boot.h"
#include "core/log.h"
#include "gpu/gpu_ops.h"
#include "shim/group.h"
#include "shim/real.h"
#include "shim/result.h"
#include "shim/standalone.h"

/* Something that all ranks of a communicator have to do together: initialise one, or split one. */
struct work {
	struct shunt_job job;
	struct shunt_entry *entry; /* the new one, or for a split the parent; a reference */
	struct shunt_entry *child; /* split: not published yet, or NULL without a colour */
	ncclComm_t *newcomm;
	ncclUniqueId id;
	int rank, nranks;
	int color, key;
	bool freed; /* run by a thread of its own */
};

static ncclResult_t bad(const char *what, const char *why)
{
	shunt_warn("%s: %s", what, why);
	return shunt_to_nccl(-EINVAL);
}

ncclResult_t shunt_alone_unique_id(ncclUniqueId *id)
{
	if (!id)
		return bad("ncclGetUniqueId", "the pointer is NULL");
	return shunt_to_nccl(shunt_boot_new_id((uint8_t *)id->internal));
}

/* A new entry together with the object that its handle points to. */
static struct shunt_entry *new_entry(const struct shunt_comm_desc *desc, const struct shunt_settings *settings)
{
	struct shunt_own *own = calloc(1, sizeof(*own));
	struct shunt_entry *e = own ? shunt_attach(desc, settings) : NULL;

	if (!e) {
		free(own);
		return NULL;
	}
	own->magic = SHUNT_NCCL_COMM_MAGIC;
	own->next_op = ncclNumOps;
	atomic_store(&own->state, ncclSuccess);
	e->own = own;
	return e;
}

static ncclComm_t handle_of(const struct shunt_entry *e)
{
	return (ncclComm_t)e->own;
}

/* Runs the work now, at the end of the group, or on a thread of its own. */
static void *work_thread(void *arg)
{
	struct work *w = arg;

	w->job.finish(&w->job, w->job.run(&w->job));
	return NULL;
}

static ncclResult_t start(struct work *w, bool blocking)
{
	atomic_int *state = &w->entry->own->state;
	pthread_attr_t attr;
	pthread_t thread;
	int err;

	atomic_store(state, ncclInProgress);
	if (shunt_group_open()) {
		shunt_group_add_job(&w->job);
		return ncclSuccess;
	}
	if (blocking)
		return w->job.finish(&w->job, w->job.run(&w->job));
	w->freed = true;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	err = pthread_create(&thread, &attr, work_thread, w);
	pthread_attr_destroy(&attr);
	if (err)
		return w->job.finish(&w->job, shunt_to_nccl(-err));
	return ncclInProgress;
}

static ncclResult_t init_run(struct shunt_job *job)
{
	struct work *w = (struct work *)job;

	return shunt_to_nccl(shunt_boot_join((const uint8_t *)w->id.internal, w->rank, w->nranks, &w->entry->own->cancel));
}

static ncclResult_t init_finish(struct shunt_job *job, ncclResult_t result)
{
	struct work *w = (struct work *)job;
	struct shunt_entry *e = w->entry;

	atomic_store(&e->own->state, (int)result);
	if (result == ncclSuccess) {
		shunt_attach_banner(w->rank, shunt_comm_device(e->comm));
	} else if (!w->freed) { /* else the program has the handle and aborts it */
		shunt_entry_put(shunt_entry_remove(handle_of(e)));
		*w->newcomm = NULL;
	}
	shunt_entry_put(e);
	free(w);
	return result;
}

static ncclResult_t current_device(int *device_p)
{
	const struct shunt_gpu_ops *gpu = shunt_gpu();

	return gpu ? shunt_to_nccl(gpu->device_get(device_p)) : shunt_to_nccl(-ENODEV);
}

ncclResult_t shunt_alone_init(ncclComm_t *newcomm, int nranks, const ncclUniqueId *id, int rank, ncclConfig_t *config)
{
	struct shunt_comm_desc desc = {.slot = rank, .nslots = nranks, .rank = rank, .nranks = nranks, .standalone = true};
	struct shunt_settings settings;
	struct work *w;
	ncclResult_t result;

	if (!newcomm)
		return shunt_group_result(bad("ncclCommInitRank", "the place for the communicator is NULL"));
	if (nranks < 1 || rank < 0 || rank >= nranks) {
		shunt_warn("ncclCommInitRank: rank %d of %d is out of range", rank, nranks);
		return shunt_group_result(shunt_to_nccl(-EINVAL));
	}
	if (shunt_settings_read(config, NULL, &settings))
		return shunt_group_result(bad("ncclCommInitRankConfig", "the configuration is not valid"));
	result = current_device(&desc.device);
	if (result != ncclSuccess)
		return shunt_group_result(result);

	w = calloc(1, sizeof(*w));
	if (!w)
		return shunt_group_result(shunt_to_nccl(-ENOMEM));
	desc.id = shunt_id_derive(id->internal, sizeof(id->internal), "init", 0, 0);
	w->entry = new_entry(&desc, &settings);
	if (!w->entry) {
		free(w);
		return shunt_group_result(ncclSystemError); /* its cause was logged */
	}
	w->job.run = init_run;
	w->job.finish = init_finish;
	w->job.lane = w;
	w->newcomm = newcomm;
	w->id = *id;
	w->rank = rank;
	w->nranks = nranks;
	atomic_fetch_add(&w->entry->refs, 1); /* the table's, beside that of the work */
	if (shunt_entry_publish(w->entry, handle_of(w->entry))) {
		shunt_entry_put(w->entry);
		free(w);
		return shunt_group_result(shunt_to_nccl(-ENOMEM));
	}
	*newcomm = handle_of(w->entry);
	return start(w, settings.blocking);
}

ncclResult_t shunt_alone_init_all(ncclComm_t *comms, int ndev, const int *devlist)
{
	const struct shunt_settings settings = {.blocking = true};
	const struct shunt_gpu_ops *gpu = shunt_gpu();
	struct shunt_entry **entries;
	uint8_t secret[32];
	int devices, err = 0;

	if (!comms || ndev < 1)
		return bad("ncclCommInitAll", "no communicators are asked for");
	if (!gpu)
		return shunt_to_nccl(-ENODEV);
	err = gpu->device_count(&devices);
	if (err)
		return shunt_to_nccl(err);
	for (int i = 0; i < ndev; i++) {
		int device = devlist ? devlist[i] : i;
		if (device < 0 || device >= devices) {
			shunt_warn("ncclCommInitAll: device %d of %d is out of range", device, devices);
			return shunt_to_nccl(-EINVAL);
		}
		for (int k = 0; k < i && devlist; k++)
			if (devlist[k] == device) {
				shunt_warn("ncclCommInitAll: device %d is named twice", device);
				return shunt_to_nccl(-EBUSY);
			}
	}
	if (getrandom(secret, sizeof(secret), 0) != sizeof(secret))
		return shunt_to_nccl(-EAGAIN);

	/* All ranks are here, so nothing has to be agreed: once every entry exists the communicator does. */
	entries = calloc(ndev, sizeof(*entries));
	if (!entries)
		return shunt_to_nccl(-ENOMEM);
	for (int i = 0; i < ndev && !err; i++) {
		struct shunt_comm_desc desc = {.id = shunt_id_derive(secret, sizeof(secret), "all", 0, 0),
		    .slot = i,
		    .nslots = ndev,
		    .rank = i,
		    .nranks = ndev,
		    .device = devlist ? devlist[i] : i,
		    .standalone = true};
		entries[i] = new_entry(&desc, &settings);
		if (!entries[i])
			err = -ENOMEM;
	}
	for (int i = 0; i < ndev && !err; i++) {
		ncclComm_t handle = handle_of(entries[i]);
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
		shunt_attach_banner(0, devlist ? devlist[0] : 0);
	return shunt_to_nccl(err);
}

struct vote {
	int32_t color, key;
};

static ncclResult_t split_run(struct shunt_job *job)
{
	struct work *w = (struct work *)job;
	struct shunt_comm *parent = w->entry->comm;
	int me = shunt_comm_rank(parent), nranks = shunt_comm_nranks(parent), rank = 0, members = 0, err;
	struct vote mine = {w->color, w->key}, *all = calloc(nranks, sizeof(*all));

	if (!all)
		return shunt_to_nccl(-ENOMEM);
	err = shunt_comm_allgather_host(parent, &mine, sizeof(mine), all);
	for (int r = 0; !err && r < nranks; r++) {
		if (all[r].color != w->color)
			continue;
		members++;
		/* Before us: a smaller key, or the same key and a smaller rank in the parent. */
		if (all[r].key < w->key || (all[r].key == w->key && r < me))
			rank++;
	}
	free(all);
	if (!err && w->child) {
		shunt_comm_set_rank(w->child->comm, rank, members, shunt_comm_device(parent));
		atomic_store(&w->child->ready, true);
	}
	return shunt_to_nccl(err);
}

static ncclResult_t split_finish(struct shunt_job *job, ncclResult_t result)
{
	struct work *w = (struct work *)job;

	if (result == ncclSuccess && w->child) {
		ncclComm_t handle = handle_of(w->child);
		if (shunt_entry_publish(w->child, handle))
			result = shunt_to_nccl(-ENOMEM);
		else
			__atomic_store_n(w->newcomm, handle, __ATOMIC_RELEASE);
	} else {
		shunt_entry_put(w->child);
	}
	/* A split that failed leaves the parent as it was, except that a non-blocking caller learns of it there. */
	atomic_store(&w->entry->own->state, w->freed ? (int)result : (int)ncclSuccess);
	shunt_entry_put(w->entry);
	free(w);
	return result;
}

ncclResult_t shunt_alone_split(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	struct shunt_settings settings;
	struct shunt_comm_desc desc;
	struct shunt_entry *parent;
	ncclResult_t result;
	struct work *w;

	parent = shunt_alone_find(comm, "ncclCommSplit", &result);
	if (!parent)
		return shunt_group_result(result);
	if (!newcomm || (color < 0 && color != NCCL_SPLIT_NOCOLOR) || shunt_settings_read(config, parent, &settings)) {
		shunt_entry_put(parent);
		return shunt_group_result(
		    bad("ncclCommSplit", "colour, configuration or the place for the communicator is not valid"));
	}
	*newcomm = NULL;
	w = calloc(1, sizeof(*w));
	if (!w) {
		shunt_entry_put(parent);
		return shunt_group_result(shunt_to_nccl(-ENOMEM));
	}
	desc = (struct shunt_comm_desc){
		.id = shunt_id_derive(&parent->id, sizeof(parent->id), "split", parent->splits++, (uint64_t)color),
		.slot = shunt_comm_rank(parent->comm), .nslots = shunt_comm_nranks(parent->comm),
		.rank = -1, .nranks = -1, .device = shunt_comm_device(parent->comm), .standalone = true};
	if (color != NCCL_SPLIT_NOCOLOR && !(w->child = new_entry(&desc, &settings))) {
		shunt_entry_put(parent);
		free(w);
		return shunt_group_result(ncclSystemError);
	}
	w->job.run = split_run;
	w->job.finish = split_finish;
	w->job.lane = parent;
	w->entry = parent;
	w->newcomm = newcomm;
	w->color = color;
	w->key = key;
	return start(w, parent->blocking);
}

struct shunt_entry *shunt_alone_find(ncclComm_t comm, const char *what, ncclResult_t *result_p)
{
	struct shunt_entry *e = shunt_entry_get(comm);

	if (!e) {
		*result_p = bad(what, comm ? "not a communicator" : "the communicator is NULL");
		return NULL;
	}
	/* Inside a group several splits of one parent may be waiting. */
	if (atomic_load(&e->own->state) != ncclSuccess && !(shunt_group_open() && atomic_load(&e->ready))) {
		shunt_entry_put(e);
		*result_p = bad(what, "the communicator is not ready, or failed before");
		return NULL;
	}
	return e;
}

static void wait_for_work(struct shunt_own *own)
{
	while (atomic_load(&own->state) == ncclInProgress)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

ncclResult_t shunt_alone_end(ncclComm_t comm, bool abort)
{
	struct shunt_entry *e;

	if (!comm)
		return ncclSuccess;
	e = shunt_entry_get(comm);
	if (!e)
		return bad(abort ? "ncclCommAbort" : "ncclCommDestroy", "not a communicator");
	if (abort) {
		atomic_store(&e->own->cancel, 1);
		shunt_comm_abort(e->comm);
	} else if (!shunt_group_open()) {
		wait_for_work(e->own);
	}
	shunt_entry_put(shunt_entry_remove(comm));
	shunt_entry_put(e);
	return ncclSuccess;
}

ncclResult_t shunt_alone_finalize(ncclComm_t comm)
{
	struct shunt_entry *e;
	ncclResult_t result = ncclSuccess;

	if (!comm)
		return ncclSuccess;
	e = shunt_entry_get(comm);
	if (!e)
		return bad("ncclCommFinalize", "not a communicator");
	wait_for_work(e->own);
	if (atomic_fetch_or(&e->off, SHUNT_OFF_REVOKED) & SHUNT_OFF_REVOKED)
		result = bad("ncclCommFinalize", "called a second time");
	shunt_entry_put(e);
	return result; /* Destroy, which follows, waits for the kernels */
}

ncclResult_t shunt_alone_async_error(ncclComm_t comm, ncclResult_t *state)
{
	struct shunt_entry *e = shunt_entry_get(comm);

	if (!e || !state) {
		shunt_entry_put(e);
		return bad("ncclCommGetAsyncError", "communicator or result is not valid");
	}
	*state = (ncclResult_t)atomic_load(&e->own->state);
	if (*state == ncclSuccess)
		*state = shunt_to_nccl(shunt_comm_error(e->comm));
	shunt_entry_put(e);
	return ncclSuccess;
}

ncclResult_t shunt_alone_declined(struct shunt_entry *e, const struct shunt_coll *c)
{
	enum shunt_why why = SHUNT_WHY_COMM;

	if (shunt_comm_nranks(e->comm) != 1) {
		shunt_comm_path(e->comm, c, &why);
		shunt_warn("%s of %zu %s, %s: not possible without a real NCCL (%s)", shunt_kind_name(c->kind), c->count,
		    shunt_dtype_name(c->dtype), shunt_redop_name(c->redop), shunt_why_name(why));
		return shunt_to_nccl(-EOPNOTSUPP);
	}
	if (c->redop == SHUNT_PREMUL) {
		shunt_warn("reduction of one rank with an operator of the program's: not possible without a real NCCL");
		return shunt_to_nccl(-EOPNOTSUPP);
	}
	if (c->send == c->recv)
		return ncclSuccess;
	return shunt_to_nccl(shunt_gpu()->copy_async(shunt_comm_device(e->comm), c->recv, c->send,
		c->count * shunt_dtype_bytes[c->dtype], c->stream));
}
