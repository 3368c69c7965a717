/* SPDX-License-Identifier: MIT */
/* Low latency calls: checked, put in order, launched. */
#include "algos/ep/low_latency.h"
#include <errno.h>
#include "comm/ep/group_priv.h"
#include "kernels/work.h"

/* The host's account of a call that is about to be launched. With the lock. */
static int account(struct shunt_ep_group *g, int kind, const struct shunt_work *work, struct shunt_ep_why *why)
{
	struct shunt_ep_under_way *u = &g->under_way[kind];
	uint32_t phases = work->args.k.flags & (SHUNT_K_EP_SEND | SHUNT_K_EP_RECEIVE);
	uint64_t key = work->args.ep_ll.key;

	if (phases & SHUNT_K_EP_SEND && !shunt_ep_under_way_send(u, key))
		return shunt_ep_refuse(why, -EDEADLK,
		    "two calls were sent before and the first of them is not received yet; at most two may be under "
		    "way");
	if (phases & SHUNT_K_EP_RECEIVE && !shunt_ep_under_way_receive(u, key))
		return shunt_ep_refuse(why, -EINVAL, "no call with this %s was sent that is not received yet",
		    kind == SHUNT_EP_DISPATCH ? "recv_x" : "out");
	return 0;
}

static int run(struct shunt_ep_group *g, int kind, const char *name, void *stream, struct shunt_work *work)
{
	struct shunt_comm_call call = { name, work->args.ep_ll.hidden, stream };
	enum shunt_capture capture = SHUNT_CAPTURE_NONE;
	struct shunt_ep_why why = { "" };
	struct shunt_ep_under_way before;
	int err = shunt_ep_group_enter(g);

	if (err)
		return err;
	before = g->under_way[kind];
	err = g->comm->gpu->stream_capture(g->comm->device, stream, &capture);
	if (!err && capture != SHUNT_CAPTURE_NONE)
		g->under_way[kind].captured = true;
	else if (!err && (err = account(g, kind, work, &why)))
		shunt_ep_group_refuse(g, name, err, &why);
	if (!err)
		err = shunt_ep_group_run(g, &call, work);
	if (err) /* nothing was launched: the same call may be made again */
		g->under_way[kind] = before;
	shunt_ep_group_leave(g);
	return err;
}

int shunt_ep_group_ll_dispatch(struct shunt_ep_group *g, const struct shunt_ep_ll_dispatch *call)
{
	struct shunt_work work;
	struct shunt_ep_why why = { "" };
	int err = shunt_ep_ll_dispatch_work(&g->room, call, &work, &why);

	return err ? shunt_ep_group_refuse(g, "ep_ll_dispatch", err, &why) :
	             run(g, SHUNT_EP_DISPATCH, "ep_ll_dispatch", call->stream, &work);
}

int shunt_ep_group_ll_combine(struct shunt_ep_group *g, const struct shunt_ep_ll_combine *call)
{
	struct shunt_work work;
	struct shunt_ep_why why = { "" };
	int err = shunt_ep_ll_combine_work(&g->room, call, &work, &why);

	return err ? shunt_ep_group_refuse(g, "ep_ll_combine", err, &why) :
	             run(g, SHUNT_EP_COMBINE, "ep_ll_combine", call->stream, &work);
}
