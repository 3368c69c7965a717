/* SPDX-License-Identifier: MIT */
#include "tools/common/libc.h"
#include "fake.h"

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct fake_channel *ch = calloc(1, sizeof(*ch));
	int fds[2];

	if (!ch || pipe2(fds, O_CLOEXEC)) {
		free(ch);
		return NULL;
	}
	fcntl(fds[1], F_SETFL, O_NONBLOCK);
	ch->verbs.context = c;
	ch->verbs.fd = fds[0];
	ch->write_fd = fds[1];
	return &ch->verbs;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	struct fake_channel *ch = (struct fake_channel *)channel;
	int users;

	pthread_mutex_lock(&channel->context->mutex);
	users = channel->refcnt;
	pthread_mutex_unlock(&channel->context->mutex);
	if (users)
		return EBUSY;
	close(channel->fd);
	close(ch->write_fd);
	free(ch);
	return 0;
}

struct record {
	struct fake_cq *cq;
	uint64_t serial;
};

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq_p, void **context_p)
{
	struct record r;

	do
		if (read(channel->fd, &r, sizeof(r)) != sizeof(r))
			return -1;
	while (!fake_cq_event_read(fake_nic_of(channel->context), r.cq, r.serial, false));
	*cq_p = &r.cq->verbs;
	*context_p = r.cq->verbs.cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += n;
	pthread_cond_broadcast(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

struct ibv_cq *ibv_create_cq(
    struct ibv_context *c, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	struct fake_nic *nic = fake_nic_of(c);
	struct fake_cq *cq;

	if (cqe < 1 || cqe > (int)nic->device->spec.cqes || vector < 0 || vector >= c->num_comp_vectors) {
		errno = EINVAL;
		return NULL;
	}
	cq = calloc(1, sizeof(*cq));
	if (cq)
		cq->entries = calloc((size_t)cqe, sizeof(*cq->entries));
	if (!cq || !cq->entries) {
		free(cq);
		errno = ENOMEM;
		return NULL;
	}
	cq->size = (uint32_t)cqe;
	cq->verbs = (struct ibv_cq){ .context = c, .channel = channel, .cq_context = cq_context, .cqe = cqe };
	pthread_mutex_init(&cq->verbs.mutex, NULL);
	pthread_cond_init(&cq->verbs.cond, NULL);
	pthread_mutex_init(&cq->poll, NULL);
	cq->serial = fake_serial();
	fake_lock(nic);
	cq->next = nic->cqs;
	nic->cqs = cq;
	fake_unlock(nic);
	if (channel) {
		pthread_mutex_lock(&c->mutex);
		channel->refcnt++;
		pthread_mutex_unlock(&c->mutex);
	}
	return &cq->verbs;
}

int ibv_resize_cq(struct ibv_cq *ibv, int cqe)
{
	struct fake_cq *cq = (struct fake_cq *)ibv;
	struct fake_nic *nic = fake_nic_of(ibv->context);
	struct fake_cqe *entries;
	uint64_t head, n;
	int err = 0;

	if (cqe < 1 || cqe > (int)nic->device->spec.cqes)
		return EINVAL;
	entries = calloc((size_t)cqe, sizeof(*entries));
	if (!entries)
		return ENOMEM;
	fake_lock(nic);
	pthread_mutex_lock(&cq->poll);
	head = atomic_load(&cq->head);
	n = atomic_load(&cq->tail) - head;
	if (n > (uint64_t)cqe) {
		err = EINVAL;
	} else {
		struct fake_cqe *old = cq->entries;

		for (uint64_t i = 0; i < n; i++)
			entries[i] = old[(head + i) % cq->size];
		cq->entries = entries;
		entries = old;
		cq->size = (uint32_t)cqe;
		ibv->cqe = cqe;
		atomic_store(&cq->head, 0);
		atomic_store(&cq->tail, n);
	}
	pthread_mutex_unlock(&cq->poll);
	fake_unlock(nic);
	free(entries);
	return err;
}

int ibv_destroy_cq(struct ibv_cq *ibv)
{
	struct fake_cq *cq = (struct fake_cq *)ibv;
	struct fake_nic *nic = fake_nic_of(ibv->context);
	struct ibv_comp_channel *channel = ibv->channel;
	struct fake_cq **at;
	int err;

	if (atomic_load(&cq->users))
		return EBUSY;
	err = fake_events_wait(&ibv->mutex, &ibv->comp_events_completed, &cq->events, "ibv_destroy_cq()");
	if (!err)
		err =
		    fake_events_wait(&ibv->mutex, &ibv->async_events_completed, &cq->async_events, "ibv_destroy_cq()");
	if (err)
		return err;
	fake_lock(nic);
	for (at = &nic->cqs; *at != cq; at = &(*at)->next)
		;
	*at = cq->next;
	fake_unlock(nic);
	if (channel) {
		pthread_mutex_lock(&ibv->context->mutex);
		channel->refcnt--;
		pthread_mutex_unlock(&ibv->context->mutex);
	}
	pthread_mutex_destroy(&cq->poll);
	free(cq->entries);
	free(cq);
	return 0;
}

int fake_poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wcs)
{
	struct fake_cq *cq = (struct fake_cq *)ibv;
	uint64_t head, tail;
	int got = 0;

	fake_called();
	pthread_mutex_lock(&cq->poll);
	head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	tail = atomic_load_explicit(&cq->tail, memory_order_acquire);
	for (; got < n && head != tail; head++) {
		const struct fake_cqe *e = &cq->entries[head % cq->size];

		wcs[got++] = e->wc;
		if (e->gives_back)
			atomic_store_explicit(e->send ? &e->qp->send_given_back : &e->qp->recv_given_back,
			    e->gives_back, memory_order_release);
	}
	atomic_store_explicit(&cq->head, head, memory_order_release);
	pthread_mutex_unlock(&cq->poll);
	if (fake_config()->by_polls) {
		struct fake_nic *nic = fake_nic_of(ibv->context);

		atomic_fetch_add_explicit(&nic->polls, 1, memory_order_relaxed);
		fabric_ring(nic->nic);
	}
	return got;
}

static void notify(struct fake_cq *cq)
{
	struct fake_channel *ch = (struct fake_channel *)cq->verbs.channel;
	struct record r = { cq, cq->serial };

	atomic_store(&cq->armed, 0);
	if (ch && write(ch->write_fd, &r, sizeof(r)) != sizeof(r))
		fprintf(stderr, "fake_ibverbs: nobody reads the events of a completion channel; one is lost\n");
}

int fake_req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
	fake_called();
	atomic_store(&((struct fake_cq *)ibv)->armed, solicited_only ? 2 : 1);
	return 0;
}

