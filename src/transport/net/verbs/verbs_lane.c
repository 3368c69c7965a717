/* SPDX-License-Identifier: MIT */
/*
 * One lane: its QP is made, and connected with the peer's.
 *
 * Enhancements of the connection (ECE) are features of one vendor's NICs beyond the specification, such as another way
 * to retransmit. Each end tells what its NIC has, as bits that the vendor alone knows, and both set what they have in
 * common.
 */
#include <errno.h>
#include <string.h>
#include "base/config.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/net/verbs/verbs_priv.h"

/* The vendor features that the NIC has for a QP in its first state; vendor 0: none. */
static struct shunt_ibv_ece ece_of(const struct verbs_rail *rail, struct shunt_ibv_qp *qp)
{
	const struct shunt_ibv *ibv = rail->ibv;
	struct shunt_ibv_ece ece = { 0 };

	if (!shunt_nccl_env()->ib_ece_enable || !ibv->query_ece || !ibv->set_ece || ibv->query_ece(qp, &ece))
		return (struct shunt_ibv_ece){ 0 };
	return ece;
}

/* Has the QP use what both ends have; before it can receive. 0 or -errno (not logged). */
static int set_ece(const struct verbs_rail *rail, struct shunt_ibv_qp *qp, const struct shunt_ibv_ece *own,
    const struct shunt_ibv_ece *peers)
{
	struct shunt_ibv_ece common = { .vendor_id = own->vendor_id, .options = own->options & peers->options };
	int err;

	if (!own->vendor_id || own->vendor_id != peers->vendor_id)
		return 0;
	err = rail->ibv->set_ece(qp, &common);
	return err < 0 ? -EIO : -err;
}

struct shunt_ibv_cq *verbs_cq_of(struct verbs_endpoint *ep, struct verbs_rail *rail)
{
	int *cq = &ep->cq[rail - ep->device->rail];

	if (*cq < 0)
		*cq = verbs_cq_take(rail);
	return *cq < 0 ? NULL : rail->cqs[*cq].cq;
}

int verbs_lane_make(struct verbs_endpoint *ep, struct verbs_lane *lane, struct verbs_rail *rail)
{
	static const struct shunt_ibv_qp_cap cap = { VERBS_SENDS, VERBS_RECEIVES, 1, 1, VERBS_INLINE };
	struct shunt_ibv_cq *cq = verbs_cq_of(ep, rail);
	int index = (int)(lane - ep->lane), err = cq ? 0 : -ENOMEM;
	uint32_t inline_bytes;

	lane->rail = rail;
	if (!err)
		err = shunt_random(&lane->psn, sizeof(lane->psn));
	lane->psn &= 0xffffff;
	if (!err)
		err = verbs_qp_create(rail, cq, &cap, &lane->qp, &inline_bytes);
	if (!err)
		err = verbs_qp_init(rail, lane->qp, ep->adds);
	if (err)
		return err;
	if (!index)
		ep->inline_bytes = inline_bytes;
	lane->ece = ece_of(rail, lane->qp);
	err = verbs_receives_post(lane->qp, verbs_wr_id(ep->id, VERBS_RECEIVE, index, 0), VERBS_RECEIVES);
	if (err)
		shunt_error("%s: cannot post receives: %s", rail->port->info.where, strerror(-err));
	return err;
}

/* Which addresses the lane has. False: verbs_lane_fail has got an error. */
static bool choose_gids(
    struct verbs_endpoint *ep, struct verbs_lane *lane, const struct verbs_link *own, const struct verbs_link *peers)
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

struct verbs_path verbs_path_of(const struct verbs_endpoint *ep, const struct verbs_lane *lane,
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

bool verbs_lane_connect(struct verbs_endpoint *ep, struct verbs_lane *lane, const struct verbs_link *own,
    const struct verbs_link *peers, const struct verbs_qp_name *qp)
{
	struct verbs_path path;
	int err;

	if (!choose_gids(ep, lane, own, peers))
		return false;
	err = set_ece(lane->rail, lane->qp, &lane->ece, &qp->ece);
	if (err) {
		verbs_lane_fail(ep, lane, err,
		    "what both NICs have cannot be set: %s (NCCL_IB_ECE_ENABLE=0 leaves it out)", strerror(-err));
		return false;
	}
	path = verbs_path_of(ep, lane, peers, qp);
	err = verbs_qp_connect(lane->rail, lane->qp, &path);
	if (err)
		verbs_lane_fail(ep, lane, err, "cannot connect: %s", strerror(-err));
	return !err;
}

void verbs_ping_write(const struct verbs_endpoint *ep, bool peers, uint8_t *ping, size_t bytes)
{
	const uint8_t *from = peers ? ep->peer.nonce : ep->nonce, *to = peers ? ep->nonce : ep->peer.nonce;
	uint8_t mac[SHUNT_MAC_BYTES];

	shunt_mac(mac, shunt_bytes(ep->base.key, sizeof(ep->base.key)), "verbs ping",
	    shunt_bytes(from, sizeof(ep->nonce)), shunt_bytes(to, sizeof(ep->nonce)));
	for (size_t i = 0; i < bytes; i++)
		ping[i] = mac[i % SHUNT_MAC_BYTES] ^ (uint8_t)(i / SHUNT_MAC_BYTES);
}
