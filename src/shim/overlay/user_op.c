/* SPDX-License-Identifier: MIT */
/* Overlay: operators that the program creates. Shunt keeps their meaning, under the real NCCL's number. */
#include <errno.h>
#include "base/log.h"
#include "shim/real/real.h"
#include "shim/nccl/result.h"
#include "shim/overlay/real_group.h"
#include "shim/overlay/overlay.h"
#include "shim/overlay/pending_child.h"
#include "shim/calls/thread.h"

ncclResult_t shunt_overlay_RedOpCreatePreMulSum(
    ncclRedOp_t *op, void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence, ncclComm_t comm)
{
	struct shunt_user_op user;
	struct shunt_entry *e;
	ncclResult_t result;
	int err;

	if (!op) { /* NCCL writes to it without a check */
		shunt_warn("ncclRedOpCreatePreMulSum: the place for the operator is NULL");
		return shunt_group_result(shunt_to_nccl(-EINVAL));
	}
	result = real_RedOpCreatePreMulSum(op, scalar, dtype, residence, comm);
	e = result == ncclSuccess && (unsigned)dtype < SHUNT_NDTYPES ? shunt_entry_find(comm) : NULL;
	if (!e)
		return result;
	user = shunt_user_op_describe(*op, scalar, dtype, residence);
	err = shunt_entry_op_add(e, &user);
	if (err) {
		/* An error, because otherwise this rank alone would forward the calls that use the operator. */
		real_RedOpDestroy(*op, comm);
		result = shunt_to_nccl(err);
	}
	shunt_entry_put(e);
	return result;
}

ncclResult_t shunt_overlay_RedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	struct shunt_group *group = shunt_group_open();
	struct shunt_entry *e = shunt_entry_find(comm);
	struct shunt_user_op user;
	bool known = e && shunt_entry_op_remove(e, op, &user);

	shunt_entry_put(e);
	if (known && user.own)
		return ncclSuccess; /* NCCL does not know it */
	/* A recorded call may still have to be forwarded with this operator. */
	if (known && group && shunt_group_defer_op_destroy(group, op, comm))
		return ncclSuccess;
	return real_RedOpDestroy(op, comm);
}
