/* SPDX-License-Identifier: MIT */
/* An endpoint's place in the device's queue, its jobs, and its death, for all other files. */
#include <stdarg.h>
#include <stdio.h>
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

bool shunt_tcp_submit(struct tcp_endpoint *ep, struct tcp_job *job)
{
	bool submitted = ep->device->workers && shunt_tcp_workers_submit(ep->device->workers, job);

	ep->njobs += submitted;
	return submitted;
}

bool shunt_tcp_take(struct tcp_endpoint *ep, struct tcp_job *job)
{
	bool taken = shunt_tcp_job_take(job);

	ep->njobs -= taken;
	return taken;
}

void shunt_tcp_close_sockets(struct tcp_endpoint *ep)
{
	for (uint32_t i = 0; i < TCP_MAX_SOCKETS; i++) {
		struct tcp_socket *s = &ep->socket[i];

		if (ep->njobs) {
			shunt_tcp_job_cancel(ep->device->workers, &s->read_job);
			shunt_tcp_job_cancel(ep->device->workers, &s->write_job);
		}
		shunt_net_device_close_socket(&ep->device->base, &s->fd);
		s->state = TCP_CLOSED;
		s->readable = s->writable = s->receiving = false;
		s->memory = NULL;
	}
	ep->njobs = 0;
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
