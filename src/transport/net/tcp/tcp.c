/* SPDX-License-Identifier: MIT */
/* The provider "tcp": its table, its devices and memory, and progress. tcp_priv.h says what the other files have. */
#include "transport/net/tcp/tcp.h"
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/config.h"
#include "base/fd.h"
#include "base/inet/socket.h"
#include "base/io.h"
#include "base/rlimits.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/net/tcp/tcp_priv.h"

#define MAX_EVENTS 64
#define LEAST_DATA_SOCKETS 4u

/* ---- devices */

/* SHUNT_SOCKETS, or NCCL's two variables, of which each is 1 where only the other is set. */
static uint32_t count_data_sockets(uint32_t nworkers)
{
	const struct shunt_nccl_env *env = shunt_nccl_env();
	int64_t n = shunt_config()->sockets, threads = env->socket_nthreads, each = env->nsocks_perthread;

	if (n < 0 && (threads > 0 || each > 0))
		n = (threads > 0 ? threads : 1) * (each > 0 ? each : 1);
	if (n < 0)
		n = nworkers > LEAST_DATA_SOCKETS ? nworkers : LEAST_DATA_SOCKETS;
	return n > TCP_MAX_DATA_SOCKETS ? TCP_MAX_DATA_SOCKETS : (uint32_t)n;
}

static void device_close(struct shunt_net_device *net_device)
{
	struct tcp_device *device = tcp_device_of(net_device);

	if (!device)
		return;
	for (size_t i = 0; i < TCP_STRANGERS; i++)
		shunt_tcp_stranger_drop(device, &device->stranger[i]);
	shunt_tcp_workers_stop(device->workers);
	shunt_close_watched(device->base.epoll_fd, &device->news_fd);
	shunt_close_watched(device->base.epoll_fd, &device->listen_fd);
	shunt_net_device_finish(&device->base);
	shunt_mutex_destroy(&device->lock);
	free(device->slot);
	free(device);
}

static void device_halt(struct shunt_net_device *net_device)
{
	shunt_tcp_workers_halt(tcp_device_of(net_device)->workers);
}

static int open_descriptors(struct tcp_device *device)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.ptr = &device->timer };
	int err = shunt_net_device_init(&device->base, &event);

	return err ? err : shunt_tcp_listen(device);
}

static void take_edges(struct tcp_socket *s, uint32_t edges)
{
	bool in = edges & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR);

	s->readable |= in && !s->at_end;
	s->hangup |= (edges & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
	if (edges & (EPOLLOUT | EPOLLERR | EPOLLHUP))
		s->writable = true;
}

/* Goes on with a data socket, on its thread. True: there was something to do. */
static bool carry(struct tcp_load *load)
{
	/* NOLINTNEXTLINE(bugprone-casting-through-void): it is a member of that struct */
	struct tcp_socket *s = (struct tcp_socket *)(void *)((char *)load - offsetof(struct tcp_socket, load));
	bool any;

	take_edges(s, load->edges);
	load->edges = 0;
	if (s->failed)
		return false;
	any = shunt_tcp_receive(s);
	return shunt_tcp_send_pieces(s) || any;
}

static int start_threads(struct tcp_device *device, uint32_t n)
{
	/* Edges: nobody reads its count. */
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.ptr = &device->news_watch };

	device->news_fd = SHUNT_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (device->news_fd < 0 || epoll_ctl(device->base.epoll_fd, EPOLL_CTL_ADD, device->news_fd, &event))
		return -errno;
	return shunt_tcp_workers_start(n, carry, &device->workers);
}

/* Without them the device's own thread carries all. */
static void start_workers(struct tcp_device *device, uint32_t n)
{
	int err = n && device->data_sockets ? start_threads(device, n) : 0;

	if (err)
		shunt_warn(
		    "SHUNT_SOCKET_THREADS: %u threads cannot be started: %s; large messages over tcp take longer", n,
		    shunt_error_text(err).s);
}

static int device_open(int index, struct shunt_net_device **device_p)
{
	struct tcp_device *device = calloc(1, sizeof(*device));
	uint32_t nworkers = shunt_tcp_workers_wanted();
	int err;

	if (!device)
		return -ENOMEM;
	shunt_mutex_init(&device->lock, SHUNT_LOCK_PIECES);
	device->base.epoll_fd = device->base.timer_fd = device->listen_fd = device->news_fd = -1;
	device->listener.kind = TCP_WATCH_LISTENER;
	device->news_watch.kind = TCP_WATCH_NEWS;
	device->timer.kind = TCP_WATCH_TIMER;
	device->timer_at = SHUNT_NEVER;
	device->queue_end = &device->queue;
	device->data_sockets = count_data_sockets(nworkers);
	for (size_t i = 0; i < TCP_STRANGERS; i++)
		device->stranger[i].fd = -1;
	err = shunt_tcp_device_address(index, &device->addr);
	if (!err)
		err = open_descriptors(device);
	if (err) {
		shunt_error("network interface %s (device %d of tcp) cannot be used: %s", device->addr.ifname, index,
		    shunt_error_text(err).s);
		device_close(&device->base);
		return err;
	}
	start_workers(device, nworkers);
	*device_p = &device->base;
	return 0;
}

