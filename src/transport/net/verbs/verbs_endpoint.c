/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/io.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/net/verbs/verbs_priv.h"

#define MAX_ENDPOINTS 1024 /* of a device */

static int take_slot(struct verbs_endpoint *ep)
{
	struct verbs_device *device = ep->device;
	unsigned slot = 0;

	while (slot < device->nslots && device->slots[slot])
		slot++;
	if (slot == MAX_ENDPOINTS)
		return -EMFILE;
	if (slot == device->nslots) {
		void *grown = realloc(device->slots, (slot + 1) * sizeof(*device->slots));

		if (!grown)
			return -ENOMEM;
		device->slots = grown;
		device->nslots++;
	}
	device->slots[slot] = ep;
	ep->id = (uint32_t)slot << 16 | ++device->generation;
	return 0;
}

static int make_side(struct verbs_endpoint *ep)
{
	static const struct shunt_ibv_qp_cap cap = { VERBS_SIDE, VERBS_SIDE, 1, 1, 0 };
	struct verbs_rail *rail = ep->device->rail;
	uint32_t unused;
	int err = verbs_qp_create(rail, verbs_cq_of(ep, rail), &cap, &ep->side, &unused);

	if (!err)
		err = verbs_qp_init(rail, ep->side, false);
	if (err)
		return err;
	err = verbs_receives_post(ep->side, verbs_wr_id(ep->id, VERBS_SIDE_RECEIVE, 0, 0), VERBS_SIDE);
	if (err)
		shunt_error("%s: cannot post receives: %s", rail->port->info.where, strerror(-err));
	return err;
}

static int make(struct verbs_endpoint *ep)
{
	struct verbs_device *device = ep->device;
	int err = take_slot(ep);

	if (err) {
		shunt_error("%s: no more than %d connections", device->rail[0].port->info.where, MAX_ENDPOINTS);
		return err;
	}
	err = shunt_random(ep->nonce, sizeof(ep->nonce));
	if (!err)
		err = verbs_link_of(device->rail, &ep->link);
	if (err)
		return err;
	ep->ping_bytes = sizeof(*ep->ping) + (unsigned)(verbs_lanes_most(device) - 1) * VERBS_LANE_PING;
	/* cppcheck-suppress invalidFunctionArg; without a file it is -1 */
	ep->ping = mmap(NULL, ep->ping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (ep->ping == MAP_FAILED) {
		ep->ping = NULL;
		shunt_error("%s: no memory for a connection: %m", device->rail[0].port->info.where);
		return -ENOMEM;
	}
	ep->ping_mr[0] = verbs_mem_own(device->rail, ep->ping, ep->ping_bytes, ep->adds);
	if (!ep->ping_mr[0])
		return -ENOMEM;
	err = verbs_lane_make(ep, ep->lane, device->rail);
	return err ? err : make_side(ep);
}

static struct verbs_endpoint *allocate(struct verbs_device *device, const struct shunt_net_peer *peer)
{
	struct verbs_endpoint *ep = calloc(1, sizeof(*ep));

	if (!ep)
		return NULL;
	ep->device = device;
	ep->adds = peer->adds;
	ep->nlanes = 1;
	ep->last = VERBS_OWN_CHANNEL;
	for (int i = 0; i < VERBS_RAILS; i++)
		ep->cq[i] = -1;
	ep->signals_allowed = VERBS_SIGNALS;
	ep->lane = calloc((unsigned)verbs_lanes_most(device), sizeof(*ep->lane));
	if (ep->lane && !shunt_net_endpoint_init(&ep->base, peer))
		return ep;
	verbs_endpoint_free(ep);
	return NULL;
}

int verbs_endpoint_create(struct shunt_net_device *net_device, const struct shunt_net_peer *peer,
    struct shunt_net_endpoint **endpoint_p, struct shunt_net_blob *blob_p)
{
	struct verbs_device *device = verbs_device_of(net_device);
	struct verbs_endpoint *ep;
	int err = -ENOMEM;

	if (peer->adds && !device->rail[0].atomics_out) {
		shunt_error("%s: the NIC has no atomics", device->rail[0].port->info.where);
		return -EOPNOTSUPP;
	}
	ep = allocate(device, peer);
	if (ep)
		err = make(ep);
	else
		shunt_error("%s: no memory for a connection", device->rail[0].port->info.where);
	if (err) {
		verbs_endpoint_free(ep);
		return err;
	}
	verbs_blob_write(ep, blob_p);
	*endpoint_p = &ep->base;
	return 0;
}

static void leave_attention(struct verbs_endpoint *ep)
{
	for (struct verbs_endpoint **link = &ep->device->attention; *link; link = &(*link)->next_attention) {
		if (*link == ep) {
			*link = ep->next_attention;
			break;
		}
	}
	ep->in_attention = false;
}

/* Destroys a QP. Reads its async events before: they name the QP. */
static void stop(struct verbs_endpoint *ep, struct shunt_ibv_qp **qp_p)
{
	if (!*qp_p)
		return;
	verbs_async(ep->device);
	ep->device->ibv->destroy_qp(*qp_p);
	*qp_p = NULL;
}

static void stop_lanes(struct verbs_endpoint *ep)
{
	for (int i = 0; ep->lane && i < verbs_lanes_most(ep->device); i++)
		stop(ep, &ep->lane[i].qp);
}

void verbs_endpoint_free(struct verbs_endpoint *ep)
{
	struct verbs_device *device = ep ? ep->device : NULL;

	if (!ep)
		return;
	ep->state = VERBS_DEAD;
	stop_lanes(ep);
	stop(ep, &ep->side);
	verbs_deadline(ep, 0);
	leave_attention(ep);
	for (int i = 0; i < VERBS_RAILS; i++) {
		if (ep->cq[i] >= 0)
			device->rail[i].cqs[ep->cq[i]].endpoints--;
		if (ep->ping_mr[i])
			device->ibv->dereg_mr(ep->ping_mr[i]);
	}
	if (ep->ping)
		munmap(ep->ping, ep->ping_bytes);
	if (verbs_endpoint_find(device, ep->id) == ep)
		device->slots[ep->id >> 16] = NULL;
	free(ep->waiting);
	free(ep->lane);
	shunt_net_endpoint_finish(&ep->base);
	free(ep);
}

void verbs_endpoint_close(struct shunt_net_endpoint *endpoint)
{
	struct verbs_endpoint *ep = verbs_endpoint_of(endpoint);
	bool over;

	if (!ep)
		return;
	over = ep->state == VERBS_READY && verbs_over(ep);
	if (!over) {
		/* Nothing of its memory is touched from here on, and nothing is told. */
		ep->state = VERBS_DEAD;
		stop_lanes(ep);
		verbs_bye(ep);
	}
	ep->error_untold = false;
	leave_attention(ep);
	if (over ? ep->end_done : !ep->bye_sent || ep->bye_done) {
		verbs_endpoint_free(ep);
		return;
	}
	ep->state = VERBS_LINGERING;
	verbs_deadline(ep, shunt_now_ms() + VERBS_LINGER_MS);
}
