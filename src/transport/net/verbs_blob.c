/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <string.h>
#include "transport/net/verbs_priv.h"

/* What an endpoint tells its peer. Both have the byte order of one machine: GPUs' hosts are little endian. */
struct blob {
	char magic[4];
	uint8_t version, mtu, ethernet, ngids;
	uint32_t qpn, side_qpn, psn;
	uint16_t lid, pkey;
	uint64_t ping_at;
	uint32_t ping_key;
	uint8_t nonce[16];
	uint8_t atomics, pad[3];
	uint32_t ece_vendor, ece_options;
	uint8_t gids[SHUNT_GID_MAX_OFFERED][17]; /* the address and its type */
};
_Static_assert(sizeof(struct blob) <= SHUNT_NET_BLOB_BYTES, "fewer GIDs");

static const char magic[4] = { 's', 'v', 'b', 's' };
#define VERSION 2

void verbs_blob_write(const struct shunt_net_endpoint *ep, struct shunt_net_blob *blob_p)
{
	const struct verbs_rail *rail = ep->device->rail;
	struct blob blob = {
		.version = VERSION,
		.mtu = (uint8_t)rail->attr.active_mtu,
		.ethernet = rail->attr.link_layer == SHUNT_IBV_LINK_LAYER_ETHERNET,
		.ngids = (uint8_t)ep->ngids,
		.qpn = ep->qp->qp_num,
		.side_qpn = ep->side->qp_num,
		.psn = ep->psn,
		.lid = rail->attr.lid,
		.pkey = rail->pkey,
		.ping_at = (uintptr_t)ep->ping->came,
		.ping_key = ep->ping_mr->rkey,
		.atomics = ep->adds ? rail->atomics_in : 0,
		.ece_vendor = ep->ece.vendor_id,
		.ece_options = ep->ece.options,
	};

	memcpy(blob.magic, magic, sizeof(magic));
	memcpy(blob.nonce, ep->nonce, sizeof(blob.nonce));
	for (int i = 0; i < ep->ngids; i++) {
		memcpy(blob.gids[i], ep->gids[i].raw, 16);
		blob.gids[i][16] = ep->gids[i].type;
	}
	*blob_p = (struct shunt_net_blob){ 0 };
	memcpy(blob_p, &blob, sizeof(blob));
}

int verbs_blob_read(const struct shunt_net_blob *bytes, struct verbs_peer *peer_p)
{
	struct blob blob;

	memcpy(&blob, bytes, sizeof(blob));
	if (memcmp(blob.magic, magic, sizeof(magic)) || blob.version != VERSION || blob.ngids > SHUNT_GID_MAX_OFFERED ||
	    blob.mtu < 1 || blob.mtu > 5 || blob.qpn >> 24 || blob.side_qpn >> 24 || blob.psn >> 24)
		return -EPROTO;
	*peer_p = (struct verbs_peer){ .qpn = blob.qpn,
		.side_qpn = blob.side_qpn,
		.psn = blob.psn,
		.lid = blob.lid,
		.pkey = blob.pkey,
		.mtu = blob.mtu,
		.ethernet = blob.ethernet,
		.ngids = blob.ngids,
		.ping_at = blob.ping_at,
		.ping_key = blob.ping_key,
		.atomics = blob.atomics,
		.ece = { .vendor_id = blob.ece_vendor, .options = blob.ece_options } };
	memcpy(peer_p->nonce, blob.nonce, sizeof(blob.nonce));
	for (int i = 0; i < blob.ngids; i++) {
		if (blob.gids[i][16] > SHUNT_GID_ROCE_V2)
			return -EPROTO;
		memcpy(peer_p->gids[i].raw, blob.gids[i], 16);
		peer_p->gids[i].type = blob.gids[i][16];
	}
	return 0;
}
