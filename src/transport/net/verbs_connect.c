/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <string.h>
#include "base/config.h"
#include "base/hash.h"
#include "base/io.h"
#include "base/log.h"
#include "transport/net/verbs_priv.h"

/* InfiniBand's code for some 70 ms, and how often: how long the side QP waits until it begins anew. */
#define SIDE_TIMEOUT 14
#define SIDE_RETRIES 3

/* Which addresses and packets the connection has. 0, or an error that verbs_fail has got. */
static int choose_path(struct shunt_net_endpoint *ep)
{
	const struct verbs_rail *rail = ep->device->rail;
	const struct verbs_peer *peer = &ep->peer;
	bool ethernet = rail->attr.link_layer == SHUNT_IBV_LINK_LAYER_ETHERNET, first;
	int own, theirs;

	if (peer->ethernet != ethernet) {
		verbs_fail(ep, -EADDRNOTAVAIL, "this end has %s, the other one %s", ethernet ? "RoCE" : "InfiniBand",
		    ethernet ? "InfiniBand" : "RoCE");
		return -EADDRNOTAVAIL;
	}
	if ((peer->pkey & 0x7fff) != (rail->pkey & 0x7fff)) {
		verbs_fail(ep, -EADDRNOTAVAIL, "the partition keys differ, 0x%04x here and 0x%04x there (NCCL_IB_PKEY)",
		    rail->pkey, peer->pkey);
		return -EADDRNOTAVAIL;
	}
	if (ep->adds != (peer->atomics != 0)) {
		verbs_fail(ep, -EPROTO, "%s end wants additions to words, the other one does not (SHUNT_IBV_MODE)",
		    ep->adds ? "this" : "the other");
		return -EPROTO;
	}
	first = memcmp(ep->nonce, peer->nonce, sizeof(ep->nonce)) < 0;
	if (shunt_gid_choose((struct shunt_gids){ ep->gids, ep->ngids }, (struct shunt_gids){ peer->gids, peer->ngids },
	        first, &own, &theirs)) {
		ep->gid = own;
		ep->peer_gid = theirs;
		return 0;
	}
	if (!ethernet && peer->lid)
		return 0;
	verbs_fail(ep, -EADDRNOTAVAIL,
	    "no GID of this end has the version of RoCE and the family of one of the other end (%d here, %d there; "
	    "NCCL_IB_GID_INDEX, NCCL_IB_ADDR_FAMILY, NCCL_IB_ROCE_VERSION_NUM)",
	    ep->ngids, peer->ngids);
	return -EADDRNOTAVAIL;
}

/* The path of the main QP. */
static struct verbs_path main_path(const struct shunt_net_endpoint *ep)
{
	const struct shunt_nccl_env *env = shunt_nccl_env();
	const struct verbs_rail *rail = ep->device->rail;
	bool ethernet = rail->attr.link_layer == SHUNT_IBV_LINK_LAYER_ETHERNET;
	int mtu = rail->attr.active_mtu;
	struct verbs_path path = {
		.qpn = ep->peer.qpn,
		.psn_in = ep->peer.psn,
		.psn_out = ep->psn,
		.mtu = ep->peer.mtu < mtu ? ep->peer.mtu : mtu,
		.timeout = (uint8_t)(env->ib_timeout < 1 || env->ib_timeout > 31 ? 20 : env->ib_timeout),
		.retries = (uint8_t)(env->ib_retry_cnt < 0 || env->ib_retry_cnt > 7 ? 7 : env->ib_retry_cnt),
		.lid = ep->peer.lid,
		.atomics_out = rail->atomics_out < ep->peer.atomics ? rail->atomics_out : ep->peer.atomics,
		.atomics_in = rail->atomics_in,
	};

	if (ep->gid < 0)
		return path;
	/* Within a subnet of InfiniBand the LID is the address. */
	if (ethernet || !ep->peer.lid || memcmp(ep->gids[ep->gid].raw, ep->peer.gids[ep->peer_gid].raw, 8)) {
		path.gid = &ep->peer.gids[ep->peer_gid];
		path.sgid_index = ep->gids[ep->gid].index;
	}
	return path;
}

static int connect_side(struct shunt_net_endpoint *ep)
{
	struct verbs_path path = main_path(ep);

	path.qpn = ep->peer.side_qpn;
	path.timeout = SIDE_TIMEOUT;
	path.retries = SIDE_RETRIES;
	return verbs_qp_connect(ep->device->rail, ep->side, &path);
}

int verbs_endpoint_connect(struct shunt_net_endpoint *ep, const struct shunt_net_blob *theirs)
{
	struct verbs_path path;
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
	if (choose_path(ep))
		return 0;
	path = main_path(ep);
	/* The main QP first: who reaches the side one can then reach the main one. */
	err = verbs_ece_set(ep->device->rail, ep->qp, &ep->ece, &peer.ece);
	if (err) {
		verbs_fail(ep, err, "what both NICs have cannot be set: %s (NCCL_IB_ECE_ENABLE=0 leaves it out)",
		    strerror(-err));
		return 0;
	}
	err = verbs_qp_connect(ep->device->rail, ep->qp, &path);
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
		err =
		    verbs_receives_post(ep->side, verbs_wr_id(ep->id, VERBS_SIDE_RECEIVE, ep->side_round), VERBS_SIDE);
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

/* What a ping says: who has the key, and has got both blobs, can say it; and a pattern in each of its packets. */
static void write_ping(const struct shunt_net_endpoint *ep, bool peers, uint8_t *ping)
{
	const uint8_t *from = peers ? ep->peer.nonce : ep->nonce, *to = peers ? ep->nonce : ep->peer.nonce;
	uint8_t mac[SHUNT_MAC_BYTES];

	shunt_mac(mac, shunt_bytes(ep->key, sizeof(ep->key)), "verbs ping", shunt_bytes(from, sizeof(ep->nonce)),
	    shunt_bytes(to, sizeof(ep->nonce)));
	for (size_t i = 0; i < VERBS_PING_BYTES; i++)
		ping[i] = mac[i % SHUNT_MAC_BYTES] ^ (uint8_t)(i / SHUNT_MAC_BYTES);
}

void verbs_ping_came(struct shunt_net_endpoint *ep)
{
	const uint8_t *came = ep->ping->came;
	uint8_t expected[VERBS_PING_BYTES];

	if (ep->ping_came || (ep->state != VERBS_PROBING && ep->state != VERBS_PINGING))
		return;
	write_ping(ep, true, expected);
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
	write_ping(ep, false, ep->ping->sent);
	ep->reached = true;
	ep->state = VERBS_PINGING;
	verbs_own(ep, VERBS_PING);
}

bool verbs_ready(struct shunt_net_endpoint *ep)
{
	if (ep->state != VERBS_PINGING || !ep->ping_came || !ep->pong_came || !ep->pong_sent)
		return false;
	ep->state = VERBS_READY;
	verbs_deadline(ep, 0);
	return true;
}
