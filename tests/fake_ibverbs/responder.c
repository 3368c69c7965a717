/* SPDX-License-Identifier: MIT */
/*
 * The receiving half of a reliable connection: checks requests, turns them into effects (land.c), and answers. What
 * comes twice is acknowledged twice and has its effect once; an atomic's answer comes again from a cache.
 */
#include <stdlib.h>
#include <string.h>
#include "fake.h"

static struct fake_effect *effect(struct fake_qp *qp, enum fake_effect_kind kind, uint32_t bytes)
{
	struct fake_effect *e = calloc(1, sizeof(*e) + bytes + 8);

	if (!e)
		abort(); /* a test without memory */
	e->kind = kind;
	e->bytes = bytes;
	e->cqe.qp = qp;
	return e;
}

static void add_data(struct fake_qp *qp, char *to, const struct fake_mr *mr, const char *from, uint32_t bytes)
{
	struct fake_effect *e;

	if (!bytes)
		return;
	e = effect(qp, EFFECT_DATA, bytes);
	e->to = to;
	e->relaxed = mr->access & IBV_ACCESS_RELAXED_ORDERING;
	e->device = mr->device;
	memcpy(e->data, from, bytes);
	fake_land_add(qp, e);
}

/* A completion of the receive at recv_head. */
static void add_received(struct fake_qp *qp, const struct packet *p, enum ibv_wc_opcode opcode, uint32_t bytes)
{
	struct fake_effect *e = effect(qp, EFFECT_RECEIVED, 0);
	struct ibv_wc *wc = &e->cqe.wc;

	wc->wr_id = qp->recvs[qp->recv_head % qp->cap.max_recv_wr].wr_id;
	wc->status = IBV_WC_SUCCESS;
	wc->opcode = opcode;
	wc->byte_len = bytes;
	wc->qp_num = qp->verbs.qp_num;
	wc->src_qp = p->source;
	if (p->flags & PACKET_IMM) {
		wc->wc_flags = IBV_WC_WITH_IMM;
		wc->imm_data = p->imm;
	}
	e->cqe.solicited = p->flags & PACKET_SOLICITED;
	e->cqe.gives_back = ++qp->recv_head;
	fake_land_add(qp, e);
}

/* A receive that ends otherwise than with data. */
static struct fake_cqe receive_failed(struct fake_qp *qp, enum ibv_wc_status status)
{
	struct fake_cqe e = { .qp = qp };

	memset(&e.wc, 0xa5, sizeof(e.wc));
	e.wc.wr_id = qp->recvs[qp->recv_head % qp->cap.max_recv_wr].wr_id;
	e.wc.status = status;
	e.wc.vendor_err = 0x80 + (uint32_t)status;
	e.wc.qp_num = qp->verbs.qp_num;
	e.gives_back = ++qp->recv_head;
	return e;
}

void fake_responder_flush(struct fake_qp *qp)
{
	uint64_t tail = atomic_load_explicit(&qp->recv_tail, memory_order_acquire);

	while (qp->recv_head != tail) {
		struct fake_cqe e = receive_failed(qp, IBV_WC_WR_FLUSH_ERR);

		fake_complete(qp, false, &e);
	}
}

/* Answers that a request is refused, for good, when those before it have been served. */
static void refuse(struct fake_qp *qp, enum nak nak)
{
	struct fake_effect *e = effect(qp, EFFECT_REFUSAL, 0);

	e->op = (uint8_t)nak;
	e->psn = qp->psn_expected;
	qp->refusing = true;
	fake_land_add(qp, e);
}

static void refuse_receive(struct fake_qp *qp, enum ibv_wc_status status, enum nak nak)
{
	struct fake_effect *e = effect(qp, EFFECT_RECEIVED, 0);

	e->cqe = receive_failed(qp, status);
	fake_land_add(qp, e);
	refuse(qp, nak);
}

