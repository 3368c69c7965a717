/* SPDX-License-Identifier: MIT */
/* Queue pairs: creation, states, and posts. */
#include "tools/common/libc.h"
#include "fake.h"

static int check_init(const struct fake_spec *s, const struct ibv_qp_init_attr *init)
{
	if (init->qp_type != IBV_QPT_RC || init->srq)
		return EOPNOTSUPP;
	if (!init->send_cq || !init->recv_cq || init->cap.max_send_wr > s->depth || init->cap.max_recv_wr > s->depth ||
	    init->cap.max_send_sge > s->sges || init->cap.max_recv_sge > s->sges ||
	    init->cap.max_inline_data > s->inline_max)
		return EINVAL;
	return 0;
}

static void qp_free(struct fake_qp *qp)
{
	free(qp->sends);
	free(qp->recvs);
	free(qp);
}

static struct fake_qp *qp_new(struct ibv_pd *pd, const struct ibv_qp_init_attr *init)
{
	struct fake_qp *qp = calloc(1, sizeof(*qp));

	if (!qp)
		return NULL;
	qp->cap = init->cap;
	if (!qp->cap.max_send_wr)
		qp->cap.max_send_wr = 1;
	if (!qp->cap.max_recv_wr)
		qp->cap.max_recv_wr = 1;
	qp->sends = calloc(qp->cap.max_send_wr, sizeof(*qp->sends));
	qp->recvs = calloc(qp->cap.max_recv_wr, sizeof(*qp->recvs));
	if (!qp->sends || !qp->recvs) {
		qp_free(qp);
		return NULL;
	}
	qp->nic = fake_nic_of(pd->context);
	qp->serial = fake_serial();
	qp->sig_all = init->sq_sig_all;
	qp->effects_end = &qp->effects;
	qp->send_completions.end = &qp->send_completions.first;
	qp->recv_completions.end = &qp->recv_completions.first;
	pthread_mutex_init(&qp->send_lock, NULL);
	pthread_mutex_init(&qp->recv_lock, NULL);
	pthread_mutex_init(&qp->verbs.mutex, NULL);
	pthread_cond_init(&qp->verbs.cond, NULL);
	qp->verbs.context = pd->context;
	qp->verbs.qp_context = init->qp_context;
	qp->verbs.pd = pd;
	qp->verbs.send_cq = init->send_cq;
	qp->verbs.recv_cq = init->recv_cq;
	qp->verbs.qp_type = init->qp_type;
	qp->verbs.state = IBV_QPS_RESET;
	return qp;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct fake_nic *nic = fake_nic_of(pd->context);
	int err = check_init(&nic->device->spec, init), entry = -1;
	struct fake_qp *qp = err ? NULL : qp_new(pd, init);

	if (qp)
		entry = fabric_qp_take(nic->nic, nic->ports[0]);
	if (entry < 0) {
		if (qp)
			qp_free(qp);
		errno = err ? err : ENOMEM;
		return NULL;
	}
	qp->entry = (uint32_t)entry;
	qp->shared = &fabric_get()->qps[entry];
	qp->life = atomic_load(&qp->shared->life);
	qp->verbs.qp_num = atomic_load(&qp->shared->number);
	qp->verbs.handle = qp->entry;
	qp->cap.max_inline_data = init->cap.max_inline_data ? nic->device->spec.inline_max : 0; /* drivers raise it */
	init->cap = qp->cap;
	atomic_fetch_add(&((struct fake_cq *)init->send_cq)->users, 1);
	atomic_fetch_add(&((struct fake_cq *)init->recv_cq)->users, 1);
	fake_lock(nic);
	qp->next = nic->qps;
	nic->qps = qp;
	fake_unlock(nic);
	return &qp->verbs;
}

int ibv_destroy_qp(struct ibv_qp *ibv)
{
	struct fake_qp *qp = fake_qp_of(ibv), **at;
	struct fake_nic *nic = qp->nic;
	int err = fake_events_wait(&ibv->mutex, &ibv->events_completed, &qp->events, "ibv_destroy_qp()");

	if (err)
		return err;
	fake_lock(nic);
	fake_qp_reset(qp);
	for (at = &nic->qps; *at != qp; at = &(*at)->next)
		;
	*at = qp->next;
	fake_unlock(nic);
	fabric_qp_give(qp->entry);
	atomic_fetch_sub(&((struct fake_cq *)ibv->send_cq)->users, 1);
	atomic_fetch_sub(&((struct fake_cq *)ibv->recv_cq)->users, 1);
	pthread_mutex_destroy(&qp->send_lock);
	pthread_mutex_destroy(&qp->recv_lock);
	qp_free(qp);
	return 0;
}

