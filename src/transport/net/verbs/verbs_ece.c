/* SPDX-License-Identifier: MIT */
/*
 * Enhancements of the connection (ECE): what NICs of one vendor can do beyond the specification, such as another way to
 * send again. Each end tells what its NIC has, as bits that the vendor alone knows, and both set what they have in
 * common.
 */
#include <errno.h>
#include "base/config.h"
#include "transport/net/verbs/verbs_priv.h"

struct shunt_ibv_ece verbs_ece_of(const struct verbs_rail *rail, struct shunt_ibv_qp *qp)
{
	const struct shunt_ibv *ibv = rail->ibv;
	struct shunt_ibv_ece ece = { 0 };

	if (!shunt_nccl_env()->ib_ece_enable || !ibv->query_ece || !ibv->set_ece || ibv->query_ece(qp, &ece))
		return (struct shunt_ibv_ece){ 0 };
	return ece;
}

int verbs_ece_set(const struct verbs_rail *rail, struct shunt_ibv_qp *qp, const struct shunt_ibv_ece *own,
    const struct shunt_ibv_ece *peers)
{
	struct shunt_ibv_ece common = { .vendor_id = own->vendor_id, .options = own->options & peers->options };
	int err;

	if (!own->vendor_id || own->vendor_id != peers->vendor_id)
		return 0;
	err = rail->ibv->set_ece(qp, &common);
	return err < 0 ? -EIO : -err;
}
