/* SPDX-License-Identifier: MIT */
/*
 * The functions of shunt/shunt.h that take a handle. They look the handle up as overlay does, in both modes: in
 * standalone no handle is pending, and every rank is known.
 */
#include <errno.h>
#include <string.h>
#include "algos/algo.h"
#include "base/config.h"
#include "base/log.h"
#include "comm/observe/dump.h"
#include "plan/exec/exec.h"
#include "shim/calls/call_args.h"
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

static bool valid(const struct shunt_numerics *numerics)
{
	return numerics && numerics->size >= sizeof(*numerics) && (numerics->e4m3b15 & ~1) == 0 &&
	    numerics->accumulate >= SHUNT_ACCUMULATE_DEFAULT && numerics->accumulate <= SHUNT_ACCUMULATE_OWN;
}

int shunt_comm_numerics(const void *comm, const struct shunt_numerics *numerics)
{
	struct shunt_entry *e;
	int err, accumulate;

	if (!valid(numerics))
		return -EINVAL;
	if (shunt_group_of(shunt_thread()))
		return -EBUSY;
	e = find((ncclComm_t)comm);
	if (!e)
		return -ENOENT;
	accumulate = numerics->accumulate ? numerics->accumulate : (int)shunt_config()->accumulate;
	err = shunt_attach_takes_calls(e, (ncclComm_t)comm) ? shunt_comm_join_due(e->comm) : -EOPNOTSUPP;
	if (!err)
		err = shunt_comm_set_numerics(e->comm, numerics->e4m3b15, accumulate);
	if (!err)
		shunt_entry_set_numerics(e, numerics->e4m3b15, accumulate);
	shunt_entry_put(e);
	return err;
}

/* The reason why the type has no such numbers, or NULL. */
static const char *no_numbers(const struct shunt_numerics *numerics, enum shunt_dtype dtype)
{
	if (numerics->e4m3b15 && dtype != SHUNT_U8)
		return "e4m3b15 stands for ncclUint8";
	if (shunt_format_of(dtype, numerics->e4m3b15, numerics->accumulate) < 0)
		return "its range is larger than that of fp16: accumulate in fp32 or own";
	if (numerics->accumulate > SHUNT_ACCUMULATE_FP32 &&
	    !shunt_dtype_is_format((enum shunt_dtype)shunt_format_of(dtype, numerics->e4m3b15, numerics->accumulate)))
		return "only 8- and 16-bit floats have a choice of accumulators";
	return NULL;
}

int shunt_redop_create(const void *comm, int redop, int dtype, const struct shunt_numerics *numerics, int *redop_p)
{
	struct shunt_user_op op = { 0 };
	struct shunt_entry *e;
	const char *why;
	int err = 0;

	if (!valid(numerics) || !redop_p || (unsigned)dtype >= SHUNT_NDTYPES || redop < 0)
		return -EINVAL;
	e = find((ncclComm_t)comm);
	if (!e)
		return -ENOENT;
	op.base = (ncclRedOp_t)redop;
	op.redop = (enum shunt_redop)redop;
	if (redop >= ncclNumOps && (!shunt_entry_op_find(e, op.base, &op) || (int)op.dtype != dtype || op.own)) {
		shunt_warn("shunt_redop_create: operator %d is none of this communicator's for %s", redop,
		    shunt_dtype_name((enum shunt_dtype)dtype));
		err = -EINVAL;
	} else if ((why = no_numbers(numerics, (enum shunt_dtype)dtype))) {
		shunt_warn("shunt_redop_create: %s: %s", shunt_dtype_name((enum shunt_dtype)dtype), why);
		err = -EINVAL;
	} else {
		op.dtype = (ncclDataType_t)dtype;
		op.own = true;
		op.e4m3b15 = numerics->e4m3b15;
		op.accumulate = numerics->accumulate;
		do {
			shunt_mutex_lock(&e->lock);
			op.op = (ncclRedOp_t)(SHUNT_FIRST_OWN_OP + e->own_ops++);
			shunt_mutex_unlock(&e->lock);
			err = shunt_entry_op_add(e, &op);
		} while (err == -EEXIST); /* a number of NCCL's */
		*redop_p = (int)op.op;
	}
	shunt_entry_put(e);
	return err;
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
	struct shunt_coll_call call = { .dtype = (ncclDataType_t)dtype, .op = (ncclRedOp_t)redop };
	struct shunt_coll *c = &call.coll;
	struct shunt_entry *e;
	struct shunt_decision decision = { 0 };
	int kind;

	if (!op || !path_p)
		return -EINVAL;
	kind = shunt_kind_find(op, strlen(op));
	if (kind < 0 || (unsigned)dtype >= SHUNT_NDTYPES || redop < 0)
		return -EINVAL;
	*c = (struct shunt_coll){ .kind = (enum shunt_kind)kind, .dtype = (enum shunt_dtype)dtype, .count = count };
	e = find((ncclComm_t)comm);
	if (!e)
		return -ENOENT;
	if (!shunt_kind_reduces(c->kind))
		call.op = ncclSum;
	if (shunt_attach_takes_calls(e, (ncclComm_t)comm)) {
		/* An operator that nobody has created: as if somebody had. */
		if (!shunt_call_resolve(e, &call))
			c->redop = redop >= SHUNT_PREMUL ? SHUNT_PREMUL : (enum shunt_redop)redop;
		shunt_comm_decide(e->comm, c, &decision);
	}
	*path_p = decision.path ? decision.path : "nccl";
	shunt_entry_put(e);
	return 0;
}