/* ---- endpoints */

static void endpoint_free(struct tcp_endpoint *ep)
{
	for (uint32_t i = 0; i < TCP_MAX_SOCKETS; i++)
		free(ep->socket[i].in);
	free(ep->put);
	free(ep->signal);
	free(ep->large);
	shunt_net_endpoint_finish(&ep->base);
	shunt_mutex_destroy(&ep->lock);
	free(ep);
}

static int endpoint_create(struct shunt_net_device *net_device, const struct shunt_net_peer *peer,
    struct shunt_net_endpoint **endpoint_p, struct shunt_net_blob *blob_p)
{
	struct tcp_device *device = tcp_device_of(net_device);
	struct tcp_endpoint *ep = calloc(1, sizeof(*ep));
	int err = -ENOMEM;

	if (ep) {
		shunt_mutex_init(&ep->lock, SHUNT_LOCK_PIECES);
		ep->put = calloc(TCP_MAX_PUTS, sizeof(*ep->put));
		err = shunt_net_endpoint_init(&ep->base, peer);
		err = !err && ep->put ? shunt_random(&ep->id, sizeof(ep->id)) : -ENOMEM;
	}
	if (err) {
		shunt_error(
		    "no connection to %s can be made: %s", peer->name ? peer->name : "a peer", shunt_error_text(err).s);
		if (ep)
			endpoint_free(ep);
		return err;
	}
	ep->id |= 1; /* 0 is nobody's */
	ep->device = device;
	ep->pace.open = 1;
	/* Small puts do not use them, and each is a connection that must be made. */
	ep->data_sockets = peer->largest && peer->largest <= shunt_tcp_small(device) ? 0 : device->data_sockets;
	for (uint32_t i = 0; i < TCP_MAX_SOCKETS; i++)
		ep->socket[i] =
		    (struct tcp_socket){ .watch.kind = TCP_WATCH_SOCKET, .endpoint = ep, .fd = -1, .index = i };
	ep->next = device->endpoints;
	device->endpoints = ep;
	shunt_tcp_blob(ep, blob_p);
	*endpoint_p = &ep->base;
	return 0;
}

static void endpoint_finish(struct shunt_net_endpoint *endpoint)
{
	struct tcp_endpoint *ep = tcp_endpoint_of(endpoint);

	ep->finished = true;
	shunt_tcp_queue(ep);
}

static bool end_is_out(const struct shunt_net_endpoint *endpoint)
{
	return ((const struct tcp_endpoint *)endpoint)->end_sent;
}

static void endpoint_close(struct shunt_net_endpoint *endpoint)
{
	struct tcp_endpoint *ep = tcp_endpoint_of(endpoint);
	struct tcp_endpoint **link;
	struct tcp_device *device;

	if (!ep)
		return;
	device = ep->device;
	shunt_tcp_leave_state(ep);
	shunt_tcp_close_sockets(ep);
	for (link = &device->endpoints; *link != ep; link = &(*link)->next)
		;
	*link = ep->next;
	for (link = &device->queue; *link && *link != ep; link = &(*link)->queue_next)
		;
	if (*link) {
		*link = ep->queue_next;
		if (!*link)
			device->queue_end = link;
	}
	endpoint_free(ep);
}

/* ---- progress */

static void take_event(struct tcp_device *device, const struct epoll_event *event)
{
	struct tcp_watch *watch = event->data.ptr;

	switch (watch->kind) {
	case TCP_WATCH_LISTENER:
		device->listener_readable = true;
		break;
	case TCP_WATCH_TIMER: {
		uint64_t turns;
		ssize_t n = read(device->base.timer_fd, &turns, sizeof(turns));

		(void)n;
		device->timer_at = 0; /* it is set anew */
		break;
	}
	case TCP_WATCH_NEWS:
		break; /* they are looked for anyway */
	case TCP_WATCH_STRANGER:
		/* NOLINTNEXTLINE(bugprone-casting-through-void): each watch is the first member of its struct */
		((struct tcp_stranger *)(void *)watch)->readable |= (event->events & ~(uint32_t)EPOLLOUT) != 0;
		break;
	case TCP_WATCH_SOCKET: {
		/* NOLINTNEXTLINE(bugprone-casting-through-void): as above */
		struct tcp_socket *s = (struct tcp_socket *)(void *)watch;

		take_edges(s, event->events);
		shunt_tcp_queue(s->endpoint);
		break;
	}
	}
}

static void work(struct tcp_endpoint *ep)
{
	if (ep->state == TCP_CREATED || ep->state == TCP_JOINING)
		shunt_tcp_join(ep);
	if (ep->state != TCP_CONNECTED)
		return;
	shunt_tcp_receive(&ep->socket[0]);
	shunt_tcp_send(ep);
	for (uint32_t i = 1; i < shunt_tcp_own_sockets(ep); i++)
		carry(&ep->socket[i].load);
	shunt_tcp_count_done(ep);
	if (atomic_load(&ep->trouble))
		shunt_tcp_fail(ep, atomic_load(&ep->trouble), "%s", ep->trouble_text);
}

