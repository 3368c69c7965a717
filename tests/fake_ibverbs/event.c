/* SPDX-License-Identifier: MIT */
/* Asynchronous events: records in the pipe of async_fd, and counts that the program must acknowledge. */
#include "tools/common/libc.h"
#include "fake.h"
#include "tests/support/pause.h"

struct record {
	struct ibv_async_event event;
	uint64_t serial; /* of the QP or CQ */
};

uint64_t fake_serial(void)
{
	static _Atomic uint64_t last;

	return atomic_fetch_add(&last, 1) + 1;
}

static void send_event(struct fake_nic *nic, const struct record *r)
{
	if (write(nic->event_fd, r, sizeof(*r)) != sizeof(*r))
		fprintf(stderr, "fake_ibverbs: %s: nobody reads the asynchronous events; one is lost\n",
		    nic->device->spec.name);
}

void fake_event_port(struct fake_nic *nic, uint32_t port, enum ibv_event_type type)
{
	struct record r = { { .element.port_num = (int)port, .event_type = type }, 0 };

	send_event(nic, &r);
}

void fake_event_qp(struct fake_qp *qp, enum ibv_event_type type)
{
	struct record r = { { .element.qp = &qp->verbs, .event_type = type }, qp->serial };

	send_event(qp->nic, &r);
}

void fake_event_cq(struct fake_cq *cq, enum ibv_event_type type)
{
	struct record r = { { .element.cq = &cq->verbs, .event_type = type }, cq->serial };

	send_event(fake_nic_of(cq->verbs.context), &r);
}

static bool of_qp(enum ibv_event_type t)
{
	return t == IBV_EVENT_QP_FATAL || t == IBV_EVENT_QP_REQ_ERR || t == IBV_EVENT_QP_ACCESS_ERR ||
	    t == IBV_EVENT_COMM_EST || t == IBV_EVENT_SQ_DRAINED || t == IBV_EVENT_QP_LAST_WQE_REACHED;
}

static bool qp_event_read(struct fake_nic *nic, const struct record *r)
{
	struct fake_qp *qp;

	fake_lock(nic);
	for (qp = nic->qps; qp && qp->serial != r->serial; qp = qp->next)
		;
	if (qp) {
		pthread_mutex_lock(&qp->verbs.mutex);
		qp->events++;
		pthread_mutex_unlock(&qp->verbs.mutex);
	}
	fake_unlock(nic);
	return qp != NULL;
}

bool fake_cq_event_read(struct fake_nic *nic, struct fake_cq *wanted, uint64_t serial, bool async)
{
	struct fake_cq *cq;

	fake_lock(nic);
	for (cq = nic->cqs; cq && (cq != wanted || cq->serial != serial); cq = cq->next)
		;
	if (cq) {
		pthread_mutex_lock(&cq->verbs.mutex);
		if (async)
			cq->async_events++;
		else
			cq->events++;
		pthread_mutex_unlock(&cq->verbs.mutex);
	}
	fake_unlock(nic);
	return cq != NULL;
}

int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e)
{
	struct fake_nic *nic = fake_nic_of(c);
	bool alive = false;

	while (!alive) {
		struct record r;

		if (read(c->async_fd, &r, sizeof(r)) != sizeof(r))
			return -1;
		alive = true;
		if (of_qp(r.event.event_type))
			alive = qp_event_read(nic, &r);
		else if (r.event.event_type == IBV_EVENT_CQ_ERR)
			alive = fake_cq_event_read(nic, (struct fake_cq *)r.event.element.cq, r.serial, true);
		*e = r.event;
	}
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *e)
{
	if (of_qp(e->event_type)) {
		struct ibv_qp *qp = e->element.qp;

		pthread_mutex_lock(&qp->mutex);
		qp->events_completed++;
		pthread_cond_broadcast(&qp->cond);
		pthread_mutex_unlock(&qp->mutex);
	} else if (e->event_type == IBV_EVENT_CQ_ERR) {
		struct ibv_cq *cq = e->element.cq;

		pthread_mutex_lock(&cq->mutex);
		cq->async_events_completed++;
		pthread_cond_broadcast(&cq->cond);
		pthread_mutex_unlock(&cq->mutex);
	}
}

/* The real library waits for ever. */
int fake_events_wait(pthread_mutex_t *mutex, const uint32_t *acked, const uint32_t *events, const char *what)
{
	bool all = false;

	for (int ms = 0; !all && ms < 10000; ms++) {
		pthread_mutex_lock(mutex);
		all = *acked == *events;
		pthread_mutex_unlock(mutex);
		if (!all)
			pause_us(PAUSE_POLL, 1000);
	}
	if (!all)
		fprintf(stderr,
		    "fake_ibverbs: %s: its events were not acknowledged for 10 s; the real library waits for ever\n",
		    what);
	return all ? 0 : EBUSY;
}
