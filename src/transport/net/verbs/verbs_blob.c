/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <string.h>
#include "transport/net/verbs/verbs_priv.h"

/* The blob of an endpoint for its peer. Both have the byte order of one machine: GPUs' hosts are little endian. */
struct blob {
	char magic[4];
	uint8_t version, atomics, rails, qps;
	uint32_t side_qpn, ping_key;
	uint64_t ping_at;
	struct verbs_qp_name qp;
	uint8_t nonce[16];
	struct verbs_link link;
};
_Static_assert(sizeof(struct blob) <= SHUNT_NET_BLOB_BYTES, "fewer GIDs");

static const char magic[4] = { 's', 'v', 'b', 's' };
#define VERSION 2

void verbs_blob_write(const struct verbs_endpoint *ep, struct shunt_net_blob *blob_p)
{
	const struct verbs_device *device = ep->device;
	struct blob blob;

	memset(&blob, 0, sizeof(blob)); /* padding is sent, too */
	memcpy(blob.magic, magic, sizeof(magic));
	blob.version = VERSION;
	blob.atomics = ep->adds ? device->rail[0].atomics_in : 0;
	blob.rails = (uint8_t)device->nrails;
	blob.qps = (uint8_t)device->qps;
	blob.side_qpn = ep->side->qp_num;
	blob.ping_at = (uintptr_t)ep->ping->came;
	blob.ping_key = ep->ping_mr[0]->rkey;
	blob.qp = (struct verbs_qp_name){ ep->lane->qp->qp_num, ep->lane->psn, ep->lane->ece };
	blob.link = ep->link;
	memcpy(blob.nonce, ep->nonce, sizeof(blob.nonce));
	*blob_p = (struct shunt_net_blob){ 0 };
	memcpy(blob_p, &blob, sizeof(blob));
}

int verbs_blob_read(const struct shunt_net_blob *bytes, struct verbs_peer *peer_p)
{
	struct blob blob;

	memcpy(&blob, bytes, sizeof(blob));
	if (memcmp(blob.magic, magic, sizeof(magic)) || blob.version != VERSION || !verbs_link_is_valid(&blob.link) ||
	    blob.qp.qpn >> 24 || blob.side_qpn >> 24 || blob.qp.psn >> 24 || !blob.rails || !blob.qps)
		return -EPROTO;
	*peer_p = (struct verbs_peer){ .link = blob.link,
		.qp = blob.qp,
		.side_qpn = blob.side_qpn,
		.atomics = blob.atomics,
		.rails = blob.rails,
		.qps = blob.qps,
		.ping_at = blob.ping_at,
		.ping_key = { blob.ping_key } };
	memcpy(peer_p->nonce, blob.nonce, sizeof(blob.nonce));
	return 0;
}