void fake_responder_refuses(struct fake_qp *qp, const struct fake_effect *e)
{
	qp->nak = e->op;
	qp->nak_psn = e->psn;
	fake_responder_answers(qp);
	fake_event_qp(qp, e->op == NAK_ACCESS ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
	fake_qp_error(qp); /* drops the effect */
}

/* True: a receive is there. */
static bool receive_ready(struct fake_qp *qp)
{
	if (qp->recv_head != atomic_load_explicit(&qp->recv_tail, memory_order_acquire) &&
	    !fake_chance(&fake_config()->rnr))
		return true;
	qp->nak = NAK_RNR;
	qp->nak_timer = qp->attr.min_rnr_timer;
	qp->nak_psn = qp->psn_expected;
	qp->nak_sent = true; /* what follows is dropped until this packet comes again */
	return false;
}

static char *remote(struct fake_qp *qp, const struct packet *p, unsigned access, struct fake_mr **mr_p)
{
	if (!(qp->attr.qp_access_flags & access) || fake_chance(&fake_config()->access_errors))
		return NULL;
	return fake_mr_find(
	    qp->nic, qp->verbs.pd, (struct fake_span){ p->rkey, true, p->address, p->total }, access, mr_p);
}

/* The requests return true if they were done or refused for good, and false if they must come again. */
static bool do_write(struct fake_qp *qp, const struct packet *p)
{
	bool notifies = p->flags & PACKET_LAST && p->flags & PACKET_IMM;

	if (p->flags & PACKET_FIRST) {
		char *to = NULL;

		if (p->total) {
			to = remote(qp, p, IBV_ACCESS_REMOTE_WRITE, &qp->write_mr);
			if (!to) {
				refuse(qp, NAK_ACCESS);
				return true;
			}
		}
		qp->write_to = to;
		qp->written = 0;
	}
	if (notifies && !receive_ready(qp))
		return false;
	if (p->bytes && !qp->write_to) { /* the region went away, or the first packet is missing */
		refuse(qp, NAK_ACCESS);
		return true;
	}
	if (p->bytes)
		add_data(qp, qp->write_to + qp->written, qp->write_mr, (const char *)p->payload, p->bytes);
	qp->written += p->bytes;
	qp->psn_expected++;
	qp->ack_due = true;
	if (notifies)
		add_received(qp, p, IBV_WC_RECV_RDMA_WITH_IMM, p->total);
	return true;
}

/* Into the memory of the receive at recv_head. */
static bool scatter(struct fake_qp *qp, const struct packet *p)
{
	const struct fake_recv *r = &qp->recvs[qp->recv_head % qp->cap.max_recv_wr];
	const char *from = (const char *)p->payload;
	uint64_t at = qp->received;
	uint32_t left = p->bytes;

	for (int i = 0; i < r->sges && left; i++) {
		const struct ibv_sge *g = &r->sge[i];
		struct fake_mr *mr;
		uint32_t n;
		char *to;

		if (at >= g->length) {
			at -= g->length;
			continue;
		}
		to = fake_mr_find(qp->nic, qp->verbs.pd, (struct fake_span){ g->lkey, false, g->addr, g->length },
		    IBV_ACCESS_LOCAL_WRITE, &mr);
		if (!to) {
			refuse_receive(qp, IBV_WC_LOC_PROT_ERR, NAK_OPERATION);
			return false;
		}
		n = g->length - at < left ? (uint32_t)(g->length - at) : left;
		add_data(qp, to + at, mr, from, n);
		from += n;
		left -= n;
		at = 0;
	}
	if (left) {
		refuse_receive(qp, IBV_WC_LOC_LEN_ERR, NAK_INVALID);
		return false;
	}
	return true;
}

static bool do_send(struct fake_qp *qp, const struct packet *p)
{
	if (p->flags & PACKET_FIRST) {
		if (!receive_ready(qp))
			return false;
		qp->received = 0;
	}
	if (!scatter(qp, p))
		return true;
	qp->received += p->bytes;
	qp->psn_expected++;
	qp->ack_due = true;
	if (p->flags & PACKET_LAST)
		add_received(qp, p, IBV_WC_RECV, (uint32_t)qp->received);
	return true;
}

static uint32_t packets_of(const struct packet *p)
{
	uint32_t mtu = p->imm >= 256 && p->imm <= FABRIC_MTU ? p->imm : 256;

	return p->total ? (p->total + mtu - 1) / mtu : 1;
}

static void add_read(struct fake_qp *qp, const struct packet *p)
{
	struct fake_effect *e = effect(qp, EFFECT_READ, 0);

	e->bytes = p->total;
	e->address = p->address;
	e->rkey = p->rkey;
	e->psn = p->psn;
	e->mtu = p->imm >= 256 && p->imm <= FABRIC_MTU ? p->imm : 256;
	qp->effect_reads++;
	fake_land_add(qp, e);
}

static bool do_read(struct fake_qp *qp, const struct packet *p)
{
	struct fake_mr *mr;

	if (p->reads > qp->attr.max_dest_rd_atomic) {
		refuse(qp, NAK_INVALID);
		return true;
	}
	if (p->total && !remote(qp, p, IBV_ACCESS_REMOTE_READ, &mr)) {
		refuse(qp, NAK_ACCESS);
		return true;
	}
	add_read(qp, p);
	qp->psn_expected += packets_of(p);
	return true;
}

static bool do_atomic(struct fake_qp *qp, const struct packet *p)
{
	struct fake_effect *e;
	struct fake_mr *mr;

	if (!qp->nic->device->spec.atomics || p->reads > qp->attr.max_dest_rd_atomic || p->address & 7) {
		refuse(qp, NAK_INVALID);
		return true;
	}
	if (!remote(qp, p, IBV_ACCESS_REMOTE_ATOMIC, &mr)) {
		refuse(qp, NAK_ACCESS);
		return true;
	}
	e = effect(qp, EFFECT_ATOMIC, 0);
	e->address = p->address;
	e->rkey = p->rkey;
	e->psn = p->psn;
	e->op = p->op;
	e->compare = p->compare;
	e->swap = p->swap;
	qp->effect_reads++;
	fake_land_add(qp, e);
	qp->psn_expected++;
	return true;
}

static void again(struct fake_qp *qp, struct packet *p)
{
	struct fake_mr *mr;

	if (p->op == OP_WRITE || p->op == OP_SEND) {
		qp->ack_due = true;
	} else if (p->op == OP_READ) {
		if (qp->effect_reads < qp->attr.max_dest_rd_atomic &&
		    (!p->total || remote(qp, p, IBV_ACCESS_REMOTE_READ, &mr)))
			add_read(qp, p);
	} else {
		for (int i = 0; i < FAKE_ATOMIC_CACHE; i++)
			if (qp->cache[i].valid && qp->cache[i].psn == p->psn) {
				p->op = OP_ATOMIC_VALUE;
				p->swap = qp->cache[i].value;
				p->bytes = 0;
				fake_transmit(qp, p); /* without room it is lost, and asked for again */
				return;
			}
	}
}

void fake_responder_request(struct fake_qp *qp, struct packet *p, int64_t now)
{
	bool done;

	if (qp->refusing)
		return;
	if (p->psn < qp->psn_expected) {
		again(qp, p);
		return;
	}
	if (p->psn > qp->psn_expected) {
		if (!qp->nak_sent) {
			qp->nak = NAK_SEQUENCE;
			qp->nak_psn = qp->psn_expected;
			qp->nak_sent = true;
		}
		return;
	}
	qp->nak_sent = false;
	if (p->op == OP_WRITE)
		done = do_write(qp, p);
	else if (p->op == OP_SEND)
		done = do_send(qp, p);
	else
		done = p->op == OP_READ ? do_read(qp, p) : do_atomic(qp, p);
	if (done)
		qp->nak = 0;
}

bool fake_responder_answers(struct fake_qp *qp)
{
	struct packet *p = &qp->nic->packet;
	bool did = false;

	if (qp->ack_due && qp->effect_bytes <= FAKE_LAND_BYTES) {
		memset(p, 0, offsetof(struct packet, payload));
		p->op = OP_ACK;
		p->psn = qp->psn_expected - 1;
		if (!fake_transmit(qp, p)) {
			qp->ack_due = false;
			did = true;
		}
	}
	if (qp->nak) {
		memset(p, 0, offsetof(struct packet, payload));
		p->op = OP_NAK;
		p->nak = qp->nak;
		p->psn = qp->nak_psn;
		p->total = qp->nak_timer;
		if (!fake_transmit(qp, p)) {
			qp->nak = 0;
			did = true;
		}
	}
	return did;
}
