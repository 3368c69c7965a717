/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include "base/log.h"
#include "shim/calls/thread.h"
#include "shim/nccl/result.h"
#include "shim/standalone/lookup.h"
#include "shim/standalone/task.h"

ncclResult_t shunt_standalone_refuse(const char *what, const char *reason)
{
	shunt_warn("%s: %s", what, reason);
	return shunt_group_result(shunt_to_nccl(-EINVAL));
}

static void warn_no_launch_order(void)
{
	static atomic_bool logged;

	if (!atomic_exchange(&logged, true))
		shunt_warn("NCCL_LAUNCH_ORDER_IMPLICIT, or launchOrderImplicit, does nothing without a real NCCL: use "
		           "communicators in the same order on all ranks");
}

struct shunt_entry *shunt_standalone_new(const struct shunt_comm_desc *desc, const struct shunt_comm_config *config)
{
	struct shunt_standalone_comm *scomm = shunt_standalone_comm_create();
	struct shunt_comm_desc d = *desc;

	d.takes_all = d.joined = true;
	if (config->in_order)
		warn_no_launch_order();
	return scomm ? shunt_entry_create(&d, config, scomm) : NULL;
}

ncclResult_t shunt_standalone_refuse_parents(const char *what)
{
	return shunt_standalone_refuse(
	    what, "the communicator is that of the parent of this process, which cannot use it; make one after fork()");
}

struct shunt_entry *shunt_standalone_find(ncclComm_t comm, const char *what, ncclResult_t *result_p)
{
	struct shunt_entry *e = shunt_entry_get(comm);
	ncclResult_t state;

	if (!e) {
		shunt_warn("%s: %s", what, comm ? "not a communicator" : "the communicator is NULL");
		*result_p = shunt_to_nccl(-EINVAL);
		return NULL;
	}
	if (!shunt_entry_is_ours(e)) {
		shunt_entry_put(e);
		*result_p = shunt_standalone_refuse_parents(what);
		return NULL;
	}
	state = shunt_task_state(e);
	/* In a group several splits of one parent may wait for the group's end. */
	if (state == ncclSuccess || (state == ncclInProgress && shunt_group_open() && shunt_task_is_queued(e->scomm)))
		return e;
	if (state == ncclInProgress) {
		shunt_warn("%s: " SHUNT_NOT_READY, what);
		state = shunt_to_nccl(-EINVAL);
	} else {
		shunt_warn_again("%s: the communicator has failed before; abort it", what);
	}
	shunt_entry_put(e);
	*result_p = state;
	return NULL;
}

ncclResult_t shunt_standalone_check(ncclComm_t comm, const char *what)
{
	struct shunt_entry *e = shunt_entry_get(comm);
	bool ours;

	if (!e)
		return shunt_standalone_refuse(what, comm ? "not a communicator" : "the communicator is NULL");
	ours = shunt_entry_is_ours(e);
	shunt_entry_put_async(e);
	return ours ? ncclSuccess : shunt_standalone_refuse_parents(what);
}
