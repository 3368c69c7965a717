/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <string.h>
#include "base/config.h"
#include "base/hash.h"
#include "base/io.h"
#include "base/log.h"
#include "transport/net/verbs/verbs_priv.h"

/* InfiniBand's code for some 70 ms, and how often: how long the side QP waits until it begins anew. */
#define SIDE_TIMEOUT 14
#define SIDE_RETRIES 3

bool verbs_link_is_valid(const struct verbs_link *link)
{
	bool valid = link->ngids <= SHUNT_GID_MAX_OFFERED && link->mtu >= 1 && link->mtu <= 5;

	for (int i = 0; valid && i < link->ngids; i++)
		valid = link->gids[i].type <= SHUNT_GID_ROCE_V2;
	return valid;
}

int verbs_link_of(struct verbs_rail *rail, struct verbs_link *link_p)
{
	int n;

	memset(link_p, 0, sizeof(*link_p)); /* padding is sent, too */
	n = verbs_gids(rail, link_p->gids);
	if (n < 0)
		return n;
	link_p->lid = rail->attr.lid;
	link_p->pkey = rail->pkey;
	link_p->mtu = (uint8_t)rail->attr.active_mtu;
	link_p->ethernet = rail->attr.link_layer == SHUNT_IBV_LINK_LAYER_ETHERNET;
	link_p->ngids = (uint8_t)n;
	return 0;
}

/* Which addresses the lane has. False: verbs_lane_fail has got an error. */
static bool choose_gids(struct shunt_net_endpoint *ep, struct verbs_lane *lane, const struct verbs_link *own,
    const struct verbs_link *peers)
{
	bool first = memcmp(ep->nonce, ep->peer.nonce, sizeof(ep->nonce)) < 0;
	int i, theirs;

	if (peers->ethernet != own->ethernet) {
		verbs_lane_fail(ep, lane, -EADDRNOTAVAIL, "this end has %s, the other one %s",
		    own->ethernet ? "RoCE" : "InfiniBand", own->ethernet ? "InfiniBand" : "RoCE");
		return false;
	}
	if ((peers->pkey & 0x7fff) != (own->pkey & 0x7fff)) {
		verbs_lane_fail(ep, lane, -EADDRNOTAVAIL,
		    "the partition keys differ, 0x%04x here and 0x%04x there (NCCL_IB_PKEY)", own->pkey, peers->pkey);
		return false;
	}
	lane->has_gid = shunt_gid_choose((struct shunt_gids){ own->gids, own->ngids },
	    (struct shunt_gids){ peers->gids, peers->ngids }, first, &i, &theirs);
	if (lane->has_gid) {
		lane->gid = own->gids[i];
		lane->peer_gid = peers->gids[theirs];
		return true;
	}
	if (!own->ethernet && peers->lid)
		return true;
	verbs_lane_fail(ep, lane, -EADDRNOTAVAIL,
	    "no GID of this end has the version of RoCE and the family of one of the other end (%d here, %d there; "
	    "NCCL_IB_GID_INDEX, NCCL_IB_ADDR_FAMILY, NCCL_IB_ROCE_VERSION_NUM)",
	    own->ngids, peers->ngids);
	return false;
}

static struct verbs_path path_of(const struct shunt_net_endpoint *ep, const struct verbs_lane *lane,
    const struct verbs_link *peers, const struct verbs_qp_name *qp)
{
	const struct shunt_nccl_env *env = shunt_nccl_env();
	const struct verbs_rail *rail = lane->rail;
	bool ethernet = rail->attr.link_layer == SHUNT_IBV_LINK_LAYER_ETHERNET;
	int mtu = rail->attr.active_mtu;
	struct verbs_path path = {
		.qpn = qp->qpn,
		.psn_in = qp->psn,
		.psn_out = lane->psn,
		.mtu = peers->mtu < mtu ? peers->mtu : mtu,
		.timeout = (uint8_t)(env->ib_timeout < 1 || env->ib_timeout > 31 ? 20 : env->ib_timeout),
		.retries = (uint8_t)(env->ib_retry_cnt < 0 || env->ib_retry_cnt > 7 ? 7 : env->ib_retry_cnt),
		.lid = peers->lid,
		.atomics_out = rail->atomics_out < ep->peer.atomics ? rail->atomics_out : ep->peer.atomics,
		.atomics_in = rail->atomics_in,
	};

	if (!lane->has_gid)
		return path;
	/* Within a subnet of InfiniBand the LID is the address. */
	if (ethernet || !peers->lid || memcmp(lane->gid.raw, lane->peer_gid.raw, 8)) {
		path.gid = &lane->peer_gid;
		path.sgid_index = lane->gid.index;
	}
	return path;
}

