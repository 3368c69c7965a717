/* SPDX-License-Identifier: MIT */
/*
 * The sending half of a reliable connection: work requests become packets, answers complete them. After a loss it sends
 * again from the oldest packet that is not acknowledged, and reads the program's memory again for it.
 */
#include <string.h>
#include "fake.h"

static struct fake_send *wr_of(struct fake_qp *qp, uint64_t i)
{
	return &qp->sends[i % qp->cap.max_send_wr];
}

static uint32_t mtu_of(const struct fake_qp *qp)
{
	return 128u << qp->attr.path_mtu;
}

/* 4.096 us * 2^timeout; 0: for ever. */
static int64_t timeout_ns(const struct fake_qp *qp)
{
	int64_t ns = ((int64_t)4096 << qp->attr.timeout) / (int64_t)fake_config()->time_scale;
	int64_t least = (int64_t)fake_config()->timeout_min_ms * 1000000;

	if (!qp->attr.timeout)
		return 0;
	return ns < least ? least : ns;
}

static void set_timer(struct fake_qp *qp, int64_t now)
{
	int64_t ns = timeout_ns(qp);

	qp->timer = ns && qp->psn_next > qp->psn_una ? now + ns : 0;
}

void fake_send_complete(struct fake_qp *qp, enum ibv_wc_status status)
{
	static const enum ibv_wc_opcode opcodes[] = { [IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
		[IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
		[IBV_WR_SEND] = IBV_WC_SEND,
		[IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
		[IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
		[IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
		[IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD };
	struct fake_send *s = wr_of(qp, qp->send_done);
	struct fake_cqe e = { .qp = qp, .send = true, .gives_back = qp->send_done + 1 };
	bool spoilt = false;

	if (status == IBV_WC_SUCCESS && atomic_load(&fake_port(qp->nic, qp->attr.ah_attr.port_num)->corrupt)) {
		uint32_t code = atomic_exchange(&fake_port(qp->nic, qp->attr.ah_attr.port_num)->corrupt, 0);

		spoilt = code != 0;
		status = spoilt ? (enum ibv_wc_status)(code - 1) : status;
	}
	qp->send_done++;
	if (qp->send_at < qp->send_done)
		qp->send_at = qp->send_done;
	if (qp->send_begun < qp->send_done)
		qp->send_begun = qp->send_done;
	if (status == IBV_WC_SUCCESS && !qp->sig_all && !(s->wr.send_flags & IBV_SEND_SIGNALED))
		return;
	e.wc.wr_id = s->wr.wr_id;
	e.wc.status = status;
	e.wc.qp_num = qp->verbs.qp_num;
	e.wc.opcode = opcodes[s->wr.opcode];
	e.wc.byte_len = (uint32_t)s->bytes;
	if (status != IBV_WC_SUCCESS) { /* all but these is not valid */
		memset(&e.wc, 0xa5, sizeof(e.wc));
		e.wc.wr_id = s->wr.wr_id;
		e.wc.status = status;
		e.wc.vendor_err = 0x80 + (uint32_t)status;
		e.wc.qp_num = qp->verbs.qp_num;
	}
	fake_complete(qp, true, &e);
	if (spoilt)
		fake_qp_error(qp);
}

void fake_requester_flush(struct fake_qp *qp)
{
	uint64_t tail = atomic_load_explicit(&qp->send_tail, memory_order_acquire);

	while (qp->send_done != tail)
		fake_send_complete(qp, IBV_WC_WR_FLUSH_ERR);
	qp->timer = qp->rnr_until = 0;
	qp->broken = false;
}

static void fail(struct fake_qp *qp, enum ibv_wc_status status)
{
	fake_send_complete(qp, status);
	fake_qp_error(qp);
}

/* Sends again from the oldest packet that nobody acknowledged. */
static void rewind_to_una(struct fake_qp *qp)
{
	qp->psn_next = qp->psn_una;
	qp->send_at = qp->send_done;
	qp->reads_out = 0;
	qp->broken = false;
}

static struct fake_span local(const struct ibv_sge *g)
{
	return (struct fake_span){ g->lkey, false, g->addr, g->length };
}

/* The next part of a list of memory from `at` on: NULL if its key does not allow it. */
static char *part_of(
    struct fake_qp *qp, const struct ibv_sge *sges, int n, uint64_t at, unsigned access, uint64_t *left_p)
{
	struct fake_mr *mr;

	for (int i = 0; i < n; at -= sges[i].length, i++)
		if (at < sges[i].length) {
			char *memory = fake_mr_find(qp->nic, qp->verbs.pd, local(&sges[i]), access, &mr);

			*left_p = sges[i].length - at;
			return memory ? memory + at : NULL;
		}
	return NULL;
}

/* Reads the source; false: a key does not allow it. */
static bool gather(struct fake_qp *qp, const struct fake_send *s, uint64_t at, uint32_t bytes, char *to)
{
	if (s->wr.send_flags & IBV_SEND_INLINE) {
		memcpy(to, s->inline_data + at, bytes);
		return true;
	}
	while (bytes) {
		uint64_t left = 0;
		const char *from = part_of(qp, s->sges, s->wr.num_sge, at, 0, &left);
		uint32_t n = left < bytes ? (uint32_t)left : bytes;

		if (!from)
			return false;
		fake_copy_out(to, from, n);
		to += n;
		at += n;
		bytes -= n;
	}
	return true;
}

static bool scatter(struct fake_qp *qp, const struct fake_send *s, uint64_t at, uint32_t bytes, const char *from)
{
	while (bytes) {
		uint64_t left = 0;
		char *to = part_of(qp, s->sges, s->wr.num_sge, at, IBV_ACCESS_LOCAL_WRITE, &left);
		uint32_t n = left < bytes ? (uint32_t)left : bytes;

		if (!to)
			return false;
		fake_copy_in(to, from, n);
		from += n;
		at += n;
		bytes -= n;
	}
	return true;
}

/* All keys of a request, as a NIC looks at them before it begins. */
static bool keys_valid(struct fake_qp *qp, const struct fake_send *s)
{
	unsigned access = s->read ? IBV_ACCESS_LOCAL_WRITE : 0;
	struct fake_mr *mr;

	for (int i = 0; i < s->wr.num_sge && !(s->wr.send_flags & IBV_SEND_INLINE); i++)
		if (s->sges[i].length && !fake_mr_find(qp->nic, qp->verbs.pd, local(&s->sges[i]), access, &mr))
			return false;
	return true;
}

static void begin(struct fake_qp *qp, struct fake_send *s, int64_t now)
{
	uint64_t late = fake_config()->late_read_us.value;

	s->begun = true;
	s->psn = qp->psn_end;
	s->packets = s->bytes ? (uint32_t)((s->bytes + mtu_of(qp) - 1) / mtu_of(qp)) : 1;
	s->not_before = now + (int64_t)fake_random(&fake_config()->late_read_us, late * 1000);
	s->polls = fake_polls(qp->nic);
	qp->psn_end += s->packets;
	qp->send_begun = qp->send_at + 1;
	if (!keys_valid(qp, s)) {
		qp->broken = true;
		qp->broken_status = IBV_WC_LOC_PROT_ERR;
	}
}

static void fill_header(struct fake_qp *qp, const struct fake_send *s, struct packet *p)
{
	static const uint8_t ops[] = { [IBV_WR_RDMA_WRITE] = OP_WRITE,
		[IBV_WR_RDMA_WRITE_WITH_IMM] = OP_WRITE,
		[IBV_WR_SEND] = OP_SEND,
		[IBV_WR_SEND_WITH_IMM] = OP_SEND,
		[IBV_WR_RDMA_READ] = OP_READ,
		[IBV_WR_ATOMIC_CMP_AND_SWP] = OP_SWAP,
		[IBV_WR_ATOMIC_FETCH_AND_ADD] = OP_ADD };
	bool atomic = ops[s->wr.opcode] == OP_SWAP || ops[s->wr.opcode] == OP_ADD;

	memset(p, 0, offsetof(struct packet, payload));
	p->op = ops[s->wr.opcode];
	p->psn = qp->psn_next;
	p->total = (uint32_t)s->bytes;
	p->address = atomic ? s->wr.wr.atomic.remote_addr : s->wr.wr.rdma.remote_addr;
	p->rkey = atomic ? s->wr.wr.atomic.rkey : s->wr.wr.rdma.rkey;
	if (p->op == OP_SWAP) {
		p->compare = s->wr.wr.atomic.compare_add;
		p->swap = s->wr.wr.atomic.swap;
	} else if (p->op == OP_ADD) {
		p->swap = s->wr.wr.atomic.compare_add;
	}
}

/* The packet at psn_next. False: a key does not allow it. */
static bool fill(struct fake_qp *qp, const struct fake_send *s, struct packet *p)
{
	uint64_t k = qp->psn_next - s->psn, at = k * mtu_of(qp);

	fill_header(qp, s, p);
	if (s->read) {
		p->flags = PACKET_FIRST | PACKET_LAST;
		p->reads = (uint8_t)(qp->reads_out + 1);
		if (p->op == OP_READ) {
			p->address += at;
			p->total -= (uint32_t)at;
			p->imm = mtu_of(qp);
		}
		return true;
	}
	p->bytes = (uint32_t)(s->bytes - at < mtu_of(qp) ? s->bytes - at : mtu_of(qp));
	p->flags = (uint8_t)((k ? 0 : PACKET_FIRST) | (k + 1 == s->packets ? PACKET_LAST : 0));
	if (s->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || s->wr.opcode == IBV_WR_SEND_WITH_IMM) {
		p->flags |= PACKET_IMM;
		p->imm = s->wr.imm_data;
	}
	if (s->wr.send_flags & IBV_SEND_SOLICITED)
		p->flags |= PACKET_SOLICITED;
	return gather(qp, s, at, p->bytes, (char *)p->payload);
}

/* True: a request is at hand that may go now. */
static bool may_send(struct fake_qp *qp, struct fake_send *s, int64_t now)
{
	if (!s->begun) {
		if (atomic_load(&qp->state) != IBV_QPS_RTS || qp->broken)
			return false;
		begin(qp, s, now);
	}
	if (qp->broken)
		return false;
	if (s->wr.send_flags & IBV_SEND_FENCE && qp->reads_out)
		return false;
	if (s->read ? qp->reads_out >= qp->attr.max_rd_atomic : qp->psn_next - qp->psn_una >= FAKE_WINDOW)
		return false;
	if (now < s->not_before) {
		fake_again(qp->nic, s->not_before);
		return false;
	}
	return fake_polled(qp->nic, s->polls);
}

static bool send_some(struct fake_qp *qp, int64_t now)
{
	uint64_t tail = atomic_load_explicit(&qp->send_tail, memory_order_acquire);
	struct packet *p = &qp->nic->packet;
	bool sent = false;

	for (int n = 0; n < FAKE_WINDOW && qp->send_at != tail; n++) {
		struct fake_send *s = wr_of(qp, qp->send_at);

		if (!may_send(qp, s, now))
			break;
		if (!fill(qp, s, p)) {
			qp->broken = true;
			qp->broken_status = IBV_WC_LOC_PROT_ERR;
			break;
		}
		if (fake_transmit(qp, p))
			break;
		sent = true;
		qp->psn_next = s->read ? s->psn + s->packets : qp->psn_next + 1;
		if (s->read)
			qp->reads_out++;
		if (!qp->timer)
			set_timer(qp, now);
		if (qp->psn_next == s->psn + s->packets)
			qp->send_at++;
		else if (qp->psn_next + 1 == s->psn + s->packets) /* the last packet's source is read late as well */
			s->not_before = now +
			    (int64_t)fake_random(
			        &fake_config()->late_read_us, fake_config()->late_read_us.value * 1000);
	}
	return sent;
}

static bool timed_out(struct fake_qp *qp, int64_t now)
{
	if (!qp->timer)
		return false;
	if (now < qp->timer) {
		fake_again(qp->nic, qp->timer);
		return false;
	}
	/* The time of a NIC is the CPU's, which others may have. */
	if (fabric_unread(qp->shared, fabric_qp_find(qp->attr.dest_qp_num), now)) {
		set_timer(qp, now);
		return false;
	}
	if (!qp->retries) {
		fail(qp, IBV_WC_RETRY_EXC_ERR);
		return true;
	}
	qp->retries--;
	rewind_to_una(qp);
	qp->timer = now + timeout_ns(qp);
	return true;
}

bool fake_requester(struct fake_qp *qp, int64_t now)
{
	int state = atomic_load(&qp->state);
	bool did = false;

	if (state == IBV_QPS_ERR && qp->send_done != atomic_load(&qp->send_tail)) {
		fake_requester_flush(qp);
		return true;
	}
	if (state != IBV_QPS_RTS && state != IBV_QPS_SQD)
		return false;
	if (qp->rnr_until) {
		if (now < qp->rnr_until) {
			fake_again(qp->nic, qp->rnr_until);
			return false;
		}
		qp->rnr_until = 0;
	}
	did = timed_out(qp, now);
	if (atomic_load(&qp->state) == IBV_QPS_ERR)
		return true;
	did |= send_some(qp, now);
	if (qp->broken && qp->send_done == qp->send_at) {
		fail(qp, qp->broken_status);
		return true;
	}
	if (qp->timer)
		fake_again(qp->nic, qp->timer);
	return did;
}

static void progress(struct fake_qp *qp, int64_t now)
{
	qp->retries = qp->attr.retry_cnt;
	qp->rnr_retries = qp->attr.rnr_retry;
	if (qp->psn_next < qp->psn_una)
		qp->psn_next = qp->psn_una;
	set_timer(qp, now);
}

/* Completes what is acknowledged, in order; a read only by its answer. */
static void advance(struct fake_qp *qp, int64_t now)
{
	bool moved = false;

	while (qp->send_done < qp->send_begun && atomic_load(&qp->state) != IBV_QPS_ERR) {
		struct fake_send *s = wr_of(qp, qp->send_done);
		uint64_t end = s->psn + s->packets;

		if (s->read ? s->got < s->packets : qp->psn_acked < end) {
			uint64_t una = s->read ? s->psn + s->got : qp->psn_acked;

			if (una > qp->psn_una) {
				qp->psn_una = una;
				moved = true;
			}
			break;
		}
		if (s->read && qp->reads_out)
			qp->reads_out--;
		qp->psn_una = end;
		moved = true;
		fake_send_complete(qp, IBV_WC_SUCCESS);
	}
	if (moved && atomic_load(&qp->state) != IBV_QPS_ERR)
		progress(qp, now);
}

static void acknowledge(struct fake_qp *qp, uint64_t end, int64_t now)
{
	if (end > qp->psn_end)
		return;
	if (end > qp->psn_acked)
		qp->psn_acked = end;
	advance(qp, now);
}

/* A part of a read's answer, or an atomic's. Others than the next one are lost: the time-out asks again. */
static void answer(struct fake_qp *qp, const struct packet *p, int64_t now)
{
	struct fake_send *s;
	uint64_t at;

	acknowledge(qp, p->psn, now);
	s = wr_of(qp, qp->send_done);
	if (qp->send_done >= qp->send_begun || !s->read || p->psn != s->psn + s->got)
		return;
	if (p->op != (s->wr.opcode == IBV_WR_RDMA_READ ? OP_READ_DATA : OP_ATOMIC_VALUE))
		return;
	at = (uint64_t)s->got * mtu_of(qp);
	if (p->op == OP_READ_DATA ? !scatter(qp, s, at, p->bytes, (const char *)p->payload) :
	                            !scatter(qp, s, 0, 8, (const char *)&p->swap)) {
		fail(qp, IBV_WC_LOC_PROT_ERR);
		return;
	}
	s->got++;
	advance(qp, now);
}

/* What the codes of RNR timers mean, in units of 10 us. */
static int64_t rnr_ns(uint32_t code)
{
	static const uint32_t units[32] = { 65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384,
		512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152 };

	return (int64_t)units[code & 31] * 10000 / (int64_t)fake_config()->time_scale;
}

static void refused(struct fake_qp *qp, const struct packet *p, int64_t now)
{
	static const enum ibv_wc_status statuses[] = { [NAK_ACCESS] = IBV_WC_REM_ACCESS_ERR,
		[NAK_INVALID] = IBV_WC_REM_INV_REQ_ERR,
		[NAK_OPERATION] = IBV_WC_REM_OP_ERR };

	if (p->psn < qp->psn_una || p->psn >= qp->psn_end)
		return;
	acknowledge(qp, p->psn, now);
	if (qp->psn_una != p->psn || qp->send_done >= qp->send_begun) /* a read before it waits for its answer */
		return;
	if (p->nak == NAK_RNR) {
		if (qp->rnr_retries == 0) {
			fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
			return;
		}
		if (qp->rnr_retries != 7)
			qp->rnr_retries--;
		rewind_to_una(qp);
		qp->timer = 0;
		qp->rnr_until = now + rnr_ns(p->total) + 1;
	} else if (p->nak == NAK_SEQUENCE) {
		if (!qp->retries) {
			fail(qp, IBV_WC_RETRY_EXC_ERR);
			return;
		}
		qp->retries--;
		rewind_to_una(qp);
	} else {
		fail(qp, statuses[p->nak]);
	}
}

void fake_requester_answer(struct fake_qp *qp, const struct packet *p, int64_t now)
{
	int state = atomic_load(&qp->state);

	if (state != IBV_QPS_RTS && state != IBV_QPS_SQD)
		return;
	if (p->op == OP_ACK)
		acknowledge(qp, p->psn + 1, now);
	else if (p->op == OP_NAK)
		refused(qp, p, now);
	else
		answer(qp, p, now);
}
