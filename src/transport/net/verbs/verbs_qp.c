/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <string.h>
#include "base/config.h"
#include "base/log.h"
#include "transport/net/verbs/verbs_priv.h"

int verbs_qp_create(struct verbs_rail *rail, struct shunt_ibv_cq *cq, const struct shunt_ibv_qp_cap *cap,
    struct shunt_ibv_qp **qp_p, uint32_t *inline_p)
{
	struct shunt_ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .cap = *cap, .qp_type = SHUNT_IBV_QPT_RC };
	struct shunt_ibv_qp *qp = rail->ibv->create_qp(rail->pd, &attr);

	if (!qp && cap->max_inline_data) {
		attr = (struct shunt_ibv_qp_init_attr){
			.send_cq = cq, .recv_cq = cq, .cap = *cap, .qp_type = SHUNT_IBV_QPT_RC
		};
		attr.cap.max_inline_data = 0;
		qp = rail->ibv->create_qp(rail->pd, &attr);
	}
	if (!qp) {
		int err = errno ? errno : EIO;

		shunt_error("%s: cannot create a queue pair with %u sends and %u receives: %s%s",
		    rail->port->info.where, cap->max_send_wr, cap->max_recv_wr, strerror(err),
		    err == ENOMEM ? "; raise the limit of locked memory (ulimit -l)" : "");
		return -err;
	}
	*inline_p = attr.cap.max_inline_data;
	*qp_p = qp;
	return 0;
}

static int modify(
    struct verbs_rail *rail, struct shunt_ibv_qp *qp, struct shunt_ibv_qp_attr *attr, int mask, const char *what)
{
	int err = rail->ibv->modify_qp(qp, attr, mask);

	if (!err)
		return 0;
	err = err < 0 ? errno : err;
	shunt_error("%s: a queue pair cannot %s: %s", rail->port->info.where, what, strerror(err));
	return -(err ? err : EIO);
}

int verbs_qp_state(struct verbs_rail *rail, struct shunt_ibv_qp *qp, int state)
{
	struct shunt_ibv_qp_attr attr = { .qp_state = state };

	return modify(rail, qp, &attr, SHUNT_IBV_QP_STATE, "be stopped");
}

int verbs_qp_init(struct verbs_rail *rail, struct shunt_ibv_qp *qp, bool adds)
{
	struct shunt_ibv_qp_attr attr = {
		.qp_state = SHUNT_IBV_QPS_INIT,
		.pkey_index = (uint16_t)shunt_nccl_env()->ib_pkey,
		.port_num = (uint8_t)rail->port->number,
		.qp_access_flags = SHUNT_IBV_ACCESS_LOCAL_WRITE | SHUNT_IBV_ACCESS_REMOTE_WRITE |
		    SHUNT_IBV_ACCESS_REMOTE_READ | (adds ? SHUNT_IBV_ACCESS_REMOTE_ATOMIC : 0),
	};

	return modify(rail, qp, &attr,
	    SHUNT_IBV_QP_STATE | SHUNT_IBV_QP_PKEY_INDEX | SHUNT_IBV_QP_PORT | SHUNT_IBV_QP_ACCESS_FLAGS,
	    "begin (NCCL_IB_PKEY)");
}

/* The value of a setting, cut to the range of its field. */
static uint8_t bounded(int value, int low, int high)
{
	return (uint8_t)(value < low ? low : value > high ? high : value);
}