bool verbs_lane_connect(struct shunt_net_endpoint *ep, struct verbs_lane *lane, const struct verbs_link *own,
    const struct verbs_link *peers, const struct verbs_qp_name *qp)
{
	struct verbs_path path;
	int err;

	if (!choose_gids(ep, lane, own, peers))
		return false;
	err = verbs_ece_set(lane->rail, lane->qp, &lane->ece, &qp->ece);
	if (err) {
		verbs_lane_fail(ep, lane, err,
		    "what both NICs have cannot be set: %s (NCCL_IB_ECE_ENABLE=0 leaves it out)", strerror(-err));
		return false;
	}
	path = path_of(ep, lane, peers, qp);
	err = verbs_qp_connect(lane->rail, lane->qp, &path);
	if (err)
		verbs_lane_fail(ep, lane, err, "cannot connect: %s", strerror(-err));
	return !err;
}

static int connect_side(struct shunt_net_endpoint *ep)
{
	struct verbs_path path = path_of(ep, ep->lane, &ep->peer.link, &ep->peer.qp);

	path.qpn = ep->peer.side_qpn;
	path.timeout = SIDE_TIMEOUT;
	path.retries = SIDE_RETRIES;
	return verbs_qp_connect(ep->device->rail, ep->side, &path);
}

int verbs_endpoint_connect(struct shunt_net_endpoint *ep, const struct shunt_net_blob *theirs)
{
	struct verbs_peer peer;
	int err = verbs_blob_read(theirs, &peer);

	if (err || !memcmp(peer.nonce, ep->nonce, sizeof(ep->nonce))) {
		shunt_error("%s: %s has told no address of a NIC, but that of another version or this end's own",
		    ep->device->rail[0].port->info.where, ep->name);
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
	/* The first lane first: who reaches the side QP can then reach the lane. */
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
		verbs_deadline(ep, shunt_now_ms() + ep->connect_ms);
	return 0;
}

/* The peer's QPs cannot receive yet, or the network does not carry: the side QP begins anew. */
static void probe_again(struct shunt_net_endpoint *ep)
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

void verbs_probe_done(struct shunt_net_endpoint *ep, const struct shunt_ibv_wc *wc)
{
	if (ep->state != VERBS_PROBING)
		return;
	if (wc->status == SHUNT_IBV_WC_SUCCESS)
		verbs_send_ping(ep);
	else if (wc->status == SHUNT_IBV_WC_RETRY_EXC_ERR)
		probe_again(ep);
	else if (wc->status != SHUNT_IBV_WC_WR_FLUSH_ERR)
		verbs_fail(ep, -EIO, "cannot connect: %s", verbs_status(ep->device, wc->status));
}

void verbs_ping_write(const struct shunt_net_endpoint *ep, bool peers, uint8_t *ping, size_t bytes)
{
	const uint8_t *from = peers ? ep->peer.nonce : ep->nonce, *to = peers ? ep->nonce : ep->peer.nonce;
	uint8_t mac[SHUNT_MAC_BYTES];

	shunt_mac(mac, shunt_bytes(ep->key, sizeof(ep->key)), "verbs ping", shunt_bytes(from, sizeof(ep->nonce)),
	    shunt_bytes(to, sizeof(ep->nonce)));
	for (size_t i = 0; i < bytes; i++)
		ping[i] = mac[i % SHUNT_MAC_BYTES] ^ (uint8_t)(i / SHUNT_MAC_BYTES);
}

void verbs_ping_came(struct shunt_net_endpoint *ep)
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
		verbs_send_ping(ep);
	if (ep->state == VERBS_PINGING)
		verbs_own(ep, VERBS_PONG);
}

void verbs_send_ping(struct shunt_net_endpoint *ep)
{
	verbs_ping_write(ep, false, ep->ping->sent, sizeof(ep->ping->sent));
	ep->reached = true;
	ep->state = VERBS_PINGING;
	verbs_own(ep, VERBS_PING);
}

bool verbs_ready(struct shunt_net_endpoint *ep)
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
