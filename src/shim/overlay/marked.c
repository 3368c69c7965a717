/* SPDX-License-Identifier: MIT */
/*
 * SHUNT_MARKS: calls that return from the real NCCL are marked on the device (comm/observe/marks.h). A table of its
 * own, so that calls without marks pay nothing.
 */
#include "comm/observe/marks.h"
#include "shim/overlay/overlay.h"
#include "shim/real/real.h"

static ncclResult_t (*group_end)(void);

static ncclResult_t marked_coll(struct shunt_thread *thread, struct shunt_coll_call *call)
{
	ncclResult_t result = shunt_overlay_coll(thread, call);

	if (!thread->group.depth)
		shunt_marks_settle(result == ncclSuccess);
	return result;
}

/* The real one. NCCL makes groups of its own inside its functions. */
static ncclResult_t marked_group_end(void)
{
	ncclResult_t result = group_end();

	if (shunt_thread()->inside == 1)
		shunt_marks_settle(result == ncclSuccess);
	return result;
}

/* Where the real group was not opened, nothing is due; a call that failed before its end is not marked. */
static ncclResult_t marked_overlay_group_end(void)
{
	ncclResult_t result = shunt_overlay_GroupEnd();

	if (!shunt_thread()->group.depth)
		shunt_marks_settle(false);
	return result;
}

const struct shunt_mode_ops *shunt_overlay_marked(void)
{
	static struct shunt_mode_ops ops;

	ops = shunt_overlay_ops;
	ops.coll = marked_coll;
	ops.GroupEnd = marked_overlay_group_end;
	group_end = shunt_real.GroupEnd;
	shunt_real.GroupEnd = marked_group_end;
	return &ops;
}
