/* SPDX-License-Identifier: MIT */
/*
 * The functions of shunt/shunt.h that take a handle. They look the handle up as overlay does, in both modes: in
 * standalone no handle is pending, and every rank is known.
 */
#include <errno.h>
#include <string.h>
#include "algos/algo.h"
#include "comm/observe/dump.h"
#include "plan/exec/exec.h"
#include "shim/calls/thread.h"
#include "shim/overlay/attach.h"
#include "shim/overlay/pending_child.h"
#include "shim/real/real.h"
#include "shunt/shunt.h"

/*
 * The object by which libshunt_api.so.0 recognizes this library (src/shim/api/loader.c); 0 is the number of its SONAME.
 */
SHUNT_API extern const unsigned shunt_state_0;
const unsigned shunt_state_0 = 1;

/* NULL: none of this process. */
static struct shunt_entry *find(ncclComm_t comm)
{
	struct shunt_entry *e = shunt_entry_find(comm);

	if (!e || shunt_entry_is_ours(e))
		return e;
	shunt_entry_put(e);
	return NULL;
}

int shunt_counters(const void *comm, struct shunt_counter *rows, size_t cap, size_t *count_p)
{
	struct shunt_entry *e;

	if (!count_p || (!rows && cap))
		return -EINVAL;
	e = find((ncclComm_t)comm);
	if (!e)
		return -ENOENT;
	*count_p = shunt_comm_counters(e->comm, rows, cap);
	shunt_entry_put(e);
	return 0;
}

int shunt_comm_list(void **comms, size_t cap, size_t *count_p)
{
	if (!count_p || (!comms && cap))
		return -EINVAL;
	*count_p = shunt_entry_list((ncclComm_t *)comms, cap);
	return 0;
}

int shunt_comm_describe(const void *comm, struct shunt_comm_info *info)
{
	struct shunt_entry *e;

	if (!info || info->size < sizeof(*info))
		return -EINVAL;
	e = find((ncclComm_t)comm);
	if (!e)
		return -ENOENT;
	shunt_attach_takes_calls(e, (ncclComm_t)comm); /* the real NCCL may know its rank by now */
	shunt_comm_info(e->comm, info);
	shunt_entry_put(e);
	return 0;
}

int shunt_plan_run(const void *comm, const struct shunt_plan_run *run)
{
	struct shunt_plan_call call;
	struct shunt_entry *e;
	int err;

	if (!run || run->size < sizeof(*run) || !run->name || (unsigned)run->dtype >= SHUNT_NDTYPES || run->redop < 0 ||
	    run->redop >= SHUNT_PREMUL)
		return -EINVAL;
	if (shunt_group_of(shunt_thread()))
		return -EBUSY;
	e = find((ncclComm_t)comm);
	if (!e)
		return -ENOENT;
	call = (struct shunt_plan_call){ .send = run->send,
		.recv = run->recv,
		.send_bytes = run->send_bytes,
		.recv_bytes = run->recv_bytes,
		.dtype = (enum shunt_dtype)run->dtype,
		.redop = (enum shunt_redop)run->redop,
		.stream = run->stream };
	err = shunt_attach_takes_calls(e, (ncclComm_t)comm) ? shunt_comm_join_due(e->comm) : -EOPNOTSUPP;
	if (!err)
		err = shunt_comm_run_plan(e->comm, run->name, &call);
	shunt_entry_put(e);
	return err;
}

int shunt_dump(const char *dir, char *path, size_t bytes)
{
	return dir && path && bytes ? shunt_dump_file(dir, "asked", path, bytes) : -EINVAL;
}

int shunt_path_of(const void *comm, const char *op, size_t count, int dtype, int redop, const char **path_p)
{
	struct shunt_coll c = { .dtype = (enum shunt_dtype)dtype, .redop = (enum shunt_redop)redop, .count = count };
	struct shunt_entry *e;
	struct shunt_decision decision = { 0 };
	int kind;

	if (!op || !path_p)
		return -EINVAL;
	kind = shunt_kind_find(op, strlen(op));
	if (kind < 0 || (unsigned)dtype >= SHUNT_NDTYPES || redop < 0)
		return -EINVAL;
	c.kind = (enum shunt_kind)kind;
	if (redop >= SHUNT_PREMUL)
		c.redop = SHUNT_PREMUL;
	e = find((ncclComm_t)comm);
	if (!e)
		return -ENOENT;
	if (shunt_attach_takes_calls(e, (ncclComm_t)comm))
		shunt_comm_decide(e->comm, &c, &decision);
	*path_p = decision.path ? decision.path : "nccl";
	shunt_entry_put(e);
	return 0;
}