/* The next thing that an endpoint has to tell. */
static bool next_event(struct tcp_endpoint *ep, struct shunt_net_event *event)
{
	*event = (struct shunt_net_event){ .endpoint = &ep->base, .user = ep->base.user };
	if (ep->error_told)
		return false;
	if (ep->state == TCP_CONNECTED && !ep->ready_told) {
		ep->ready_told = true;
		event->kind = SHUNT_NET_READY;
		return true;
	}
	if (ep->ready_told && ep->puts_done) {
		event->kind = SHUNT_NET_PUT_DONE;
		event->count = ep->puts_done;
		ep->puts_done = 0;
		return true;
	}
	if (ep->ready_told && shunt_tcp_signal_due(ep)) {
		struct tcp_signal signal = shunt_tcp_signal_take(ep);

		event->kind = SHUNT_NET_SIGNAL;
		event->channel = signal.channel;
		event->count = signal.count;
		return true;
	}
	if (ep->ready_told && !ep->end_told && shunt_tcp_ended(ep)) {
		ep->end_told = true;
		event->kind = SHUNT_NET_END;
		return true;
	}
	if (ep->state == TCP_DEAD) {
		ep->error_told = true;
		event->kind = SHUNT_NET_ERROR;
		event->err = ep->base.err;
		event->text = ep->base.text;
		return true;
	}
	return false;
}

static bool has_more(const struct tcp_endpoint *ep)
{
	if (ep->error_told)
		return false;
	if (ep->state == TCP_DEAD || ep->puts_done || (ep->state == TCP_CONNECTED && !ep->ready_told) ||
	    shunt_tcp_signal_due(ep) || (!ep->end_told && shunt_tcp_ended(ep)))
		return true;
	return shunt_tcp_can_send(ep) || shunt_tcp_can_receive(ep);
}

static struct tcp_endpoint *unqueue(struct tcp_device *device)
{
	struct tcp_endpoint *ep = device->queue;

	if (!ep)
		return NULL;
	device->queue = ep->queue_next;
	if (!device->queue)
		device->queue_end = &device->queue;
	ep->queued = false;
	return ep;
}

/* Queues the endpoints of which sockets' threads tell. */
static void hear_news(struct tcp_device *device)
{
	if (atomic_load_explicit(&device->armed, memory_order_relaxed))
		atomic_store(&device->armed, false);
	if (!atomic_load_explicit(&device->news, memory_order_relaxed) || !atomic_exchange(&device->news, false))
		return;
	for (struct tcp_endpoint *ep = device->endpoints; ep; ep = ep->next)
		if (atomic_exchange(&ep->news, false))
			shunt_tcp_queue(ep);
}

static int progress(struct shunt_net_device *net_device, struct shunt_net_event *events, int max)
{
	struct tcp_device *device = tcp_device_of(net_device);
	struct epoll_event edges[MAX_EVENTS];
	int nedges = epoll_wait(device->base.epoll_fd, edges, MAX_EVENTS, 0), n = 0;
	struct tcp_endpoint *last, *ep;

	for (int i = 0; i < nedges; i++)
		take_event(device, &edges[i]);
	if (device->workers)
		hear_news(device);
	if (device->listener_readable || device->nstrangers)
		shunt_tcp_strangers(device);
	last = NULL;
	for (ep = device->queue; ep; ep = ep->queue_next)
		last = ep;
	/* Works on each endpoint once: those with more to do queue up behind `last`. */
	while (last && (ep = unqueue(device))) {
		work(ep);
		while (n < max && next_event(ep, &events[n]))
			n++;
		if (has_more(ep))
			shunt_tcp_queue(ep);
		if (ep == last)
			break;
	}
	shunt_tcp_time(device);
	return n;
}

static bool arm(struct shunt_net_device *net_device)
{
	struct tcp_device *device = tcp_device_of(net_device);

	atomic_store(&device->armed, true); /* before the look for news */
	return !device->queue && !atomic_load(&device->news) && (!device->listener_readable || device->accept_at);
}

const struct shunt_net_ops shunt_net_tcp_ops = {
	.name = "tcp",
	.tells_deaths = true,
	.blob_bytes = sizeof(struct tcp_blob),
	.devices = shunt_tcp_devices,
	.open = device_open,
	.close = device_close,
	.halt = device_halt,
	.mem_register = shunt_tcp_mem_register,
	.mem_deregister = shunt_tcp_mem_deregister,
	.mem_remote = shunt_tcp_mem_remote,
	.endpoint_create = endpoint_create,
	.endpoint_connect = shunt_tcp_connect,
	.post = shunt_tcp_post,
	.finish = endpoint_finish,
	.end_is_out = end_is_out,
	.endpoint_close = endpoint_close,
	.progress = progress,
	.arm = arm,
	.fd = shunt_net_device_fd,
};
