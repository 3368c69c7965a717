/* SPDX-License-Identifier: MIT */
/* Asynchronous events: whole structures in the pipe of async_fd, and counts that the program must acknowledge. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>
#include "fake.h"
#include "tests/support/pause.h"

static void send_event(struct fake_nic *nic, const struct ibv_async_event *e)
{
	if (write(nic->event_fd, e, sizeof(*e)) != sizeof(*e))
		fprintf(stderr, "fake_ibverbs: %s: nobody reads the asynchronous events; one is lost\n",
		    nic->device->spec.name);
}

void fake_event_port(struct fake_nic *nic, uint32_t port, enum ibv_event_type type)
{
	struct ibv_async_event e = { .element.port_num = (int)port, .event_type = type };

	send_event(nic, &e);
}

void fake_event_qp(struct fake_qp *qp, enum ibv_event_type type)
{
	struct ibv_async_event e = { .element.qp = &qp->verbs, .event_type = type };

	send_event(qp->nic, &e);
}

void fake_event_cq(struct fake_cq *cq, enum ibv_event_type type)
{
	struct ibv_async_event e = { .element.cq = &cq->verbs, .event_type = type };

	send_event(fake_nic_of(cq->verbs.context), &e);
}

static bool of_qp(enum ibv_event_type t)
{
	return t == IBV_EVENT_QP_FATAL || t == IBV_EVENT_QP_REQ_ERR || t == IBV_EVENT_QP_ACCESS_ERR ||
	    t == IBV_EVENT_COMM_EST || t == IBV_EVENT_SQ_DRAINED || t == IBV_EVENT_QP_LAST_WQE_REACHED;
}

int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e)
{
	if (read(c->async_fd, e, sizeof(*e)) != sizeof(*e))
		return -1;
	if (of_qp(e->event_type)) {
		struct fake_qp *qp = fake_qp_of(e->element.qp);

		pthread_mutex_lock(&qp->verbs.mutex);
		qp->events++;
		pthread_mutex_unlock(&qp->verbs.mutex);
	} else if (e->event_type == IBV_EVENT_CQ_ERR) {
		struct fake_cq *cq = (struct fake_cq *)e->element.cq;

		pthread_mutex_lock(&cq->verbs.mutex);
		cq->async_events++;
		pthread_mutex_unlock(&cq->verbs.mutex);
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
