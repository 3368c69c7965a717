/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <string.h>
#include "base/hash.h"
#include "base/io.h"
#include "base/log.h"
#include "transport/net/verbs/verbs_priv.h"

/* InfiniBand's code for some 70 ms, and how often: how long the side QP waits until it begins anew. */
#define SIDE_TIMEOUT 14
#define SIDE_RETRIES 3

static int connect_side(struct verbs_endpoint *ep)
{
	struct verbs_path path = verbs_path_of(ep, ep->lane, &ep->peer.link, &ep->peer.qp);

	path.qpn = ep->peer.side_qpn;
	path.timeout = SIDE_TIMEOUT;
	path.retries = SIDE_RETRIES;
	return verbs_qp_connect(ep->device->rail, ep->side, &path);
}

int verbs_endpoint_connect(struct shunt_net_endpoint *endpoint, const struct shunt_net_blob *theirs)
{
	struct verbs_endpoint *ep = verbs_endpoint_of(endpoint);
	struct verbs_peer peer;
	int err = verbs_blob_read(theirs, &peer);

	if (err || !memcmp(peer.nonce, ep->nonce, sizeof(ep->nonce))) {
		shunt_error("%s: %s has told no address of a NIC, but that of another version or this end's own",
		    ep->device->rail[0].port->info.where, ep->base.name);
		return -EPROTO;
	}
	ep->peer = peer;
	ep->device->touched = true;
	ep->state = VERBS_PROBING;
	if (ep->adds != (peer.atomics != 0)) {
		verbs_fail(ep, -EPROTO, "%s end wants additions to words, the other one does not (SHUNT_IBV_MODE)",
		    ep->adds ? "this" : "the other");
		return 0;
	}
	/* Connect the first lane before the side QP: a peer that reaches the side QP can then reach the lane. */
	if (!verbs_lane_connect(ep, ep->lane, &ep->link, &ep->peer.link, &ep->peer.qp))
		return 0;
	err = verbs_lanes_make(ep);
	if (!err)
		err = connect_side(ep);
	if (!err)
		err = verbs_side_send(ep, 0);
	if (err)
		verbs_fail(ep, err, "cannot connect: %s", strerror(-err));
	else
		verbs_deadline(ep, shunt_now_ms() + ep->base.connect_ms);
	return 0;
}

/* The peer's QPs cannot receive yet, or the network does not carry: the side QP begins anew. */
static void probe_again(struct verbs_endpoint *ep)
{
	int err = verbs_qp_state(ep->device->rail, ep->side, SHUNT_IBV_QPS_RESET);

	ep->side_round++;
	if (!err)
		err = verbs_qp_init(ep->device->rail, ep->side, false);
	if (!err)
		err = verbs_receives_post(
		    ep->side, verbs_wr_id(ep->id, VERBS_SIDE_RECEIVE, 0, ep->side_round), VERBS_SIDE);
	if (!err)
		err = connect_side(ep);
	if (!err)
		err = verbs_side_send(ep, 0);
	if (err)
		verbs_fail(ep, err, "cannot connect: %s", strerror(-err));
}

static void send_ping(struct verbs_endpoint *ep)
{
	verbs_ping_write(ep, false, ep->ping->sent, sizeof(ep->ping->sent));
	ep->reached = true;
	ep->state = VERBS_PINGING;
	verbs_own(ep, VERBS_PING);
}

void verbs_probe_done(struct verbs_endpoint *ep, const struct shunt_ibv_wc *wc)
{
	if (ep->state != VERBS_PROBING)
		return;
	if (wc->status == SHUNT_IBV_WC_SUCCESS)
		send_ping(ep);
	else if (wc->status == SHUNT_IBV_WC_RETRY_EXC_ERR)
		probe_again(ep);
	else if (wc->status != SHUNT_IBV_WC_WR_FLUSH_ERR)
		verbs_fail(ep, -EIO, "cannot connect: %s", verbs_status(ep->device, wc->status));
}

void verbs_ping_came(struct verbs_endpoint *ep)
{
	const uint8_t *came = ep->ping->came;
	uint8_t expected[VERBS_PING_BYTES];

	if (ep->ping_came || (ep->state != VERBS_PROBING && ep->state != VERBS_PINGING))
		return;
	verbs_ping_write(ep, true, expected, sizeof(expected));
	if (!shunt_mac_equal(came, expected)) {
		verbs_fail(ep, -EACCES, "the other end has another key: it belongs to another job");
		return;
	}
	if (memcmp(came, expected, sizeof(expected))) {
		verbs_fail(ep, -EPROTO, "data came wrong in a first message of %d bytes", VERBS_PING_BYTES);
		return;
	}
	if (ep->adds && __atomic_load_n(&ep->ping->proof, __ATOMIC_ACQUIRE) != VERBS_PROOF) {
		verbs_fail(ep, -EPROTO, "an addition to a word did not come in front of a first message");
		return;
	}
	ep->ping_came = true;
	if (ep->state == VERBS_PROBING)
		send_ping(ep);
	if (ep->state == VERBS_PINGING)
		verbs_own(ep, VERBS_PONG);
}

bool verbs_ready(struct verbs_endpoint *ep)
{
	if (ep->state == VERBS_PINGING) {
		if (!ep->ping_came || !ep->pong_came || !ep->pong_sent)
			return false;
		if (ep->nlanes > 1) {
			verbs_lanes_tell(ep);
			return false;
		}
	} else if (ep->state != VERBS_WIDENING || !ep->lanes_ok || !ep->ok_sent) {
		return false;
	}
	ep->state = VERBS_READY;
	verbs_deadline(ep, 0);
	return true;
}