int verbs_qp_connect(struct verbs_rail *rail, struct shunt_ibv_qp *qp, const struct verbs_path *path)
{
	const struct shunt_nccl_env *env = shunt_nccl_env();
	struct shunt_ibv_qp_attr attr = {
		.qp_state = SHUNT_IBV_QPS_RTR,
		.path_mtu = path->mtu,
		.dest_qp_num = path->qpn,
		.rq_psn = path->psn_in,
		.max_dest_rd_atomic = path->atomics_in ? path->atomics_in : 1,
		.min_rnr_timer = 12,
		.ah_attr = { .dlid = path->lid,
		    .sl = bounded(env->ib_sl, 0, 15),
		    .port_num = (uint8_t)rail->port->number },
	};
	int err;

	if (path->gid) {
		memcpy(attr.ah_attr.dgid, path->gid->raw, 16);
		attr.ah_attr.is_global = 1;
		attr.ah_attr.sgid_index = path->sgid_index;
		attr.ah_attr.hop_limit = 255;
		attr.ah_attr.traffic_class = bounded(env->ib_tc, 0, 255);
	}
	err = modify(rail, qp, &attr,
	    SHUNT_IBV_QP_STATE | SHUNT_IBV_QP_AV | SHUNT_IBV_QP_PATH_MTU | SHUNT_IBV_QP_DEST_QPN | SHUNT_IBV_QP_RQ_PSN |
	        SHUNT_IBV_QP_MAX_DEST_RD_ATOMIC | SHUNT_IBV_QP_MIN_RNR_TIMER,
	    "receive (NCCL_IB_GID_INDEX names another GID)");
	if (err)
		return err;
	attr = (struct shunt_ibv_qp_attr){
		.qp_state = SHUNT_IBV_QPS_RTS,
		.timeout = path->timeout,
		.retry_cnt = path->retries,
		.rnr_retry = 7, /* for ever */
		.sq_psn = path->psn_out,
		.max_rd_atomic = path->atomics_out ? path->atomics_out : 1,
	};
	return modify(rail, qp, &attr,
	    SHUNT_IBV_QP_STATE | SHUNT_IBV_QP_TIMEOUT | SHUNT_IBV_QP_RETRY_CNT | SHUNT_IBV_QP_RNR_RETRY |
	        SHUNT_IBV_QP_SQ_PSN | SHUNT_IBV_QP_MAX_QP_RD_ATOMIC,
	    "send");
}

int verbs_receives_post(struct shunt_ibv_qp *qp, uint64_t wr_id, int n)
{
	struct shunt_ibv_recv_wr wr[VERBS_BATCH], *bad;

	while (n) {
		int now = n < VERBS_BATCH ? n : VERBS_BATCH, err;

		for (int i = 0; i < now; i++)
			wr[i] = (struct shunt_ibv_recv_wr){ .wr_id = wr_id, .next = i + 1 < now ? &wr[i + 1] : NULL };
		err = qp->context->post_recv(qp, wr, &bad);
		if (err)
			return err < 0 ? -EIO : -err;
		n -= now;
	}
	return 0;
}

int verbs_cq_take(struct verbs_rail *rail)
{
	int each = VERBS_CQ_ENTRIES(rail->device->qps), i = 0, entries;

	rail->cq_endpoints = (rail->max_cqe - VERBS_MAX_GPU_MEMORY) / each;
	if (rail->cq_endpoints > VERBS_CQ_ENDPOINTS)
		rail->cq_endpoints = VERBS_CQ_ENDPOINTS;
	entries = rail->cq_endpoints * each + VERBS_MAX_GPU_MEMORY;
	while (i < rail->ncqs && rail->cqs[i].endpoints == rail->cq_endpoints)
		i++;
	if (i == VERBS_MAX_CQS) {
		shunt_error("%s: no more than %d completion queues", rail->port->info.where, i);
		return -EMFILE;
	}
	if (i == rail->ncqs) {
		rail->cqs[i].cq = rail->ibv->create_cq(rail->context, entries, NULL, rail->channel, 0);
		if (!rail->cqs[i].cq) {
			int err = errno ? errno : EIO;

			shunt_error("%s: cannot create a completion queue of %d entries: %s%s", rail->port->info.where,
			    entries, strerror(err),
			    err == ENOMEM ? "; raise the limit of locked memory (ulimit -l)" : "");
			return -err;
		}
		rail->ncqs++;
	}
	rail->cqs[i].endpoints++;
	return i;
}
