/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include "base/fd.h"
#include "base/log.h"
#include "transport/net/verbs/verbs_priv.h"

/* 0 or -errno. */
static int watch(const struct verbs_device *device, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) ||
	        epoll_ctl(device->base.epoll_fd, EPOLL_CTL_ADD, fd, &event) ?
	    -errno :
	    0;
}

int verbs_wait_add(const struct verbs_device *device, const struct verbs_rail *rail)
{
	int err;

	/* The kernel keeps queue pairs, and registered memory, as long as any process has the NIC open. */
	shunt_fd_note(rail->context->cmd_fd);
	shunt_fd_note(rail->context->async_fd);
	shunt_fd_note(rail->channel->fd);
	err = watch(device, rail->channel->fd);

	return err ? err : watch(device, rail->context->async_fd);
}

/* Not left to the library that closes it: a forked child may hold a copy. */
static void unwatch(const struct verbs_device *device, int fd)
{
	(void)epoll_ctl(device->base.epoll_fd, EPOLL_CTL_DEL, fd, NULL);
	shunt_fd_forget(fd);
}

void verbs_wait_remove(const struct verbs_device *device, const struct verbs_rail *rail)
{
	if (rail->channel)
		unwatch(device, rail->channel->fd);
	if (rail->context) {
		unwatch(device, rail->context->async_fd);
		shunt_fd_forget(rail->context->cmd_fd);
	}
}

static void fail_all(struct verbs_device *device, const char *what)
{
	for (unsigned i = 0; i < device->nslots; i++)
		if (device->slots[i])
			verbs_fail(device->slots[i], -EIO, "the NIC reports: %s", what);
}

/* Fails the endpoint if one of its lanes has this QP. */
static void fail_lane(struct verbs_endpoint *ep, const struct shunt_ibv_qp *qp, int err, const char *what)
{
	for (int i = 0; i < ep->nlanes; i++)
		if (ep->lane[i].qp == qp)
			verbs_lane_fail(ep, &ep->lane[i], err, "the NIC reports: %s", what);
}

static void one_event(
    struct verbs_device *device, const struct verbs_rail *rail, const struct shunt_ibv_async_event *event)
{
	char number[32];
	const char *what = number;

	snprintf(number, sizeof(number), "event %d", event->event_type);
	if (device->ibv->event_type_str)
		what = device->ibv->event_type_str(event->event_type);
	switch (event->event_type) {
	case SHUNT_IBV_EVENT_CQ_ERR:
	case SHUNT_IBV_EVENT_DEVICE_FATAL:
		fail_all(device, what);
		break;
	case SHUNT_IBV_EVENT_QP_FATAL:
	case SHUNT_IBV_EVENT_QP_REQ_ERR:
	case SHUNT_IBV_EVENT_QP_ACCESS_ERR:
		for (unsigned i = 0; i < device->nslots; i++)
			if (device->slots[i])
				fail_lane(device->slots[i], event->element.qp,
				    event->event_type == SHUNT_IBV_EVENT_QP_ACCESS_ERR ? -EACCES : -EIO, what);
		break;
	case SHUNT_IBV_EVENT_PORT_ERR:
		/* The NIC sends again until the port is back, or the retries are over. */
		if (event->element.port_num == rail->port->number)
			shunt_warn("%s has no link any more (%s): connections end if it does not come back",
			    rail->port->info.where, what);
		break;
	case SHUNT_IBV_EVENT_PORT_ACTIVE:
		if (event->element.port_num == rail->port->number)
			shunt_info(SHUNT_LOG_NET, "%s has its link again", rail->port->info.where);
		break;
	default:
		shunt_info(SHUNT_LOG_NET, "%s: %s", rail->port->info.where, what);
		break;
	}
}

void verbs_async(struct verbs_device *device)
{
	struct shunt_ibv_async_event event;

	for (int i = 0; i < device->nrails; i++)
		while (!device->ibv->get_async_event(device->rail[i].context, &event)) {
			one_event(device, &device->rail[i], &event);
			/* Destroying the object that the event names waits for this. */
			device->ibv->ack_async_event(&event);
		}
}

void verbs_disarm(struct verbs_device *device)
{
	struct shunt_ibv_cq *cq;
	void *user;

	device->armed = false;
	for (int i = 0; i < device->nrails; i++)
		while (!device->ibv->get_cq_event(device->rail[i].channel, &cq, &user))
			device->ibv->ack_cq_events(cq, 1);
	verbs_async(device);
}

/* The first deadline of all endpoints, or when idle peers are looked for, for the kernel. */
static void set_timer(struct verbs_device *device)
{
	int64_t first = device->next_beat ? device->next_beat : 1;

	for (unsigned i = 0; device->timed && i < device->nslots; i++) {
		const struct verbs_endpoint *ep = device->slots[i];

		if (ep && ep->deadline && ep->deadline < first)
			first = ep->deadline;
	}
	shunt_net_device_set_timer(&device->base, first);
}

/* Arms the rail's completion queues. False: the NIC refuses. */
static bool arm_queues(struct verbs_device *device, const struct verbs_rail *rail)
{
	for (int i = 0; i < rail->ncqs; i++)
		if (rail->context->req_notify_cq(rail->cqs[i].cq, 0))
			return false;
	/* Completions from before this have no event. */
	for (int i = 0; i < rail->ncqs; i++)
		if (rail->context->poll_cq(rail->cqs[i].cq, 1, &device->stash[device->nstash]) > 0)
			device->nstash++;
	return true;
}

bool verbs_arm(struct shunt_net_device *net_device)
{
	struct verbs_device *device = verbs_device_of(net_device);
	const struct verbs_flush *f = &device->flush;

	if (device->touched || device->nstash || f->first < f->seen || (f->first < f->last && !f->reading))
		return false;
	verbs_disarm(device);
	if (device->attention)
		return false;
	for (int i = 0; i < device->nrails; i++)
		if (!arm_queues(device, &device->rail[i]))
			return false;
	if (device->nstash)
		return false;
	set_timer(device);
	device->armed = true;
	return true;
}
