/* SPDX-License-Identifier: MIT */
/* Operators that the program creates. Shunt keeps their meaning, under the program's number. */
#include <errno.h>
#include <string.h>
#include "base/log.h"
#include "shim/group.h"
#include "shim/overlay/pending_child.h"
#include "shim/nccl/real.h"
#include "shim/nccl/result.h"
#include "shim/standalone/standalone.h"

/* A host scalar is read now, a device scalar whenever a kernel runs. */
static struct shunt_user_op describe_op(
    ncclRedOp_t op, const void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence)
{
	struct shunt_user_op user = { .op = op, .dtype = dtype, .on_device = residence == ncclScalarDevice };

	if (user.on_device)
		user.scalar = (uintptr_t)scalar;
	else
		memcpy(&user.scalar, scalar, shunt_dtype_bytes[dtype]); /* little endian: the low bytes */
	return user;
}

static ncclResult_t redop_create_standalone(
    ncclRedOp_t *op, const void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence, ncclComm_t comm)
{
	struct shunt_user_op user;
	struct shunt_entry *e;
	ncclResult_t result;

	e = shunt_standalone_find(comm, "ncclRedOpCreatePreMulSum", &result);
	if (!e)
		return result;
	if (!op || !scalar || (unsigned)dtype >= SHUNT_NDTYPES ||
	    (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)) {
		if (!op || !scalar)
			shunt_warn(
			    "ncclRedOpCreatePreMulSum: the %s is NULL", op ? "factor" : "place for the operator");
		else
			shunt_warn("ncclRedOpCreatePreMulSum: data type %d or residence %d does not exist", (int)dtype,
			    (int)residence);
		result = shunt_to_nccl(-EINVAL);
	} else {
		if (e->scomm->next_op == ncclMaxRedOp)
			e->scomm->next_op = ncclNumOps;
		user = describe_op((ncclRedOp_t)e->scomm->next_op, scalar, dtype, residence);
		result = shunt_to_nccl(shunt_entry_op_add(e, &user));
		if (result == ncclSuccess) {
			e->scomm->next_op++;
			*op = user.op;
		}
	}
	shunt_entry_put(e);
	return result;
}

ncclResult_t pncclRedOpCreatePreMulSum(
    ncclRedOp_t *op, void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence, ncclComm_t comm)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_user_op user;
	struct shunt_entry *e;
	ncclResult_t result;

	if (mode == SHUNT_STANDALONE)
		return redop_create_standalone(op, scalar, dtype, residence, comm);
	if (!op && mode == SHUNT_OVERLAY) { /* NCCL writes to it without a check */
		shunt_warn("ncclRedOpCreatePreMulSum: the place for the operator is NULL");
		return shunt_group_result(shunt_to_nccl(-EINVAL));
	}
	result = real_RedOpCreatePreMulSum(op, scalar, dtype, residence, comm);
	if (mode != SHUNT_OVERLAY || result != ncclSuccess || (unsigned)dtype >= SHUNT_NDTYPES)
		return result;
	e = shunt_entry_find(comm);
	if (!e)
		return result;
	user = describe_op(*op, scalar, dtype, residence);
	if (shunt_entry_op_add(e, &user)) {
		/* An error, because otherwise this rank alone would forward the calls that use the operator. */
		real_RedOpDestroy(*op, comm);
		result = shunt_to_nccl(-ENOMEM);
	}
	shunt_entry_put(e);
	return result;
}
SHUNT_WEAK_ALIAS(RedOpCreatePreMulSum);

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	enum shunt_mode mode = shunt_mode();
	struct shunt_entry *e;
	ncclResult_t result;
	bool known;

	if (mode == SHUNT_PASSTHROUGH)
		return real_RedOpDestroy(op, comm);
	if (mode == SHUNT_STANDALONE) {
		e = shunt_standalone_find(comm, "ncclRedOpDestroy", &result);
		if (!e)
			return result;
		known = shunt_entry_op_remove(e, op);
		shunt_entry_put(e);
		if (!known)
			shunt_warn("ncclRedOpDestroy: operator %d does not belong to the communicator", (int)op);
		return known ? ncclSuccess : shunt_to_nccl(-EINVAL);
	}
	e = shunt_entry_find(comm);
	known = e && shunt_entry_op_remove(e, op);
	shunt_entry_put(e);
	/* A recorded call may still have to be forwarded with this operator. */
	if (known && shunt_group_open() && shunt_group_defer_op_destroy(op, comm))
		return ncclSuccess;
	return real_RedOpDestroy(op, comm);
}
SHUNT_WEAK_ALIAS(RedOpDestroy);