int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct fake_qp *qp = fake_qp_of(ibv);

	fake_lock(qp->nic);
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = (enum ibv_qp_state)atomic_load(&qp->state);
	ibv->state = attr->qp_state;
	fake_unlock(qp->nic);
	attr->cap = qp->cap;
	memset(init, 0, sizeof(*init));
	init->qp_context = ibv->qp_context;
	init->send_cq = ibv->send_cq;
	init->recv_cq = ibv->recv_cq;
	init->cap = qp->cap;
	init->qp_type = ibv->qp_type;
	init->sq_sig_all = qp->sig_all;
	return 0;
}

static int check_address(const struct fake_nic *nic, const struct ibv_ah_attr *a)
{
	const struct fake_spec *s = &nic->device->spec;

	if (a->port_num < 1 || a->port_num > s->ports)
		return EINVAL;
	if (s->link_layer == IBV_LINK_LAYER_ETHERNET && !a->is_global)
		return EINVAL;
	if (!a->is_global)
		return a->dlid ? 0 : EINVAL;
	if (a->grh.sgid_index >= FABRIC_GIDS)
		return EINVAL;
	/* As the kernel does with an empty entry. */
	return atomic_load(&fake_port(nic, a->port_num)->gids[a->grh.sgid_index].type) == GID_NONE ? ENODEV : 0;
}

/* Attributes whose values a device refuses. */
static int check_values(struct fake_qp *qp, const struct ibv_qp_attr *a, int mask)
{
	const struct fake_spec *s = &qp->nic->device->spec;
	uint32_t port = mask & IBV_QP_PORT ? a->port_num : qp->attr.port_num;

	if (mask & IBV_QP_PORT && (a->port_num < 1 || a->port_num > s->ports))
		return EINVAL;
	if (mask & IBV_QP_PKEY_INDEX &&
	    (a->pkey_index >= FABRIC_PKEYS || !port || !atomic_load(&fake_port(qp->nic, port)->pkeys[a->pkey_index])))
		return EINVAL;
	if (mask & IBV_QP_PATH_MTU && (a->path_mtu < IBV_MTU_256 || a->path_mtu > IBV_MTU_4096))
		return EINVAL;
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC && a->max_rd_atomic > s->reads)
		return EINVAL;
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC && a->max_dest_rd_atomic > s->reads)
		return EINVAL;
	if ((mask & IBV_QP_TIMEOUT && a->timeout > 31) || (mask & IBV_QP_RETRY_CNT && a->retry_cnt > 7) ||
	    (mask & IBV_QP_RNR_RETRY && a->rnr_retry > 7) || (mask & IBV_QP_MIN_RNR_TIMER && a->min_rnr_timer > 31))
		return EINVAL;
	return mask & IBV_QP_AV ? check_address(qp->nic, &a->ah_attr) : 0;
}

static void take_values(struct ibv_qp_attr *to, const struct ibv_qp_attr *a, int mask)
{
#define TAKE(bit, field) \
	if (mask & (bit)) \
	to->field = a->field
	TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_PORT, port_num);
	TAKE(IBV_QP_AV, ah_attr);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	if (mask & IBV_QP_RQ_PSN)
		to->rq_psn = a->rq_psn & 0xffffff;
	if (mask & IBV_QP_SQ_PSN)
		to->sq_psn = a->sq_psn & 0xffffff;
	if (mask & IBV_QP_DEST_QPN)
		to->dest_qp_num = a->dest_qp_num & 0xffffff;
#undef TAKE
}

/* What peers and the sender look at; and where to begin in the peer's ring. */
static void publish(struct fake_qp *qp)
{
	struct fabric_qp *s = qp->shared;
	const struct ibv_ah_attr *a = &qp->attr.ah_attr;
	struct fabric_port *port = fake_port(qp->nic, a->port_num);
	uint64_t high, low;

	memcpy(&high, a->grh.dgid.raw, 8);
	memcpy(&low, a->grh.dgid.raw + 8, 8);
	atomic_store(&s->port, qp->nic->ports[a->port_num - 1]);
	atomic_store(&s->dest, qp->attr.dest_qp_num);
	atomic_store(&s->mtu, 128u << qp->attr.path_mtu);
	atomic_store(&s->pkey, atomic_load(&port->pkeys[qp->attr.pkey_index]) & 0x7fff);
	atomic_store(&s->dest_lid, a->dlid);
	atomic_store(&s->global, a->is_global);
	atomic_store(&s->sgid_type, a->is_global ? atomic_load(&port->gids[a->grh.sgid_index].type) : GID_NONE);
	atomic_store(&s->dgid_high, high);
	atomic_store(&s->dgid_low, low);
	qp->head = UINT64_MAX;
	atomic_store(&s->ready, FABRIC_QP_READY);
}

