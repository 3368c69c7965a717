/* SPDX-License-Identifier: MIT */
/* Masked ranks: words in the device's memory, which kernels look at in every wait. And the barrier that sets them. */
#include <errno.h>
#include "comm/ep/group_priv.h"
#include "kernels/work.h"

static int check_masks(const struct shunt_ep_group *g, const char *call)
{
	struct shunt_ep_why why = { "" };

	return g->room.flags & SHUNT_EP_MASKS ?
	    0 :
	    shunt_ep_group_refuse(
	        g, call, shunt_ep_refuse(&why, -EINVAL, "the group was made without SHUNT_EP_MASKS"), &why);
}

static unsigned ordinal_of(const struct shunt_ep_group *g, int rank)
{
	return g->room.hosts ? g->room.hosts->ordinal_of[rank] : (unsigned)rank;
}

/* On the device. The masks of ranks that follow each other mostly do so, too. */
static uint32_t *mask_of(const struct shunt_ep_group *g, int rank)
{
	struct shunt_ep_ctrl *ctrl = shunt_ep_group_ctrl(g);
	unsigned ordinal = ordinal_of(g, rank);

	return ordinal < (unsigned)shunt_comm_local_ranks(g->comm) ? &ctrl->mask[ordinal] : &ctrl->far_mask[ordinal];
}

/* The rank is waited for again; the next time that it does not come, the log says so, unless it has gone. */
static void expect(struct shunt_ep_group *g, int rank)
{
	unsigned ordinal = ordinal_of(g, rank);

	__atomic_store_n(shunt_ep_group_told(g, ordinal), 0, __ATOMIC_RELEASE);
	if (!(__atomic_load_n(&g->comm->words->gone, __ATOMIC_ACQUIRE) >> ordinal & 1))
		atomic_fetch_and(&g->comm->missed, ~(UINT64_C(1) << rank));
}

int shunt_ep_group_mask(struct shunt_ep_group *g, int rank, int masked, void *stream)
{
	struct shunt_ep_why why = { "" };
	int err = check_masks(g, "ep_mask");

	if (!err && (err = shunt_ep_check_range(&why, "rank", rank, 0, g->room.nranks - 1)))
		shunt_ep_group_refuse(g, "ep_mask", err, &why);
	if (!err)
		err = shunt_ep_group_enter(g);
	if (err)
		return err;
	if (!masked)
		expect(g, rank);
	/* The lowest byte of a word: no memory of the host has to last until it runs. */
	err = g->comm->gpu->memset_async(g->comm->device, mask_of(g, rank), masked != 0, 1, stream);
	shunt_ep_group_leave(g);
	return err;
}

int shunt_ep_group_masks(struct shunt_ep_group *g, int32_t *masks, void *stream)
{
	struct shunt_ep_why why = { "" };
	int err = check_masks(g, "ep_masks");

	if (!err && !masks)
		err = shunt_ep_group_refuse(g, "ep_masks", shunt_ep_refuse(&why, -EINVAL, "masks is NULL"), &why);
	if (!err)
		err = shunt_ep_group_enter(g);
	if (err)
		return err;
	for (int r = 0, n; r < g->room.nranks && !err; r += n) {
		for (n = 1; r + n < g->room.nranks && mask_of(g, r + n) == mask_of(g, r) + n; n++)
			;
		err = g->comm->gpu->copy_async(
		    g->comm->device, masks + r, mask_of(g, r), (size_t)n * sizeof(*masks), stream);
	}
	shunt_ep_group_leave(g);
	return err;
}

int shunt_ep_group_masks_clear(struct shunt_ep_group *g, void *stream)
{
	struct shunt_ep_ctrl *ctrl = shunt_ep_group_ctrl(g);
	int err = check_masks(g, "ep_masks_clear");

	if (!err)
		err = shunt_ep_group_enter(g);
	if (err)
		return err;
	for (int r = 0; r < g->room.nranks; r++)
		expect(g, r);
	err = g->comm->gpu->memset_async(g->comm->device, ctrl->mask, 0, sizeof(ctrl->mask), stream);
	if (!err && g->room.hosts)
		err = g->comm->gpu->memset_async(g->comm->device, ctrl->far_mask, 0, sizeof(ctrl->far_mask), stream);
	shunt_ep_group_leave(g);
	return err;
}

int shunt_ep_group_barrier(struct shunt_ep_group *g, void *stream)
{
	struct shunt_comm_call call = { "ep_barrier", 0, stream };
	struct shunt_work work = { .kernel = SHUNT_KERNEL(
		                       g->room.hosts ? SHUNT_SHAPE_ep_barrier_hosts : SHUNT_SHAPE_ep_barrier, 0,
		                       SHUNT_U8),
		.blocks = 1,
		.threads = 32 };
	int err = shunt_ep_group_enter(g);

	if (err)
		return err;
	if (g->room.flags & SHUNT_EP_MASKS)
		work.args.k.flags = SHUNT_K_EP_MASKS;
	err = shunt_ep_group_run(g, &call, &work);
	shunt_ep_group_leave(g);
	return err;
}
