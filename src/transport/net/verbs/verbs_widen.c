/* SPDX-License-Identifier: MIT */
/*
 * More lanes than one: further QPs of an endpoint, on as many rails, for parts of large puts. Lane i is on rail i
 * modulo the rails, and talks to the peer's lane i. Their addresses go through the first lane once that carries data,
 * as does the news that they can receive; then each proves with a ping that it carries data. A rail that fails ends the
 * endpoint: nothing is sent anew over another one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "transport/net/verbs/verbs_priv.h"

/* The peer's key of the rails is known once it has told of its lanes. */
static int own_memory(struct verbs_endpoint *ep, int rails)
{
	for (int i = 1; i < rails; i++) {
		ep->ping_mr[i] = verbs_mem_own(&ep->device->rail[i], ep->ping, ep->ping_bytes, false);
		if (!ep->ping_mr[i])
			return -ENOMEM;
	}
	return 0;
}

int verbs_lanes_make(struct verbs_endpoint *ep)
{
	int rails = verbs_least(ep->device->nrails, ep->peer.rails), qps = verbs_least(ep->device->qps, ep->peer.qps),
	    err = 0;
	/* An addition to a word would not wait for data on other lanes. */
	int n = ep->adds ? 1 : verbs_least(rails * qps, VERBS_MOST_LANES);

	if (n == 1)
		return 0;
	ep->waiting = calloc(VERBS_WAITING, sizeof(*ep->waiting));
	err = ep->waiting ? own_memory(ep, rails) : -ENOMEM;
	for (int i = 1; i < n && !err; i++)
		err = verbs_lane_make(ep, &ep->lane[i], &ep->device->rail[i % rails]);
	if (!err)
		ep->nlanes = n;
	return err;
}

void verbs_lanes_tell(struct verbs_endpoint *ep)
{
	struct verbs_table *table = &ep->ping->table_sent;
	const struct verbs_device *device = ep->device;

	memset(table, 0, sizeof(*table));
	for (int i = 1; i < device->nrails && ep->ping_mr[i]; i++) {
		int err = verbs_link_of(&ep->device->rail[i], &table->link[i]);

		if (err) {
			verbs_fail(ep, err, "a rail has no address: %s", strerror(-err));
			return;
		}
		table->ping_key[i] = ep->ping_mr[i]->rkey;
	}
	table->link[0] = ep->link;
	for (int i = 1; i < ep->nlanes; i++)
		table->qp[i] = (struct verbs_qp_name){ ep->lane[i].qp->qp_num, ep->lane[i].psn, ep->lane[i].ece };
	ep->state = VERBS_WIDENING;
	verbs_own(ep, VERBS_LANES);
}

void verbs_lanes_told(struct verbs_endpoint *ep)
{
	const struct verbs_table *own = &ep->ping->table_sent, *table = &ep->ping->table_came;

	if (ep->state != VERBS_WIDENING)
		return;
	for (int i = 1; i < ep->nlanes; i++) {
		struct verbs_lane *lane = &ep->lane[i];
		int rail = (int)(lane->rail - ep->device->rail);
		const struct verbs_link *peers = rail ? &table->link[rail] : &ep->peer.link;

		if (!verbs_link_is_valid(peers) || table->qp[i].qpn >> 24 || table->qp[i].psn >> 24) {
			verbs_lane_fail(ep, lane, -EPROTO, "the other end has told no address of a lane");
			return;
		}
		if (rail)
			ep->peer.ping_key[rail] = table->ping_key[rail];
		if (!verbs_lane_connect(ep, lane, &own->link[rail], peers, &table->qp[i]))
			return;
	}
	verbs_own(ep, VERBS_LANES_UP);
}

void verbs_lanes_ping(struct verbs_endpoint *ep)
{
	for (int i = 1; i < ep->nlanes && ep->state == VERBS_WIDENING; i++)
		verbs_lane_write(ep, &ep->lane[i], VERBS_AT(lane_came) + (unsigned)(i - 1) * VERBS_LANE_PING,
		    VERBS_LANE_PING, VERBS_PING);
}

void verbs_lane_ping_came(struct verbs_endpoint *ep, struct verbs_lane *lane)
{
	int i = (int)(lane - ep->lane);
	uint8_t expected[VERBS_LANE_PING];

	verbs_ping_write(ep, true, expected, sizeof(expected));
	if (memcmp(ep->ping->lane_came[i - 1], expected, sizeof(expected))) {
		verbs_lane_fail(ep, lane, -EPROTO, "data came wrong in a first message of %d bytes", VERBS_LANE_PING);
		return;
	}
	ep->lanes_proven |= 1u << i;
	if (ep->lanes_proven == (1u << ep->nlanes) - 2)
		verbs_own(ep, VERBS_LANES_OK);
}