static void enter_state(struct fake_qp *qp, enum ibv_qp_state to, enum ibv_qp_state from)
{
	switch (to) {
	case IBV_QPS_RESET:
		fake_qp_reset(qp);
		memset(&qp->attr, 0, sizeof(qp->attr));
		break;
	case IBV_QPS_ERR:
		fake_qp_error(qp);
		break;
	case IBV_QPS_RTR:
		qp->psn_expected = qp->attr.rq_psn;
		publish(qp);
		break;
	case IBV_QPS_RTS:
		if (from != IBV_QPS_RTR)
			break;
		qp->psn_una = qp->psn_next = qp->psn_end = qp->psn_acked = qp->attr.sq_psn;
		qp->retries = qp->attr.retry_cnt;
		qp->rnr_retries = qp->attr.rnr_retry;
		break;
	default:
		break;
	}
	atomic_store(&qp->state, to);
	qp->verbs.state = to;
}

int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
	struct fake_qp *qp = fake_qp_of(ibv);
	enum ibv_qp_state from, to;
	int err;

	fake_lock(qp->nic);
	from = (enum ibv_qp_state)atomic_load(&qp->state);
	to = mask & IBV_QP_STATE ? attr->qp_state : from;
	err = fake_modify_allowed(from, to, mask) ? check_values(qp, attr, mask) : EINVAL;
	if (!err && mask & IBV_QP_CUR_STATE && attr->cur_qp_state != from)
		err = EINVAL;
	if (!err) {
		take_values(&qp->attr, attr, mask);
		enter_state(qp, to, from);
	}
	fake_unlock(qp->nic);
	fabric_ring(qp->nic->nic);
	return err;
}

void fake_qp_error(struct fake_qp *qp)
{
	if (atomic_exchange(&qp->state, IBV_QPS_ERR) == IBV_QPS_ERR)
		return;
	atomic_store(&qp->shared->ready, FABRIC_QP_DEAF);
	fake_land_all(qp);
	fake_requester_flush(qp);
	fake_responder_flush(qp);
}

void fake_qp_reset(struct fake_qp *qp)
{
	atomic_store(&qp->state, IBV_QPS_RESET);
	atomic_store(&qp->shared->ready, FABRIC_QP_DEAF);
	qp->life = atomic_fetch_add(&qp->shared->life, 1) + 1;
	fake_land_all(qp);
	fake_responder_flush(qp);
	fake_completions_drop(qp);
	fake_cq_clean((struct fake_cq *)qp->verbs.send_cq, qp);
	fake_cq_clean((struct fake_cq *)qp->verbs.recv_cq, qp);
	qp->send_done = qp->send_at = qp->send_begun = atomic_load(&qp->send_tail);
	atomic_store(&qp->send_given_back, qp->send_done);
	qp->recv_head = atomic_load(&qp->recv_tail);
	atomic_store(&qp->recv_given_back, qp->recv_head);
	qp->timer = qp->rnr_until = 0;
	qp->reads_out = 0;
	qp->broken = qp->ack_due = qp->nak_sent = qp->refusing = qp->ece_set = false;
	qp->nak = 0;
	qp->write_to = NULL;
	qp->write_mr = NULL;
	memset(qp->cache, 0, sizeof(qp->cache));
}

int ibv_query_ece(struct ibv_qp *ibv, struct ibv_ece *ece)
{
	struct fake_qp *qp = fake_qp_of(ibv);
	const struct fake_spec *s = &qp->nic->device->spec;

	memset(ece, 0, sizeof(*ece));
	if (!s->ece_vendor || fake_hidden("ece"))
		return EOPNOTSUPP;
	fake_lock(qp->nic);
	*ece = qp->ece_set ? qp->ece : (struct ibv_ece){ .vendor_id = s->ece_vendor, .options = s->ece_options };
	fake_unlock(qp->nic);
	return 0;
}

int ibv_set_ece(struct ibv_qp *ibv, struct ibv_ece *ece)
{
	struct fake_qp *qp = fake_qp_of(ibv);
	const struct fake_spec *s = &qp->nic->device->spec;
	int state, err = 0;

	if (!s->ece_vendor || fake_hidden("ece"))
		return EOPNOTSUPP;
	fake_lock(qp->nic);
	state = atomic_load(&qp->state);
	if (ece->vendor_id != s->ece_vendor || (state != IBV_QPS_RESET && state != IBV_QPS_INIT)) {
		err = EINVAL;
	} else {
		qp->ece = *ece;
		qp->ece.options &= s->ece_options;
		qp->ece_set = true;
	}
	fake_unlock(qp->nic);
	return err;
}

