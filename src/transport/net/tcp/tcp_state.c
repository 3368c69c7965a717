/* SPDX-License-Identifier: MIT */
/* An endpoint's place in the device's queue, its news, and its death, for all other files. */
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
#include "transport/net/tcp/tcp_priv.h"

void shunt_tcp_queue(struct tcp_endpoint *ep)
{
	struct tcp_device *device = ep->device;

	if (ep->queued)
		return;
	ep->queued = true;
	ep->queue_next = NULL;
	*device->queue_end = ep;
	device->queue_end = &ep->queue_next;
}

void shunt_tcp_tell(struct tcp_endpoint *ep)
{
	struct tcp_device *device = ep->device;
	uint64_t one = 1;

	if (!device->workers)
		return; /* this is the device's own thread, and looks anyway */
	atomic_store(&ep->news, true);
	atomic_store(&device->news, true);
	/* The device's own thread arms first, and looks for news then. */
	if (atomic_load(&device->armed) && atomic_exchange(&device->armed, false) &&
	    write(device->news_fd, &one, sizeof(one)) < 0)
		return; /* its count is full: it has woken the thread */
}

void shunt_tcp_fail_socket(struct tcp_socket *s, int err, const char *fmt, ...)
{
	struct tcp_endpoint *ep = s->endpoint;
	va_list args;

	s->failed = true;
	shunt_mutex_lock(&ep->lock);
	if (!atomic_load(&ep->trouble)) {
		va_start(args, fmt);
		vsnprintf(ep->trouble_text, sizeof(ep->trouble_text), fmt, args);
		va_end(args);
		atomic_store(&ep->trouble, err);
	}
	shunt_mutex_unlock(&ep->lock);
	shunt_tcp_tell(ep);
}

void shunt_tcp_wake_writers(struct tcp_endpoint *ep, uint64_t n)
{
	for (uint32_t i = 1; n && i <= ep->pace.open && i < ep->nsockets; i++)
		if (atomic_load(&ep->socket[i].writable)) { /* else an edge wakes it */
			shunt_tcp_load_wake(&ep->socket[i].load);
			n--;
		}
}

void shunt_tcp_close_sockets(struct tcp_endpoint *ep)
{
	for (uint32_t i = 0; i < TCP_MAX_SOCKETS; i++) {
		struct tcp_socket *s = &ep->socket[i];

		shunt_tcp_load_take(&s->load, s->fd);
		shunt_net_device_close_socket(&ep->device->base, &s->fd);
		s->state = TCP_CLOSED;
		s->writable = s->readable = s->receiving = false;
		s->memory = NULL;
	}
}

void shunt_tcp_leave_state(struct tcp_endpoint *ep)
{
	if (ep->state == TCP_JOINING)
		ep->device->njoining--;
	if (ep->state == TCP_CONNECTED)
		ep->device->nconnected--;
}

void shunt_tcp_fail(struct tcp_endpoint *ep, int err, const char *fmt, ...)
{
	int n;
	va_list args;

	if (ep->state == TCP_DEAD)
		return;
	shunt_tcp_leave_state(ep);
	ep->state = TCP_DEAD;
	ep->base.err = err;
	n = snprintf(ep->base.text, sizeof(ep->base.text), "%s (%s): ", ep->base.name,
	    *ep->where ? ep->where : "address not known");
	va_start(args, fmt);
	if (n > 0 && (size_t)n < sizeof(ep->base.text))
		vsnprintf(ep->base.text + n, sizeof(ep->base.text) - (size_t)n, fmt, args);
	va_end(args);
	shunt_tcp_close_sockets(ep);
	shunt_tcp_queue(ep);
}
