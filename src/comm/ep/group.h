/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * An expert parallel group (shunt/ep.h): a communicator of its own, which runs no collectives and has the group's
 * memory as its scratch (kernels/ep.h). So its set-up, its order on streams, deaths of its ranks, its error, recorder,
 * dumps and end are those of every communicator.
 *
 * Functions return what shunt/ep.h says, and log. Any thread, except for create and destroy; the caller sees to it that
 * a group is not destroyed while another thread uses it.
 */
#include <stdatomic.h>
#include "base/id.h"
#include "shunt/ep.h"

struct shunt_ep_group;
struct shunt_hosts;

struct shunt_ep_desc {
	struct shunt_id id; /* of this group only */
	int rank, nranks, device;
	const struct shunt_ep_config *config; /* flags, bytes, topk, timeout */
	/*
	 * Waits until all ranks have made their sockets; *hosts_p: theirs (transport/rendezvous/host_table.h), or NULL
	 * for one. 0, or an error that all ranks get.
	 */
	int (*come_together)(void *ctx, struct shunt_hosts **hosts_p);
	void *ctx;
};
int shunt_ep_group_create(const struct shunt_ep_desc *desc, struct shunt_ep_group **group_p);
/* Over hosts not where nothing of the group runs on this rank. */
void shunt_ep_group_abort(struct shunt_ep_group *g);
/* Waits for the group's launches unless it was aborted. */
void shunt_ep_group_destroy(struct shunt_ep_group *g);
int shunt_ep_group_hosts(const struct shunt_ep_group *g);
int shunt_ep_group_error(struct shunt_ep_group *g, char *text, size_t bytes);

int shunt_ep_group_mask(struct shunt_ep_group *g, int rank, int masked, void *stream);
int shunt_ep_group_masks(struct shunt_ep_group *g, int32_t *masks, void *stream);
int shunt_ep_group_masks_clear(struct shunt_ep_group *g, void *stream);
int shunt_ep_group_barrier(struct shunt_ep_group *g, void *stream);
int shunt_ep_group_layout(struct shunt_ep_group *g, const struct shunt_ep_layout *call);
int shunt_ep_group_notify(struct shunt_ep_group *g, const struct shunt_ep_notify *call, uint64_t *ticket_p);
int shunt_ep_group_counts(struct shunt_ep_group *g, uint64_t ticket, int32_t *rows_p, int32_t *experts);
int shunt_ep_group_dispatch(struct shunt_ep_group *g, const struct shunt_ep_dispatch *call);
int shunt_ep_group_combine(struct shunt_ep_group *g, const struct shunt_ep_combine *call);
int shunt_ep_group_ll_dispatch(struct shunt_ep_group *g, const struct shunt_ep_ll_dispatch *call);
int shunt_ep_group_ll_combine(struct shunt_ep_group *g, const struct shunt_ep_ll_combine *call);