void fake_cq_push(struct fake_cq *cq, const struct fake_cqe *e)
{
	uint64_t tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	int armed;

	if (cq->overrun)
		return;
	if (tail - atomic_load_explicit(&cq->head, memory_order_acquire) == cq->size) {
		cq->overrun = true;
		fake_event_cq(cq, IBV_EVENT_CQ_ERR);
		return;
	}
	cq->entries[tail % cq->size] = *e;
	atomic_store(&cq->tail, tail + 1);
	armed = atomic_load(&cq->armed);
	if (armed == 1 || (armed == 2 && (e->solicited || e->wc.status != IBV_WC_SUCCESS)))
		notify(cq);
}

void fake_cq_clean(struct fake_cq *cq, const struct fake_qp *qp)
{
	uint64_t head, tail, to;

	pthread_mutex_lock(&cq->poll);
	head = atomic_load(&cq->head);
	tail = to = atomic_load(&cq->tail);
	for (uint64_t i = tail; i != head; i--) { /* from the newest, so that the tail stays */
		struct fake_cqe e = cq->entries[(i - 1) % cq->size];

		if (e.qp != qp)
			cq->entries[--to % cq->size] = e;
	}
	atomic_store(&cq->head, to);
	pthread_mutex_unlock(&cq->poll);
}