int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	return 0;
}

static int check_send(const struct fake_qp *qp, const struct ibv_send_wr *wr, uint64_t *bytes_p)
{
	bool atomic = wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
	bool reads = atomic || wr->opcode == IBV_WR_RDMA_READ;

	if ((unsigned)wr->opcode > IBV_WR_ATOMIC_FETCH_AND_ADD || wr->num_sge < 0 ||
	    (uint32_t)wr->num_sge > qp->cap.max_send_sge)
		return EINVAL;
	*bytes_p = 0;
	for (int i = 0; i < wr->num_sge; i++)
		*bytes_p += wr->sg_list[i].length;
	if (atomic && (wr->num_sge != 1 || *bytes_p != 8))
		return EINVAL;
	if (wr->send_flags & IBV_SEND_INLINE && (reads || *bytes_p > qp->cap.max_inline_data))
		return EINVAL;
	return *bytes_p > 0x40000000 ? EINVAL : 0;
}

static void fill_send(struct fake_send *s, const struct ibv_send_wr *wr, uint64_t bytes)
{
	size_t at = 0;

	s->wr = *wr;
	s->wr.next = NULL;
	s->wr.sg_list = NULL;
	s->bytes = bytes;
	s->begun = false;
	s->got = 0;
	s->read = wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
	    wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
	if (wr->num_sge)
		memcpy(s->sges, wr->sg_list, (size_t)wr->num_sge * sizeof(*wr->sg_list));
	for (int i = 0; wr->send_flags & IBV_SEND_INLINE && i < wr->num_sge; i++) {
		memcpy(s->inline_data + at, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		at += wr->sg_list[i].length;
	}
}

int fake_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad_p)
{
	struct fake_qp *qp = fake_qp_of(ibv);
	int err = 0, state = atomic_load(&qp->state);
	uint64_t tail;

	fake_called();
	if (state != IBV_QPS_RTS && state != IBV_QPS_SQD && state != IBV_QPS_ERR && state != IBV_QPS_SQE) {
		*bad_p = wr;
		return EINVAL;
	}
	pthread_mutex_lock(&qp->send_lock);
	tail = atomic_load_explicit(&qp->send_tail, memory_order_relaxed);
	for (; wr && !err; wr = err ? wr : wr->next) {
		uint64_t bytes;

		err = check_send(qp, wr, &bytes);
		if (!err &&
		    tail - atomic_load_explicit(&qp->send_given_back, memory_order_acquire) >= qp->cap.max_send_wr)
			err = ENOMEM;
		if (err) {
			*bad_p = wr;
			continue;
		}
		fill_send(&qp->sends[tail % qp->cap.max_send_wr], wr, bytes);
		tail++;
	}
	atomic_store_explicit(&qp->send_tail, tail, memory_order_release); /* the doorbell, once for a list */
	pthread_mutex_unlock(&qp->send_lock);
	fabric_ring(qp->nic->nic);
	return err;
}

int fake_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_p)
{
	struct fake_qp *qp = fake_qp_of(ibv);
	int err = 0;

	fake_called();
	if (atomic_load(&qp->state) == IBV_QPS_RESET) {
		*bad_p = wr;
		return EINVAL;
	}
	pthread_mutex_lock(&qp->recv_lock);
	for (; wr && !err; wr = err ? wr : wr->next) {
		uint64_t tail = atomic_load_explicit(&qp->recv_tail, memory_order_relaxed);
		struct fake_recv *r = &qp->recvs[tail % qp->cap.max_recv_wr];

		if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_recv_sge)
			err = EINVAL;
		else if (tail - atomic_load_explicit(&qp->recv_given_back, memory_order_acquire) >= qp->cap.max_recv_wr)
			err = ENOMEM;
		if (err) {
			*bad_p = wr;
			continue;
		}
		r->wr_id = wr->wr_id;
		r->sges = wr->num_sge;
		if (wr->num_sge)
			memcpy(r->sge, wr->sg_list, (size_t)wr->num_sge * sizeof(*wr->sg_list));
		atomic_store_explicit(&qp->recv_tail, tail + 1, memory_order_release);
	}
	pthread_mutex_unlock(&qp->recv_lock);
	fabric_ring(qp->nic->nic);
	return err;
}
