/* SPDX-License-Identifier: MIT */
/* Standalone: operators that the program creates. */
#include <errno.h>
#include "base/log.h"
#include "shim/nccl/result.h"
#include "shim/standalone/lookup.h"
#include "shim/standalone/standalone.h"

ncclResult_t shunt_standalone_RedOpCreatePreMulSum(
    ncclRedOp_t *op, void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence, ncclComm_t comm)
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
		user = shunt_user_op_describe((ncclRedOp_t)e->scomm->next_op, scalar, dtype, residence);
		result = shunt_to_nccl(shunt_entry_op_add(e, &user));
		if (result == ncclSuccess) {
			e->scomm->next_op++;
			*op = user.op;
		}
	}
	shunt_entry_put(e);
	return result;
}

ncclResult_t shunt_standalone_RedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	struct shunt_user_op user;
	struct shunt_entry *e;
	ncclResult_t result;
	bool known;

	e = shunt_standalone_find(comm, "ncclRedOpDestroy", &result);
	if (!e)
		return result;
	known = shunt_entry_op_remove(e, op, &user);
	shunt_entry_put(e);
	if (!known)
		shunt_warn("ncclRedOpDestroy: operator %d does not belong to the communicator", (int)op);
	return known ? ncclSuccess : shunt_to_nccl(-EINVAL);
}
