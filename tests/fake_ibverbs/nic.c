/* SPDX-License-Identifier: MIT */
/* The thread of an opened device: one pass after the other over its QPs, and sleep while there is nothing to do. */
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include "fake.h"

_Atomic uint64_t fake_calls;

void fake_lock(struct fake_nic *nic)
{
	atomic_fetch_add(&nic->waiting, 1);
	pthread_mutex_lock(&nic->lock);
	atomic_fetch_sub(&nic->waiting, 1);
}

void fake_unlock(struct fake_nic *nic)
{
	bool sooner = nic->next < nic->sleeps_until;

	pthread_mutex_unlock(&nic->lock);
	if (sooner)
		fabric_ring(nic->nic);
}

int fake_transmit(struct fake_qp *qp, struct packet *p)
{
	const struct fake_spec *s = &qp->nic->device->spec;
	struct fabric_qp *to = fabric_qp_find(qp->attr.dest_qp_num);
	struct fabric_port *here = fake_port(qp->nic, qp->attr.ah_attr.port_num);

	if (!fabric_room(qp->shared, p))
		return -1;
	fake_faults_due(here, to ? &fabric_get()->ports[atomic_load(&to->port)] : NULL);
	if (!fabric_reaches(qp->shared, to, p->bytes) || fake_chance(&fake_config()->drop) ||
	    !(s->sls >> (qp->attr.ah_attr.sl & 15) & 1) || s->state != IBV_PORT_ACTIVE)
		return 0;
	p->source = qp->verbs.qp_num;
	p->life = atomic_load(&to->life);
	fabric_put(qp->shared, p);
	fabric_ring(atomic_load(&to->nic));
	return 0;
}

void fake_complete(struct fake_qp *qp, bool send, struct fake_cqe *e)
{
	struct fake_completions *c = send ? &qp->send_completions : &qp->recv_completions;
	struct fake_cq *cq = (struct fake_cq *)(send ? qp->verbs.send_cq : qp->verbs.recv_cq);
	const struct fake_knob *late = &fake_config()->cq_delay_us, *period = &fake_config()->cq_period_us;
	struct fake_delayed *d;
	int64_t at = 0;

	e->send = send;
	if (!late->value && !period->value) {
		fake_cq_push(cq, e);
		return;
	}
	at = fabric_now() + (int64_t)fake_random(late, late->value * 1000);
	if (period->value)
		at += (int64_t)(period->value * 1000) - at % (int64_t)(period->value * 1000);
	d = calloc(1, sizeof(*d));
	if (!d)
		abort(); /* a test without memory */
	d->at = c->last = at > c->last ? at : c->last;
	d->cq = cq;
	d->cqe = *e;
	*c->end = d;
	c->end = &d->next;
	fake_again(qp->nic, d->at);
}

static bool completions_due(struct fake_qp *qp, struct fake_completions *c, int64_t now, bool drop)
{
	bool did = false;

	while (c->first && (drop || now >= c->first->at)) {
		struct fake_delayed *d = c->first;

		c->first = d->next;
		if (!c->first)
			c->end = &c->first;
		if (!drop)
			fake_cq_push(d->cq, &d->cqe);
		free(d);
		did = true;
	}
	if (c->first)
		fake_again(qp->nic, c->first->at);
	return did;
}

bool fake_completions_due(struct fake_qp *qp, int64_t now)
{
	bool did = completions_due(qp, &qp->send_completions, now, false);

	return completions_due(qp, &qp->recv_completions, now, false) || did;
}

void fake_completions_drop(struct fake_qp *qp)
{
	completions_due(qp, &qp->send_completions, 0, true);
	completions_due(qp, &qp->recv_completions, 0, true);
}

/* What the peer sent. */
static bool inbound(struct fake_qp *qp, int64_t now)
{
	struct fabric_qp *from = fabric_qp_last(qp->attr.dest_qp_num);
	struct packet *p = &qp->nic->packet;
	bool did = false;

	if (!from || atomic_load(&from->dest) != qp->verbs.qp_num)
		return false;
	if (qp->head == UINT64_MAX)
		qp->head = atomic_load(&from->head);
	for (int n = 0; n < FAKE_WINDOW && fabric_take(from, qp->attr.dest_qp_num, &qp->head, p); n++) {
		did = true;
		if (p->life != qp->life)
			continue;
		if (p->op >= OP_ACK) {
			fake_requester_answer(qp, p, now);
		} else {
			if (!fabric_nic_ours(atomic_load(&from->nic)))
				atomic_load_explicit(&fake_calls, memory_order_acquire);
			fake_responder_request(qp, p, now);
		}
		if (atomic_load(&qp->state) == IBV_QPS_ERR)
			break;
	}
	return did;
}

static bool qp_pass(struct fake_qp *qp, int64_t now)
{
	int state = atomic_load(&qp->state);
	bool did = false;

	if (state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD)
		did = inbound(qp, now);
	did |= fake_land(qp, now);
	did |= fake_requester(qp, now);
	did |= (qp->ack_due || qp->nak) && fake_responder_answers(qp);
	if (atomic_load(&qp->state) == IBV_QPS_ERR && qp->recv_head != atomic_load(&qp->recv_tail)) {
		fake_responder_flush(qp);
		did = true;
	}
	return fake_completions_due(qp, now) || did;
}

static void *run(void *arg)
{
	struct fake_nic *nic = arg;

	while (!atomic_load(&nic->stop)) {
		uint32_t bell = atomic_load(&fabric_get()->nics[nic->nic].bell);
		int64_t now = fabric_now(), until;
		bool did = false;

		pthread_mutex_lock(&nic->lock);
		nic->next = now + 100000000;
		fake_faults_due(NULL, NULL);
		if (!fake_faults_look(nic, now)) {
			for (struct fake_qp *qp = nic->qps; qp; qp = qp->next)
				did |= qp_pass(qp, now);
			fake_parked_release(nic, now, false);
		}
		until = nic->sleeps_until = nic->next;
		pthread_mutex_unlock(&nic->lock);
		for (int i = 0; i < 1000 && atomic_load(&nic->waiting); i++)
			sched_yield();
		if (!did)
			fabric_sleep(nic->nic, bell, until);
	}
	return NULL;
}

int fake_nic_start(struct fake_nic *nic)
{
	sigset_t all, before;
	int err;

	sigfillset(&all); /* the program's signals are for its own threads */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&nic->thread, NULL, run, nic);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -err;
}

void fake_nic_stop(struct fake_nic *nic)
{
	atomic_store(&nic->stop, 1);
	fabric_ring(nic->nic);
	pthread_join(nic->thread, NULL);
}
